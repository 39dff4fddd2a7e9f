"""The shape of stored values: how a schema in words is decoded without the user's classes, and laid out in Arrow.

int, float, bool, str, bytes       int64, or uint64 where it cannot be negative, float64, bool, string, binary
datetime, date, time, timedelta    timestamp in UTC, a naive one is taken as UTC; date32, time64, duration
decimal, uuid                      string
list, set, tuple of any length     list; a set's is in order
tuple                              struct of `_1`, `_2`, ...
record, row                        struct of its fields, a record's by name; one that a stored value lacks is null, or
                                   its default
record, row, tuple of nothing      bool, true
dict                               map; where a key may be none or has a map in it, which no map of Arrow has, a list of
                                   `key` and `value`, in order
T or none                          T, null
any other union                    struct of one field per choice, of which one is not null
any, recursive types               string, in JSON; so is a literal of several types, and a union with one of these
a serializer of the user's own     binary
"""

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final, cast

import msgspec

from statebackend._codec.messagepack import decode_any
from statebackend._codec.plain import plain
from statebackend._codec.serializers import OWN
from statebackend._columns.arrow import Array, DataType, pa
from statebackend._reading.asked_of_state import check_known
from statebackend.errors import UnsupportedVersionError, ValueDecodeError

_UTC: Final = pa.timestamp("us", tz="UTC")
_LEAVES: Final[Mapping[str, tuple[Any, DataType]]] = {
    "bool": (bool, pa.bool_()),
    "int": (int, pa.int64()),
    "float": (float, pa.float64()),
    "str": (str, pa.string()),
    "bytes": (bytes, pa.binary()),
    "bytearray": (bytes, pa.binary()),
    "memoryview": (bytes, pa.binary()),
    "datetime": (dt.datetime, _UTC),
    "date": (dt.date, pa.date32()),
    "time": (dt.time, pa.time64("us")),
    "timedelta": (dt.timedelta, pa.duration("us")),
    "uuid": (str, pa.string()),
    "decimal": (str, pa.string()),
    "none": (None, pa.null()),
}


class Shape(ABC):
    """`python`: the type by which msgspec decodes a value. `arrow`: the type of an array of such values."""

    python: Any
    arrow: DataType
    may_be_none = False

    @abstractmethod
    def array(self, values: Sequence[Any]) -> Array:
        """The decoded values, of which `None` is null. Raises `ValueDecodeError` for one that Arrow has no room for."""


class Leaf(Shape):
    """A value that Arrow takes as it is, or lists of such."""

    def __init__(self, python: Any, arrow: DataType) -> None:
        self.python = python
        self.arrow = arrow
        self.may_be_none = python is None

    def array(self, values: Sequence[Any]) -> Array:
        try:
            return pa.array(values, self.arrow)
        except (OverflowError, ValueError, TypeError) as error:  # pyarrow's errors are some of these
            raise ValueDecodeError(
                f"a stored value has no place in its column: {error}", type=str(self.arrow)
            ) from error


class Json(Shape):
    """A value of any type, shown as text in JSON with its keys in order: equal values are equal texts."""

    python = msgspec.Raw
    arrow = pa.string()

    def array(self, values: Sequence[Any]) -> Array:
        found = (None if each is None else decode_any(bytes(each)) for each in values)
        return pa.array([None if each is None else _json(each) for each in found], self.arrow)


class JsonKey(Shape):
    """A key of any type within a map, as `Json`; text also where it is none. Only what can be hashed is such a key."""

    python = Any
    arrow = pa.string()

    def array(self, values: Sequence[Any]) -> Array:
        return pa.array(list(map(_json, values)), self.arrow)


class Nothing(Shape):
    """A value without parts: that it is there is all that there is to show."""

    arrow = pa.bool_()

    def __init__(self, python: Any) -> None:
        self.python = python

    def array(self, values: Sequence[Any]) -> Array:
        return pa.array([None if each is None else True for each in values], self.arrow)


class Record(Shape):
    """A value with parts: `fields` are their names and shapes, `take` has what gets each of a value."""

    def __init__(self, python: Any, fields: Sequence[tuple[str, Shape]], take: Sequence[Callable[[Any], Any]]) -> None:
        self.python = python
        self.fields: Final = fields
        self._take = take
        self.arrow = pa.struct([(name, shape.arrow) for name, shape in fields])

    def only(self, names: Sequence[str]) -> "Record":
        """The same with these fields alone. Raises `InputError` for one that is not there."""
        places = {name: place for place, (name, _) in enumerate(self.fields)}
        check_known("column", names, list(places))
        chosen = [places[name] for name in names]
        return Record(self.python, [self.fields[at] for at in chosen], [self._take[at] for at in chosen])

    def array(self, values: Sequence[Any]) -> Array:
        mask = pa.array([each is None for each in values]) if None in values else None
        return pa.StructArray.from_arrays(self.columns(values), fields=list(self.arrow), mask=mask)

    def columns(self, values: Sequence[Any]) -> list[Array]:
        """An array for each field, null where the value is."""
        if None not in values:
            return [
                shape.array(list(map(take, values))) for (_, shape), take in zip(self.fields, self._take, strict=True)
            ]
        return [
            shape.array([None if each is None else take(each) for each in values])
            for (_, shape), take in zip(self.fields, self._take, strict=True)
        ]


