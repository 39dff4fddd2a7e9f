"""All interleavings of small scenarios hold the invariants, and a break of each invariant is found by one of them.

`nox -s explore` visits larger ones, and lets Spin visit the model in Promela.
"""

import pytest

from tests.explore.judging import INVARIANTS
from tests.explore.ledger import RELEASED, LedgerModel
from tests.explore.processes import Processes
from tests.explore.protocol import Protocol, Scenario
from tests.explore.scenarios import MUTANTS, SMALL, Mutant
from tests.explore.search import visit
from tests.explore.spin import BREAKS

STATES_MAX = 20_000


@pytest.mark.parametrize("scenario", SMALL, ids=lambda each: each.name)
def test_every_order_of_requests_holds_the_invariants(scenario: Scenario) -> None:
    """To its end: nothing of it is left out."""
    with Processes() as processes:
        seen = visit(Protocol(scenario, processes), states_max=STATES_MAX)
    assert seen.broken is None, "\n".join(seen.trace)
    assert seen.complete
    assert seen.states > 100


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.what)
def test_a_break_of_the_library_is_found(mutant: Mutant) -> None:
    """By the invariant that it violates, with the shortest way there."""
    with mutant.applied(), Processes() as processes:
        seen = visit(Protocol(mutant.scenario, processes), states_max=STATES_MAX)
    assert seen.broken is not None
    assert seen.broken.invariant == mutant.invariant
    assert len(seen.trace) > 5


def test_every_invariant_is_broken_once_in_the_code_and_once_in_the_model() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == set(INVARIANTS)
    assert {invariant for invariant, _, _ in BREAKS} == set(INVARIANTS)


def test_the_ledger_deletes_nothing_that_is_wanted() -> None:
    seen = visit(LedgerModel(), states_max=500)
    assert seen.broken is None, "\n".join(seen.trace)


def test_a_ledger_that_forgets_who_wants_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebackend._changelog.ledger.Ledger._is_wanted", lambda *_: False)
    seen = visit(LedgerModel(), states_max=10_000)
    assert seen.broken is not None
    assert seen.broken.invariant == RELEASED
