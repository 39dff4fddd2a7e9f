"""Every kind of state refuses wrong keys and values, copies in and out, and reads and writes in bulk."""

import dataclasses
import operator
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest

from statebackend._codec.change_sets.state_change import Operation
from statebackend._state.declared import KeyedStates
from statebackend.errors import (
    InputError,
    KeyGroupError,
    KeyTypeError,
    StateTypeError,
    UnsupportedVersionError,
    ValueDecodeError,
    ValueEncodeError,
)
from statebackend.ids import KeyGroupRange
from tests.aggregates import Mean
from tests.changes import drained, rows_of
from tests.examples import name_of, short_name_of
from tests.state.states import MAX_PARALLELISM, all_states, restored, value_state
from tests.state.test_key_groups import NOT_KEYS


class Leg(msgspec.Struct):
    origin: str
    stops: list[str] = []


class Longest:
    """An aggregate whose accumulator can be changed in place."""

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], value: str) -> list[str]:
        accumulator.append(value)
        return accumulator

    def result(self, accumulator: list[str]) -> list[str]:
        return accumulator

    def merge(self, accumulator: list[str], other: list[str]) -> list[str]:
        return accumulator + other


class Kind(NamedTuple):
    """One kind of state of ints, and everything in it that takes a key."""

    declare: Callable[[KeyedStates], Any]
    write: Callable[[Any, Any, Any], object]
    others: Sequence[Callable[[Any, Any], object]]


