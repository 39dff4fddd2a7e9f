"""Many programs: `python -m tests.programs --seeds 1000`, or `nox -s programs`.

At the end it says which pairs of traits have met, and how many slips were made. With `--record FILE` runs add up:
without `--first` one goes on behind the last seed that is recorded there. `--show SEED` shrinks one that fails, and
prints it as code. `--pairs` runs nothing: it says which pairs meet in the seeds as they are drawn now.
"""

import argparse
import logging
import os
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from tests.programs.drawing import draw
from tests.programs.pairs import Pairs
from tests.programs.program import Batch, Program
from tests.programs.real_spark import OnSpark
from tests.programs.running import run
from tests.programs.shrinking import shrunk
from tests.programs.slips import MADE
from tests.proof.record import (
    PIECES_HEAD,
    ProofRecord,
    SeedPiece,
    current_commit,
    distinct_seeds,
    joined,
    pieces_of,
    read_record,
    record_of,
    write_record,
)
from tests.spark.conftest import build_session

STEP = 25
"""Seeds between two lines of progress."""
DAEMON = "tests.programs.spark_daemon"


class Found(msgspec.Struct, frozen=True):
    """A seed that fails: how, in a form that is the same for the same cause, and what the error says."""

    seed: int
    cause: str
    text: str


def failure_of(program: Program) -> Exception | None:
    """What a program raises, if anything."""
    try:
        run(program)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was looked for
        return error
    return None


def cause_of(error: Exception) -> str:
    """The same for failures that have the same cause, as far as can be told."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    first_line = next(iter(str(error).splitlines()), "")
    return (
        f"{type(error).__name__} in {Path(last.filename).name}:{last.name}: {re.sub(r'[0-9]+|[(].*', '', first_line)}"
    )


class Seen:
    """What came of programs: which fail, which pairs have met, which slips were made, and how many batches they had."""

    def __init__(self) -> None:
        self.batches = 0
        self.broken: list[Found] = []
        self.pairs = Pairs()
        self.slips = Counter[tuple[str, bool]]()

    def note(self, seed: int, program: Program, error: Exception | None) -> None:
        """One that was run now."""
        self.pairs.note(program)
        self.batches += sum(isinstance(step, Batch) for step in program.steps)
        self.slips += MADE
        MADE.clear()
        if error is not None:
            self.broken.append(Found(seed, cause_of(error), str(error)))
            print(f"seed {seed}: {self.broken[-1].cause}\n    {str(error)[:400]}", flush=True)

    def add(self, other: "Seen") -> None:
        self.batches += other.batches
        self.broken += other.broken
        self.pairs.add(other.pairs)
        self.slips += other.slips

    def of_slips(self) -> str:
        """How many were made, and how many of them went through."""
        kinds, silent = len({what for what, _ in self.slips}), sum(self.slips[each] for each in self.slips if each[1])
        return f"{self.slips.total():,} slips of {kinds} kinds were made, and {silent:,} of them ended in silence"


def run_seeds(first: int, count: int) -> Seen:
    """Run these seeds, and tell of those that fail."""
    logging.disable(logging.CRITICAL)  # what goes wrong goes wrong on purpose
    seen = Seen()
    for seed in range(first, first + count):
        program = draw(seed)
        seen.note(seed, program, failure_of(program))
    return seen


def pairs_in(first: int, count: int) -> Pairs:
    """The pairs that meet in these seeds, as they are drawn now; none is run."""
    pairs = Pairs()
    for seed in range(first, first + count):
        pairs.note(draw(seed))
    return pairs


def show(seed: int) -> None:
    """Shrink a seed that fails; print it and its error."""
    program = draw(seed)
    if (error := failure_of(program)) is None:
        print(f"seed {seed} is sound")
        return
    cause = cause_of(error)
    program = shrunk(program, lambda each: (found := failure_of(each)) is not None and cause_of(found) == cause)
    print(program.code())
    print(*traceback.format_exception(failure_of(program) or error))


def on_spark(asked: SeedPiece, record: Path | None) -> None:
    """Run these seeds on a real session. Exit status 1 if one is broken."""
    writing, seen = Writing(asked, record, "--spark"), Seen()
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        spark = build_session(Path(folder, "warehouse"), {"spark.python.daemon.module": DAEMON})
        for seed in range(asked.first, asked.end):
            program, found = draw(seed), None
            try:
                OnSpark(program, Path(folder, str(seed)), spark).run()
            except Exception as error:  # noqa: BLE001  # as in `failure_of`
                found = error
            shutil.rmtree(Path(folder, str(seed)), ignore_errors=True)
            seen.note(seed, program, found)
            writing.write(seen, seed + 1)
        spark.stop()
    writing.end(seen)


class Writing:
    """A run of these seeds that is under way: tells how far it is, and adds it to a record."""

    def __init__(self, asked: SeedPiece, record: Path | None, option: str = "--seeds") -> None:
        self._asked, self._record, self._option = asked, record, option
        self._begun_s = time.monotonic()
        self._before = recorded(record)
        self._drawn = Pairs()
        for piece in pieces_of(self._before):
            self._drawn.add(pairs_in(piece.first, piece.seeds))

    def write(self, seen: Seen, end: int) -> None:
        """All seeds below `end` were run. The record has them now: a run that is ended early has not been in vain."""
        asked, broken = self._asked, len(seen.broken)
        print(f"{end - asked.first:>7,} of {asked.seeds:,} seeds, {broken} broken", flush=True)
        if self._record is not None:
            run = SeedPiece(asked.tree, asked.first, end - asked.first, seen.batches, broken)
            drawn = Pairs()
            drawn.add(self._drawn)
            drawn.add(seen.pairs)
            notes = (f"In the last piece, whose command, day and time these are, {seen.of_slips()}.", of_pairs(drawn))
            seconds = time.monotonic() - self._begun_s
            write_record(self._record, in_all(self._before, run, notes, seconds, self._option))

    def end(self, seen: Seen) -> None:
        """Tell what came of it. Exit status 1 if one is broken."""
        seconds = time.monotonic() - self._begun_s
        print(*seen.pairs.lines(), seen.of_slips(), *by_cause(seen.broken), f"{seconds:.0f} s", sep="\n")
        raise SystemExit(1 if seen.broken else 0)


def main() -> None:
    """Run the seeds. Exit status 1 if one is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, metavar="SEED", help="shrink a seed that fails, and stop")
    parser.add_argument("--spark", type=int, metavar="N", help="run so many on a real session of Spark, and stop")
    parser.add_argument("--pairs", action="store_true", help="count which pairs meet in the seeds, and run none")
    parser.add_argument("--record", type=Path, metavar="FILE", help="add what came of it to what is there")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.show is not None:
        show(arguments.show)
        return
    if arguments.pairs:
        print(*pairs_in(arguments.first or 0, arguments.seeds).lines(longest=1000), sep="\n")
        return
    before = pieces_of(recorded(arguments.record))
    first = max((piece.end for piece in before), default=0) if arguments.first is None else arguments.first
    asked = SeedPiece(current_commit(), first, arguments.spark or arguments.seeds, 0, 0)
    joined(before, asked)  # refuses what was run, before it is run
    if arguments.spark is not None:
        on_spark(asked, arguments.record)
        return
    writing, seen = Writing(asked, arguments.record), Seen()
    starts = range(asked.first, asked.end, STEP)
    counts = [min(STEP, asked.end - start) for start in starts]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for start, count, found in zip(starts, counts, pool.map(run_seeds, starts, counts), strict=True):
            seen.add(found)
            writing.write(seen, start + count)
    writing.end(seen)


