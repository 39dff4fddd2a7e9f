"""A state of every kind with odd keys and values, beside the plain dictionaries that say what it has to hold.

`Kind.form` brings a value to one form, as Python has it, as Arrow has it, or as it is in JSON.
"""

import base64
import copy
import json
import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

import statebackend as sb
from tests.aggregates import Mean


class Leg(msgspec.Struct, frozen=True):
    origin: str
    miles: int | None = None
    tags: tuple[bytes, ...] = ()


class Trip(msgspec.Struct):
    legs: list[Leg]
    seats: dict[str | None, int]
    by_leg: dict[Leg, float]
    rest: Any = None


TEXTS: Final = ("", "a", "é\U0001f600", "\0", "x" * 300)
WHOLE: Final = (0, 7, -1, -(2**63), 2**63 - 1)
OCTETS: Final = (b"", b"\xff", b"a")
TUPLES: Final = (("d", 1), ("", -1), ("x" * 40, 2**63 - 1))
MIXED: Final = (*TEXTS[:3], *WHOLE[:2], *OCTETS, *TUPLES, (("x",), b"\0"))
FLOATS: Final = (0.0, -0.0, math.nan, math.inf, 1.5)
LEGS: Final = (Leg("EWR"), Leg("", -5, (b"\xff", b"")), Leg("EWR", 0))
TRIPS: Final = (
    Trip([], {}, {}),
    Trip([LEGS[0], LEGS[1]], {"a": 1, None: 2, "": -3}, {LEGS[0]: -0.0, LEGS[1]: math.nan}, {"deep": [1, (None,)]}),
    Trip([LEGS[2]], {None: 0}, {LEGS[2]: 1.5}, [b"\xff", {7: "seven", None: -0.0}]),
)
OPERATOR: Final = ("split", "union", "broadcast")
COLUMNS: Final = pa.schema(
    {"n": pa.int64(), "x": pa.float64(), "raw": pa.binary(), "key": pa.string(), "key_group": pa.bool_()}
)
FREE: Final = (None, 1, b"", {"a": [1]}, {None: {1: 2}})
ROWS: Final = (
    {"n": 1, "x": math.nan, "raw": b"\xff", "key": "a", "key_group": True},
    {"n": None, "x": -0.0, "raw": b"", "key": "", "key_group": False},
    {"n": -(2**63), "x": None, "raw": None, "key": None, "key_group": None},
)

State = Any
Model = dict[sb.Key, Any]
"""The values by key. That of a map is pairs, since not every name can be hashed, and some are equal in Python."""


def plain(value: Any) -> Any:  # noqa: PLR0911  # a case for each type
    """The value in types that JSON has. A dict with other names than texts is pairs, as `pairs` has them."""
    match value:
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict() if value and list(value) == [f"_{place}" for place in range(1, len(value) + 1)]:
            return [plain(each) for each in value.values()]  # how Arrow has a tuple
        case dict():
            is_object = all(type(name) is str for name in value)
            return {name: plain(each) for name, each in value.items()} if is_object else pairs(value)
        case list() | tuple():
            return [plain(each) for each in value]
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case float() if value == 0:
            return str(value)  # -0.0 is another value than 0.0
        case _:
            return value


def pairs(value: Any) -> Any:
    """A map in one form: a dict, pairs, or entries with a key and a value each."""
    if isinstance(value, dict):
        found = list(value.items())
    else:
        found = [tuple(each.values()) if isinstance(each, dict) else each for each in value]
    return sorted(([plain(name), plain(each)] for name, each in found), key=repr)


def anything(value: Any) -> Any:
    """A value without a type, which columns have as text in JSON. None of those written here is a text."""
    return plain(json.loads(value) if isinstance(value, str) else value)


def pairs_of_any(value: Any) -> Any:
    """As `pairs`, of a map with names of any type."""
    found = [tuple(each.values()) if isinstance(each, dict) else each for each in value]
    return sorted(([anything(name), plain(each)] for name, each in found), key=repr)


def row(value: Any) -> Any:
    """A row of columns."""
    return plain({name.removeprefix("value."): each for name, each in value.items()})


def trip(value: Any) -> Any:
    """A `Trip`."""
    found = {name: getattr(value, name) for name in value.__struct_fields__} if isinstance(value, Trip) else value
    maps = {name: pairs(found[name]) for name in ("seats", "by_leg")}
    return {"legs": plain(found["legs"]), **maps, "rest": anything(found["rest"])}


class Kind(NamedTuple):
    """One state: how it is declared, its keys, what writes something drawn to it, and its values' form."""

    declare: Callable[[sb.StateBackend], State]
    keys: Sequence[sb.Key]
    write: Callable[[State, Model, sb.Key, random.Random], None]
    form: Callable[[Any], Any] = plain

    @property
    def is_map(self) -> bool:
        """True if its values are maps."""
        return self.form in (pairs, pairs_of_any)

    @property
    def is_mixed(self) -> bool:
        """True if its keys are of several types, so that they are shown as JSON only."""
        return len({tuple(map(type, key)) if isinstance(key, tuple) else type(key) for key in self.keys}) > 1