READS: list[Callable[[Any, Any], object]] = [
    lambda state, key: state[key],
    lambda state, key: key in state,
    lambda state, key: state.get(key),
    lambda state, key: state.get_many([key]),
    lambda state, key: state.__delitem__(key),
]
KINDS = {
    "value": Kind(
        lambda states: states.value_state("state", int),
        lambda state, key, value: state.__setitem__(key, value),
        [
            *READS,
            lambda state, key: state.put_many([key], [1]),
            lambda state, key: state.update_many([key], [1], operator.add),
        ],
    ),
    "list": Kind(
        lambda states: states.list_state("state", int),
        lambda state, key, value: state[key].append(value),
        [
            *READS,
            lambda state, key: state.append(key, 1),
            lambda state, key: state.extend(key, [1]),
            lambda state, key: state.__setitem__(key, [1]),
            lambda state, key: state.remove(key),
            lambda state, key: state.put_many([key], [[1]]),
            lambda state, key: state.extend_many([key], [[1]]),
            lambda state, key: state.append_many([key], [1]),
        ],
    ),
    "map": Kind(
        lambda states: states.map_state("state", str, int),
        lambda state, key, value: state[key].__setitem__("a", value),
        [
            *READS,
            lambda state, key: state.put(key, "a", 1),
            lambda state, key: state.__setitem__(key, {"a": 1}),
            lambda state, key: state.read_entry(key, "a"),
            lambda state, key: state.remove_entry(key, "a"),
            lambda state, key: state.has_entry(key, "a"),
            lambda state, key: state.remove(key),
            lambda state, key: state.put_many([key], [{"a": 1}]),
            lambda state, key: state.update_many([key], [{"a": 1}]),
        ],
    ),
    "reducing": Kind(
        lambda states: states.reducing_state("state", int, operator.add),
        lambda state, key, value: state.add(key, value),
        [*READS, lambda state, key: state.add_many([key], [1])],
    ),
    "aggregating": Kind(
        lambda states: states.aggregating_state("state", Mean()),
        lambda state, key, value: state.add(key, value),
        [
            *READS,
            lambda state, key: state.add_many([key], [1]),
            lambda state, key: state.merge(key, []),
            lambda state, key: state.merge("a", [key]),
        ],
    ),
    "timers": Kind(
        lambda states: states.timers("state"),
        lambda state, key, value: state.register(key, value),
        [
            lambda state, key: key in state,
            lambda state, key: state.registered(key),
            lambda state, key: state.delete(key, 1),
            lambda state, key: state.register_many([key], [1]),
            lambda state, key: state.__delitem__(key),
        ],
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def contents(states: KeyedStates) -> list[Any]:
    """All there is, as changes."""
    return rows_of(states.snapshot().changes(frozenset(range(MAX_PARALLELISM))))


# -------------------------------------------------------------------------------------------------- it refuses


@pytest.mark.parametrize("key", NOT_KEYS, ids=short_name_of)
def test_wrong_key_is_refused_by_every_method(kind: Kind, key: Any) -> None:
    """Never taken for the key that it equals; the state and its log stay as they were."""
    states = all_states()
    state = kind.declare(states)
    for there in (1, 0, "a", ("a", 1), (1,)):
        kind.write(state, there, 1)
    drained(states)
    before = contents(states)
    for operation in (lambda state, key: kind.write(state, key, 1), *kind.others):
        with pytest.raises(KeyTypeError):
            operation(state, key)
    assert drained(states) == []
    assert contents(states) == before


def test_key_of_another_owner_is_refused_by_every_method(kind: Kind) -> None:
    """Not there would be a lie: it is somewhere else."""
    states = KeyedStates(KeyGroupRange(0, -1), MAX_PARALLELISM)
    state = kind.declare(states)
    for operation in (lambda state, key: kind.write(state, key, 1), *kind.others):
        with pytest.raises(KeyGroupError):
            operation(state, "a")
    assert contents(states) == drained(states) == []


@pytest.mark.parametrize("name", ["list", "map", "reducing"])
@pytest.mark.parametrize("value", ["1", 1.0, True, None, 2**64, object()], ids=name_of)
def test_wrong_value_is_refused(name: str, value: Any) -> None:
    """The state and its log stay as they were, for a key that is there and for one that is not."""
    states = all_states()
    state = KINDS[name].declare(states)
    if name == "reducing":
        states.reducing_state("state", int, lambda _, value: value)
    KINDS[name].write(state, "a", 1)
    drained(states)
    before = contents(states)
    for key in ("a", "new"):
        with pytest.raises(ValueEncodeError):
            KINDS[name].write(state, key, value)
    assert contents(states) == before
    assert drained(states) == []


def test_wrong_entry_key_is_refused() -> None:
    """By everything that takes one."""
    seen = all_states().map_state("seen", str, int)
    view: MutableMapping[Any, int] = seen["a"]  # type: ignore[assignment]
    operations: list[Callable[[], object]] = [
        lambda: view[1],
        lambda: 1 in view,
        lambda: view.get(1),
        lambda: view.__setitem__(1, 1),
        lambda: view.__delitem__(1),
        lambda: view.update({1: 1}),
    ]
    for operation in operations:
        with pytest.raises(ValueEncodeError):
            operation()
    assert "a" not in seen


def test_half_of_an_extend_is_not_done() -> None:
    """The wrong one is found before the first is appended; the same for a map that is assigned."""
    states = all_states()
    hops, seen = states.list_state("hops", int), states.map_state("seen", str, int)
    with pytest.raises(ValueEncodeError):
        hops["a"].extend([1, 2, "3"])  # type: ignore[list-item]
    with pytest.raises(ValueEncodeError):
        seen["a"] = {"a": 1, "b": "2"}  # type: ignore[dict-item]
    assert list(hops) == list(seen) == []


@pytest.mark.parametrize("name", ["value", "list", "map", "reducing", "aggregating"])
def test_stored_value_that_does_not_decode_is_told(name: str) -> None:
    """And it stays where it is: another release may know it."""
    states, kind = all_states(), KINDS[name]
    state = kind.declare(states)
    kind.write(state, "a", 1)
    changes = [msgspec.structs.replace(change, data=change.data[:-1] + b"\xa5") for change in drained(states)]
    broken = kind.declare(restored(states, changes))
    with pytest.raises(ValueDecodeError):
        broken.get_many(["a"])
    assert "a" in broken


def test_operation_of_another_kind_is_refused(kind: Kind) -> None:
    """A replay that passed over it would restore a state that never was."""
    states = all_states()
    kind.write(kind.declare(states), "a", 1)
    for unknown in (5, 77):
        changes = [msgspec.structs.replace(change, operation=unknown) for change in contents(states)]
        with pytest.raises(UnsupportedVersionError):
            restored(states, changes)


def test_kind_of_a_newer_release_is_refused() -> None:
    """When it is opened: nobody here could keep it."""
    known = [msgspec.structs.replace(all_states_descriptor(), kind="graph")]
    with pytest.raises(UnsupportedVersionError):
        KeyedStates(KeyGroupRange(0, 127), 128, known)


def all_states_descriptor() -> Any:
    """The descriptor of some state."""
    states = all_states()
    states.value_state("state", int)
    return states.descriptors[0]


def test_another_kind_than_declared_is_refused() -> None:
    """Each against each other."""
    for name, one in KINDS.items():
        for other_name, other in KINDS.items():
            if name != other_name:
                states = all_states()
                one.declare(states)
                with pytest.raises(StateTypeError) as caught:
                    other.declare(states)
                assert caught.value.facts["kind_written"] == name
                assert caught.value.facts["kind_declared"] == other_name


def test_another_entry_key_type_is_refused() -> None:
    """With both in the facts. Entries are found by their keys' bytes, so that type cannot evolve."""
    states = all_states()
    states.map_state("seen", str, int)["a"]["b"] = 1
    with pytest.raises(StateTypeError) as caught:
        restored(states, drained(states)).map_state("seen", str | int, int)  # type: ignore[arg-type]
    assert caught.value.facts["key_schema_written"] == '"str"'
    assert caught.value.facts["key_schema_declared"] == '{"one_of":["int","str"]}'


def test_aggregate_without_an_accumulator_type_is_refused() -> None:
    """Nobody can say how to store what it makes."""

    class Bare(Mean):
        def create(self):  # type: ignore[no-untyped-def]
            return 0, 0

    for aggregate in (Bare(), 5, Mean):
        with pytest.raises(InputError):
            all_states().aggregating_state("mean", aggregate)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- it copies in and out


def test_value_changed_in_place_changes_no_state() -> None:
    """Of every kind, whether it was read or given: memory and log cannot come apart."""
    states = all_states()
    legs = states.value_state("legs", Leg, default=Leg("none"))
    hops = states.list_state("hops", Leg)
    seen = states.map_state("seen", str, Leg)
    merged = states.reducing_state("merged", Leg, lambda one, other: Leg(one.origin, one.stops + other.stops))
    longest = states.aggregating_state("longest", Longest())
    given = Leg("EWR", ["IAH"])
    legs["a"] = given
    hops["a"].append(given)
    seen["a"]["x"] = given
    merged.add("a", given)
    longest.add("a", "EWR")
    before = contents(states)
    read: list[Leg] = [given, legs["a"], legs["none"], hops["a"][0], *hops["a"], *hops["a"][:], seen["a"]["x"]]
    read += [*seen["a"].values(), merged["a"], *legs.get_many(["a", "none"]), *merged.get_many(["a"])]  # type: ignore[list-item]
    for leg in read:
        leg.origin = "changed"
        leg.stops.append("changed")
    longest["a"].append("changed")
    hops.get_many(["a"])[0].clear()
    seen.get_many(["a"])[0].clear()
    assert contents(states) == before
    assert contents(restored(states, drained(states))) == before
    assert legs["none"] == Leg("none")


def test_default_is_given_and_not_stored() -> None:
    """By everything that reads; `in`, `pop`, `del` and the log do not know it."""
    states = all_states()
    counts = states.value_state("counts", int, default=0)
    assert (counts["a"], counts.get("a"), counts.get("a", 5), counts.get_many(["a", "b"])) == (0, 0, 0, [0, 0])
    assert counts.get_many(["a"], 7) == [7]
    assert (counts.pop("a", 5), counts.setdefault("a", 5)) == (5, 0)
    for missing in (lambda: counts.pop("a"), lambda: counts.__delitem__("a")):
        with pytest.raises(KeyError):
            missing()
    assert list(counts) == drained(states) == []
    counts["a"] += 1
    counts.update_many(["a", "b", "b"], [1, 1, 1], operator.add)
    assert counts == {"a": 2, "b": 2}


def test_default_of_another_type_is_refused() -> None:
    """When it is declared."""
    with pytest.raises(ValueEncodeError):
        all_states().value_state("counts", int, default="0")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ it is natural


def test_views_are_sequences_and_mappings() -> None:
    """For whatever asks."""
    states = all_states()
    hops, seen = states.list_state("hops", str), states.map_state("seen", str, int)
    assert isinstance(hops, Mapping)
    assert isinstance(hops["a"], Sequence)
    assert isinstance(seen["a"], MutableMapping)
    hops["a"].extend(["x", "y", "z"])
    assert (hops["a"][-1], hops["a"][1:], hops["a"].count("x"), "y" in hops["a"]) == ("z", ["y", "z"], 1, True)
    assert list(reversed(hops["a"])) == ["z", "y", "x"]
    assert hops["a"] == hops["a"] == ["x", "y", "z"] != hops["b"]
    assert repr(hops["a"]) == "ListView(['x', 'y', 'z'])"
    with pytest.raises(IndexError):
        hops["a"][3]
    with pytest.raises(TypeError):
        hash(hops["a"])
    assert seen["a"].setdefault("x", 1) == 1
    seen["a"].update(y=2)
    assert seen["a"] == {"x": 1, "y": 2}
    assert repr(seen["a"]) == "MapView({'x': 1, 'y': 2})"


def test_entry_keys_that_are_equal_are_one_entry() -> None:
    """Whatever msgspec takes for the same: an int for a float, a tuple for a list, a set in another order."""
    states = all_states()
    floats = states.map_state("floats", float, str)["a"]
    floats[1] = "int"
    floats[1.0] = "float"
    assert dict(floats) == {1.0: "float"}
    sets = states.map_state("sets", frozenset[str], int)["a"]
    names = [f"name {number}" for number in range(50)]
    sets[frozenset(names)] = 1
    sets[frozenset(reversed(names))] = 2
    assert len(sets) == 1
    legs = states.map_state("tuples", tuple[str, int], int)["a"]
    legs["EWR", 1] = 3
    assert list(legs) == [("EWR", 1)]


class Raw:
    """Bytes as they are, and how often some were read."""

    schema = "raw"
    decoded = 0

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes | bytearray | memoryview) -> bytes:
        self.decoded += 1
        return bytes(data)


def test_items_are_popped_until_none_is_left() -> None:
    """Those of a map from its end, as a `dict` does; only their own keys are decoded, however many there are."""
    states, raw = all_states(), Raw()
    legs, seen = states.value_state("legs", int), states.map_state("seen", raw, int)["a"]
    legs.update({key: number for number, key in enumerate("abcde")})
    seen.update({b"%d" % number: number for number in range(20)})
    assert dict(legs.popitem() for _ in range(5)) == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}
    raw.decoded = 0
    assert [seen.popitem() for _ in range(20)] == [(b"%d" % number, number) for number in reversed(range(20))]
    assert raw.decoded == 20
    for state in (legs, seen):
        with pytest.raises(KeyError):
            state.popitem()
    assert list(states.value_state("legs", int)) == []


