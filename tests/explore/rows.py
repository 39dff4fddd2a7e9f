"""Each row of the table that `nox -s explore` prints, made in a process of its own."""

import sys

from tests.explore import spin
from tests.explore.ledger import LedgerModel
from tests.explore.processes import Processes
from tests.explore.protocol import Protocol
from tests.explore.scenarios import LARGE, LONG_MUTANTS, MUTANTS, SMALL
from tests.explore.search import Visit, visit

HEAD = ("what", "visited by", "states", "depth", "outcome")
Row = tuple[str, str, int, int, str]


def explore(small: bool, place: int, states_max: int) -> Row:
    """Visit one scenario."""
    scenario = (SMALL if small else LARGE)[place]
    with Processes() as processes:
        seen = visit(Protocol(scenario, processes), states_max=states_max)
    return (scenario.name, "real code", seen.states, seen.depth, _outcome(seen))


def explore_ledger(states_max: int) -> Row:
    """Visit the ledger."""
    seen = visit(LedgerModel(), states_max=states_max)
    return (
        "the ledger of a writer's changes, every order of calls",
        "real code",
        seen.states,
        seen.depth,
        _outcome(seen),
    )


def break_it(place: int, states_max: int) -> Row:
    """Visit a scenario with the library broken."""
    mutant = (*MUTANTS, *LONG_MUTANTS)[place]
    with mutant.applied(), Processes() as processes:
        seen = visit(Protocol(mutant.scenario, processes), states_max=states_max)
    found = seen.broken is not None and seen.broken.invariant == mutant.invariant
    outcome = f"found: {mutant.invariant}, {len(seen.trace)} steps" if found else "NOT FOUND: " + _outcome(seen)
    return (f"*broken:* {mutant.what}", "real code", seen.states, seen.depth, outcome)


def check_scenario(name: str) -> Row:
    """Let Spin visit one scenario."""
    seen = spin.check(*spin.SCENARIOS[name])
    outcome = "all visited" if seen.complete else f"VIOLATED: {seen.violated}"
    return (name, "Spin", seen.states, seen.depth, outcome)


def check_break(place: int) -> Row:
    """Let Spin find what is left out."""
    invariant, macro, scenario = spin.BREAKS[place]
    seen = spin.check(*scenario, macro)
    found = seen.violated is not None and any(each in seen.violated for each in spin.ASSERTIONS[invariant])
    outcome = f"found: {invariant}" if found else f"NOT FOUND: {seen.violated}"
    return (f"*broken:* {macro}", "Spin", seen.states, seen.depth, outcome)


def _outcome(seen: Visit) -> str:
    if seen.broken is not None:
        print(*seen.trace, sep="\n", file=sys.stderr)
        return f"VIOLATED: {seen.broken}"
    if seen.complete:
        return "all visited"
    return f"all with at most {seen.turns} switches" if seen.turns > 0 else "as many as were asked for"
