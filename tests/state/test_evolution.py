"""From run to run a type may change: as far as what is stored can still be read, or with an upcast where it cannot."""

import operator
from typing import Any

import msgspec
import pytest

from statebackend import TimeToLive
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._state.declared import KeyedStates
from statebackend.errors import InputError, StateTypeError, ValueDecodeError, ValueEncodeError
from tests.changes import drained, rows_of
from tests.codec.test_schema import struct
from tests.examples import name_of
from tests.state.states import MAX_PARALLELISM, all_states, restored

ALL = frozenset(range(MAX_PARALLELISM))


class Leg(msgspec.Struct):
    """The first version."""

    origin: str
    miles: int


class KmLeg(msgspec.Struct):
    """Another one: no place for miles any more, and a unit."""

    origin: str
    km: float
    carrier: str = "??"


class PointLeg(msgspec.Struct):
    """And one more."""

    at: tuple[str, float]


def to_km(leg: dict[str, Any]) -> dict[str, Any]:
    return {"origin": leg["origin"], "km": leg["miles"] * 2.0}


def to_point(leg: dict[str, Any]) -> PointLeg:
    return PointLeg((leg["origin"], leg["km"]))


def written(type_: Any = Leg, value: Any = None) -> tuple[KeyedStates, list[StateChange]]:
    """States of every kind with values of a type, and their log."""
    states = all_states()
    value = Leg("EWR", 100) if value is None else value
    states.value_state("legs", type_)["a"] = value
    states.list_state("hops", type_)["a"].append(value)
    states.map_state("seen", str, type_)["a"]["x"] = value
    states.reducing_state("last", type_, lambda _, value: value).add("a", value)
    return states, drained(states)


def read(states: KeyedStates, type_: Any, **options: Any) -> list[Any]:
    """Every value, of every kind."""
    return [
        states.value_state("legs", type_, **options)["a"],
        *states.value_state("legs", type_, **options).get_many(["a"]),
        *states.list_state("hops", type_, **options)["a"],
        states.map_state("seen", str, type_, **options)["a"]["x"],
        *states.map_state("seen", str, type_, **options).get_many(["a"])[0].values(),
        states.reducing_state("last", type_, lambda _, value: value, **options)["a"],
    ]


# ------------------------------------------------------------------------------------------------- without an upcast


def test_field_may_be_added_with_a_default() -> None:
    """Values written before have the default."""
    later = struct(("origin", str), ("miles", int), ("carrier", str, "??"))
    found = read(restored(*written()), later)
    assert found == [later("EWR", 100, "??")] * 6


def test_field_may_be_removed() -> None:
    """Values written before are read without it."""
    later = struct(("origin", str))
    assert read(restored(*written()), later) == [later("EWR")] * 6


def test_incompatible_type_is_refused_with_both_schemas() -> None:
    """When it is declared, whatever the kind; nothing is lost, and the former type still fits."""
    states = restored(*written())
    later = struct(("origin", str), ("miles", str))
    for declare in (
        lambda: states.value_state("legs", later),
        lambda: states.list_state("hops", later),
        lambda: states.map_state("seen", str, later),
        lambda: states.reducing_state("last", later, operator.add),
    ):
        with pytest.raises(StateTypeError) as caught:
            declare()
        assert caught.value.facts["schema_written"] == '{"record":{"miles":"int","origin":"str"}}'
        assert caught.value.facts["schema_declared"] == '{"record":{"miles":"str","origin":"str"}}'
        assert caught.value.facts["reason"] == 'value.miles: "int" is no "str"'
    assert read(states, Leg) == [Leg("EWR", 100)] * 6


def test_field_that_was_removed_cannot_come_back_as_another_type() -> None:
    """Some stored value may still have it as it was. So what is checked are all schemas, not only the last."""
    states = restored(*written())
    states.value_state("legs", struct(("origin", str)))
    later = restored(states, drained(states))
    with pytest.raises(StateTypeError) as caught:
        later.value_state("legs", struct(("origin", str), ("miles", str, "0")))
    assert caught.value.facts["schema_written"] == '{"record":{"miles":"int","origin":"str"}}'
    later.value_state("legs", struct(("origin", str), ("miles", int, 0)))