@pytest.mark.parametrize(
    ("type_", "names"),
    [
        (int | bool, [1, True]),
        (float, [0.0, -0.0]),
        (Decimal, [Decimal("1.0"), Decimal("1.00")]),
        (Any, [1, 1.0, True, "1"]),
    ],
    ids=name_of,
)
def test_names_that_python_takes_for_equal_are_not_lost(type_: Any, names: list[Any]) -> None:
    """A dict has room for one of them, so `get_many` refuses; whatever is read and written back by views is whole."""
    states = all_states()
    seen = states.map_state("seen", type_, int)
    seen["plain"]["x" if type_ is Any else names[0]] = 1
    for value, name in enumerate(names):
        seen["k"][name] = value
    pairs = [(repr(name), value) for value, name in enumerate(names)]
    with pytest.raises(InputError, match="take the items") as caught:
        seen.get_many(["plain", "k"])
    assert caught.value.facts["entries"] == len(names)
    seen.put_many(list(seen), list(seen.values()))  # as to give all of them a time of writing
    seen["copy"] = seen["k"]
    seen.put_many(["pairs"], [list(seen["k"].items())])  # type: ignore[list-item]  # as Arrow has a map
    seen["added"][names[0]] = 7
    seen.update_many(["added"], [seen["k"]])
    later = restored(states, drained(states)).map_state("seen", type_, int)
    for state in (seen, later):
        for key in ("k", "copy", "pairs", "added"):
            assert [(repr(name), value) for name, value in state[key].items()] == pairs
        assert len(state.get_many(["plain"])[0]) == 1


