"""`python -m tests.simulation --seeds 10000`: runs many seeds and reports the broken ones.

At the end it says which events have happened, in how many of the runs, and which have never met. With `--record FILE`
runs add up: without `--first` one goes on behind the last seed that is recorded there.
"""

import argparse
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from statebackend.abc.clock import SystemClock
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
from tests.simulation.coverage import Coverage
from tests.simulation.world import BrokenError, simulate

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
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
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
    first = max((piece.end for piece in pieces_of(before)), default=0) if arguments.first is None else arguments.first
    asked = SeedPiece(current_commit(), first, arguments.seeds, 0, 0)
    joined(pieces_of(before), asked)  # refuses what was run, before it is run
    begun_s, record, errors, coverage = SystemClock().monotonic(), before, list[str](), Coverage()
    for run, found, happened in run_piece(asked, arguments.jobs):
        errors += found
        coverage.update(happened)
        print(f"{run.seeds:>7,} of {asked.seeds:,} seeds, {run.commits:,} commits, {run.broken} broken", flush=True)
        record = in_all(before, run, coverage, SystemClock().monotonic() - begun_s)
        if arguments.record is not None:  # now: a run that is ended early has not been in vain
            write_record(arguments.record, record)
    print(*coverage.table(), *errors, *(record.lines() if record else ()), sep="\n")
    raise SystemExit(1 if errors else 0)


def run_piece(asked: SeedPiece, jobs: int) -> Iterator[tuple[SeedPiece, Sequence[str], Coverage]]:
    """Run these seeds: after each step the piece that was run by now, and the errors and the events of the step."""
    starts = range(asked.first, asked.end, STEP)
    counts = [min(STEP, asked.end - start) for start in starts]
    run = SeedPiece(asked.tree, asked.first, 0, 0, 0)
    with ProcessPoolExecutor(jobs) as pool:
        steps = pool.map(run_seeds, starts, counts)
        for start, count, (commits, errors, happened) in zip(starts, counts, steps, strict=True):
            run = run.with_next(SeedPiece(asked.tree, start, count, commits, len(errors)))
            yield run, errors, happened


def recorded(path: Path | None) -> ProofRecord | None:
    """The record that is there, if one of seeds is."""
    found = read_record(path) if path is not None and path.exists() else None
    return found if found is not None and found.head == PIECES_HEAD else None


def in_all(before: ProofRecord | None, run: SeedPiece, coverage: Coverage, seconds: float) -> ProofRecord:
    """The record of this run and of those before it. Its command, day and time are those of this run."""
    pieces = joined(pieces_of(before), run)
    together = Coverage({} if before is None else before.met)
    together.update(coverage)
    seeds, trees = sum(piece.seeds for piece in pieces), len({piece.tree for piece in pieces})
    return record_of(
        f"nox -s simulation -- --first {run.first} --seeds {run.seeds}",
        seconds=seconds,
        broken=sum(piece.broken for piece in pieces),
        head=PIECES_HEAD,
        table=[msgspec.structs.astuple(piece) for piece in pieces],
        notes=(
            f"In all {seeds:,} runs of {distinct_seeds(pieces):,} different seeds, on {trees:,} trees of the sources.",
            "The command, the day and the time are those of the last piece.",
        ),
        met=together.met,
    )


if __name__ == "__main__":
    main()