class Items(Shape):
    """A list of values of one shape. `is_set`: they are laid out in order, so that equal sets are equal lists."""

    def __init__(self, item: Shape, *, is_set: bool = False) -> None:
        self._item = item
        self._is_set = is_set
        self.python = tuple[item.python, ...]  # type: ignore[name-defined]  # hashable, as what a set or a key holds is
        self.arrow = pa.list_(item.arrow)

    def array(self, values: Sequence[Any]) -> Array:
        if self._is_set:
            values = [None if each is None else _in_order(each) for each in values]
        if isinstance(self._item, Leaf):
            return Leaf(self.python, self.arrow).array(values)
        found = self._item.array(list(chain.from_iterable(each for each in values if each is not None)))
        return pa.ListArray.from_arrays(_offsets(values), found, type=self.arrow)


class Entries(Shape):
    """A dict, or a map state's map."""

    def __init__(self, key: Shape, value: Shape) -> None:
        self._key, self._value = key, value
        self.python = dict[key.python, value.python]  # type: ignore[name-defined]
        self._is_map = not (key.may_be_none or _has_map(key.arrow))
        entry = pa.struct([("key", key.arrow), ("value", value.arrow)])
        self.arrow = pa.map_(key.arrow, value.arrow) if self._is_map else pa.list_(entry)

    def array(self, values: Sequence[Any]) -> Array:
        return self.array_of_pairs([None if each is None else list(each.items()) for each in values])

    def array_of_pairs(self, maps: Sequence[Sequence[tuple[Any, Any]] | None]) -> Array:
        """As `array`: each map as its keys and values, which no dict could hold if a key cannot be hashed."""
        if not self._is_map:
            maps = [None if each is None else sorted(each, key=_by_first) for each in maps]
        pairs = list(chain.from_iterable(each for each in maps if each is not None))
        keys, values = self._key.array([key for key, _ in pairs]), self._value.array([value for _, value in pairs])
        if self._is_map:
            return pa.MapArray.from_arrays(_offsets(maps), keys, values, type=self.arrow)
        entries = pa.StructArray.from_arrays([keys, values], fields=list(self.arrow.value_type))
        return pa.ListArray.from_arrays(_offsets(maps), entries, type=self.arrow)


class Choices(Shape):
    """A union: a struct of which one field is not null."""

    def __init__(self, choices: Sequence[tuple[str, Shape]]) -> None:
        self._choices = choices
        self.python = choices[0][1].python
        for _, shape in choices[1:]:
            self.python = self.python | shape.python
        self.arrow = pa.struct([(name, shape.arrow) for name, shape in choices])
        self._places = {_class_of(shape.python): place for place, (_, shape) in enumerate(choices)}

    def array(self, values: Sequence[Any]) -> Array:
        places = [-1 if each is None else self._places[type(each)] for each in values]
        children = [
            shape.array([each if at == place else None for each, at in zip(values, places, strict=True)])
            for place, (_, shape) in enumerate(self._choices)
        ]
        mask = pa.array([each is None for each in values]) if None in values else None
        return pa.StructArray.from_arrays(children, fields=list(self.arrow), mask=mask)


def shape_of(schema: str) -> Shape:
    """The shape of values that were written with this schema. Raises `UnsupportedVersionError` for unknown words."""
    if schema.startswith(OWN):
        return Leaf(bytes, pa.binary())
    try:
        return _shape(msgspec.json.decode(schema))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnsupportedVersionError("this release cannot lay out a state's values: upgrade", schema=schema) from error


def key_shape_of(schema: str) -> Shape:
    """As `shape_of`, of the keys within maps."""
    return _as_key(shape_of(schema))


def _as_key(shape: Shape) -> Shape:
    return JsonKey() if isinstance(shape, Json) else shape


def _shape(words: Any) -> Shape:
    if isinstance(words, str):
        return Leaf(*_LEAVES[words]) if words in _LEAVES else Json()
    for word, read in _WORDS.items():
        if word in words:
            return read(words)
    ((kind, particulars),) = words.items()
    return _constrained(kind, particulars)


def _tuple(words: Any) -> Shape:
    shapes = list(map(_shape, words["tuple"]["item_types"]))
    python: Any = tuple[tuple(shape.python for shape in shapes)]  # type: ignore[misc]
    fields = [(f"_{place}", shape) for place, shape in enumerate(shapes, 1)]
    if not fields:
        return Nothing(python)
    return Record(python, fields, [itemgetter(place) for place in range(len(shapes))])