def test_names_without_a_hash_are_read_by_views() -> None:
    """Which write them, too."""
    seen = all_states().map_state("seen", list[int], int)
    seen.put("k", [1], 1)
    with pytest.raises(InputError, match="take the items"):
        seen.get_many(["k"])
    seen["l"] = seen["k"]
    assert list(seen["l"].items()) == [([1], 1)]


def test_emptied_list_or_map_is_no_key() -> None:
    """However it became empty."""
    states = all_states()
    hops, seen = states.list_state("hops", int), states.map_state("seen", str, int)
    hops["a"] = []
    hops["b"].extend([])
    hops["c"] = [1]
    hops["c"] = []
    seen["a"] = {}
    seen["b"]["x"] = 1
    del seen["b"]["x"]
    assert len(hops) == len(seen) == 0
    for state in (hops, seen):
        with pytest.raises(KeyError):
            del state["a"]
    assert contents(restored(states, drained(states))) == []


def test_clear_removes_every_key(kind: Kind) -> None:
    """And logs each removal."""
    states = all_states()
    state = kind.declare(states)
    for key in ("a", 1, b"b", ("c", 1)):
        kind.write(state, key, 1)
    drained(states)
    state.clear()
    assert len(state) == 0
    assert {change.operation for change in drained(states)} == {Operation.CLEAR}


