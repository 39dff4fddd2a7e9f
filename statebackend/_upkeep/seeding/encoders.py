"""Encodes the rows of one state as the changes that set its keys, and says which row is the first that is wrong."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.columns import Integers
from statebackend._codec.xxh64 import Hashes
from statebackend._state.kinds.every_kind import KeyedState, SetChanges
from statebackend._tables.key_groups import groups_of_hashes, hashes_of
from statebackend._upkeep.seeding.source_rows import SourceRows
from statebackend.errors import InputError
from statebackend.ids import Key

if TYPE_CHECKING:
    from statebackend._state.columnar.columnar_state import ColumnarState

CHANGE_BYTES: Final = 64
"""Bytes of a change in memory beside its key and data, for the bound on what is gathered."""


class Encoded(NamedTuple):
    """Rows of one state, encoded, in the order in which they came.

    `hashes`: of the key of each row. `counts`: how many changes each row takes; `None` if it is one for each. There are
    no `changes` if no row takes any, as those of empty lists.
    """

    hashes: Hashes
    counts: Integers | None
    changes: Changes | None


class Encoder(ABC):
    """Gathers encoded rows of one state until they are taken. `size_bytes` and `rows` are those of what is gathered."""

    def __init__(self, name: str, state_id: int, max_parallelism: int) -> None:
        self.name: Final = name
        self._state_id = state_id
        self._max_parallelism = max_parallelism
        self.size_bytes = 0
        self.rows = 0

    def add(self, rows: SourceRows) -> None:
        """Encode these rows. Raises an `InputError` that names the state, and the first row that is wrong."""
        with self._naming():
            try:
                self._add(rows)
            except InputError as error:
                if "row" not in error.facts:
                    raise self._of_first_wrong(rows, error) from error
                raise
        self.rows += len(rows)

    def take(self) -> Encoded:
        """All that was gathered, at least one row; then it is empty. Raises `KeyTypeError` for columns."""
        with self._naming():
            found = self._take()
        self.size_bytes = self.rows = 0
        return found

    @abstractmethod
    def _add(self, rows: SourceRows) -> None: ...

    @abstractmethod
    def _take(self) -> Encoded: ...

    @abstractmethod
    def _check(self, rows: SourceRows) -> None:
        """Raise what `_add` does for these rows, and gather nothing."""

    def _of_first_wrong(self, rows: SourceRows, error: InputError) -> InputError:
        for place in range(len(rows)):
            try:
                self._check(rows.row(place))
            except InputError as found:
                return _with_facts(found, row=rows.name_of(place))
        return error

    @contextmanager
    def _naming(self) -> Generator[None]:
        try:
            yield
        except InputError as error:
            raise _with_facts(error, state=self.name) from error.__cause__


class KeyedEncoder(Encoder):
    """Of a state whose keys are dictionary keys."""

    def __init__(self, state: KeyedState[Any, Any], state_id: int, max_parallelism: int) -> None:
        super().__init__(state.name, state_id, max_parallelism)
        self._state = state
        self._begin()

    def _begin(self) -> None:
        self._keys: list[Key] = []
        self._hashes: list[Hashes] = []
        self._operations = bytearray()
        self._data: list[bytes] = []
        self._counts: list[int] | None = None

    def _check(self, rows: SourceRows) -> None:
        self._encoded(rows)

    def _encoded(self, rows: SourceRows) -> tuple[Sequence[Key], Hashes, SetChanges]:
        keys, values = rows.pairs()
        return keys, hashes_of(keys), self._state.setting(values)

    def _add(self, rows: SourceRows) -> None:
        keys, hashes, found = self._encoded(rows)
        if self._counts is None and found.counts is not None:
            self._counts = [1] * len(self._keys)
        if self._counts is not None:
            self._counts += found.counts or [1] * len(keys)
        self._keys += keys
        self._hashes.append(hashes)
        self._operations += found.operations
        self._data += found.data
        self.size_bytes += sum(map(len, found.data)) + CHANGE_BYTES * len(found.data)

    def _take(self) -> Encoded:
        hashes, keys = np.concatenate(self._hashes), self._keys
        groups = groups_of_hashes(hashes, self._max_parallelism)
        counts = None if self._counts is None else np.array(self._counts, np.int64)
        if counts is not None:
            groups = np.repeat(groups, counts)
            keys = [key for key, count in zip(keys, counts.tolist(), strict=True) for _ in range(count)]
        changes = KeyedChanges(self._state_id, groups, bytes(self._operations), keys, self._data) if keys else None
        self._begin()
        return Encoded(hashes, counts, changes)


class ColumnEncoder(Encoder):
    """Of a columnar state."""

    def __init__(self, state: "ColumnarState", state_id: int, max_parallelism: int) -> None:
        super().__init__(state.name, state_id, max_parallelism)
        self._state = state
        self._keys: list[Any] = []
        self._columns: list[Any] = []

    def _check(self, rows: SourceRows) -> None:
        rows.columns(self._state.schema, self._state.key_type)

    def _add(self, rows: SourceRows) -> None:
        keys, columns = rows.columns(self._state.schema, self._state.key_type)
        self._keys.append(keys)
        self._columns.append(columns)
        self.size_bytes += sum(array.nbytes for array in (keys, *columns.values()))

    def _take(self) -> Encoded:
        keys = _joined(self._keys)
        columns = {name: _joined([each[name] for each in self._columns]) for name in self._state.schema.names}
        self._keys, self._columns = [], []
        changes = self._state.setting(self._state_id, keys, columns)
        assert changes.hashes is not None
        return Encoded(changes.hashes, None, changes)


def _joined(arrays: Sequence[Any]) -> Any:
    from statebackend._columns.arrow import pa  # noqa: PLC0415  # it needs an extra

    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _with_facts(error: InputError, **facts: Any) -> InputError:
    """The same error, which also says this."""
    found = type(error)(error.message, **{**facts, **error.facts})
    found.__cause__ = error.__cause__
    return found
