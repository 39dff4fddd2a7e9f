"""The types that programs declare, their values with the borders, and each value as a text that tells all apart.

A program names a type and the number of a value, so that it stays printable. `text_of` gives equal texts to what must
be equal, whoever read it, and different ones to 0.0 and -0.0, to bytes and text, to "1.0" and "1.00".
"""

import datetime as dt
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa

import statebackend as sb

LARGE = 1 << 20
UTC = dt.UTC


class Leg0(msgspec.Struct):
    n: int
    s: str | None = None


class Leg1(msgspec.Struct):
    """A field was added."""

    n: int
    s: str | None = None
    more: int = 5


class Leg2(msgspec.Struct):
    """A field was removed."""

    n: int
    more: int = 5


class Leg3(msgspec.Struct):
    """It came back, with another default."""

    n: int
    more: int = 5
    s: str | None = "again"


class Leg4(msgspec.Struct):
    """A field was renamed, which takes an upcast."""

    m: int
    more: int = 5
    s: str | None = "again"


class Leg5(msgspec.Struct):
    """Removed again, by a type that has an upcast."""

    m: int
    more: int = 5


class Leg6(msgspec.Struct):
    """And back once more."""

    m: int
    more: int = 5
    s: str | None = "third"


def renamed(old: dict[str, Any]) -> dict[str, Any]:
    """From `Leg3`, as builtins, to `Leg4`."""
    return {"m": old["n"] + 1} | {name: value for name, value in old.items() if name != "n"}


LEGS: Mapping[str, tuple[type[msgspec.Struct], int]] = {
    "leg 0": (Leg0, 0),
    "leg 1": (Leg1, 0),
    "leg 2": (Leg2, 0),
    "leg 3": (Leg3, 0),
    "leg 4": (Leg4, 1),
    "leg 5": (Leg5, 1),
    "leg 6": (Leg6, 1),
}
"""The versions of one type, oldest first, and how many upcasts each has."""
UPCASTS = (renamed,)
_UPCASTS_OF = dict(LEGS.values())


class Stop(msgspec.Struct, frozen=True):
    """A name in a map may be a record."""

    at: str
    n: int = 0


class Type(NamedTuple):
    """`annotation` and values of it. `read`: a value as readers in Arrow show it."""

    annotation: Any
    values: Sequence[Any]
    read: Callable[[Any], Any] = lambda value: value
    arrow: Any = None
    """Its column in a columnar state, if there can be one."""
    upcasts: Sequence[Callable[[Any], Any]] = ()


def _fields(value: Any) -> Any:
    return msgspec.structs.asdict(value)


def _utc(value: dt.datetime) -> dt.datetime:
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


NEW_YORK = ZoneInfo("America/New_York")