def test_merge_moves_accumulators() -> None:
    """As of sessions that turn out to be one. A key without one adds nothing, the key itself does not count twice."""
    states = all_states()
    mean = states.aggregating_state("mean", Mean())
    mean.add_many(["a", "b", "b"], [1, 2, 6])
    mean.merge("a", ["b", "a", "none", "b"])
    assert dict(mean) == {"a": 3.0}
    mean.merge("new", ["a"])
    assert dict(mean) == {"new": 3.0}
    mean.merge("none", ["nobody"])
    assert dict(restored(states, drained(states)).aggregating_state("mean", Mean())) == {"new": 3.0}


def test_function_that_fails_leaves_the_state_as_it_was() -> None:
    """The error is the function's own."""
    states = all_states()
    ratio = states.reducing_state("ratio", float, operator.truediv)
    ratio.add("a", 8.0)
    drained(states)
    with pytest.raises(ZeroDivisionError):
        ratio.add("a", 0.0)
    with pytest.raises(ZeroDivisionError):
        ratio.add_many(["b", "a", "a"], [1.0, 2.0, 0.0])
    assert dict(ratio) == {"a": 8.0}
    assert drained(states) == []


def test_declaring_again_takes_the_newest_function() -> None:
    """A streaming batch declares its states anew each time, with functions made anew."""
    states = all_states()
    total = states.reducing_state("total", int, operator.add)
    total.add("a", 2)
    assert states.reducing_state("total", int, operator.mul) is total
    total.add("a", 5)
    assert total["a"] == 10


# -------------------------------------------------------------------------------------------------------------- bulk


class ArrowArray:
    """The method that pyarrow's arrays and chunked arrays have."""

    def __init__(self, *elements: Any) -> None:
        self.elements = list(elements)

    def to_pylist(self) -> list[Any]:
        """The elements."""
        return self.elements


