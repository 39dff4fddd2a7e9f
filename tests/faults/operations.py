"""Every N-th request to the primary fails: run one of them, or all."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from statebackend.errors import StateBackendError
from statebackend.testing import Fail, run_virtual
from tests.faults.job import IMPATIENT, Job, check_known
from tests.faults.scenarios import SCENARIOS

FAILURES: Final[Mapping[str, Callable[[int], Fail]]] = {
    "once": lambda nth: Fail(nth=nth),
    "for ever": lambda nth: Fail(nth=nth, onwards=True),
    "answer lost": lambda nth: Fail(nth=nth, moment="after"),
    "all answers lost": lambda nth: Fail(nth=nth, moment="after", onwards=True),
}
WAIT_S_MAX: Final = 3600.0
"""Virtual seconds after which an operation is taken to wait for ever. Patient ones wait for a primary for minutes."""


@dataclass(frozen=True)
class Case:
    """One row of the table. `patient`: with the usual retries; otherwise nothing is tried twice."""

    scenario: str
    table: str
    copies: bool
    failure: str
    patient: bool = False

    def __str__(self) -> str:
        words = [self.scenario, self.table, *["copies"] * self.copies, self.failure, *["patient"] * self.patient]
        return ", ".join(words)


def cases() -> Iterator[Case]:
    """Every one."""
    for scenario in SCENARIOS:
        for table in ("heap", "rocksdb"):
            for copies in (False, True):
                for failure in FAILURES:
                    for patient in (False, True):
                        yield Case(scenario, table, copies, failure, patient)


@run_virtual
async def run(case: Case, nth: int, directory: Path) -> str:
    """Let the `nth` request fail, and judge what is left. Return the error's name, "success", or "" if there were fewer
    requests.
    """
    scenario = SCENARIOS[case.scenario]
    patience: Mapping[str, Any] = {} if case.patient else IMPATIENT
    job = Job(directory, table=case.table, copies=case.copies, **{**patience, **scenario.settings})
    await scenario.prepare(job)
    fault = FAILURES[case.failure](nth)
    job.strike(fault)
    outcome, begun = "success", anyio.current_time()
    try:
        await scenario.act(job)
    except StateBackendError as error:
        check_known(error)
        outcome = type(error).__name__
    assert anyio.current_time() - begun < WAIT_S_MAX, "it has waited for too long"
    await job.recover()
    return outcome if fault.matched >= nth else ""


def run_case(case: Case, *, first: int = 1, step: int = 1) -> Counter[str]:
    """Requests `first`, `first + step`, ... until the scenario makes fewer. Return how often it came out how."""
    outcomes = Counter[str]()
    nth = first
    while True:
        with tempfile.TemporaryDirectory(prefix="faults-") as directory:
            try:
                outcome = run(case, nth, Path(directory))
            except BaseException as error:
                error.add_note(f"request {nth} of: {case}")
                raise
        if not outcome:
            return outcomes
        outcomes[outcome] += 1
        nth += step
