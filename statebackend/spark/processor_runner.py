"""A processor at work: what it makes of the rows of a batch, on the states of the backend that owns their keys.

    Arrow table -> by key (grouping.py) -> process, key by key  -> rows  -> a table of `output_schema`, or nothing
                -> process_table, all at once                   -> table ->

The same in the driver, on all key groups, and on an executor, on a range of them. What the processor leaves in `self`
lives as long as the state that it belongs to: it works on a copy of what the sink was given, made anew for each
backend, so as it is after a failed batch.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow as pa

from statebackend._checkpoint.backend import StateBackend
from statebackend.errors import InputError, SettingsError
from statebackend.ids import Key, KeyGroupRange
from statebackend.spark.grouping import by_key, in_order
from statebackend.spark.processor import KeyedProcessor, ProcessorContext

_pa: Any = pa  # it ships no types


class _Opened(msgspec.Struct, frozen=True):
    """A copy of the processor, and the states that it has declared."""

    processor: KeyedProcessor
    context: ProcessorContext


class KeyedWork:
    """What `processor` does with the tables that it is given. Pickles without its states.

    `has_output`: whether there is a place for rows that come out; rows that have none are an error.

    Raises `SettingsError` for a processor that overrides neither or both of its methods, without a key, or without the
    schema of what it puts out.
    """

    def __init__(
        self, processor: KeyedProcessor, *, key: str | Sequence[str], order_by: str | Sequence[str], has_output: bool
    ) -> None:
        self.processor: Final = processor
        self.key: Final = _names(key)
        self.has_output: Final = has_output
        self._order_by = _names(order_by)
        self._takes_table = _overrides(processor, "process_table")
        if self._takes_table == _overrides(processor, "process"):
            raise SettingsError("a processor overrides either process or process_table", processor=type(processor))
        if not self.key:
            raise SettingsError("a processor needs the key: a column, or several", key=key)
        if has_output and not isinstance(processor.output_schema, _pa.Schema):
            raise SettingsError("rows that go out need output_schema, a pyarrow.Schema", processor=type(processor))
        self._opened: dict[KeyGroupRange, _Opened] = {}

    def __call__(self, table: Any, batch_id: int, backend: StateBackend) -> Any:
        """Process rows of one batch, a `pyarrow.Table`, on `backend`, which owns their keys.

        Returns what came out, a `pyarrow.Table`; `None` if there is no output. Raises `InputError` for keys, or for
        rows that came out, which are not as they must be, and what the processor raises.
        """
        opened = self._open_on(backend, batch_id)
        return self._of_table(table, opened) if self._takes_table else self._of_keys(table, opened)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}}

    def _open_on(self, backend: StateBackend, batch_id: int) -> _Opened:
        opened = self._opened.get(backend.key_groups)
        if opened is None or not opened.context.is_of(backend):
            # Whoever owns other ranges besides may have closed them: do not keep their states in memory.
            self._opened = {owned: each for owned, each in self._opened.items() if each.context.is_usable}
            self._opened.pop(backend.key_groups, None)
            opened = _Opened(copy.copy(self.processor), ProcessorContext(backend))
            opened.context.batch_id = batch_id
            opened.processor.open(opened.context)
            self._opened[backend.key_groups] = opened
        opened.context.batch_id = batch_id
        return opened

    def _of_keys(self, table: Any, opened: _Opened) -> Any:
        made: list[Mapping[str, Any]] = []
        for key, rows in by_key(table, self.key, self._order_by) if table.num_rows else ():
            self._keep(opened.processor.process(key, rows, opened.context), key, made)
        return _table_of(made, self.processor.output_schema) if self.has_output else None

    def _keep(self, outcome: Any, key: Key, made: list[Mapping[str, Any]]) -> None:
        if outcome is None:
            return
        if not isinstance(outcome, Iterable) or isinstance(outcome, Mapping):
            kind = type(cast("object", outcome))
            raise InputError("process must yield mappings, and not be async", key=key, returned=kind)
        before = len(made)
        made.extend(cast("Iterable[Mapping[str, Any]]", outcome))
        if not self.has_output and len(made) > before:
            raise InputError("the processor yields rows, and the sink has no output for them", key=key)

    def _of_table(self, table: Any, opened: _Opened) -> Any:
        if self._order_by:
            table = in_order(table, self.key, self._order_by)
        made = opened.processor.process_table(table, opened.context) if table.num_rows else None
        if made is not None and not isinstance(made, _pa.Table):
            raise InputError("process_table must return a pyarrow.Table or None", returned=type(made))
        if not self.has_output:
            if made is not None:
                raise InputError("the processor returns a table, and the sink has no output for it")
            return None
        schema = self.processor.output_schema
        return schema.empty_table() if made is None else _cast(made, schema)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _overrides(processor: KeyedProcessor, method: str) -> bool:
    return getattr(type(processor), method) is not getattr(KeyedProcessor, method)


def _table_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """A table of rows that all have exactly the columns of the schema, in whatever order."""
    names = set(cast("list[str]", schema.names))
    wrong = next((row for row in rows if set(row) != names), None)
    if wrong is not None:
        raise InputError("a row that came out has not the columns of output_schema", row=wrong, expected=schema.names)
    try:
        columns = [_pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    except (_pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"a row that came out does not fit output_schema: {error}") from error
    return _pa.table(columns, schema=schema)


def _cast(table: Any, schema: Any) -> Any:
    if set(table.column_names) != set(schema.names):
        raise InputError(
            "the table that came out has not the columns of output_schema",
            columns=table.column_names,
            expected=schema.names,
        )
    try:
        return table.select(schema.names).cast(schema)
    except _pa.ArrowException as error:
        raise InputError(f"the table that came out does not fit output_schema: {error}") from error
