"""Runs a `KeyedProcessor` on the rows of a batch, with the states of the backend that owns their keys.

    Arrow table -> by key (grouping.py) -> process, key by key  -> rows  -> a table of `output_schema`, or nothing
                -> process_table, all at once                   -> table ->

The same in the driver, for all key groups, and on an executor, for a range of them. The processor that the sink was
given is never run itself. Each time the state is opened, a copy of it is made, and dropped with the state: so what a
failed batch has left in `self` goes, too.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import pyarrow as pa

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._processing.grouping import by_key, in_order
from statebackend._processing.processor import KeyedProcessor, ProcessorContext
from statebackend.errors import InputError, SettingsError
from statebackend.ids import Key, KeyGroupRange

_pa: Any = pa  # it ships no types


class _OpenedCopy(msgspec.Struct, frozen=True):
    """A copy of the processor, and the context in which it declared its states."""

    processor: KeyedProcessor
    context: ProcessorContext


class ProcessorRunner:
    """Calls `processor` for tables of rows. Pickles without its states.

    `has_output`: True if the sink has an output. Otherwise output rows are an error.

    Raises `SettingsError` if the processor does not override exactly one of its two methods, if there is no key, or if
    there is an output and no output schema.
    """

    def __init__(
        self, processor: KeyedProcessor, *, key: str | Sequence[str], order_by: str | Sequence[str], has_output: bool
    ) -> None:
        self.processor: Final = processor
        self.key: Final = _names(key)
        self._has_output = has_output
        self._order_by = _names(order_by)
        self._takes_table = _overrides(processor, "process_table")
        if self._takes_table == _overrides(processor, "process"):
            raise SettingsError(
                "a processor must override either process or process_table, and not both", processor=type(processor)
            )
        if not self.key:
            raise SettingsError("a processor needs a key: name one column, or several", key=key)
        if has_output and not isinstance(processor.output_schema, _pa.Schema):
            raise SettingsError(
                "output rows need a schema: set output_schema of the processor to a pyarrow.Schema",
                processor=type(processor),
            )
        self._opened: dict[KeyGroupRange, _OpenedCopy] = {}

    def __call__(self, table: Any, batch_id: int, backend: KeyedBackend) -> Any:
        """Process rows of one batch, a `pyarrow.Table`, on `backend`, which owns their keys.

        Returns the output rows as a `pyarrow.Table`, or `None` if there is no output. Raises `InputError` for invalid
        keys or output rows, and what the processor raises.
        """
        opened = self._open_on(backend, batch_id)
        return self._run_table(table, opened) if self._takes_table else self._run_keys(table, opened)

    def close(self) -> None:
        """Drop the copies of the processor, and with them the states that they declared."""
        self._opened = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}}

    def _open_on(self, backend: KeyedBackend, batch_id: int) -> _OpenedCopy:
        opened = self._opened.get(backend.key_groups)
        if opened is None or not opened.context.is_of(backend):
            # On an executor other ranges may have closed meanwhile: their states must not stay in memory.
            self._opened = {owned: each for owned, each in self._opened.items() if each.context.is_usable}
            self._opened.pop(backend.key_groups, None)
            opened = _OpenedCopy(copy.copy(self.processor), ProcessorContext(backend))
            opened.context.batch_id = batch_id
            opened.processor.open(opened.context)
            self._opened[backend.key_groups] = opened
        opened.context.batch_id = batch_id
        return opened

    def _run_keys(self, table: Any, opened: _OpenedCopy) -> Any:
        output: list[Mapping[str, Any]] = []
        for key, rows in by_key(table, self.key, self._order_by) if table.num_rows else ():
            self._add_rows(opened.processor.process(key, rows, opened.context), key, output)
        return _table_of(output, self.processor.output_schema) if self._has_output else None

    def _add_rows(self, returned: Any, key: Key, output: list[Mapping[str, Any]]) -> None:
        if returned is None:
            return
        if not isinstance(returned, Iterable) or isinstance(returned, Mapping):
            kind = type(cast("object", returned))
            raise InputError("process must yield mappings, and must not be async", key=key, returned=kind)
        before = len(output)
        output.extend(cast("Iterable[Mapping[str, Any]]", returned))
        if not self._has_output and len(output) > before:
            raise InputError("the processor yields rows and the sink has no output: give the sink one", key=key)

    def _run_table(self, table: Any, opened: _OpenedCopy) -> Any:
        if self._order_by:
            table = in_order(table, self.key, self._order_by)
        output = opened.processor.process_table(table, opened.context) if table.num_rows else None
        if output is not None and not isinstance(output, _pa.Table):
            raise InputError("process_table must return a pyarrow.Table or None", returned=type(output))
        if not self._has_output:
            if output is not None:
                raise InputError("the processor returns a table and the sink has no output: give the sink one")
            return None
        schema = self.processor.output_schema
        return schema.empty_table() if output is None else _cast(output, schema)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _overrides(processor: KeyedProcessor, method: str) -> bool:
    return getattr(type(processor), method) is not getattr(KeyedProcessor, method)


def _table_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """A table of rows that must all have exactly the columns of the schema, in any order."""
    names = set(cast("list[str]", schema.names))
    wrong = next((row for row in rows if set(row) != names), None)
    if wrong is not None:
        raise InputError(
            "an output row must have exactly the columns of output_schema", row=wrong, expected=schema.names
        )
    try:
        columns = [_pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    except (_pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"an output row does not fit output_schema: {error}") from error
    return _pa.table(columns, schema=schema)


def _cast(table: Any, schema: Any) -> Any:
    if set(table.column_names) != set(schema.names):
        raise InputError(
            "the output table must have exactly the columns of output_schema",
            columns=table.column_names,
            expected=schema.names,
        )
    try:
        return table.select(schema.names).cast(schema)
    except _pa.ArrowException as error:
        raise InputError(f"the output table does not fit output_schema: {error}") from error