@pytest.mark.parametrize(
    ("first", "between", "later"),
    [
        (
            struct(("miles", int, 0), omit_defaults=True),
            struct(("miles", int, 0)),
            struct(("miles", int, 5)),
        ),
        (struct(("origin", str)), struct(("origin", str), ("miles", int, 0)), struct(("origin", str), ("miles", int))),
        (
            struct(("origin", str, ""), ("miles", int, 0)),
            struct(("miles", int, 0)),
            struct(("miles", int, 0), forbid_unknown_fields=True),
        ),
    ],
    ids=["another default", "no default any more", "unknown fields forbidden"],
)
def test_declaration_with_the_newest_schema_must_fit_the_earlier_ones_too(first: Any, between: Any, later: Any) -> None:
    """Its text is the same, but what it makes of a value written before differs: it would change, or not be read."""
    states = all_states()
    states.value_state("legs", first)
    newer = restored(states, [])
    newer.value_state("legs", between)
    descriptor = newer.descriptors[0]
    newest = restored(newer, [])
    with pytest.raises(StateTypeError) as caught:
        newest.value_state("legs", later)
    assert caught.value.facts["schema_declared"] == descriptor.schema
    assert caught.value.facts["schema_written"] in descriptor.earlier
    newest.value_state("legs", between)
    assert newest.descriptors == (descriptor,)


def test_schemas_that_stored_values_may_have_are_in_the_descriptor() -> None:
    """Each once, the newest for itself; going to and fro adds none."""
    states, log = written()
    one, two = struct(("origin", str)), struct(("origin", str), ("miles", int, 0))
    for type_ in (one, two, one, two):
        states = restored(states, log)
        states.value_state("legs", type_)
    legs = states.descriptors[0]
    assert legs.schema == '{"record":{"miles":"int","origin":"str"}}'
    assert legs.earlier == ('{"record":{"origin":"str"}}',)


# ---------------------------------------------------------------------------------------------------- with upcasts


def test_values_are_upcast_when_they_are_read() -> None:
    """Of every kind. The result may be an object or builtins, of which fields with defaults may be missing."""
    states = restored(*written())
    assert read(states, KmLeg, migrate=to_km) == [KmLeg("EWR", 200.0)] * 6
    assert drained(states) == []
    states = restored(*written())
    assert read(states, PointLeg, migrate=(to_km, to_point)) == [PointLeg(("EWR", 200.0))] * 6


def test_written_values_are_not_upcast_again() -> None:
    """A cell says of which version it is, so both kinds live side by side, after a restore too."""
    states, log = written()
    for _ in range(2):
        states = restored(states, log)
        legs = states.value_state("legs", KmLeg, migrate=to_km)
        legs["b"] = KmLeg("IAH", 5.0)
        assert (legs["a"], legs["b"]) == (KmLeg("EWR", 200.0), KmLeg("IAH", 5.0))
        hops = states.list_state("hops", KmLeg, migrate=to_km)
        hops["a"] = [hops["a"][0]]
        hops["a"].append(KmLeg("IAH", 5.0))
        assert hops["a"] == [KmLeg("EWR", 200.0), KmLeg("IAH", 5.0)]
        log += drained(states)


def test_upcasts_follow_each_other() -> None:
    """Values of every version there ever was are read by the newest."""
    states, log = written()
    states = restored(states, log)
    states.value_state("legs", KmLeg, migrate=[to_km])["b"] = KmLeg("IAH", 5.0)
    log += drained(states)
    states = restored(states, log)
    legs = states.value_state("legs", PointLeg, migrate=[to_km, to_point])
    legs["c"] = PointLeg(("LGA", 1.0))
    assert dict(legs) == {
        "a": PointLeg(("EWR", 200.0)),
        "b": PointLeg(("IAH", 5.0)),
        "c": PointLeg(("LGA", 1.0)),
    }


def test_same_type_may_have_an_upcast() -> None:
    """Such as from miles to kilometres in the same int."""
    states = all_states()
    states.value_state("miles", int)["a"] = 100
    later = restored(states, drained(states))
    miles = later.value_state("miles", int, migrate=lambda miles: miles * 2)
    miles["b"] = 1
    assert dict(miles) == {"a": 200, "b": 1}
    assert miles.get_many(["a", "b"]) == [200, 1]
    miles.put_many(["a"], miles.get_many(["a"]))
    assert miles["a"] == 200


