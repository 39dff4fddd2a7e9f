"""Cuts the power of a job: `python -m tests.crash --seeds 100 --lives 3 --steps 50`, or `nox -s crash`.

One that is broken is printed with its seed: `--first SEED --seeds 1` repeats it.
"""

import argparse
import logging
import os
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from tests.crash.cuts import TABLES, Count, CutPower
from tests.proof.record import record_of, write_record


def run_seed(seed: int, table: str, lives: int, steps: int, most: int) -> tuple[str, Count, str]:
    """One job; and what is wrong, if anything."""
    logging.disable(logging.CRITICAL)  # torn copies are found and told of, on purpose
    job = CutPower(seed, table, steps=steps, most=most)
    try:
        job.run(lives)
    except BaseException as error:  # noqa: BLE001  # told by the parent
        return table, job.count, "".join(traceback.format_exception(error))
    return table, job.count, ""


def main() -> None:
    """Exit status 1 if anything is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--lives", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50, help="steps of each life after which the power is cut")
    parser.add_argument("--most", type=int, default=4, help="disks built for each of these")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    begun = time.monotonic()
    asked = list(product(range(arguments.first, arguments.first + arguments.seeds), TABLES))
    counts = {table: Counter(Count().as_row()) for table in TABLES}  # in the order of its columns
    broken = Counter[str]()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run_seed, *each, arguments.lives, arguments.steps, arguments.most) for each in asked]
        for (seed, _), future in zip(asked, running, strict=True):
            table, count, wrong = future.result()
            counts[table].update(count.as_row())
            broken[table] += bool(wrong)
            print(f"seed {seed}, {table}: {count.disks} disks", wrong, flush=True)
    found = record_of(
        f"nox -s crash -- --first {arguments.first} --seeds {arguments.seeds} --lives {arguments.lives} "
        f"--steps {arguments.steps} --most {arguments.most}",
        seconds=time.monotonic() - begun,
        broken=broken.total(),
        head=("tables", "jobs", *Count().as_row()),
        table=[(table, arguments.seeds, *counts[table].values()) for table in TABLES],
        notes=[f"In all {sum(each['disks opened and judged'] for each in counts.values()):,} disks after a cut."],
    )
    print(*found.lines(), sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, found)
    raise SystemExit(bool(found.broken))


if __name__ == "__main__":
    main()
