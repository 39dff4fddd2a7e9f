"""A snapshot holds every entry of one moment, and its changes rebuild them from nothing."""

from itertools import pairwise
from typing import Any

from statebackend._state.declared import KeyedStates
from statebackend.ids import KeyGroupRange
from tests.changes import drained, rows_of
from tests.state import sample_keys
from tests.state.states import all_states, restored

ALL = frozenset(range(128))


def filled() -> KeyedStates:
    """Two states, keys of every kind, something removed, half of it drained."""
    states = all_states()
    numbers, names = states.value_state("numbers", int), states.value_state("names", str)
    keys: list[Any] = sample_keys.ALL_KEYS
    numbers.update({key: place for place, key in enumerate(keys)})
    drained(states)
    names.update({key: repr(key) for key in keys[::2]})
    del numbers[keys[0]]
    return states


def contents(states: KeyedStates) -> tuple[dict[Any, int], dict[Any, str]]:
    """All that is in the two."""
    return dict(states.value_state("numbers", int)), dict(states.value_state("names", str))


def test_changes_rebuild_every_entry() -> None:
    """Of every state, drained or not; the states' own log is as it was."""
    states = filled()
    rebuilt = restored(states, rows_of(states.snapshot().changes(ALL)))
    assert contents(rebuilt) == contents(states)
    assert {change.key for change in drained(states)} >= set(sample_keys.ALL_KEYS[2::2])


def test_changes_hold_only_the_groups_asked_for_in_their_order() -> None:
    """So a base can be written group by group; the parts together are the whole."""
    states = filled()
    snapshot = states.snapshot()
    asked = frozenset(range(1, 128, 3))
    part = rows_of(snapshot.placed(asked).changes(sorted(asked), one_by_one=True))
    rest = rows_of(snapshot.changes(ALL - asked))
    assert {change.key_group for change in part} <= asked
    assert [change.key_group for change in part] == sorted(change.key_group for change in part)
    assert contents(restored(states, part + rest)) == contents(states)
    assert list(snapshot.changes(frozenset())) == []


def test_small_groups_come_together_and_no_two_times_overlap() -> None:
    """State after state within a time, so that a base of many groups is made of few columns."""
    states = filled()
    found = list(states.snapshot().changes(ALL))
    assert len(found) < 2 * len(ALL)
    for part in found:
        assert part.groups.tolist() == sorted(part.groups.tolist())
    for state_id in (0, 1):
        own = [part.span for part in found if part.state_id == state_id]
        assert all(one.last <= other.first for one, other in pairwise(own))
    for one, other in pairwise(found):
        assert other.state_id >= one.state_id or other.span.first > max(
            part.span.last for part in found[: found.index(other)]
        )


def test_a_reader_pauses_once_a_step() -> None:
    """A pause takes as long as a short step: two of them were a sixth of a merge."""
    pauses = list[int]()
    placed = filled().snapshot().placed(ALL, lambda: pauses.append(1))
    pauses.clear()
    found = list(placed.changes(sorted(ALL)))
    assert len(found) <= len(pauses) < 3 * len(found) // 2, "once for each change set, and once where there is none"


def test_later_writes_are_not_in_it() -> None:
    """Nor what is declared later."""
    states = filled()
    before = contents(states)
    snapshot = states.snapshot()
    changes = snapshot.changes(ALL)
    first = rows_of([next(changes)])
    states.value_state("numbers", int).clear()
    states.value_state("names", str).update(dict.fromkeys(sample_keys.STRINGS, "later"))
    states.value_state("third", int)["a"] = 1
    assert contents(restored(states, [*first, *rows_of(changes)])) == before
    assert contents(restored(states, rows_of(snapshot.changes(ALL)))) == before


def test_states_that_nobody_declares_are_in_it() -> None:
    """A base without them would lose them."""
    states = filled()
    undeclared = restored(states, rows_of(states.snapshot().changes(ALL)))
    assert contents(restored(undeclared, rows_of(undeclared.snapshot().changes(ALL)))) == contents(states)


def test_owner_of_a_part_has_only_its_groups_in_it() -> None:
    """Whatever is asked for."""
    states = filled()
    part = restored(states, drained(states), KeyGroupRange(0, 63))
    assert {change.key_group for change in rows_of(part.snapshot().changes(ALL))} <= set(range(64))