def _setting(values: Sequence[Any]) -> Callable[[State, Model, sb.Key, random.Random], None]:
    def write(state: State, model: Model, key: sb.Key, drawn: random.Random) -> None:
        if drawn.random() < 0.25:
            state.pop(key, None)
            model.pop(key, None)
        else:
            state[key] = model[key] = drawn.choice(values)

    return write


def _appending(state: State, model: Model, key: sb.Key, drawn: random.Random) -> None:
    if drawn.random() < 0.25:
        state[key].clear()
        model.pop(key, None)
        return
    some = [(drawn.choice(WHOLE), drawn.choice(FLOATS)) for _ in range(drawn.randrange(1, 3))]
    state[key].extend(some)
    model[key] = [*model.get(key, ()), *some]


def _naming(names: Sequence[Any]) -> Callable[[State, Model, sb.Key, random.Random], None]:
    def write(state: State, model: Model, key: sb.Key, drawn: random.Random) -> None:
        name, value, how = drawn.choice(names), drawn.choice(WHOLE), drawn.random()
        entries = {repr(own): (own, each) for own, each in model.pop(key, ())}
        if how < 0.15:
            state[key].clear()
            entries = {}
        elif how < 0.4 and repr(name) in entries:
            state.remove_entry(key, name)
            del entries[repr(name)]
        else:
            state.put(key, name, value)
            entries[repr(name)] = name, value
        if entries:
            model[key] = list(entries.values())

    return write


def _adding(state: State, model: Model, key: sb.Key, drawn: random.Random) -> None:
    number = drawn.randrange(-5, 9)
    state.add(key, number)
    model[key] = model.get(key, 0) + number


def _averaging(state: State, model: Model, key: sb.Key, drawn: random.Random) -> None:
    number = drawn.randrange(-5, 9)
    state.add(key, number)
    total, count = model.get(key, (0, 0))
    model[key] = (total + number, count + 1)


def _waiting(state: State, model: Model, key: sb.Key, drawn: random.Random) -> None:
    at = drawn.choice((0.5, 1.0, 2e9))
    state.register(key, at)
    model[key] = sorted({*model.get(key, ()), at})


KINDS: Final[Mapping[str, Kind]] = {
    "records": Kind(lambda b: b.value_state("records", Trip), MIXED, _setting(TRIPS), trip),
    "free": Kind(lambda b: b.value_state("free", Any), TEXTS, _setting(FREE), anything),
    "octets": Kind(lambda b: b.value_state("octets", bytes), OCTETS, _setting([b"", b"\xff" * 2000])),
    "list": Kind(lambda b: b.list_state("list", tuple[int, float]), WHOLE, _appending),
    "none": Kind(lambda b: b.map_state("none", str | None, int), TUPLES, _naming(["", "a", None]), pairs),
    "legs": Kind(lambda b: b.map_state("legs", Leg, int), TEXTS, _naming(LEGS), pairs),
    "floats": Kind(lambda b: b.map_state("floats", float, int), OCTETS, _naming(FLOATS), pairs),
    "any": Kind(lambda b: b.map_state("any", Any, int), WHOLE, _naming([None, 1, [1, [2]], {"b": 1}]), pairs_of_any),
    "total": Kind(lambda b: b.reducing_state("total", int, operator.add), TEXTS, _adding),
    "mean": Kind(lambda b: b.aggregating_state("mean", Mean()), TUPLES, _averaging),
    "timers": Kind(lambda b: b.timers("timers"), MIXED, _waiting),
    "columns": Kind(lambda b: b.columnar_state("columns", COLUMNS, key=pa.string()), TEXTS, _setting(ROWS), row),
}
"""Every kind of keyed state, by the names of the states."""


class Written:
    """What the job has to hold: of each checkpoint the model of each state, and of each operator state its elements."""

    def __init__(self, seed: str) -> None:
        self.drawn: Final = random.Random(seed)
        self.now: Final[dict[str, Model]] = {name: {} for name in KINDS}
        self.at: Final[dict[int, dict[str, Model]]] = {}

    def write(self, owners: Sequence[sb.StateBackend], owner_of: Callable[[sb.Key], int]) -> None:
        """Something drawn for about two thirds of the keys."""
        for name, kind in KINDS.items():
            states = [kind.declare(owner) for owner in owners]
            for key in kind.keys:
                if self.drawn.random() < 2 / 3:
                    kind.write(states[owner_of(key)], self.now[name], key, self.drawn)

    def committed(self, checkpoint_id: int) -> None:
        """What is written by now is a checkpoint."""
        self.at[checkpoint_id] = copy.deepcopy(self.now)

    def values(self, checkpoint_id: int, name: str) -> dict[str, Any]:
        """The values of a state in its form, by the texts of their keys."""
        form, model = KINDS[name].form, self.at[checkpoint_id][name]
        return {text_of(key): form(value) for key, value in model.items()}


def text_of(key: Any) -> str:
    """A key in one form, as any reader shows it."""
    return repr(plain(key))
