"""Long runs: `python -m tests.models --minutes 20 --kills 200`, or `nox -s models`.

First a process is killed so many times. Then examples of the machines are drawn in rounds, one machine after the other,
until the time is over; one that fails is shrunk and printed. By default in as many processes as there are processors.
"""

import argparse
import asyncio
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.models.killing import Killing
from tests.models.machine import InMemoryMachine, Machine, OnDiskMachine, OnTablesMachine
from tests.proof.record import record_of, write_record

ROUND = 20
"""Examples between two signs of life."""

STEPS = 50

MACHINES: tuple[type[Machine], ...] = (InMemoryMachine, OnTablesMachine, InMemoryMachine, OnDiskMachine)


def run_round(number: int) -> tuple[str, Counter[str]]:
    """One machine, as often as a round says. Raises what is wrong, with the example that shows it."""
    logging.disable(logging.CRITICAL)  # what goes wrong goes wrong on purpose
    machine = MACHINES[number % len(MACHINES)]
    machine.counted.clear()
    seeded: Callable[[type[Machine]], type[Machine]] = seed(number)
    begun = time.process_time()
    run_state_machine_as_test(
        seeded(machine),
        settings=settings(
            max_examples=ROUND,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return machine.__name__, machine.counted + Counter({"seconds of CPU": round(time.process_time() - begun)})


async def kill(number: int, kills: int) -> Counter[str]:
    """One job, killed so many times; what came of it is counted. Raises `AssertionError`."""
    with tempfile.TemporaryDirectory(prefix="killed-") as directory:
        killing = Killing(Path(directory), number)
        for begin in range(0, kills, ROUND):
            killing.run(min(ROUND, kills - begin))
            await killing.check_whole()
            print(f"kills with seed {number}: {dict(killing.counted)}", flush=True)
        return killing.counted


def main() -> None:
    """Rounds until the time is over. Ends with the first that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--first", type=int, help="number of the first round, which decides its examples, and of the kills"
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    first = Random().randrange(2**31) if arguments.first is None else arguments.first
    begun = time.monotonic()
    killed = asyncio.run(kill(first, arguments.kills))
    end = time.monotonic() + 60 * arguments.minutes
    total = Counter[str]()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for begin in count(first, arguments.jobs):
            for name, counted in pool.map(run_round, range(begin, begin + arguments.jobs)):
                total += counted
                print(f"round {begin}: {name}: {dict(counted)}", flush=True)
            if time.monotonic() > end:
                break
    print(f"in all: {dict(total)}")
    record = record_of(
        f"nox -s models -- --first {first} --kills {arguments.kills} --minutes {arguments.minutes:g}",
        seconds=time.monotonic() - begun,
        broken=0,  # the first violation ends the run
        head=("of which", "what", "how many"),
        table=[
            (which, what, counted[what])
            for which, counted in (("models", total), ("kills", killed))
            for what in sorted(counted)
        ],
    )
    print(*record.lines(), sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()
