"""`python -m tests.mutants`, or `nox -s mutants`: plants each mutant, and says by which invariant it was noticed.

Fails if a mutant survives, if it is noticed by others than its own invariant alone, if a named invariant has no mutant,
or if the source that a mutant changes is no longer there. Each runs in a process of its own. `--taken-back` plants what
was mended once, for drawn programs to find.
"""

import argparse
import importlib
import multiprocessing
import multiprocessing.connection
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants.hunting import Kill, hunt
from tests.mutants.library import MUTANTS, without_mutant
from tests.mutants.of_programs import TAKEN_BACK
from tests.mutants.planting import Mutant, StaleError

PRELOADED = ("pyarrow", "numpy", "anyio", "msgspec", "hypothesis.stateful")


class Outcome(NamedTuple):
    """The fate of a mutant: the kill that counts, and by what else it was noticed before. `seconds`: of CPU."""

    mutant: Mutant
    kill: Kill | None = None
    others: tuple[str, ...] = ()
    stale: str = ""
    seconds: float = 0.0

    @property
    def is_killed(self) -> bool:
        """True if its own invariant has noticed it."""
        return self.kill is not None

    def row(self, commit: str = "") -> tuple[str, str, str, str, int, int, str | int, int, str]:
        """For a table. `commit`: of the sources that were broken."""
        mutant = self.mutant
        told = self.stale or ("SURVIVED" if self.kill is None else self.kill.at)
        room = mutant.module.removeprefix("statebackend.")
        by, seconds = f"`{mutant.invariant}`", round(self.seconds)
        return mutant.name, f"`{room}`", mutant.hunter, by, mutant.first, mutant.tries, told, seconds, commit


HEAD = (
    *("mutant", "planted in", "hunted by", "noticed by"),
    *("first seed", "tries at most", "tries that it took", "seconds of CPU", "commit"),
)


def run(mutant: Mutant) -> Outcome:
    """Plant it in this process."""
    begun, others = time.process_time(), list[str]()
    try:
        for kill in hunt(mutant):
            if kill.invariant == mutant.invariant:
                return Outcome(mutant, kill, tuple(others), "", time.process_time() - begun)
            if kill.invariant not in others:
                others.append(kill.invariant)
    except StaleError as error:
        return Outcome(mutant, stale=f"STALE: {error}")
    except TimeoutError:
        others.append("hangs")
    return Outcome(mutant, None, tuple(others), "", time.process_time() - begun)


def _run_and_tell(mutant: Mutant, to: Any) -> None:
    to.send(run(mutant))


def outcomes_of(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Plant each in a process of its own, `jobs` at a time. They come as they end."""
    context = multiprocessing.get_context("fork")
    waiting, under_way = deque(mutants), dict[Any, tuple[Mutant, Any]]()
    while waiting or under_way:
        while waiting and len(under_way) < jobs:
            mutant = waiting.popleft()
            mine, its = context.Pipe(duplex=False)
            process = context.Process(target=_run_and_tell, args=(mutant, its))
            process.start()
            its.close()
            under_way[mine] = mutant, process
        for mine in multiprocessing.connection.wait(list(under_way)):
            mutant, process = under_way.pop(mine)
            try:
                yield mine.recv()  # type: ignore[union-attr]
            except EOFError:
                yield Outcome(mutant, stale="its process has died")
            process.join()


def main() -> None:
    """Plant those that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", action="append", help="those with this text in their name, invariant or hunter; may be given again"
    )
    parser.add_argument("--taken-back", action="store_true", help="mends, for programs, in place of the mutants")
    parser.add_argument("--from", dest="begin", type=int, default=0, help="leave out so many")
    parser.add_argument("--tries-max", type=int, default=10**6, help="no more tries for each of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, metavar="FILE", help="put what came of each there, as soon as it ends")
    arguments = parser.parse_args()
    for name in PRELOADED:
        importlib.import_module(name)
    mutants = TAKEN_BACK if arguments.taken_back else MUTANTS
    chosen = [
        each._replace(tries=min(each.tries, arguments.tries_max))
        for each in mutants[arguments.begin :]
        if any(only in text for only in arguments.only or [""] for text in (each.name, each.invariant, each.hunter))
    ]
    outcomes, begun_s = list[Outcome](), time.monotonic()
    for outcome in outcomes_of(chosen, arguments.jobs):
        outcomes.append(outcome)
        print(*outcome.row(), outcome.others or "", sep=" | ", flush=True)
        if outcome.kill is not None:
            print("   ", outcome.kill.error[:160].replace("\n", " "), flush=True)
        if arguments.record is not None:  # in a process of its own: this one must not import the library
            putting = multiprocessing.get_context("fork").Process(
                target=_put, args=(arguments.record, outcome, mutants)
            )
            putting.start()
            putting.join()
    print(*_record([outcome.row() for outcome in outcomes], time.monotonic() - begun_s, mutants).notes, sep="\n")
    failures = found_wrong(outcomes, is_whole=len(chosen) == len(MUTANTS) and not arguments.taken_back)
    print(*failures, sep="\n")
    raise SystemExit(1 if failures else 0)


def _put(path: Path, outcome: Outcome, mutants: Sequence[Mutant]) -> None:
    """Put its row into the record, in the place of an older one of that mutant; those that are gone leave it."""
    recording = importlib.import_module("tests.proof.record")
    before = recording.read_record(path).table if path.exists() else ()
    rows = {row[0]: row for row in (*before, outcome.row(recording.current_commit())) if len(row) == len(HEAD)}
    rows = [rows[each.name] for each in mutants if each.name in rows]
    recording.write_record(path, _record(rows, sum(row[7] for row in rows), mutants))


def _record(rows: Sequence[Any], seconds: float, mutants: Sequence[Mutant]) -> Any:
    """The record of these rows. The library is imported only here: no mutant is planted any more."""
    killed = [row for row in rows if isinstance(row[6], int)]
    is_taken_back = mutants is TAKEN_BACK
    told = f"{len(killed)} of {len(rows)} mutants were noticed, by {len({row[3] for row in killed})} invariants"
    others = "were not planted"
    if is_taken_back:
        told = f"{len(killed)} of {len(rows)} mends that were taken back were found"
        others = "have not had all of their tries"
    return importlib.import_module("tests.proof.record").record_of(
        "nox -s mutants -- --taken-back" if is_taken_back else "nox -s mutants",
        seconds=seconds,
        broken=len(rows) - len(killed),
        head=HEAD,
        table=rows,
        notes=[f"{told}; {len(mutants) - len(rows)} others {others}. The time is that of the processors."],
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
