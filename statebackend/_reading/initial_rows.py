"""The rows of a state as Spark's `transformWithState` takes them at its beginning: the key in columns of its own."""

from collections.abc import Sequence
from typing import Any, Final

from statebackend._columns.arrow import RecordBatch, Schema, pa
from statebackend._reading.rows.layouts import KEY, KEY_GROUP, VALUE
from statebackend.errors import InputError


class InitialRows:
    """Rows with a column for each part of the key, by these names, and a column with the state's name.

    That is a struct for a columnar state. Raises `InputError` if the key has not so many parts.
    """

    def __init__(self, read: Schema, state: str, key: str | Sequence[str]) -> None:
        names = [key] if isinstance(key, str) else [*key]
        type_ = read.field(KEY).type
        self._is_tuple = pa.types.is_struct(type_)
        parts = list(type_) if self._is_tuple else [read.field(KEY)]
        self._rest = [each for each in read if each.name not in (KEY, KEY_GROUP)]
        self._is_single = [each.name for each in self._rest] == [VALUE]
        if len(names) != len(parts) or len({*names, state}) <= len(names):
            raise InputError(
                "give each part of the key a name, and none that of the state", key=names, parts=len(parts), state=state
            )
        value: Any = self._rest[0].type if self._is_single else pa.struct(self._rest)
        keys = [(name, part.type) for name, part in zip(names, parts, strict=True)]
        self.schema: Final[Schema] = pa.schema([*keys, (state, value)])

    def batch(self, read: RecordBatch) -> RecordBatch:
        """These rows in that form."""
        key: Any = read.column(KEY)
        keys = key.flatten() if self._is_tuple else [key]
        columns = [read.column(each.name) for each in self._rest]
        value = columns[0] if self._is_single else pa.StructArray.from_arrays(columns, fields=self._rest)
        return pa.RecordBatch.from_arrays([*keys, value], schema=self.schema)
