"""`python -m tests.mutants`, or `nox -s mutants`: plants each mutant, and says by which invariant it was noticed.

Fails if a mutant survives, if it is noticed by others than its own invariant alone, if a named invariant has no mutant,
or if the source that a mutant changes is no longer there. Each runs in a process of its own.
"""

import argparse
import importlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants.library import MUTANTS, WITHOUT_MUTANT, without_mutant
from tests.mutants.planting import Kill, Mutant, StaleError, hunt

PRELOADED = ("pyarrow", "numpy", "anyio", "msgspec", "hypothesis.stateful")


class Outcome(NamedTuple):
    """The fate of a mutant: the seeds that were tried, the kill that counts, and by what else it was noticed before."""

    mutant: Mutant
    seeds: int
    kill: Kill | None
    others: tuple[str, ...]
    stale: str = ""
    seconds: float = 0.0

    @property
    def is_killed(self) -> bool:
        """True if its own invariant has noticed it."""
        return self.kill is not None

    def row(self) -> tuple[str, str, str, int, str | int]:
        """For a table."""
        told = self.stale or ("SURVIVED" if self.kill is None else self.seeds)
        place = self.mutant.module.removeprefix("statebackend.")
        return self.mutant.name, f"`{place}`", f"`{self.mutant.invariant}`", self.mutant.seeds, told


def run(mutant: Mutant) -> Outcome:
    """Plant it in this process."""
    begun, others, last = time.process_time(), list[str](), mutant.first - 1
    try:
        for kill in hunt(mutant):
            last = kill.seed
            if kill.invariant == mutant.invariant:
                return Outcome(mutant, last - mutant.first + 1, kill, tuple(others), "", time.process_time() - begun)
            if kill.invariant not in others:
                others.append(kill.invariant)
    except StaleError as error:
        return Outcome(mutant, 0, None, (), f"STALE: {error}")
    return Outcome(mutant, mutant.seeds, None, tuple(others), "", time.process_time() - begun)


def main() -> None:
    """Plant those that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those with this text in their name or invariant")
    parser.add_argument("--from", dest="begin", type=int, default=0, help="leave out so many")
    parser.add_argument("--seeds-max", type=int, default=10**6, help="no more seeds for each of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    arguments = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    chosen = [
        each._replace(seeds=min(each.seeds, arguments.seeds_max))
        for each in MUTANTS[arguments.begin :]
        if arguments.only in each.name or arguments.only in each.invariant
    ]
    outcomes, begun_s = list[Outcome](), time.monotonic()
    with multiprocessing.get_context("fork").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for outcome in pool.imap(run, chosen, chunksize=1):
            outcomes.append(outcome)
            print(*outcome.row(), f"{outcome.seconds:.0f} s", outcome.others or "", sep=" | ", flush=True)
            if outcome.kill is not None:
                print("   ", outcome.kill.error[:160])
    record = _record(outcomes, time.monotonic() - begun_s)
    print(*record.lines(), sep="\n")
    if arguments.record is not None:
        importlib.import_module("statebackend.testing.record").write_record(arguments.record, record)
    failures = found_wrong(outcomes, is_whole=len(chosen) == len(MUTANTS))
    print(*failures, sep="\n")
    raise SystemExit(1 if failures else 0)


def _record(outcomes: Sequence[Outcome], seconds: float) -> Any:
    """The record of this run. The library is imported only now: no mutant is planted any more."""
    return importlib.import_module("statebackend.testing.record").record_of(
        "nox -s mutants",
        seconds=seconds,
        broken=sum(not each.is_killed for each in outcomes),
        head=("mutant", "room", "noticed by", "seeds at most", "seeds that it took"),
        table=[each.row() for each in outcomes],
        notes=[f"{name} has no mutant: {why}" for name, why in sorted(WITHOUT_MUTANT.items())],
    )


def found_wrong(outcomes: Sequence[Outcome], *, is_whole: bool) -> list[str]:
    """Mutants that survive, and invariants without a mutant."""
    wrong = [
        f"NOT KILLED: {each.mutant.name}: {each.row()[-1]}, noticed by {each.others}"
        for each in outcomes
        if not each.is_killed
    ]
    if is_whole:
        wrong += [f"NO MUTANT for {name} of {path}" for name, path in without_mutant().items()]
    return wrong


if __name__ == "__main__":
    main()
