"""`python -m statebackend.testing.simulation --seeds 10000`: runs many seeds and reports the broken ones.

At the end it says which events have happened, in how many of the runs, and which have never met.
"""

import argparse
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from statebackend._clock import SystemClock
from statebackend.testing.record import ProofRecord, record_of, write_record
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
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trace", action="store_true", help="print the trace of the first seed, and stop")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    arguments = parser.parse_args()
    if (seed := os.environ.get("STATEBACKEND_SEED")) is not None or arguments.trace:
        print_trace(arguments.first if seed is None else int(seed))
        return
    starts = range(arguments.first, arguments.first + arguments.seeds, STEP)
    counts = [min(STEP, arguments.first + arguments.seeds - start) for start in starts]
    commits, done, broken, coverage = 0, 0, list[str](), Coverage()
    begun_s = SystemClock().monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for count, (made, found, happened) in zip(counts, pool.map(run_seeds, starts, counts), strict=True):
            commits, done = commits + made, done + count
            broken += found
            coverage.update(happened)
            print(f"{done:>7,} of {arguments.seeds:,} seeds, {commits:,} commits, {len(broken)} broken", flush=True)
    print(*coverage.table(), *broken, sep="\n")
    record = _record(arguments.first, done, commits, len(broken), SystemClock().monotonic() - begun_s)
    print(*record.lines(), sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, record)
    raise SystemExit(1 if broken else 0)


def _record(first: int, seeds: int, commits: int, broken: int, seconds: float) -> ProofRecord:
    return record_of(
        f"nox -s simulation -- --first {first} --seeds {seeds}",
        seconds=seconds,
        broken=broken,
        head=("seeds", "first seed", "commits", "seeds that broke an invariant"),
        table=((seeds, first, commits, broken),),
    )


if __name__ == "__main__":
    main()