TYPES: Mapping[str, Type] = {
    "int": Type(int, (0, 1, -1, 7, (1 << 63) - 1, -(1 << 63)), arrow=pa.int64()),
    "float": Type(float, (0.0, -0.0, 0.1, 1e308, 5e-324, math.nan, math.inf, -math.inf, 3600.7), arrow=pa.float64()),
    "bool": Type(bool, (True, False), arrow=pa.bool_()),
    "str": Type(str, ("", "a", "ä\u0000b", "\U0001d11e", "1", "null", "\n\t\"'\\"), arrow=pa.string()),
    "bytes": Type(bytes, (b"", b"\x00", b"\xff\xfe", b"a"), arrow=pa.binary()),
    "large": Type(str, ("x" * (LARGE + 3), "y", "z" * (LARGE // 2), "p" * LARGE, "q" * (LARGE - 5)), arrow=pa.string()),
    "border": Type(str, tuple("b" * size for size in (31, 32, 253, 254, 255, 256, 257)), arrow=pa.string()),
    "instant": Type(
        dt.datetime,
        (
            dt.datetime(1970, 1, 1, tzinfo=UTC),
            dt.datetime(2024, 3, 10, 1, 59, 59, 999999, tzinfo=NEW_YORK),
            dt.datetime(1, 1, 1, tzinfo=UTC),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ),
        _utc,
    ),
    "date": Type(dt.date, (dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)), arrow=pa.date32()),
    "time": Type(dt.time, (dt.time(0), dt.time(23, 59, 59, 999999))),
    "delta": Type(
        dt.timedelta, (dt.timedelta(0), dt.timedelta(microseconds=-1), dt.timedelta(days=999, microseconds=1))
    ),
    "decimal": Type(Decimal, (Decimal("1.0"), Decimal("1.00"), Decimal("-0"), Decimal("1E+30")), str),
    "maybe": Type(int | None, (None, 0, 5)),
    "maybe text": Type(str | None, (None, "", "None")),
    **{
        name: Type(class_, (class_(1), class_(2, 9), class_(-5)), _fields, upcasts=UPCASTS[:upcasts])
        for name, (class_, upcasts) in LEGS.items()
        if "s" not in class_.__struct_fields__
    },
    **{
        name: Type(class_, (class_(1), class_(2, s=""), class_(-5, s="x")), _fields, upcasts=UPCASTS[:upcasts])
        for name, (class_, upcasts) in LEGS.items()
        if "s" in class_.__struct_fields__
    },
    "stop": Type(Stop, (Stop("EWR"), Stop("", 1)), _fields),
    "pair": Type(tuple[int, str], ((0, ""), (1, "b")), lambda value: {"_1": value[0], "_2": value[1]}),
    "ints": Type(list[int], ([], [1], [3, 2, 1])),
    "names": Type(dict[str, int], ({}, {"a": 1}, {"b": 2, "": 0}), lambda value: list(value.items())),
}

ENTRY_KEYS = ("str", "int", "float", "bytes", "date", "decimal", "maybe text", "stop", "pair")
"""Types of names within a map."""

KEYS: Mapping[str, Sequence[sb.Key]] = {
    "str": (
        "",
        "a",
        "b",
        "ä",
        "\u0000",
        "1",
        "k" * 3000,
        "k" * 255,
        "k" * 256,
        *(f"key{number}" for number in range(40)),
    ),
    "int": (0, 1, -1, (1 << 63) - 1, -(1 << 63), 255, 256, *range(1000, 1040)),
    "bytes": (b"", b"\x00", b"a", b"\xff" * 9, *(bytes([number]) for number in range(100, 140))),
    "tuple": (
        ("", 0),
        ("a", -1),
        ("a", 1),
        ("ä", (1 << 63) - 1),
        ("a1", 1),
        ("a", 11),
        ("", 1),
        ("a\u0000", 1),
        *(("t", number) for number in range(2, 40)),
    ),
}
KEY_COLUMNS = {
    "str": {"k": pa.string()},
    "int": {"k": pa.int64()},
    "bytes": {"k": pa.binary()},
    "tuple": {"k": pa.string(), "k2": pa.int64()},
}
KEY_ARROW = {
    "str": pa.string(),
    "int": pa.int64(),
    "bytes": pa.binary(),
    "tuple": pa.struct([("_1", pa.string()), ("_2", pa.int64())]),
}


def key_read(key: Any) -> Any:
    """A key as readers in Arrow show it."""
    return {f"_{place}": part for place, part in enumerate(key, 1)} if isinstance(key, tuple) else key


def stored_fields(type_: str, value: Any) -> dict[str, Any]:
    """The fields that a stored value has of this version of its type: those that it was written with, upcast."""
    class_, upcasts = LEGS[type_]
    fields = msgspec.structs.asdict(value)
    for upcast in UPCASTS[_UPCASTS_OF[type(value)] : upcasts]:
        fields = upcast(fields)
    return {name: fields[name] for name in class_.__struct_fields__ if name in fields}


def evolved(type_: str, value: Any) -> Any:
    """A stored value as a program reads it that declares this version of its type."""
    return LEGS[type_][0](**stored_fields(type_, value)) if type_ in LEGS else value


def read_of(type_: str, value: Any) -> Any:
    """A stored value as readers in Arrow show it, by this version of its type: what it lacks is null there."""
    if type_ in LEGS and value is not None:
        return dict.fromkeys(LEGS[type_][0].__struct_fields__) | stored_fields(type_, value)
    return None if value is None else TYPES[type_].read(value)


def text_of(value: Any) -> str:
    """A text that is the same for values that must be equal, and for no others."""
    match value:
        case float():
            found = "nan" if math.isnan(value) else struct.pack(">d", value).hex()
        case dt.datetime():
            found = _utc(value).isoformat() if value.tzinfo else f"{value.isoformat()} nowhere"
        case msgspec.Struct():
            found = text_of(msgspec.structs.asdict(value))
        case Mapping():
            entries = sorted(f"{text_of(name)}: {text_of(each)}" for name, each in value.items())
            found = f"{{{', '.join(entries)}}}"
        case tuple() | list():
            found = f"[{', '.join(map(text_of, value))}]"
        case _:
            found = repr(value)
    return found


def short(text: object) -> str:
    """The beginning and the end of a long text."""
    shown = str(text)
    return shown if len(shown) < 400 else f"{shown[:200]} ...{len(shown)}... {shown[-100:]}"
