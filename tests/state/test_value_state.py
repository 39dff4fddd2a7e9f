"""`ValueState` is a mapping like any other, except that it copies, refuses what it could not keep, and logs changes."""

import math
from collections.abc import Callable, MutableMapping
from typing import Any

import msgspec
import pytest

from statebackend._codec.change_sets.state_change import Operation
from statebackend._state.kinds.value_state import ValueState
from statebackend._state.values import Values
from statebackend._tables.heap import ValueTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import KeyTypeError, ValueDecodeError, ValueEncodeError
from statebackend.ids import Key, all_key_groups
from tests.changes import drained, rows_of
from tests.examples import name_of, short_name_of
from tests.state import sample_keys
from tests.state.states import all_states, value_state
from tests.state.test_key_groups import NOT_KEYS


class Leg(msgspec.Struct):
    origin: str
    stops: list[str] = []


@pytest.fixture
def flights() -> ValueState[int]:
    state = value_state(int)
    state["N14228"] = 3
    state[7] = 1
    state["EWR", b"\x00"] = 2
    return state


def logged(state: ValueState[Any]) -> dict[Key, tuple[Operation, bytes]]:
    """The changes since the last time, by key; each key is there once."""
    changes = rows_of(state.drain(0))
    found = {change.key: (Operation(change.operation), change.data) for change in changes}
    assert len(found) == len(changes)
    return found


# ------------------------------------------------------------------------------------------------- it is a mapping


def test_it_is_a_mutable_mapping(flights: ValueState[int]) -> None:
    """For whatever asks."""
    assert isinstance(flights, MutableMapping)
    assert len(flights) == 3
    assert set(flights) == set(flights.keys()) == {"N14228", 7, ("EWR", b"\x00")}
    assert sorted(flights.values()) == [1, 2, 3]
    assert dict(flights.items()) == flights == {"N14228": 3, 7: 1, ("EWR", b"\x00"): 2}
    assert flights != {"N14228": 3}
    assert bool(flights)
    assert not value_state()


@pytest.mark.parametrize("key", sample_keys.ALL_KEYS, ids=lambda key: ascii(key)[:20])
def test_keys_of_every_kind_lead_to_their_values(key: Any) -> None:
    """Set, found, read, replaced, removed."""
    state = value_state(int)
    assert key not in state
    state[key] = 1
    state[key] = 2
    assert key in state
    assert state[key] == 2
    assert list(state) == [key]
    del state[key]
    assert key not in state


def test_str_int_and_bytes_are_different_keys() -> None:
    """Though two of them may have the same key group."""
    state = value_state(str)
    keys: list[Key] = ["1", 1, b"1", ("1",), (1,), (b"1",), (("1",),)]
    for key in keys:
        state[key] = repr(key)
    assert [state[key] for key in keys] == [repr(key) for key in keys]


def test_get(flights: ValueState[int]) -> None:
    """The value, or the default."""
    assert flights.get("N14228") == 3
    assert flights.get("none") is None
    assert flights.get(("none", 1), 5) == 5


def test_missing_key_is_a_key_error(flights: ValueState[int]) -> None:
    """As in a dict, for each way to ask, and nothing is logged."""
    logged(flights)
    for key in ("none", 8, b"none", ("EWR", b"")):
        with pytest.raises(KeyError):
            flights[key]
        with pytest.raises(KeyError):
            del flights[key]
        with pytest.raises(KeyError):
            flights.pop(key)
    assert len(flights) == 3
    assert logged(flights) == {}


def test_pop(flights: ValueState[int]) -> None:
    """The value once; then the default."""
    assert flights.pop(7) == 1
    assert flights.pop(7, 0) == 0
    assert 7 not in flights


def test_popitem_empties_it(flights: ValueState[int]) -> None:
    """One entry after the other, then `KeyError`."""
    assert dict(flights.popitem() for _ in range(3)) == {"N14228": 3, 7: 1, ("EWR", b"\x00"): 2}
    with pytest.raises(KeyError):
        flights.popitem()