def test_base_holds_values_as_they_were_written() -> None:
    """In every kind of state: what the type lacks and what it fills in are up to whoever reads the value.

    With a base or without, a field that is gone for one run comes back with what it had, a default is that of the run
    that reads, and an upcast that is mended is mended for all values that were not written since.
    """
    states = restored(*written())
    log = rows_of(states.snapshot().changes(ALL))
    without = struct(("origin", str), ("carrier", str, "none"))
    read(states, without, migrate=lambda leg: leg)
    base = rows_of(states.snapshot().changes(ALL))
    assert base == log
    returned = struct(("origin", str), ("miles", int, 0), ("carrier", str, "??"))
    assert read(restored(states, base), returned, migrate=lambda leg: leg) == [returned("EWR", 100, "??")] * 6
    mended = read(restored(states, base), returned, migrate=lambda leg: leg | {"miles": leg["miles"] + 1})
    assert mended == [returned("EWR", 101, "??")] * 6


def test_an_upcast_gets_what_would_have_been_stored() -> None:
    """Also of one that returns the type itself, as it may while it is the last: the next one gets builtins."""
    states = restored(*written())
    in_hours = struct(("hours", float))
    expected = [in_hours(0.25)] * 6
    assert read(states, in_hours, migrate=[to_km, to_point, lambda leg: {"hours": leg["at"][1] / 800}]) == expected


def test_later_version_is_refused_by_an_earlier_program() -> None:
    """It would read what it does not know."""
    states = restored(*written())
    states.value_state("legs", KmLeg, migrate=to_km)
    later = restored(states, drained(states))
    with pytest.raises(StateTypeError) as caught:
        later.value_state("legs", KmLeg)
    assert (caught.value.facts["version_written"], caught.value.facts["version_declared"]) == (1, 0)


def test_upcast_that_fails_is_told_and_keeps_the_value() -> None:
    """With what it said."""
    states = restored(*written())
    legs = states.value_state("legs", KmLeg, migrate=lambda leg: {"origin": leg["nowhere"]})
    with pytest.raises(ValueDecodeError) as caught:
        legs["a"]
    assert caught.value.facts == {"version_written": 0, "version_declared": 1}
    assert states.value_state("legs", KmLeg, migrate=to_km)["a"] == KmLeg("EWR", 200.0)


def test_upcast_keeps_the_time_of_writing() -> None:
    """In a base, too."""
    now = 100.0
    ttl = TimeToLive(10, lambda: now)
    states = all_states()
    states.value_state("legs", Leg, ttl=ttl)["a"] = Leg("EWR", 100)
    now = 105.0
    later = restored(states, drained(states))
    later.value_state("legs", KmLeg, ttl=ttl, migrate=to_km)
    base = restored(later, rows_of(later.snapshot().changes(ALL)))
    legs = base.value_state("legs", KmLeg, ttl=ttl, migrate=to_km)
    assert legs["a"] == KmLeg("EWR", 200.0)
    now = 110.0
    assert "a" not in legs


@pytest.mark.parametrize("migrate", [5, "ab", [5], [to_km, None]], ids=name_of)
def test_upcast_that_is_no_function_is_refused(migrate: Any) -> None:
    """When it is declared."""
    with pytest.raises(InputError):
        all_states().value_state("legs", KmLeg, migrate=migrate)


# ------------------------------------------------------------------------------------------- a serializer of its own


class Complex:
    """A type that msgspec does not know. Its bytes may begin with any byte, MessagePack's unused one too."""

    schema = "complex as text"

    def __init__(self, first: bytes = b"\xc1") -> None:
        self.first = first

    def encode(self, value: complex) -> bytes:
        return self.first + repr(complex(value)).encode()

    def decode(self, data: bytes | bytearray | memoryview) -> complex:
        return complex(bytes(data[1:]).decode())


class Broken(Complex):
    """Says that it encodes."""

    def encode(self, value: complex) -> Any:
        return "text"


