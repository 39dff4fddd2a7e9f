"""Checkpoint time and changelog bytes for each batch, with the kills marked."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # needs no screen; must be chosen before pyplot is imported

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from benchmarks.demo.events import Committed
from benchmarks.demo.story import Story

INK, GREY, BLUE, ORANGE, SAND, RED = "#222222", "#d9d9d9", "#2b6cb0", "#dd8427", "#f3d3a4", "#c53030"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": GREY,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
HEADROOM = 1.25  # above the data, for the names of the acts


def draw(story: Story, path: Path) -> None:
    """Write the picture to `path`. Batches are counted from 1, as in the progress bar."""
    events = [story.batches[batch] for batch in sorted(story.batches)]
    with plt.rc_context(STYLE):
        figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(10, 5.8), layout="constrained")
        _draw_times(events, above)
        _draw_bytes(events, below)
        _mark_kills(story, above, below)
        below.set_xlim(0, story.days + 1)
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.suptitle(_title(story), x=0.008, ha="left", color=INK, fontsize=11)
        figure.savefig(path, dpi=130)
        plt.close(figure)


def _title(story: Story) -> str:
    rows = sum(event.rows for event in story.batches.values())
    return f"{rows:,} flights in {story.days} micro-batches, killed {len(story.recoveries)} times"


def _draw_times(events: list[Committed], axes: Axes) -> None:
    batches, milliseconds = [event.batch + 1 for event in events], [event.info.seconds * 1000 for event in events]
    typical = statistics.median(milliseconds)
    axes.axhline(typical, color=BLUE, linewidth=0.8, alpha=0.5, label=f"median {typical:.1f} ms")
    axes.plot(batches, milliseconds, ".", color=BLUE, markersize=4)
    axes.set_ylabel("checkpoint, ms")
    axes.set_yscale("log")  # a few are ten times the others
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(min(milliseconds) / HEADROOM, max(milliseconds) * HEADROOM**2)
    axes.legend(loc="upper left")


def _draw_bytes(events: list[Committed], axes: Axes) -> None:
    batches = [event.batch + 1 for event in events]
    changelog = [event.changelog_bytes / 1024 for event in events]
    commits = [(event.info.primary_bytes - event.changelog_bytes) / 1024 for event in events]
    labels = ("changelog (also in the local copy)", "commit object")
    axes.stackplot(batches, changelog, commits, step="mid", colors=(ORANGE, SAND), labels=labels)
    axes.set_ylabel("to the primary, KiB")
    axes.set_xlabel("batch (one day of flights)")
    axes.set_ylim(0, max(event.info.primary_bytes for event in events) / 1024 * HEADROOM)
    axes.legend(loc="upper left", ncols=2)


def _mark_kills(story: Story, named: Axes, other: Axes) -> None:
    for recovery in story.recoveries:
        batch = recovery.killed_at + 1
        for axes in (named, other):
            axes.axvline(batch, color=RED, linewidth=1, linestyle=(0, (4, 3)))
        named.annotate(
            recovery.act.title,
            xy=(batch, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            color=RED,
            fontsize=8,
        )
