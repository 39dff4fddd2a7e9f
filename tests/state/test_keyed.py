"""The states of one backend: declared by name and type, filled by a replay, limited to the key groups it owns."""

from typing import Any

import msgspec
import pytest

from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import key_group
from statebackend.errors import DataError, InputError, KeyGroupError, StateTypeError, UnsupportedVersionError
from statebackend.ids import KeyGroupRange, StateDescriptor, all_key_groups
from tests.changes import drained
from tests.examples import name_of
from tests.state import sample_keys
from tests.state.states import MAX_PARALLELISM, all_states, restored, states_of

LOWER = KeyGroupRange(0, 63)
UPPER = KeyGroupRange(64, 127)


class Leg(msgspec.Struct):
    origin: str
    miles: float = 0.0


def of_range(key_groups: KeyGroupRange) -> KeyedStates:
    """The states of a backend that owns a part."""
    return states_of(key_groups)


def keys_of(key_groups: KeyGroupRange) -> list[Any]:
    """The sample keys whose groups lie in the range."""
    return [key for key in sample_keys.ALL_KEYS if key_group(key, MAX_PARALLELISM) in key_groups]  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- declared


def test_declaring_again_gives_the_same_state() -> None:
    """One view, one log of what is dirty."""
    states = all_states()
    assert states.value_state("legs", Leg) is states.value_state("legs", Leg)


def test_ids_follow_the_order_of_declaration_and_stay() -> None:
    """After a restore too, whatever is declared first then."""
    states = all_states()
    for name in ("b", "a"):
        states.value_state(name, int)
    later = restored(states, [])
    for name in ("c", "a", "b"):
        later.value_state(name, int)
    assert [(each.state_id, each.name) for each in later.descriptors] == [(0, "b"), (1, "a"), (2, "c")]


def test_another_type_than_declared_is_refused() -> None:
    """With both in the facts, so that one sees what differs."""
    states = all_states()
    states.value_state("legs", Leg)
    with pytest.raises(StateTypeError) as caught:
        states.value_state("legs", int)
    assert caught.value.facts["state"] == "legs"
    assert caught.value.facts["schema_written"] == '{"record":{"miles":"float","origin":"str"}}'
    assert caught.value.facts["schema_declared"] == '"int"'


def test_another_type_than_written_is_refused() -> None:
    """Also before any of it was declared in this process; what is there stays as it is."""
    states = all_states()
    states.value_state("legs", Leg)["N14228"] = Leg("EWR", 1.0)
    later = restored(states, drained(states))
    other = msgspec.defstruct("Leg", [("origin", str), ("miles", int)])
    with pytest.raises(StateTypeError):
        later.value_state("legs", other)
    assert later.value_state("legs", Leg) == {"N14228": Leg("EWR", 1.0)}


def test_another_kind_than_written_is_refused() -> None:
    """Of a later release, for now: this one knows one kind."""
    states = KeyedStates(all_key_groups(128), 128, [StateDescriptor(0, "legs", "list", '"int"')])
    with pytest.raises(StateTypeError) as caught:
        states.value_state("legs", int)
    assert (caught.value.facts["kind_written"], caught.value.facts["kind_declared"]) == ("list", "value")


def test_renamed_class_is_the_same_type() -> None:
    """A class may move or change its name and its documentation."""
    states = all_states()
    states.value_state("legs", Leg)["a"] = Leg("EWR", 1.0)
    hop = msgspec.defstruct("Hop", [("origin", str), ("miles", float)], namespace={"__doc__": "Short."})
    later = restored(states, drained(states)).value_state("legs", hop)
    assert type(later["a"]) is hop


@pytest.mark.parametrize("name", ["", None, 5, b"legs", "a\0b", "\ud800", "line\n"], ids=name_of)
def test_name_that_is_none_is_refused(name: Any) -> None:
    """A commit with such a name could not be read back."""
    states = all_states()
    with pytest.raises(InputError):
        states.value_state(name, int)
    assert states.descriptors == ()


def test_type_that_cannot_be_stored_declares_nothing() -> None:
    """The name stays free."""
    states = all_states()
    with pytest.raises(InputError):
        states.value_state("legs", complex)
    assert states.descriptors == ()
    states.value_state("legs", int)


