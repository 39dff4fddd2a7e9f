"""`KeyedProcessor`: what happens to the rows of one key, or to a whole table of them, and the state it happens on.

A sink that is given one takes the batch from Spark in a single action, through Arrow, and calls the processor:

    df -> Arrow -> by key (grouping.py) -> process, key by key  -> rows  -> output -> (the sink commits)
                -> process_table, all at once                   -> table ->

What the processor leaves in `self` lives as long as the state that it belongs to: it works on a copy of what the sink
was given, made anew whenever the state is opened anew, as it is after a failed batch.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame

from statebackend._checkpoint.backend import StateBackend
from statebackend.errors import BatchError, InputError, SettingsError
from statebackend.ids import Key, KeyGroupRange
from statebackend.spark.grouping import Rows, by_key, in_order

_pa: Any = pa  # it ships no types

Output = Callable[[DataFrame, int], object]
"""Takes the rows of one batch to where they are wanted. What it returns is dropped."""


class ProcessorContext:
    """What a processor is told, and the way to its states: `context.value_state("legs", Leg)` and its like.

    Made by the sink; one for each time the state is opened. Of the backend it has what declares state, and no more.
    """

    def __init__(self, backend: StateBackend) -> None:
        self.batch_id = -1
        """Spark's id of the batch under way; that of the first one in `open`."""
        self._backend: Final = backend
        self.value_state: Final = backend.value_state
        self.list_state: Final = backend.list_state
        self.map_state: Final = backend.map_state
        self.reducing_state: Final = backend.reducing_state
        self.aggregating_state: Final = backend.aggregating_state
        self.operator_state: Final = backend.operator_state
        self.timers: Final = backend.timers

    def is_of(self, backend: StateBackend) -> bool:
        """Whether its states are those of `backend`."""
        return self._backend is backend

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups whose keys come here: all of them."""
        return self._backend.key_groups

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_state") and not name.startswith("_"):  # a kind of state that came later than this class
            return getattr(self._backend, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class KeyedProcessor:
    """What to do with the rows of a batch: `StatefulSink(Fleet(), settings, key="tailnum")`.

    A subclass overrides `process`, to be called for each key, or `process_table`, to be called once; and `open`, where
    it declares its states. All run on one thread, one at a time, and none of them is `async`.
    """

    output_schema: ClassVar[Any] = None
    """A `pyarrow.Schema`: the columns of the rows that come out. Needed where the sink has an `output`."""

    def open(self, context: ProcessorContext) -> None:
        """Declare states: `self.legs = context.value_state("legs", Leg)`. Before the first batch on an opened state.

        On a copy (`copy.copy`) of the processor that the sink was given, so once per copy.
        """

    def process(self, key: Any, rows: Rows, context: ProcessorContext) -> Iterable[Mapping[str, Any]] | None:
        """The rows of one key, in order. Once for each key that the batch has, in no particular order of the keys.

        Yields what goes to the output, each a mapping with the columns of `output_schema`. `key` is the value of the
        key column, or a tuple where there are several.
        """
        raise NotImplementedError

    def process_table(self, table: Any, context: ProcessorContext) -> Any:
        """All rows of a batch, as a `pyarrow.Table` that is not empty. Not called where there are none.

        Sorted by key and then by `order_by` where the sink has one, else as they come. Returns a `pyarrow.Table` of
        `output_schema`, or `None`.
        """
        raise NotImplementedError


class KeyedBatches:
    """The batch function that a processor makes, with all of the work in this process. Pickles without its state.

    `output` is called once for each batch, before its commit, also with no rows: it may see a batch again, and then
    perhaps with other rows, unless the processor is deterministic.
    """

    _context: ProcessorContext | None
    _opened: KeyedProcessor

    def __init__(
        self,
        processor: KeyedProcessor,
        *,
        key: str | Sequence[str],
        order_by: str | Sequence[str],
        output: Output | None,
    ) -> None:
        self.processor: Final = processor
        self._key = _names(key)
        self._order_by = _names(order_by)
        self._output = output
        self._takes_table = _overrides(processor, "process_table")
        if self._takes_table == _overrides(processor, "process"):
            raise SettingsError("a processor overrides either process or process_table", processor=type(processor))
        if not self._key:
            raise SettingsError("a processor needs the key: a column, or several", key=key)
        if output is not None and not callable(output):
            raise SettingsError("output must be a function of (df, batch_id)", output=output)
        if output is not None and not isinstance(processor.output_schema, _pa.Schema):
            raise SettingsError("rows that go out need output_schema, a pyarrow.Schema", processor=type(processor))
        self._start_afresh()

    def __call__(self, df: DataFrame, batch_id: int, backend: StateBackend) -> None:
        """Process one batch. Raises `InputError` for keys, or for rows that came out, which are not as they must be."""
        context = self._open_on(backend, batch_id)
        collect = cast("Callable[[], Any]", df.toArrow)  # pyright: ignore[reportUnknownMemberType]
        table = collect()
        made = self._of_table(table, context) if self._takes_table else self._of_keys(table, context)
        if self._output is not None:
            create = cast("Callable[[Any], DataFrame]", df.sparkSession.createDataFrame)  # pyright: ignore[reportUnknownMemberType]
            self._put_out(create(made), batch_id, self._output)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_context", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._context = None
        self._opened = self.processor

    def _open_on(self, backend: StateBackend, batch_id: int) -> ProcessorContext:
        context = self._context
        if context is None or not context.is_of(backend):
            self._context = None
            context = ProcessorContext(backend)
            context.batch_id = batch_id
            self._opened = copy.copy(self.processor)
            self._opened.open(context)
            self._context = context
        context.batch_id = batch_id
        return context

    def _of_keys(self, table: Any, context: ProcessorContext) -> Any:
        made: list[Mapping[str, Any]] = []
        for key, rows in by_key(table, self._key, self._order_by) if table.num_rows else ():
            self._keep(self._opened.process(key, rows, context), key, made)
        return None if self._output is None else _table_of(made, self.processor.output_schema)

    def _keep(self, outcome: Any, key: Key, made: list[Mapping[str, Any]]) -> None:
        if outcome is None:
            return
        if not isinstance(outcome, Iterable) or isinstance(outcome, Mapping):
            kind = type(cast("object", outcome))
            raise InputError("process must yield mappings, and not be async", key=key, returned=kind)
        before = len(made)
        made.extend(cast("Iterable[Mapping[str, Any]]", outcome))
        if self._output is None and len(made) > before:
            raise InputError("the processor yields rows, and the sink has no output for them", key=key)

    def _of_table(self, table: Any, context: ProcessorContext) -> Any:
        if self._order_by:
            table = in_order(table, self._key, self._order_by)
        made = self._opened.process_table(table, context) if table.num_rows else None
        if made is not None and not isinstance(made, _pa.Table):
            raise InputError("process_table must return a pyarrow.Table or None", returned=type(made))
        if self._output is None:
            if made is not None:
                raise InputError("the processor returns a table, and the sink has no output for it")
            return None
        schema = self.processor.output_schema
        return schema.empty_table() if made is None else _cast(made, schema)

    def _put_out(self, df: DataFrame, batch_id: int, output: Output) -> None:
        outcome = output(df, batch_id)
        if inspect.isawaitable(outcome) or inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
            raise BatchError("output is asynchronous, or a generator: nothing of it has run")


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
