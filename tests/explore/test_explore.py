"""All interleavings of small scenarios hold the invariants, and a break of each invariant is found by one of them.

`nox -s explore` visits larger ones, and lets Spin visit the model in Promela.
"""

from collections.abc import Hashable, Iterator

import pytest

from statebackend._log.names import HINT_KEY
from tests.explore.judging import INVARIANTS
from tests.explore.ledger import RELEASED, LedgerModel
from tests.explore.processes import Processes
from tests.explore.protocol import Protocol, Scenario, State
from tests.explore.scenarios import MUTANTS, RACE, SMALL, SMALL_AGAIN, SMALL_OPENING, Mutant
from tests.explore.search import visit
from tests.explore.spin import BREAKS

pytestmark = pytest.mark.usefixtures("quiet")
STATES_MAX = 20_000


@pytest.mark.parametrize("scenario", SMALL, ids=lambda each: each.name)
def test_every_order_of_requests_holds_the_invariants(scenario: Scenario) -> None:
    """To its end: nothing of it is left out."""
    with Processes() as processes:
        seen = visit(Protocol(scenario, processes), states_max=STATES_MAX)
    assert seen.broken is None, "\n".join(seen.trace)
    assert seen.complete
    assert seen.states > 100


class _Ends(Protocol):
    """Notes in which states nothing more can happen: the log, what was acknowledged, and the hint."""

    def steps(self, state: State) -> Iterator[tuple[Hashable, State]]:
        following = list(super().steps(state))
        if not following:
            ghost = self.judge.ghosts[state.ghost]
            bodies = tuple(self.judge.bodies[each] for each in ghost.log)
            self.ends.add((bodies, ghost.acknowledged, self.contents[state.contents].get(HINT_KEY)))
        return iter(following)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ends = set[Hashable]()


class _EveryState(_Ends):
    """Leaves nothing out: each turn is a state of its own."""

    def rest(self, state: State) -> tuple[Hashable, int]:
        return state, 0


@pytest.mark.parametrize("scenario", [RACE, SMALL_AGAIN, SMALL_OPENING], ids=lambda each: each.name)
def test_what_is_left_out_comes_to_no_other_end(scenario: Scenario) -> None:
    """One request at a time, and each turn a state of its own: more states, and the same ends."""
    with Processes() as processes:
        seen = visit(fewer := _Ends(scenario, processes), states_max=10**6)
    with Processes() as processes:
        all_seen = visit(every := _EveryState(scenario, processes, reduced=False), states_max=10**6)
    assert fewer.ends == every.ends
    assert seen.complete
    assert all_seen.complete
    assert seen.states < all_seen.states


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.what)
def test_a_break_of_the_library_is_found(mutant: Mutant) -> None:
    """By the invariant that it violates, with the way there."""
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