def by_cause(broken: Sequence[Found]) -> Sequence[str]:
    causes: dict[str, list[int]] = {}
    for each in broken:
        causes.setdefault(each.cause, []).append(each.seed)
    ordered = sorted(causes.items(), key=lambda pair: -len(pair[1]))
    return [f"{len(seeds):>5} {cause}: {', '.join(map(str, seeds[:8]))}" for cause, seeds in ordered]


def recorded(path: Path | None) -> ProofRecord | None:
    """The record that is there, if one of seeds is."""
    found = read_record(path) if path is not None and path.exists() else None
    return found if found is not None and found.head == PIECES_HEAD else None


def of_pairs(drawn: Pairs) -> str:
    """For a record: its seeds, as this tree draws them. Those of older pieces were drawn otherwise in part."""
    return f"As all of these seeds are drawn at this commit, {next(iter(drawn.lines()))}."


def in_all(
    before: ProofRecord | None, run: SeedPiece, notes: Iterable[str], seconds: float, option: str
) -> ProofRecord:
    """The record of this run and of those before it. Its command, day, time and notes are those of this run."""
    pieces = joined(pieces_of(before), run)
    seeds, trees = sum(piece.seeds for piece in pieces), len({piece.tree for piece in pieces})
    return record_of(
        f"nox -s programs -- --first {run.first} {option} {run.seeds}",
        seconds=seconds,
        broken=sum(piece.broken for piece in pieces),
        head=PIECES_HEAD,
        table=[msgspec.structs.astuple(piece) for piece in pieces],
        notes=(
            f"In all {seeds:,} runs of {distinct_seeds(pieces):,} different seeds, on {trees:,} trees of the sources.",
            *notes,
        ),
    )


if __name__ == "__main__":
    main()
