"""Values in types that JSON has, as the command line and exports show them, and keys back from such text. Pure."""

import base64
import datetime as dt
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

from statebackend.ids import Key

UNCHANGING: Final = frozenset({bool, bytes, float, int, str, type(None)})
"""Types of values of which nobody changes one in place."""
_OTHER_THAN_UTC: Final = re.compile(r"tz=(?!UTC\])")


def key_from(text: str) -> Key:
    """The key that JSON `text` stands for; other text is the key itself. `7` is an int, `"7"` and `N7` are strings."""
    try:
        return _key(msgspec.json.decode(text))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return text


def plain(value: Any) -> Any:
    """The value in types that JSON has."""
    if isinstance(value, Mapping):
        pairs = [(plain(key), plain(each)) for key, each in cast("Mapping[Any, Any]", value).items()]
        return dict(pairs) if all(type(key) is str for key, _ in pairs) else pairs
    if isinstance(value, list | tuple):
        return list(map(plain, cast("Sequence[Any]", value)))
    match value:
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):  # which JSON has no numbers for
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case msgspec.msgpack.Ext():
            return {"extension": value.code, **plain(bytes(value.data))}
        case _:
            return _plain_of_columns(value)


def python_values(array: Any) -> list[Any]:
    """The elements of a `pyarrow` array as Python has them. Each instant has the offset that its zone has then.

    Not the zone: Python compares and subtracts two times of one zone by the clock on the wall, an hour off when summer
    time ends. Raises what Arrow does for a value that Python has not: `ValueError`, `OverflowError`.
    """
    found: list[Any] = array.to_pylist()
    return [*map(_at_offsets, found)] if _OTHER_THAN_UTC.search(str(getattr(array, "type", ""))) else found


def python_rows(table: Any) -> list[dict[str, Any]]:
    """The rows of a `pyarrow` table or batch, their values as those of `python_values`."""
    names: list[str] = table.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(python_values, table.columns), strict=True)]


def _at_offsets(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        offset = value.utcoffset()
        return value if offset is None else value.replace(tzinfo=dt.timezone(offset), fold=0)
    if isinstance(value, dict):
        return {name: _at_offsets(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [*map(_at_offsets, cast("list[Any]", value))]
    if isinstance(value, tuple):  # a pair of a map
        return tuple(map(_at_offsets, cast("tuple[Any, ...]", value)))
    return value


def _plain_of_columns(value: Any) -> Any:
    """The values that only columns have; any other as it is."""
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds() + getattr(value, "nanoseconds", 0) / 1e9  # pandas has those apart
    return str(value) if isinstance(value, Decimal) else value


def key_of_shown(shown: Any) -> Any:
    """The key that is shown as this: a tuple is shown as a struct or an array, bytes in JSON as `{"base64": ...}`.

    What no key is shown as is returned as it is.
    """
    if hasattr(shown, "as_py"):  # a value of Arrow
        shown = shown.as_py()
    elif getattr(shown, "ndim", None) == 0:  # of numpy, as pandas shows whole numbers
        shown = shown.item()
    match shown:
        case {"base64": str(text)} if len(cast("dict[str, str]", shown)) == 1:
            with suppress(ValueError):
                return base64.b64decode(text, validate=True)
        case Mapping() if shown:
            return tuple(map(key_of_shown, cast("Mapping[Any, Any]", shown).values()))
        case list() | tuple() if shown:
            return tuple(map(key_of_shown, cast("Sequence[Any]", shown)))
        case _:
            pass
    return shown


def _key(found: Any) -> Key:
    """Undo what `plain` does to a key. Raises `ValueError` if `found` cannot be a key."""
    match found:
        case str() | int() if type(found) is not bool:
            return found
        case {"base64": str(text)}:
            return base64.b64decode(text, validate=True)
        case list() if found:
            return tuple(map(_key, cast("list[Any]", found)))
        case _:
            raise ValueError("not a key")
