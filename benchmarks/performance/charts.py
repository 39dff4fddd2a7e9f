"""Charts as SVG, one for each table that has a course. Readable on light and on dark, and without colour.

By matplotlib, which draws the demo's picture, too: logarithmic axes, legends and text as text. A file depends on the
figures and on matplotlib's release alone.
"""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")  # needs no screen; must be chosen before pyplot is imported

import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter

from benchmarks.performance.tables import find
from benchmarks.results import MeasuredRecord, Result

INK: Final = "#808080"
OURS: Final = ("columns", "heap", "in memory", "over runs", "RocksDB", "statebackend", "value state")
"""How our own contestants' names begin: their lines are solid, their bars are coloured."""
COLOURS: Final = (
    "#0a84c1", "#d8761b", "#2a9d6f", "#c9528f", "#8a7a00", "#7b61d1", "#b0413e", "#5f7f8f", "#a06a3c", "#6f9e3f",
)  # fmt: skip
MARKS: Final = "osD^vPX<>h"
STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.25,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "statebackend",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
COURSES: Final[Sequence[tuple[str, str, str, str, Mapping[str, object]]]] = (
    ("milliseconds", "upserts", "a batch", "milliseconds of a batch", {}),
    ("megabytes", "upserts", "written for a batch", "MB written for a batch", {}),
    ("spark", "spark", "a batch on Spark", "milliseconds of a batch on Spark", {"zipf": True}),
    ("python", "spark", "a batch on Spark, Python APIs", "milliseconds of a batch on Spark", {}),
    ("checkpoint", "checkpoint", "a checkpoint", "milliseconds of a checkpoint", {}),
    ("recovery", "recovery", "recovery after SIGKILL", "seconds to the first value", {}),
    ("size-batches", "size", "a batch by size, uniform", "milliseconds of a batch", {}),
    ("size-opening", "size", "first value after SIGKILL by size", "seconds to the first value", {}),
)
"""The charts over the number of keys: file, benchmark, contest, the name of the other axis, and sizes."""
BARS: Final = (
    ("kills", "kills", "rows counted twice", "rows counted twice"),
    ("parallelism", "spark", "rows a second", "rows a second"),
)


def draw(results: Sequence[Result], directory: Path) -> Iterator[Path]:
    """Draw what there are results for, and return the files. Raises `ValueError` if labels overlap."""
    directory.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):
        for name, benchmark, what, axis, at in COURSES:
            if found := find(results, benchmark, what, **at):
                yield _saved(_course(found, axis), directory / f"{name}.svg")
        for name, benchmark, what, axis in BARS:
            if found := find(results, benchmark, what):
                yield _saved(_bars(found[0], axis), directory / f"{name}.svg")


def _course(found: Sequence[MeasuredRecord], axis: str) -> Any:
    """Figures over the number of keys, both axes logarithmic, with the least and the most of all rounds."""
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    lines: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for each in sorted(found, key=lambda each: float(each.at["keys"])):
        for contestant, rounds in each.rounds.items():
            lines.setdefault(contestant, []).append((float(each.at["keys"]), rounds))
    for number, (contestant, points) in enumerate(lines.items()):
        middle = [statistics.median(rounds) for _, rounds in points]
        axes.errorbar(
            [keys for keys, _ in points],
            middle,
            yerr=[
                [value - min(rounds) for value, (_, rounds) in zip(middle, points, strict=True)],
                [max(rounds) - value for value, (_, rounds) in zip(middle, points, strict=True)],
            ],
            label=contestant,
            **_look(number, is_ours=contestant.startswith(OURS)),
        )
    axes.set(xscale="log", yscale="log", xlabel="keys in the state", ylabel=axis)
    sizes = sorted({float(each.at["keys"]) for each in found})
    axes.xaxis.set(major_locator=FixedLocator(sizes))
    axes.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_formatter=NullFormatter())
    axes.xaxis.set(major_formatter=EngFormatter(sep=""), minor_formatter=NullFormatter())  # 20M beside 60M has room
    axes.yaxis.set(major_formatter=_plainly(), minor_formatter=NullFormatter())
    handles, labels = axes.get_legend_handles_labels()
    from_above = sorted(range(len(labels)), key=lambda at: -statistics.median(lines[labels[at]][-1][1]))
    figure.legend(
        [handles[at] for at in from_above], [labels[at] for at in from_above], loc="outside right upper", fontsize=9
    )
    return figure


def _bars(found: MeasuredRecord, axis: str) -> Any:
    names = list(reversed(found.rounds))
    values = [statistics.median(found.rounds[name]) for name in names]
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.45 * len(names)), layout="constrained")
    colours = [COLOURS[0] if name.startswith(OURS) else INK for name in names]
    bars = axes.barh(names, values, color=colours, height=0.6)
    axes.bar_label(bars, labels=[f"{value:,.0f}" for value in values], padding=4, color=INK)
    axes.margins(x=0.15)
    axes.set_xlabel(axis)
    axes.xaxis.set_major_formatter(_plainly())
    axes.grid(visible=False, axis="y")
    return figure


def _look(number: int, *, is_ours: bool) -> Mapping[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKS[number % len(MARKS)],
        "linestyle": "-" if is_ours else "--",
        "capsize": 2,
        "linewidth": 2 if is_ours else 1.2,
    }


def _plainly() -> FuncFormatter:
    """Numbers as a page has them: 10,000 and 0.5."""
    return FuncFormatter(lambda value, _: f"{value:,.10g}")


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        labels = [label for label in axis.get_ticklabels() if label.get_text()]
        for one, other in itertools.pairwise(labels):
            if one.get_window_extent().overlaps(other.get_window_extent()):
                raise ValueError(f"{path.name}: the labels {one.get_text()} and {other.get_text()} overlap")
    return path
