"""`python -m tests.explore`, or `nox -s explore`: visits all interleavings, and breaks the library to see it found.

Each scenario of real code is visited breadth first, up to `--states`; then the ledger; then each planted break must be
found; then Spin visits the model in Promela, and must find each rule that is left out. `--short` takes small scenarios.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.servers import ServerError
from tests.explore import spin
from tests.explore.rows import HEAD, Row, break_it, check_break, check_scenario, explore, explore_ledger
from tests.explore.scenarios import LARGE, LONG_MUTANTS, MUTANTS, SMALL
from tests.proof.record import record_of, write_record

SHORT_SPIN = 2
"""So many of Spin's scenarios and breaks belong to the short form."""


def rows(pool: ProcessPoolExecutor, arguments: argparse.Namespace) -> Iterator[Row]:
    """All of it, in the order of the table."""
    short, states_max = arguments.short, arguments.states
    asked = [pool.submit(explore, short, place, states_max) for place in range(len(SMALL if short else LARGE))]
    asked.append(pool.submit(explore_ledger, 3_000 if short else states_max // 5))
    breaks = len(MUTANTS) + (0 if short else len(LONG_MUTANTS))
    asked += [pool.submit(break_it, place, states_max) for place in range(breaks)]
    cut = SHORT_SPIN if short else None
    asked += [pool.submit(check_scenario, name) for name in list(spin.SCENARIOS)[:cut]]
    asked += [pool.submit(check_break, place) for place in range(len(spin.BREAKS[:cut]))]
    for each in asked:
        try:
            yield each.result()
        except ServerError as error:
            print(f"NOT CHECKED by Spin: {error}", file=sys.stderr)
            return


def main() -> None:
    """Exit status 1 if anything is violated, or if a break is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("--states", type=int, default=500_000, help="most states of one scenario")
    parser.add_argument("--short", action="store_true", help="small scenarios only, in seconds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    arguments = parser.parse_args()
    begun, table = time.monotonic(), list[Row]()
    with ProcessPoolExecutor(
        arguments.jobs,
        max_tasks_per_child=1,  # memory: of one scenario
        initializer=logging.disable,
        initargs=(logging.WARNING,),
    ) as pool:
        for row in rows(pool, arguments):
            table.append(row)
            print(*row, sep=" | ", flush=True)
    bad = [row for row in table if row[-1].startswith(("VIOLATED", "NOT"))]
    record = record_of(
        f"nox -s explore -- {'--short' if arguments.short else f'--states {arguments.states}'}",
        seconds=time.monotonic() - begun,
        broken=len(bad),
        head=HEAD,
        table=table,
        notes=_notes(table),
    )
    print(*record.lines(), *record.notes, sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, record)
    raise SystemExit(1 if bad else 0)


def _notes(table: Sequence[Row]) -> list[str]:
    sums = {by: sum(row[2] for row in table if row[1] == by and "broken" not in row[0]) for by in ("real code", "Spin")}
    if not sums["Spin"]:
        return [f"{sums['real code']:,} states of real code. Spin was missing: its part was not run."]
    return [f"In all {sums['real code']:,} distinct states of real code and {sums['Spin']:,} of the model in Promela."]


if __name__ == "__main__":
    main()
