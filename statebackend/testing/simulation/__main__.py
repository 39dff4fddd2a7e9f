"""`python -m statebackend.testing.simulation --seeds 10000`: runs many seeds and reports the broken ones.

At the end it says which events have happened, in how many of the runs, and which have never met. With `--record FILE`
runs add up: without `--first` one goes on behind the last seed that is recorded there.
"""

import argparse
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from statebackend._clock import SystemClock
from statebackend.testing.record import (
    PIECES_HEAD,
    ProofRecord,
    SeedPiece,
    current_commit,
    joined,
    pieces_of,
    read_record,
    record_of,
    write_record,
)
from statebackend.testing.simulation import BrokenError, simulate
from statebackend.testing.simulation.coverage import Coverage

STEP = 100
"""Seeds between two lines of progress."""


def run_seeds(first: int, count: int) -> tuple[int, Sequence[str], Coverage]:
    """Run these seeds; return their number of commits, the errors of the broken ones, and what has happened."""
    logging.disable(logging.CRITICAL)  # the weather is bad on purpose: its warnings are noise
    commits, broken, coverage = 0, list[str](), Coverage()
    for seed in range(first, first + count):
        try:
            run = simulate(seed)
        except BrokenError as error:
            broken.append(str(error))
        else:
            commits += run.commits
            coverage.note(seed, run.trace)
    return commits, broken, coverage


def print_trace(seed: int) -> None:
    """Run one seed, printing its trace and then its error, if any."""
    try:
        trace, verdict = simulate(seed).trace, f"seed {seed} is sound"
    except BrokenError as error:
        trace, verdict = error.trace, str(error)
    print(*trace, verdict, sep="\n")


def main() -> None:
    """Run the given seeds. Exit status 1 if one is broken."""
    parser = argparse.ArgumentParser(prog="python -m statebackend.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="print the trace of the first seed, and stop")
    parser.add_argument("--record", type=Path, metavar="FILE", help="add what came of it to what is there")
    arguments = parser.parse_args()
    if (seed := os.environ.get("STATEBACKEND_SEED")) is not None or arguments.trace:
        print_trace(arguments.first or 0 if seed is None else int(seed))
        return
    before = recorded(arguments.record)
    first = max((piece.end for piece in before), default=0) if arguments.first is None else arguments.first
    tree = current_commit()
    joined(before, SeedPiece(tree, first, arguments.seeds, 0, 0))  # refuses what was run already, before it is run
    starts = range(first, first + arguments.seeds, STEP)
    counts = [min(STEP, first + arguments.seeds - start) for start in starts]
    commits, done, broken, coverage = 0, 0, list[str](), Coverage()
    begun_s = SystemClock().monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for count, (made, found, happened) in zip(counts, pool.map(run_seeds, starts, counts), strict=True):
            commits, done = commits + made, done + count
            broken += found
            coverage.update(happened)
            print(f"{done:>7,} of {arguments.seeds:,} seeds, {commits:,} commits, {len(broken)} broken", flush=True)
    print(*coverage.table(), *broken, sep="\n")
    run = SeedPiece(tree, first, done, commits, len(broken))
    record = in_all(before, run, SystemClock().monotonic() - begun_s)
    print(*record.lines(), sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, record)
    raise SystemExit(1 if broken else 0)


def recorded(path: Path | None) -> Sequence[SeedPiece]:
    """The seeds that are recorded there; none if nothing is."""
    return pieces_of(read_record(path)) if path is not None and path.exists() else []


def in_all(before: Sequence[SeedPiece], run: SeedPiece, seconds: float) -> ProofRecord:
    """The record of this run and of those before it. Its command, day and time are those of this run."""
    pieces = joined(before, run)
    seeds, trees = sum(piece.seeds for piece in pieces), len({piece.tree for piece in pieces})
    return record_of(
        f"nox -s simulation -- --first {run.first} --seeds {run.seeds}",
        seconds=seconds,
        broken=sum(piece.broken for piece in pieces),
        head=PIECES_HEAD,
        table=[msgspec.structs.astuple(piece) for piece in pieces],
        notes=(f"In all {seeds:,} seeds on {trees:,} trees. The command and the time are those of the last run.",),
    )


if __name__ == "__main__":
    main()
