"""Columns in memory and over runs, as the state grows: opening after SIGKILL, batches with checkpoints, own memory.

    python -m benchmarks size                                             10,000 to 20,000,000 keys, ten minutes
    python -m benchmarks size.largest                                     60,000,000 keys, over runs alone
    python -m benchmarks size --sizes keys=100000,batches=5,rounds=1      in half a minute

Set `TMPDIR` to a directory on a disk, with 20 GB for 20,000,000 keys and 40 for the largest. A process writes all keys,
some at a time, and then ten checkpoints of 50,000 rows, and kills itself. The next ones are measured from before they
open the job until they have read a key. Then come, at each size and for each table,

    batches    of 33,000 distinct keys, and by Zipf's law, each with its checkpoint, once pages were read
    memory     of its own, where a million rows fit into the overlay
    a budget   of a quarter of what the bases take, by a cgroup for all of the process, as in a small container, with
               files that are not cached at first
    merging    behind batches that go on, of as many rows as there are keys, if they are not too many
    a fit      the same batches in memory, with `state_memory_bytes` that have room for all rows and without

Envelope. In memory 20,000,000 keys open in 8.6 s and take 1.7 GB, a batch 24 ms. Over runs an opening reads the heads
of segments and the tail: 0.5 s whatever the size. A page is copied in 0.9 us, and proved in 1.3 when it is new: 31,000
of them are 70 ms at first, and 30 once they are proved, beside 15 to look in them, and what a batch takes in memory.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.jobs import directory
from benchmarks.size.limited import forget_files, limited
from benchmarks.size.process import Figures, figures_of

SIZES: Final = (10_000, 100_000, 1_000_000, 2_000_000, 20_000_000)
IN_MEMORY_MAX: Final = 20_000_000
FITS_MAX: Final = 1_000_000
PRESSED_MIN: Final = 20_000_000
"""Below, the process itself takes most of a quarter of the state."""
ROW_BYTES: Final = 52
"""Of a key in a base."""
TABLES: Final = {"in memory": "heap", "over runs": "runs"}
RUNS: Final = "over runs"


def run(report: Report, *, keys: int = 0, batches: int = 20, rounds: int = 2, pressed_s: int = 30) -> None:
    """Each figure of both tables, at each size or at `keys`."""
    for count in (keys,) if keys else SIZES:
        measure(report, count, batches, rounds, pressed_s)


def measure(report: Report, keys: int, batches: int, rounds: int, pressed_s: int) -> None:
    """Each figure at one size."""
    tables = {name: table for name, table in TABLES.items() if table == "runs" or keys <= IN_MEMORY_MAX}
    with directory() as folder:
        of = {name: partial(figures_of, folder=folder / name, table=table, keys=keys) for name, table in tables.items()}
        filled = {name: each("fill") for name, each in of.items()}
        changes = dict[str, float]()

        def first_value(name: str) -> float:
            found = of[name]("open")
            changes[name] = found["changes"][0]
            return found["s"][0]

        turns = {name: partial(first_value, name) for name in of}
        opened = report.contest("first value after SIGKILL by size", "s", turns, rounds=rounds, keys=keys)
        what = f"first value after SIGKILL, {changes[RUNS]:,.0f} changes of tail, {keys:,} keys"
        _add(report, opened[RUNS], what, "s", 0.5)
        _batches(report, {name: each("batches", number=batches) for name, each in of.items()}, keys)
        _memory(report, {name: each("memory") for name, each in of.items()}, keys)
        _pressed(report, folder / RUNS, keys, pressed_s)
        _merging(report, filled[RUNS], of[RUNS]("churn"), keys)
        if keys <= FITS_MAX and len(of) > 1:
            _fits(report, of, keys, batches, rounds)


def _fits(report: Report, of: Mapping[str, Callable[..., Figures]], keys: int, batches: int, rounds: int) -> None:
    """The same job with a bound of its memory and without, in turns."""
    figures: dict[str, list[float]] = {name: [] for name in of}
    for _ in range(rounds):
        for name, each in of.items():
            figures[name] += each("fits", number=batches)["uniform"]
    found = {name: Sample(each) for name, each in figures.items()}
    report.keep("a batch where all rows fit in memory", "ms", found, keys=keys)
    what = f"batch where all rows fit in memory, with state_memory_bytes to without, {keys:,} keys"
    _add(report, _over(found), what, "x", 1.05)


def _batches(report: Report, found: dict[str, Figures], keys: int) -> None:
    for what in ("uniform", "zipf"):
        samples = {name: Sample(figures[what]) for name, figures in found.items()}
        report.keep(f"a batch by size, {what}", "ms", samples, keys=keys)
        for name, sample in samples.items():
            print(f"  a batch with its checkpoint, {what}, {keys:,} keys, {name}: {sample} ms", flush=True)
        if what == "uniform":
            _add(report, samples[RUNS], f"batch of 33,000 with its checkpoint, uniform, {keys:,} keys", "ms", 40)
        elif len(samples) > 1:
            _add(
                report,
                _over(samples),
                f"batch with its checkpoint, zipf, over runs to in memory, {keys:,} keys",
                "x",
                1.5,
            )


def _memory(report: Report, found: dict[str, Figures], keys: int) -> None:
    memory = {name: Sample(figures["MB"]) for name, figures in found.items()}
    report.keep("own memory by size", "MB", memory, keys=keys)
    _add(report, memory[RUNS], f"own memory, room for 1,000,000 rows in the overlay, {keys:,} keys", "MB", 300)


def _pressed(report: Report, folder: Path, keys: int, pressed_s: int) -> None:
    if keys < PRESSED_MIN:
        return
    with limited(keys * ROW_BYTES // 4) as group:
        if group is None:
            report.skip("a quarter of the state as memory: this process may not make a cgroup")
            return
        forget_files(folder)
        try:
            found = figures_of("pressed", folder, "runs", keys, pressed_s, group=group)
        except MemoryError:
            found = {}
    killed = Sample([float(not found)])
    _add(report, killed, f"killed in a cgroup of a quarter of the state, {pressed_s} s, {keys:,} keys", "times", 0)
    if not found:
        return
    for what, limit in (("uniform", 700), ("zipf", 200)):
        sample = Sample(found[what])
        report.keep(f"a batch in a quarter of the state, {what}", "ms", {RUNS: sample}, keys=keys)
        _add(
            report,
            sample,
            f"batch in a cgroup of a quarter of the state, {what}, {pressed_s} s, {keys:,} keys",
            "ms",
            limit,
        )


def _merging(report: Report, filled: Figures, churned: Figures, keys: int) -> None:
    for when, figures in (("while the state is written", filled), ("behind batches", churned)):
        changes, log, merged, seconds = (
            figures[name][0] for name in ("changes", "log bytes", "merged bytes", "merged s")
        )
        if merged:
            millions = merged / ROW_BYTES / 1e6
            _add(report, Sample([seconds / millions]), f"merging a million rows {when}, {keys:,} keys", "s", 0.25)
        if changes:
            amplified = Sample([(log + merged) / (changes * ROW_BYTES)])
            _add(report, amplified, f"bytes written over bytes changed {when}, {keys:,} keys", "x", 12)
    more = Sample([churned["MB at most"][0] - churned["MB"][0]])
    _add(report, more, f"own memory beside merging, above that before, {keys:,} keys", "MB", 200)
    if churned["beside"] and churned["alone"]:
        beside, alone = Sample(churned["beside"]), Sample(churned["alone"])
        report.keep("a batch beside merging", "ms", {"beside": beside, "alone": alone}, keys=keys)
        slower = Sample([beside.median / alone.median])
        _add(report, slower, f"batch beside merging to alone ({len(beside.figures)} of them), {keys:,} keys", "x", 1.2)


def _over(samples: dict[str, Sample]) -> Sample:
    return ratio(Sample([samples[RUNS].median]), Sample([samples["in memory"].median]))


def _add(report: Report, sample: Sample, claim: str, unit: str, limit: float) -> None:
    report.add(Line(claim, f"at most {limit:g} {unit}", sample.median, unit, limit, detail=f"{sample} {unit}"))