@pytest.mark.parametrize("first", [bytes([each]) for each in (0, 0xC0, 0xC1, 0xC2, 0xFF)], ids=name_of)
def test_own_serializer_serves_every_kind(first: bytes) -> None:
    """Whatever its bytes look like, with a time-to-live and without."""
    states = all_states()
    serializer = Complex(first)
    plain = states.value_state("plain", serializer)
    timed = states.value_state("timed", serializer, ttl=TimeToLive(10, lambda: 0.0))
    hops, seen = states.list_state("hops", serializer), states.map_state("seen", serializer, serializer)
    total = states.reducing_state("total", serializer, operator.add)
    for state in (plain, timed):
        state["a"] = 1j
        state.put_many(["b"], [2j])
    hops["a"].extend([1j, 2j])
    seen["a"][1j] = 2j
    total.add_many(["a", "a"], [1j, 2j])
    later = restored(states, drained(states))
    for name, ttl in (("plain", None), ("timed", TimeToLive(10, lambda: 0.0))):
        state = later.value_state(name, serializer, ttl=ttl)
        assert dict(state) == {"a": 1j, "b": 2j}
        assert state.get_many(["b", "a"]) == [2j, 1j]
    assert later.list_state("hops", serializer)["a"] == [1j, 2j]
    assert later.map_state("seen", serializer, serializer)["a"] == {1j: 2j}
    assert later.reducing_state("total", serializer, operator.add)["a"] == 3j


def test_own_serializer_is_known_by_its_class_and_schema() -> None:
    """Another object of the class is the same; another schema is another type and needs an upcast: from bytes."""
    states = all_states()
    numbers = states.value_state("numbers", Complex(b"x"))
    numbers["a"] = 1j
    assert states.value_state("numbers", Complex(b"x")) is numbers
    with pytest.raises(StateTypeError):
        states.value_state("numbers", complex_of_schema("other"))
    later = restored(states, drained(states))
    for type_ in (str, complex_of_schema(""), complex_of_schema('"str"')):
        with pytest.raises(StateTypeError):
            later.value_state("numbers", type_)
    with pytest.raises(StateTypeError):
        later.value_state("numbers", complex_of_schema("other"))
    upcast = later.value_state(
        "numbers", complex_of_schema("other"), migrate=lambda data: complex(data[1:].decode()) * 2
    )
    assert upcast["a"] == 2j


class Numbers:
    """Numbers as text, with some separator."""

    def __init__(self, separator: str) -> None:
        self.schema = f"numbers{separator}"
        self._separator = separator

    def encode(self, value: tuple[int, ...]) -> bytes:
        return self._separator.join(map(str, value)).encode()

    def decode(self, data: bytes | bytearray | memoryview) -> tuple[int, ...]:
        return tuple(map(int, bytes(data).decode().split(self._separator)))


def test_upcasts_of_an_own_serializer_follow_each_other() -> None:
    """From bytes to bytes, so that each takes what it was written for: what is stored, or what the one before made."""
    states, upcasts = all_states(), list[Any]()
    states.value_state("numbers", Numbers(","))["a"] = (1, 2)
    log = drained(states)
    for old, new, key in ((b",", b";", "b"), (b";", b"|", "c")):
        upcasts.append(lambda data, old=old, new=new: data.replace(old, new))
        states = restored(states, log)
        numbers = states.value_state("numbers", Numbers(new.decode()), migrate=upcasts)
        numbers[key] = (3, 4)
        log += drained(states)
    assert dict(numbers) == {"a": (1, 2), "b": (3, 4), "c": (3, 4)}
    base = restored(states, rows_of(states.snapshot().changes(ALL)))
    assert dict(base.value_state("numbers", Numbers("|"), migrate=upcasts)) == dict(numbers)


def complex_of_schema(schema: str) -> Any:
    """A serializer of a class of its own."""
    return type("Other", (Complex,), {"schema": schema})()


def test_own_serializer_that_gives_no_bytes_is_refused() -> None:
    """When it is written."""
    numbers = all_states().value_state("numbers", Broken())
    with pytest.raises(ValueEncodeError):
        numbers["a"] = 1j
    with pytest.raises(InputError):
        all_states().value_state("numbers", complex_of_schema(5))  # type: ignore[arg-type]
    assert dict(numbers) == {}


def test_own_schema_is_not_taken_for_one_of_msgspec() -> None:
    """Though its words are the same."""
    states = all_states()
    states.value_state("numbers", complex_of_schema('"int"'))["a"] = 1j
    with pytest.raises(StateTypeError):
        restored(states, drained(states)).value_state("numbers", int)
