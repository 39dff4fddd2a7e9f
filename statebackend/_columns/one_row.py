"""The row of one key as Python values, read straight from the columns: Arrow takes a hundred times as long for one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np

from statebackend._columns.arrow import DataType, array_of, plain_of
from statebackend._columns.growable import FixedColumn, StringColumn
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.keys import KEY_BYTES_MAX, PlainParts, hash_parts
from statebackend._columns.table_schema import TableSchema
from statebackend._tables.key_groups import INT_GREATEST, INT_LEAST, SEED, key_hash

_PLAIN_KEYS: Final[Mapping[str, type]] = {"string": str, "int64": int, "binary": bytes}
_NUMBERS: Final = frozenset(
    ("bool", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)
_TEXTS: Final = frozenset(("string", "large_string"))
_OCTETS: Final = frozenset(("binary", "large_binary"))


class OneRow:
    """The part of a `ColumnTable` that reads one row at a time."""

    _described: TableSchema
    _has_text_keys: bool
    _rows: KeyRows
    _columns: Mapping[str, FixedColumn | StringColumn]
    _types: Mapping[str, DataType]
    _readers: tuple[object, Sequence[str], Sequence[tuple[str, Callable[[int], Any]]]] = (None, (), ())
    """Those of these columns, the mapping itself; and for which names."""

    def find_one(self, key: Any) -> int | None:
        """The key's row, -1 where there is none; `None` for what may be no key of this table: `find` knows more."""
        rows = self._rows
        parts = self._parts_of(key)
        if parts is None or rows.hash is not hash_parts:
            return None
        # Text is hashed as its bytes are, which are there.
        return rows.find_one(parts, key_hash(parts[0] if len(parts) == 1 and type(key) is str else key, SEED))

    def plain_row(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """The columns of a row, as `plain_of` gives them. Raises `ValueError` or `ValueDecodeError` as that does."""
        columns, asked, readers = self._readers
        if columns is not self._columns or asked is not names:
            types = {each.name: each.type for each in self._described.columns}
            readers = [(name, _reader(self._columns[name], types[name], self._types[name])) for name in names]
            self._readers = self._columns, names, readers
        return {name: read(row) for name, read in readers}

    def _parts_of(self, key: Any) -> PlainParts | None:
        """The parts of a key, text as bytes; `None` if it is of another type than the keys of this table."""
        if type(key) is str and self._has_text_keys:
            octets = _octets_of(key)
            return None if octets is None else (octets,)
        described = self._described
        given = cast("Sequence[object]", key if described.has_tuples and type(key) is tuple else (key,))
        if len(given) != len(described.keys):
            return None
        parts: list[int | bytes] = []
        for part, each in zip(given, described.keys, strict=True):
            if type(part) is not _PLAIN_KEYS[each.type]:
                return None
            if isinstance(part, int):
                if not INT_LEAST <= part <= INT_GREATEST:
                    return None
                parts.append(part)
                continue
            assert isinstance(part, str | bytes)
            octets = _octets_of(part)
            if octets is None:
                return None
            parts.append(octets)
        return parts


def _octets_of(part: str | bytes) -> bytes | None:
    """A part of a key as it is stored; `None` for what cannot be."""
    try:
        octets = part.encode() if isinstance(part, str) else part
    except UnicodeEncodeError:
        return None
    return octets if len(octets) <= KEY_BYTES_MAX else None


def _reader(column: FixedColumn | StringColumn, words: str, type_: DataType) -> Callable[[int], Any]:
    if isinstance(column, StringColumn):
        if words in _TEXTS:
            return column.text
        if words in _OCTETS:
            return column.octets
    elif words in _NUMBERS:
        return column.item
    return partial(_through_arrow, column, type_)


def _through_arrow(column: FixedColumn | StringColumn, type_: DataType, row: int) -> Any:
    return plain_of(array_of(column.read(np.array([row])), type_))[0]