def test_setdefault(flights: ValueState[int]) -> None:
    """Sets only what is not there."""
    assert flights.setdefault("N14228", 9) == 3
    assert flights.setdefault("new", 9) == 9
    assert flights["new"] == 9


def test_update(flights: ValueState[int]) -> None:
    """From a mapping, from pairs, from keywords, from another state."""
    flights.update({"N14228": 4})
    flights.update([("pair", 5)], keyword=6)
    other = value_state(int)
    other.update(flights)
    assert other == flights == {"N14228": 4, 7: 1, ("EWR", b"\x00"): 2, "pair": 5, "keyword": 6}


def test_clear(flights: ValueState[int]) -> None:
    """Every key, and each removal is logged."""
    logged(flights)
    flights.clear()
    assert len(flights) == 0
    assert logged(flights) == dict.fromkeys(("N14228", 7, ("EWR", b"\x00")), (Operation.CLEAR, b""))


def test_it_is_no_key_itself(flights: ValueState[int]) -> None:
    """It can change, so it has no hash."""
    with pytest.raises(TypeError):
        hash(flights)


def test_changing_it_while_iterating_is_an_error(flights: ValueState[int]) -> None:
    """As in a dict: no key is passed over silently."""
    keys = iter(flights)
    del flights[next(keys)]
    with pytest.raises(RuntimeError):
        next(keys)


# --------------------------------------------------------------------------------------------- it copies in and out


def test_value_changed_in_place_after_get_changes_nothing() -> None:
    """Memory and log cannot come apart."""
    state = value_state(Leg)
    state["a"] = Leg("EWR", ["IAH"])
    leg = state["a"]
    leg.origin = "LGA"
    leg.stops.append("MIA")
    assert state["a"] == Leg("EWR", ["IAH"])
    assert state["a"] is not state["a"]
    for value in state.values():
        value.stops.clear()
    assert state["a"] == Leg("EWR", ["IAH"])


def test_value_changed_in_place_after_set_changes_nothing() -> None:
    """Until it is set again."""
    state = value_state(Leg)
    leg = Leg("EWR")
    state["a"] = leg
    leg.stops.append("MIA")
    assert state["a"] == Leg("EWR", [])
    state["a"] = leg
    assert state["a"] == Leg("EWR", ["MIA"])


def test_setdefault_gives_what_it_was_given() -> None:
    """The one method that hands back the caller's own object, as `MutableMapping` has it; the state has a copy."""
    state = value_state(list[int])
    mine: list[int] = []
    state.setdefault("a", mine).append(1)
    assert mine == [1]
    assert state["a"] == []


# ------------------------------------------------------------------------------------- it refuses, and stays as it is


def operations(key: Any) -> list[Callable[[ValueState[int]], object]]:
    """Everything that takes a key."""
    return [
        lambda state: state[key],
        lambda state: state.__setitem__(key, 1),
        lambda state: state.__delitem__(key),
        lambda state: key in state,
        lambda state: state.get(key),
        lambda state: state.get(key, 5),
        lambda state: state.pop(key),
        lambda state: state.pop(key, 5),
        lambda state: state.setdefault(key, 5),
        lambda state: state.update([(key, 5)]),
    ]


@pytest.mark.parametrize("key", NOT_KEYS, ids=short_name_of)
def test_wrong_key_is_refused_by_every_method(key: Any) -> None:
    """Never answered with "not there", never taken for the key it equals; the state and its log stay as they were."""
    state = value_state(int)
    entries: dict[Key, int] = {1: 1, 0: 0, "a": 2, b"a": 3, ("a", 1): 4, (1,): 5, ("EWR",): 6}
    state.update(entries)
    logged(state)
    for operation in operations(key):
        with pytest.raises(KeyTypeError):
            operation(state)
    assert state == entries
    assert logged(state) == {}


