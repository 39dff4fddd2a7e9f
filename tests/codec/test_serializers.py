"""What a state accepts comes back as a value of its declared type; anything else is refused when it is written."""

import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.cells import framed
from statebackend._codec.serializers import MsgspecSerializer
from statebackend.errors import InputError, ValueDecodeError, ValueEncodeError
from tests.examples import name_of


class Leg(msgspec.Struct):
    origin: str
    miles: float = 0.0


class LongLeg(Leg):
    """More than was declared."""

    stops: int = 0


class Trip(msgspec.Struct):
    legs: list[Leg]
    by_day: dict[int, Leg] = msgspec.field(default_factory=dict)


class Silent(msgspec.Struct, eq=False):
    """Never equal to another object."""

    tags: set[str]
    mean: float


@dataclasses.dataclass
class Counter:
    """`count` is no argument."""

    name: str
    count: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Drifting(msgspec.Struct):
    """Another one each time it is decoded."""

    count: int

    def __post_init__(self) -> None:
        self.count += 1


class Pair(NamedTuple):
    first: int
    second: str


class Options(TypedDict, total=False):
    depth: int


class Colour(enum.Enum):
    RED = "red"


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Tree(msgspec.Struct):
    children: list["Tree"]


def _counted() -> Counter:
    counter = Counter("a")
    counter.count = 5
    return counter


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (int, 0),
        (int, -(2**63)),
        (int, 2**64 - 1),
        (float, -0.5),
        (bool, True),
        (str, "é\0"),
        (bytes, b""),
        (None, None),
        (int | None, None),
        (list[int], []),
        (tuple[int, str], (1, "a")),
        (set[int], {3, 1, 2}),
        (dict[int, str], {1: "a"}),
        (Literal["a", "b"], "a"),
        (dt.datetime, dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC)),
        (dt.timedelta, dt.timedelta(minutes=-3)),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=5)),
        (Colour, Colour.RED),
        (Pair, Pair(1, "a")),
        (Options, {}),
        (Leg, Leg("EWR", 3.5)),
        (Trip, Trip([Leg("EWR")], {1: Leg("LGA")})),
        (Point, Point(1.0, 2.0)),
        (Counter, _counted()),
        (Cat | Dog, Dog(["sit"])),
        (Tree, Tree([Tree([])])),
    ],
    ids=name_of,
)
def test_value_of_the_type_comes_back(type_: Any, value: Any) -> None:
    """Of every sort that msgspec knows, empty and extreme ones too."""
    serializer = MsgspecSerializer(type_)
    decoded = serializer.decode(serializer.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (int, "1"),
        (int, True),
        (int, 1.0),
        (int, None),
        (int, 2**64),
        (int, -(2**63) - 1),
        (float, "1"),
        (str, b"a"),
        (str, "\ud800"),
        (bytes, "a"),
        (bool, 1),
        (list[int], [1, "2"]),
        (dict[int, str], {"1": "a"}),
        (tuple[int, str], (1,)),
        (Literal["a"], "b"),
        (Colour, "blue"),
        (Leg, Leg(5)),  # type: ignore[arg-type]
        (Leg, Leg("EWR", 2**70)),
        (Leg, {"miles": 1.0}),
        (Leg, None),
        (Leg, object()),
        (Trip, Trip([Leg("EWR"), Leg(None)])),  # type: ignore[arg-type]
        (Trip, Trip([], {1: Leg("EWR", "far")})),  # type: ignore[arg-type]
        (Point, Point(1.0, None)),  # type: ignore[arg-type]
        (Cat | Dog, Leg("EWR")),
        (list[Any], [1, object()]),
        (list[Any], [1 + 2j]),
    ],
    ids=name_of,
)
def test_value_that_is_not_of_the_type_is_refused(type_: Any, value: Any) -> None:
    """At the top or deep inside. Encoding alone would accept most of these, and reading would fail."""
    with pytest.raises(ValueEncodeError) as caught:
        MsgspecSerializer(type_).encode(value)
    assert caught.value.facts["value_type"] == type(value).__name__


@pytest.mark.parametrize(
    ("type_", "value", "said"),
    [
        (dict, 5, "Expected `dict`, got `int`"),
        (dict[str, dict[str, int]], {"object": 5}, "Expected `dict`, got `int` - at `$[...]`"),
        (list, {}, "Expected `list`, got `dict`"),
        (int, [], "Expected `int`, got `list`"),
        (list[int] | None, 5, "Expected `list | None`, got `int`"),
        (Trip, Trip([], {1: 5}), "Expected `dict`, got `int` - at `$.by_day[...]`"),
    ],
)
def test_a_value_of_another_type_is_told_in_the_words_of_python(type_: Any, value: Any, said: str) -> None:
    """With the type that was declared; a dict is no `object` there, as it is in JSON. What is stored, too."""
    with pytest.raises(ValueEncodeError) as caught:
        MsgspecSerializer(type_).encode(value)
    assert caught.value.message.endswith(f": {said}")
    assert caught.value.facts["declared"] == (type_.__name__ if isinstance(type_, type) else str(type_))
    with pytest.raises(ValueDecodeError) as undecoded:
        MsgspecSerializer(type_).decode(msgspec.msgpack.encode(value))
    assert undecoded.value.message.endswith(f": {said}")


