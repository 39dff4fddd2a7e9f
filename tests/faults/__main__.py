"""Every N-th operation fails: `python -m tests.faults --step 7 --only "sweep, heap"`, or `nox -s faults`.

Of every request to the primary and of every file operation, each in every way: some 20,000 runs; `--step 7` takes every
seventh. One that is broken is printed with its case and number: `--only CASE --first N` repeats it.
"""

import argparse
import logging
import os
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from tests.faults.file_operations import FileCase, file_cases, run_file_cases
from tests.faults.operations import Case, cases, run_case
from tests.proof.record import ProofRecord, record_of, write_record

BROKEN: Final = "BROKEN"
PLACES: Final = {
    "local": "file operation in a local root",
    "primary": "file operation in a primary that is a directory",
    "tables": "file operation in the directory of the tables",
}
Row = tuple[str, Counter[str], str]
"""The case, how often it came out how, and what is wrong, if anything."""


def run_row(case: Case | FileCase, first: int, step: int) -> Row:
    """All operations of one case."""
    logging.disable(logging.NOTSET if isinstance(case, FileCase) else logging.CRITICAL)  # of files, the log is judged
    try:
        if isinstance(case, FileCase):
            return str(case), run_file_cases(case, first=first, step=step), ""
        return str(case), run_case(case, first=first, step=step), ""
    except BaseException as error:  # noqa: BLE001  # told by the parent
        return str(case), Counter({BROKEN: 1}), "".join(traceback.format_exception(error))


def record(rows: Sequence[Row], command: str, seconds: float) -> ProofRecord:
    """One line for each kind of operation: how many failed, and what came of it."""
    by_kind: dict[str, Counter[str]] = {}
    for case, outcomes, _ in rows:
        by_kind.setdefault(case.partition(",")[0], Counter()).update(outcomes)
    return record_of(
        command,
        seconds=seconds,
        broken=sum(found[BROKEN] for found in by_kind.values()),
        head=("operation", "failed", "went on all the same", "errors, all on the page of errors"),
        table=[
            (PLACES.get(kind, kind), _failed(found), found["success"], _errors(found))
            for kind, found in sorted(by_kind.items())
        ],
        notes=[f"In all {sum(map(_failed, by_kind.values())):,} failures, in {len(rows):,} cases."],
    )


def _failed(outcomes: Counter[str]) -> int:
    return outcomes.total() - outcomes[BROKEN]


def _errors(outcomes: Counter[str]) -> str:
    named = [f"{name} {count:,}" for name, count in outcomes.most_common() if name not in ("success", BROKEN)]
    return ", ".join(named) or "none"


def main() -> None:
    """Exit status 1 if anything is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose description contains this")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    chosen = [case for case in (*cases(), *file_cases()) if arguments.only in str(case)]
    rows: list[Row] = []
    begun = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run_row, case, arguments.first, arguments.step) for case in chosen]
        for done in as_completed(running):
            rows.append(done.result())
            case, outcomes, wrong = rows[-1]
            print(f"{len(rows):>4} of {len(chosen)}  {case}: {outcomes.total():,}", wrong, flush=True)
    only = f' --only "{arguments.only}"' if arguments.only else ""
    command = f"nox -s faults -- --first {arguments.first} --step {arguments.step}{only}"
    found = record([row.result() for row in running], command, time.monotonic() - begun)
    print(*found.lines(), sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, found)
    raise SystemExit(bool(found.broken))


if __name__ == "__main__":
    main()