@pytest.mark.parametrize("value", ["1", 1.0, True, None, b"1", [1], 2**64, -(2**63) - 1, object()], ids=name_of)
def test_wrong_value_is_refused_by_every_method(flights: ValueState[int], value: Any) -> None:
    """For a key that is there, and for one that is not."""
    before = dict(flights)
    logged(flights)
    for key in ("N14228", "new"):
        with pytest.raises(ValueEncodeError):
            flights[key] = value
        with pytest.raises(ValueEncodeError):
            flights.update({key: value})
    with pytest.raises(ValueEncodeError):
        flights.setdefault("new", value)
    assert flights == before
    assert logged(flights) == {}


def test_wrong_value_deep_inside_is_refused() -> None:
    """The value that was there stays, with what was logged of it."""
    state = value_state(Leg)
    state["a"] = Leg("EWR", ["IAH"])
    with pytest.raises(ValueEncodeError):
        state["a"] = Leg("LGA", ["MIA", 5])  # type: ignore[list-item]
    assert state["a"] == Leg("EWR", ["IAH"])
    assert logged(state) == {"a": (Operation.SET, msgspec.msgpack.encode(Leg("EWR", ["IAH"])))}


def test_wrong_key_and_wrong_value_together_are_refused(flights: ValueState[int]) -> None:
    """By either error; nothing is half done."""
    before = dict(flights)
    with pytest.raises((KeyTypeError, ValueEncodeError)):
        flights[1.5] = "x"  # type: ignore[index,assignment]
    assert flights == before


def test_update_keeps_what_came_before_the_wrong_one() -> None:
    """As in a dict: `update` is many sets, not one."""
    state = value_state(int)
    with pytest.raises(ValueEncodeError):
        state.update({"a": 1, "b": "2", "c": 3})
    assert state == {"a": 1}


def test_stored_value_that_does_not_decode_is_told_and_kept() -> None:
    """It is not lost by reading it: another release may know it."""
    table: dict[Any, bytes] = {"a": b"\xa5"}
    state: ValueState[int] = ValueState("sample", ValueTable(table), OwnedKeys(all_key_groups(128), 128))
    state.declare(Values(int))
    with pytest.raises(ValueDecodeError):
        state["a"]
    with pytest.raises(ValueDecodeError):
        state.pop("a")
    with pytest.raises(ValueDecodeError):
        state.popitem()
    assert table == {"a": b"\xa5"}
    assert logged(state) == {}


# ------------------------------------------------------------------------------------------------- it logs changes


def test_last_write_of_a_key_is_the_one_that_is_logged() -> None:
    """However often it was written, and whatever was done in between."""
    state = value_state(int)
    for number in range(100):
        state["a"] = number
    state["b"] = 1
    del state["b"]
    state["b"] = 2
    state["c"] = 1
    del state["c"]
    assert logged(state) == {"a": (Operation.SET, b"\x63"), "b": (Operation.SET, b"\x02"), "c": (Operation.CLEAR, b"")}


def test_reading_logs_nothing(flights: ValueState[int]) -> None:
    """Not even a `get` of what is not there."""
    logged(flights)
    list(flights.items())
    flights.get("none")
    assert "N14228" in flights
    assert logged(flights) == {}


def test_drained_changes_are_not_drained_again(flights: ValueState[int]) -> None:
    """Only what is written from then on."""
    assert len(logged(flights)) == 3
    assert logged(flights) == {}
    flights["N14228"] = 4
    assert logged(flights) == {"N14228": (Operation.SET, b"\x04")}


def test_writing_the_same_value_again_is_a_change(flights: ValueState[int]) -> None:
    """Nobody compares; a caller who wants to save the bytes does."""
    logged(flights)
    flights["N14228"] = 3
    assert logged(flights) == {"N14228": (Operation.SET, b"\x03")}


def test_change_names_group_and_state() -> None:
    """By which a restore finds the table, and a rescale the owner."""
    states = all_states()
    states.value_state("first", int)["a"] = 1
    states.value_state("second", int)["a"] = 2
    first, second = drained(states)
    assert (first.state_id, second.state_id) == (0, 1)
    assert first.key_group == second.key_group == -8582455328737087284 % 128


def test_nan_is_a_value() -> None:
    """It equals nothing, and comes back all the same."""
    state = value_state(float)
    state["a"] = math.nan
    assert math.isnan(state["a"])