@pytest.mark.parametrize("many", [list, tuple, iter, lambda elements: ArrowArray(*elements)], ids=name_of)
def test_bulk_takes_whatever_has_elements(many: Callable[[Any], Any]) -> None:
    """Sequences, iterators, arrays; in order, and a key that comes twice counts twice."""
    states = all_states()
    numbers, hops = states.value_state("numbers", int), states.list_state("hops", int)
    seen, total = states.map_state("seen", str, int), states.reducing_state("total", int, operator.add)
    keys: list[Any] = ["a", 1, ("b", 2), "a"]
    numbers.put_many(many(keys), many([1, 2, 3, 4]))
    assert numbers.get_many(many([*keys, "none"])) == [4, 2, 3, 4, None]
    assert numbers.get_many(many(["none"]), 7) == [7]
    numbers.update_many(many(keys), many([10, 20, 30, 40]), lambda value, more: value * 100 + more)
    assert numbers.get_many(keys) == [41040, 220, 330, 41040]
    hops.append_many(many(keys), many([1, 2, 3, 4]))
    hops.extend_many(many(keys), many([[5], [], [6, 7], [8]]))
    assert hops.get_many(many(["a", 1, ("b", 2), "none"])) == [[1, 4, 5, 8], [2], [3, 6, 7], []]
    hops.put_many(many(["a", 1]), many([[9], []]))
    assert hops.get_many(["a", 1]) == [[9], []]
    seen.put_many(many(["a", "b", "a"]), many([{"x": 1}, {"y": 2}, {"z": 3}]))
    seen.update_many(many(["a", "c"]), many([{"w": 4}, {}]))
    assert seen.get_many(many(["a", "b", "c"])) == [{"z": 3, "w": 4}, {"y": 2}, {}]
    total.add_many(many(keys), many([1, 2, 3, 4]))
    assert total.get_many(many([*keys, "none"])) == [5, 2, 3, 5, None]
    later = restored(states, drained(states))
    assert contents(later) == contents(states)


def test_bulk_copies_what_a_function_changes_in_place() -> None:
    """As single calls do: one object that is given to several keys is not theirs in common, and stays as it was."""
    states, one = all_states(), [1]
    each, many = (states.reducing_state(name, list[int], operator.iadd) for name in ("each", "many"))
    for key in ("a", "b", "a"):
        each.add(key, one)
    many.add_many(["a", "b", "a"], [one] * 3)
    assert dict(many) == dict(each) == {"a": [1, 1], "b": [1]}
    newest = states.value_state("newest", list[int] | None, default=None)
    newest.update_many(["a", "b", "a"], [one] * 3, lambda old, new: new if old is None else operator.iadd(old, new))
    newest.update_many(["b", "b"], [one, [2]], lambda old, new: new if new is one else operator.iadd(old, new))
    assert (dict(newest), one) == ({"a": [1, 1], "b": [1, 2]}, [1])


@dataclasses.dataclass
class Trip:
    """A value that can be changed in place."""

    miles: int = 0


@pytest.mark.parametrize("default", [[], {}, {1}, Leg("EWR"), Trip()], ids=short_name_of)
def test_missing_keys_have_a_default_of_their_own(default: Any) -> None:
    """What is done to that of one key, before it is written, is not done to the others."""
    states = all_states()
    found = [
        *states.value_state("one", Any).get_many(["a", "b"], default),
        *states.reducing_state("two", Any, operator.add).get_many(["a", "b"], default),
        *states.aggregating_state("three", Longest()).get_many(["a", "b"], default),
    ]
    assert found == [default] * 6
    assert len({id(each) for each in [default, *found]}) == 7


def test_a_default_that_nobody_changes_is_given_as_it_is() -> None:
    """So that one can ask which keys are missing."""
    missing = object()
    assert value_state().get_many(["a"], missing)[0] is missing


def test_bulk_takes_pyarrow() -> None:
    """Itself, where it is installed."""
    pyarrow = pytest.importorskip("pyarrow")
    numbers = all_states().value_state("numbers", int)
    numbers.put_many(pyarrow.array(["a", "b"]), pyarrow.chunked_array([[1], [2]]))
    assert numbers.get_many(pyarrow.array(["b", "a"])) == [2, 1]
    with pytest.raises(KeyTypeError):
        numbers.get_many(pyarrow.array(["a", None]))


