"""Hunts for the mutant that is planted in this process: by the simulation, by one of the models, or by programs.

A hunter tries again and again, and yields a kill for each try that has failed: which it was, and who has noticed it.
"""

import importlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final, NamedTuple, cast

from tests.mutants.planting import ROOT, Hunter, Mutant, noticed_by, plant

CPU_S = 120
"""A mutant that takes longer hangs, and so is found out."""
ROUND = 20
"""Examples of a model between two seeds: what fails ends a round."""
STEPS = 30
KILLED = "tests.mutants.killed"
"""Plants the mutant in processes that are killed."""


class Kill(NamedTuple):
    """At which try, the first is 1, by which `invariant` a mutant was found out, and the error."""

    at: int
    invariant: str
    error: str


def hunt(mutant: Mutant) -> Iterator[Kill]:
    """Plant it, and yield its kills."""
    plant(mutant)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGVTALRM, _hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    _switch_off(mutant.without)
    for number, error in HUNTERS[mutant.hunter](mutant):
        invariant = mutant.invariant if mutant.hunter == "programs" else noticed_by(error)
        yield Kill(number, invariant, f"{type(error).__name__}: {error}")


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("it hangs")


def _switch_off(names: Sequence[str]) -> None:
    places = (
        importlib.import_module("tests.invariants"),
        importlib.import_module("tests.simulation.job").SimulatedJob,
        vars(importlib.import_module("tests.simulation.world"))["_World"],
    )
    for name in names:
        place = next(each for each in places if hasattr(each, name))
        setattr(place, name, _wait_for_nothing if iscoroutinefunction(getattr(place, name)) else _do_nothing)


def _do_nothing(*_: object, **__: object) -> None: ...


async def _wait_for_nothing(*_: object, **__: object) -> None: ...


def _by_simulation(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    simulation = importlib.import_module("tests.simulation.world")
    for number in range(mutant.tries):
        try:
            simulation.simulate(mutant.first + number)
        except simulation.BrokenError as error:
            yield number + 1, error.__cause__ or error


def _by_edits(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    simulate = importlib.import_module("tests.simulation.edits").simulate_edits
    for number in range(mutant.tries):
        try:
            simulate(mutant.first + number)
        except Exception as error:  # noqa: BLE001  # whatever it is, it was noticed
            yield number + 1, _first_of(error)


def _by_models(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    machine = importlib.import_module("tests.models.machine").InMemoryMachine
    yield from _by_machine(mutant, machine)


def _by_runs(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    """A file that is damaged somewhere, many times, on a disk and far away; pages of one; and then a table."""
    refuse = importlib.import_module("tests.runs.test_damaged_runs").refuse_every_flipped_bit
    afar = importlib.import_module("tests.runs.test_damaged_ranges")
    for each in (partial(refuse, step=53), partial(afar.refuse_every_flipped_bit, step=53), afar.compare_with_the_file):
        with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
            try:
                each(Path(directory))
            except AssertionError as error:
                yield 1, error
    yield from _by_machine(mutant, importlib.import_module("tests.runs.test_run_table_model").RunTableMachine)


def _by_lives(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    """A job over runs whose memory is limited, and one of ranges, each by the same seed."""
    of_jobs = importlib.import_module("tests.runs.test_memory_limit").live_with_a_limit
    of_ranges = importlib.import_module("tests.runs.test_ranges_over_runs").live_by_ranges
    for number in range(mutant.tries):
        for live in (of_jobs, of_ranges):
            with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
                try:
                    live(Path(directory), mutant.first + number)
                except Exception as error:  # noqa: BLE001  # as above
                    yield number + 1, _first_of(error)


def _by_machine(mutant: Mutant, machine: Any) -> Iterator[tuple[int, BaseException]]:
    hypothesis = importlib.import_module("hypothesis")
    stateful = importlib.import_module("hypothesis.stateful")
    settings = hypothesis.settings(
        max_examples=ROUND,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    for begun in range(0, mutant.tries, ROUND):
        counted = getattr(machine, "counted", {})
        counted.clear()
        try:
            stateful.run_state_machine_as_test(hypothesis.seed(mutant.first + begun)(machine), settings=settings)
        except Exception as error:  # noqa: BLE001  # whatever it is, it was noticed
            yield begun + min(ROUND, counted.get("examples", ROUND)), _first_of(error)


def _first_of(error: BaseException) -> BaseException:
    """The first of a group: names and sizes differ from run to run, so what fails need not fail again."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[Any]", error).exceptions[0]
    return error


def _by_handover(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    anyio = importlib.import_module("anyio")
    live = importlib.import_module("tests.models.test_handover").live_through_epochs
    for number in range(mutant.tries):
        with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
            try:
                anyio.run(live, Path(directory), Random(mutant.first + number), ["heap"])
            except Exception as error:  # noqa: BLE001  # as above
                yield number + 1, _first_of(error)


def _by_kills(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    """One process after the other is killed: they import the mutant, too."""
    os.environ[KILLED] = mutant.name
    anyio = importlib.import_module("anyio")
    killing_type = importlib.import_module("tests.models.killing").Killing
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        killing = killing_type(Path(directory), mutant.first, ["heap"], preload=(KILLED,))
        try:
            killing.run(mutant.tries)
            anyio.run(killing.check_whole)
        except Exception as error:  # noqa: BLE001  # as above
            yield killing.counted["kills"] + 1, error


def _by_programs(mutant: Mutant) -> Iterator[tuple[int, BaseException]]:
    """Whatever fails counts, if the same program is sound without the mutant, in a process of its own.

    They are run without worker threads, which costs less.
    """
    failure_of = importlib.import_module("tests.programs.__main__").failure_of
    draw = importlib.import_module("tests.programs.drawing").draw
    traits = importlib.import_module("tests.programs.pairs").traits
    without_worker_threads = importlib.import_module("tests.programs.surroundings").without_worker_threads
    for number in range(mutant.tries):
        seed = mutant.first + number
        found = "\n".join(traits(program := draw(seed)))
        if not all(any(each in found for each in need.split(" or ")) for need in mutant.needs):
            continue
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)  # for each of them
        with without_worker_threads():
            error = failure_of(program)
        if error is None:
            continue
        alone = ("--first", str(seed), "--seeds", "1", "--jobs", "1")
        command = (sys.executable, "-m", "tests.programs", *alone)
        if subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0:
            yield number + 1, error


HUNTERS: Final[Mapping[Hunter, Callable[[Mutant], Iterator[tuple[int, BaseException]]]]] = {
    "simulation": _by_simulation,
    "models": _by_models,
    "handover": _by_handover,
    "kills": _by_kills,
    "programs": _by_programs,
    "edits": _by_edits,
    "runs": _by_runs,
    "lives": _by_lives,
}