def _items(words: Any) -> Shape:
    ((kind, particulars),) = words.items()
    return Items(_shape(particulars["item_type"]), is_set=kind in ("set", "frozenset"))


def _dict(words: Any) -> Shape:
    return Entries(_as_key(_shape(words["dict"]["key_type"])), _shape(words["dict"]["value_type"]))


def _constrained(kind: str, particulars: Mapping[str, Any]) -> Shape:
    if kind == "int" and max(particulars.get("ge", -1), particulars.get("gt", -1)) >= 0:
        return Leaf(int, pa.uint64())
    if kind == "datetime" and particulars.get("tz") is False:
        return Leaf(dt.datetime, pa.timestamp("us"))
    return _shape(kind)


def _record(words: Any) -> Shape:
    tag_field, tag = words.get("tag", (None, None))
    array_like = "row" in words
    fields: Sequence[Sequence[Any]] = words["row"] if array_like else list(words["record"].items())
    shapes: list[tuple[str, Shape]] = []
    defined: list[tuple[str, Any, Any]] = []
    for place, (name, field) in enumerate(fields):
        is_optional = isinstance(field, dict) and "optional" in field
        shape = _shape(field["optional"] if is_optional else field)
        default = _default(field["default"], shape) if is_optional and "default" in field else None
        shapes.append((name, shape))
        # Not as a plain default: msgspec refuses one that could be changed, as a list; nothing here ever is.
        defined.append((f"f{place}", shape.python, msgspec.field(default_factory=partial(_same, default))))
    python = msgspec.defstruct(
        "Stored",
        defined,
        rename={f"f{place}": name for place, (name, _) in enumerate(fields)},
        tag=tag,
        tag_field=tag_field,
        array_like=array_like,
        frozen=True,
        eq=False,  # as a key it is then hashed by where it lies, whatever is in it
        gc=False,
    )
    if not fields:
        return Nothing(python)
    return Record(python, shapes, [attrgetter(f"f{place}") for place in range(len(fields))])


def _default(words: Any, shape: Shape) -> Any:
    try:
        return msgspec.convert(words, shape.python)
    except msgspec.ValidationError:  # a part of it may have any type, and so is kept as it is stored
        return msgspec.msgpack.decode(msgspec.msgpack.encode(words), type=shape.python)


def _same(value: Any) -> Any:
    return value


def _union(words: Any) -> Shape:
    choices = words["one_of"]
    named = [(_name_of(each), _shape(each)) for each in choices if each != "none"]
    if not named:
        return _shape("none")
    if any(isinstance(shape, Json) for _, shape in named):  # which of the choices a value is, cannot be told
        return Json()
    found = named[0][1] if len(named) == 1 else Choices(named)
    if len(named) < len(choices):
        found.python, found.may_be_none = found.python | None, True
    return found


def _values(words: Any) -> Shape:
    """An enum or a literal."""
    kinds = set(map(type, words["values"]))
    return _shape(kinds.pop().__name__) if kinds in ({str}, {int}) else Json()


_WORDS: Final[Mapping[str, Callable[[Any], Shape]]] = {
    "one_of": _union,
    "record": _record,
    "row": _record,
    "values": _values,
    "up": lambda _: Json(),
    "tuple": _tuple,
    "dict": _dict,
    **dict.fromkeys(("list", "set", "frozenset", "vartuple", "collection"), _items),
}


def _name_of(words: Any) -> str:
    if isinstance(words, str):
        return words
    if "tag" in words:
        return str(words["tag"][1])
    return type(words["values"][0]).__name__ if "values" in words else str(next(iter(words)))


def _class_of(python: Any) -> type:
    """The class of what is decoded as the type `python`."""
    return cast("type", getattr(python, "__origin__", python))


def _in_order(items: Sequence[Any]) -> Sequence[Any]:
    try:
        return sorted(items)
    except TypeError:  # of several types, or records
        return sorted(items, key=msgspec.msgpack.encode)


def _by_first(pair: tuple[Any, Any]) -> bytes:
    return msgspec.msgpack.encode(pair[0])


def _json(value: Any) -> str:
    return msgspec.json.encode(plain(value), order="sorted").decode()


def _has_map(type_: DataType) -> bool:
    """True if a map is part of the type."""
    if pa.types.is_map(type_):
        return True
    return any(_has_map(type_.field(place).type) for place in range(type_.num_fields))


def _offsets(values: Sequence[Any]) -> Array:
    """Where the items of each value begin, and where the last ones end; null for a null value."""
    offsets: list[int | None] = []
    end = 0
    for each in values:
        offsets.append(None if each is None else end)
        end += 0 if each is None else len(each)
    return pa.array([*offsets, end], pa.int32())