def bulk_writes(states: KeyedStates) -> list[Callable[[Any, Any], object]]:
    """Everything that writes many, as a function of keys and ints."""
    numbers, hops = states.value_state("numbers", int, default=0), states.list_state("hops", int)
    seen, total = states.map_state("seen", str, int), states.reducing_state("total", int, lambda _, value: value)
    mean = states.aggregating_state("mean", Mean())
    return [
        numbers.put_many,
        lambda keys, values: numbers.update_many(keys, values, lambda _, value: value),
        hops.append_many,
        lambda keys, values: hops.put_many(keys, [[value] for value in values]),
        lambda keys, values: hops.extend_many(keys, [[value] for value in values]),
        lambda keys, values: seen.put_many(keys, [{"a": value} for value in values]),
        lambda keys, values: seen.update_many(keys, [{"a": value} for value in values]),
        total.add_many,
        mean.add_many,
        states.timers("timers").register_many,
    ]


@pytest.mark.parametrize(
    ("keys", "values", "error"),
    [
        pytest.param(["a", 1.5], [1, 2], KeyTypeError, id="key that is none"),
        pytest.param(["a", True], [1, 2], KeyTypeError, id="key that equals one"),
        pytest.param(["a", "\ud800"], [1, 2], KeyTypeError, id="key that is no Unicode"),
        pytest.param(["a", "b"], [1], InputError, id="fewer values than keys"),
        pytest.param(["a"], [1, 2], InputError, id="more values than keys"),
        pytest.param("ab", [1, 2], InputError, id="str as keys"),
        pytest.param(["a", "b"], [1, "x"], (ValueEncodeError, TypeError, InputError), id="value of another type"),
    ],
)
def test_bulk_writes_all_or_none(keys: Any, values: Any, error: Any) -> None:
    """Each of them, with an error of the right class."""
    states = all_states()
    for write in bulk_writes(states):
        with pytest.raises(error):
            write(keys, values)
    assert contents(states) == drained(states) == []


def test_bulk_writes_of_nothing_log_nothing() -> None:
    """An empty batch is a batch."""
    states = all_states()
    for write in bulk_writes(states):
        write([], [])
    assert drained(states) == []


def test_bulk_update_of_a_missing_key_is_a_key_error() -> None:
    """Without a default there is nothing to combine with."""
    numbers = all_states().value_state("numbers", int)
    numbers["a"] = 1
    with pytest.raises(KeyError):
        numbers.update_many(["a", "b"], [1, 1], operator.add)
    assert numbers == {"a": 1}


def test_bulk_is_the_same_as_one_by_one() -> None:
    """For many more values than are proved at once, of which a few need a closer look."""
    legs = all_states().value_state("legs", Leg | float)  # type: ignore[arg-type]
    values: list[Any] = [Leg(str(number)) if number % 3 else float(number) for number in range(10_000)]
    values[5000] = {"origin": "as a dict", "stops": []}
    legs.put_many(range(10_000), values)
    assert legs.get_many(range(10_000)) == [legs[number] for number in range(10_000)]
    assert legs[5000] == Leg("as a dict")


@pytest.mark.parametrize("wrong", [0, 4, 8])
def test_bulk_write_with_a_wrong_value_far_behind_writes_none(wrong: int) -> None:
    """Values are encoded some at a time, and stored when all of them are."""
    legs = all_states().value_state("legs", int)
    legs["old"] = 5
    values: list[Any] = [*range(wrong), "x", *range(wrong + 1, 9)]
    with pytest.raises(ValueEncodeError):
        legs.put_many(["old", *range(1, 9)], values)
    assert legs == {"old": 5}
    assert [change.keys for change in legs.drain(0)] == [["old"]]


def test_length_is_that_of_the_list_as_it_is_now() -> None:
    """Though it is known from the last reading: after an append, of another key, and after a list as long in bytes."""
    hops = all_states().list_state("hops", str)
    hops["a"], hops["b"] = ["x", "y"], ["x"]
    assert (list(hops["a"]), len(hops["a"]), len(hops["b"])) == (["x", "y"], 2, 1)
    hops["a"].append("z")
    assert len(hops["a"]) == 3
    assert list(hops["a"]) == ["x", "y", "z"]
    hops["a"] = ["xyz12"]
    assert (len(hops["a"]), list(hops["a"]), len(hops["a"])) == (1, ["xyz12"], 1)