def test_value_that_contains_itself_is_refused() -> None:
    """It has no end to encode."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueEncodeError):
        MsgspecSerializer(list[Any]).encode(endless)


def test_value_with_a_field_taken_away_is_refused() -> None:
    """Such as a struct after `del leg.origin`."""
    leg = Leg("EWR")
    del leg.origin
    with pytest.raises(ValueEncodeError):
        MsgspecSerializer(Leg).encode(leg)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        pytest.param(Leg, LongLeg("EWR", 1.0, 3), id="fields of a subclass"),
        pytest.param(Trip, Trip([LongLeg("EWR", 1.0, 3)]), id="fields of a subclass, inside"),
        pytest.param(Leg, {"origin": "EWR", "miles": 1.0, "stops": 3}, id="unknown keys of a dict"),
        pytest.param(Leg, {"origin": "EWR", "stops": 3}, id="an unknown key in place of a default"),
        pytest.param(Silent, {"tags": ["a", "a"], "mean": 1.0}, id="a set that was a list"),
        pytest.param(Drifting, Drifting(1), id="a struct that changes when it is made"),
    ],
)
def test_value_that_would_lose_a_part_is_refused(type_: Any, value: Any) -> None:
    """Msgspec decodes each of these without an error, and without that part."""
    with pytest.raises(ValueEncodeError):
        MsgspecSerializer(type_).encode(value)


@pytest.mark.parametrize(
    ("type_", "value", "comes_back"),
    [
        pytest.param(float, 3, 3.0, id="int for float"),
        pytest.param(Leg, Leg("EWR", 3), Leg("EWR", 3.0), id="int for float, inside"),
        pytest.param(list[int], (1, 2), [1, 2], id="tuple for list"),
        pytest.param(tuple[int, ...], [1, 2], (1, 2), id="list for tuple"),
        pytest.param(Leg, {"origin": "EWR", "miles": 3.0}, Leg("EWR", 3.0), id="dict for struct"),
        pytest.param(Any, (1, Leg("EWR", 1.0)), [1, {"origin": "EWR", "miles": 1.0}], id="anything"),
    ],
)
def test_what_msgspec_takes_for_the_same_comes_back_as_declared(type_: Any, value: Any, comes_back: Any) -> None:
    """Nothing is lost, so nothing is refused."""
    serializer = MsgspecSerializer(type_)
    decoded = serializer.decode(serializer.encode(value))
    assert decoded == comes_back
    assert type(decoded) is type(comes_back)


def test_values_that_equal_nothing_come_back() -> None:
    """NaN, and structs without equality, also beside what changes its bytes: an int for a float, a set's order."""
    floats = MsgspecSerializer(list[float])
    assert [math.isnan(each) or each for each in floats.decode(floats.encode([math.nan, 3]))] == [True, 3.0]
    silent = MsgspecSerializer(Silent)
    tags = {f"tag {number}" for number in range(100)}
    decoded = silent.decode(silent.encode(Silent(tags, 3)))
    assert (decoded.tags, decoded.mean) == (tags, 3.0)


@pytest.mark.parametrize("type_", [complex, object, list[complex], 5, "int", dict[str, object]], ids=name_of)
def test_type_that_cannot_be_read_back_is_refused(type_: Any) -> None:
    """When the state is declared, not when it is first written or read."""
    with pytest.raises(InputError):
        MsgspecSerializer(type_)


def test_type_that_names_an_unknown_one_is_refused() -> None:
    """A forward reference to nothing."""
    unknown = msgspec.defstruct("Unknown", [("field", "list[Nowhere]")])
    with pytest.raises(InputError):
        MsgspecSerializer(unknown)


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40), max_size=30))
def test_row_is_decoded_as_its_elements_are_one_by_one(values: list[int | str]) -> None:
    """Numbers too: a length before an element is not taken for one."""
    serializer = MsgspecSerializer[int | str](int | str)  # type: ignore[arg-type]
    row = b"".join(framed(serializer.encode(value)) for value in values)
    assert (serializer.decode_row(len(values), row) if values else []) == values


def test_row_is_decoded_as_declared_and_a_damaged_one_is_told() -> None:
    """A float that was stored as an integer is a float."""
    row = framed(msgspec.msgpack.encode(1)) + framed(msgspec.msgpack.encode(2.5))
    assert list(map(repr, MsgspecSerializer(float).decode_row(2, row))) == ["1.0", "2.5"]
    for damaged in (row[:-1], framed(b"\xc1\x00\x01") + row[2:], framed(b"\xa1a") + row[2:]):
        with pytest.raises(ValueDecodeError):
            MsgspecSerializer(float).decode_row(2, damaged)


def test_value_beyond_the_limit_is_refused() -> None:
    """At once, while the batch can still be corrected, and not when its change set is encoded."""
    serializer = MsgspecSerializer(bytes, value_bytes_max=10)
    assert serializer.decode(serializer.encode(b"x" * 8)) == b"x" * 8
    with pytest.raises(ValueEncodeError) as caught:
        serializer.encode(b"x" * 9)
    assert caught.value.facts == {"size_bytes": 11, "bytes_max": 10}


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xa3ab", b"\x01\x01", b"\x91" * 5000, b"\xa1a"], ids=name_of)
def test_bytes_that_are_no_value_are_told(data: bytes) -> None:
    """With the type that was expected."""
    with pytest.raises(ValueDecodeError) as caught:
        MsgspecSerializer(int).decode(data)
    assert caught.value.facts["schema"] == '"int"'


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
        lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=4), parts, max_size=4),
        max_leaves=12,
    )
)
def test_whatever_is_made_of_builtins_comes_back(value: Any) -> None:
    """Also where it is not equal to itself."""
    serializer = MsgspecSerializer(Any)
    assert repr(serializer.decode(serializer.encode(value))) == repr(value)