# --------------------------------------------------------------------------------------------------------- replayed


def test_replay_gives_the_same_state() -> None:
    """Several states, keys of every kind, and the last of several writes in one log."""
    states = all_states()
    numbers, legs = states.value_state("numbers", int), states.value_state("legs", Leg)
    keys: list[Any] = sample_keys.ALL_KEYS
    log: list[StateChange] = []
    for turn in range(3):
        numbers.update(dict.fromkeys(keys[turn:], turn))
        legs.update({key: Leg(repr(key)) for key in keys[: 5 - turn]})
        del legs[keys[4 - turn]]
        log += drained(states)
    later = restored(states, log)
    assert later.sizes == states.sizes == {"numbers": len(keys), "legs": 2}
    assert later.value_state("numbers", int) == numbers
    assert later.value_state("legs", Leg) == legs


def test_replay_leaves_nothing_to_log() -> None:
    """Changes that are in a commit are not written to the next one."""
    states = all_states()
    states.value_state("legs", int)["a"] = 1
    later = restored(states, drained(states))
    later.value_state("legs", int)
    assert drained(later) == []


def test_state_that_nobody_declares_is_kept() -> None:
    """It goes into the next commits, and can be declared later."""
    states = all_states()
    states.value_state("old", int)["a"] = 1
    later = restored(states, drained(states))
    later.value_state("new", int)["b"] = 2
    assert [change.key for change in drained(later)] == ["b"]
    assert later.sizes == {"old": 1, "new": 1}
    assert later.value_state("old", int) == {"a": 1}


def test_change_of_a_state_that_no_commit_describes_is_refused() -> None:
    """Without its type it could never be read."""
    with pytest.raises(DataError):
        all_states().replay(keyed_changes([StateChange(0, Operation.SET, 3, "a", b"\x01")]))


def test_operation_of_a_newer_release_is_refused() -> None:
    """Passing over it would restore a state that never was."""
    states = all_states()
    states.value_state("legs", int)
    with pytest.raises(UnsupportedVersionError):
        states.replay(keyed_changes([StateChange(0, 7, 0, "a", b"\x01")]))


# -------------------------------------------------------------------------------------------------------- owned parts


def test_changes_of_foreign_key_groups_are_passed_over() -> None:
    """A log of all, restored by two owners: each has its part, together they have all."""
    states = all_states()
    numbers = states.value_state("numbers", int)
    numbers.update({key: 1 for key in sample_keys.ALL_KEYS})  # type: ignore[misc]  # noqa: C420
    log = drained(states)
    parts = [restored(states, log, part).value_state("numbers", int) for part in (LOWER, UPPER)]
    assert [set(part) for part in parts] == [set(keys_of(LOWER)), set(keys_of(UPPER))]
    assert {**parts[0], **parts[1]} == numbers


def test_key_of_another_owner_is_refused_by_every_method() -> None:
    """Not there would be a lie: it is somewhere else."""
    states = of_range(LOWER)
    numbers = states.value_state("numbers", int)
    mine, foreign = keys_of(LOWER), keys_of(UPPER)
    numbers.update(dict.fromkeys(mine, 1))
    drained(states)
    for key in foreign:
        for refused in (
            lambda key=key: numbers[key],
            lambda key=key: numbers.__setitem__(key, 1),
            lambda key=key: numbers.__delitem__(key),
            lambda key=key: key in numbers,
            lambda key=key: numbers.get(key, 5),
            lambda key=key: numbers.pop(key, 5),
            lambda key=key: numbers.setdefault(key, 5),
        ):
            with pytest.raises(KeyGroupError) as caught:
                refused()
            assert caught.value.facts["key"] == key
            assert caught.value.facts["key_group"] in UPPER
            assert caught.value.facts["owned"] == "[0, 63]"
    assert numbers == dict.fromkeys(mine, 1)
    assert drained(states) == []


def test_owner_of_nothing_has_no_keys() -> None:
    """Each key belongs to somebody else."""
    numbers = of_range(KeyGroupRange(0, -1)).value_state("numbers", int)
    with pytest.raises(KeyGroupError):
        numbers["a"] = 1
    assert len(numbers) == 0
