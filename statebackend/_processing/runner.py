"""Runs a `KeyedProcessor` on the rows of a batch, with the states of the backend that owns their keys.

    Arrow table -> by key (grouping.py) -> process, key by key  -> rows  -> a table of `output_schema`, or nothing
                -> async process, some keys at a time (concurrently.py), in the same order -> rows ->
                -> process_table, all at once                   -> table ->

Before and after the rows: `open_batch`, late rows (event_time.py), timers that are due, `close_batch`. The same in the
driver, for all key groups, and on an executor, for a range of them. The processor that the sink was given is never run
itself. Each time the state is opened, a copy of it is made, and dropped with the state: so what a failed batch has left
in `self` goes, too.
"""

import contextlib
import copy
import inspect
import itertools
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

import anyio.lowlevel
import msgspec
import pyarrow as pa

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._processing.calls import Batch, KeyCall
from statebackend._processing.closing import OnLoop, check_close, close_copies
from statebackend._processing.column_names import check_distinct, twice_in
from statebackend._processing.concurrently import for_each
from statebackend._processing.event_time import EventTime
from statebackend._processing.generators import noticing_left_generators
from statebackend._processing.grouping import SLAB_ROWS, Rows, by_key, check_columns, in_order
from statebackend._processing.output_rows import as_yielded, fitted, has_rows, table_of_rows
from statebackend._processing.own_state import OwnStates
from statebackend._processing.processor import KeyedProcessor, ProcessorContext, overrides
from statebackend._tasks import open_tasks
from statebackend.errors import InputError, SettingsError
from statebackend.ids import Key, KeyGroupRange

_pa: Any = pa  # it ships no types

KeyedRows: TypeAlias = Iterator[tuple[Key, Rows]]

CONCURRENCY: Final = 64
"""Keys that are under way at a time in an asynchronous `process`, unless the sink says another number."""

SLAB_ROWS_ON_LOOP: Final = 2_048
"""As `grouping.SLAB_ROWS`, where making the objects keeps the event loop waiting: some milliseconds."""


class _OpenedCopy(msgspec.Struct, frozen=True):
    """A copy of the processor, and the context in which it declared its states on `backend`.

    `own`: the states as the calls of an asynchronous `process` see them; `None` for a synchronous one.
    """

    processor: KeyedProcessor
    context: ProcessorContext
    backend: KeyedBackend
    own: OwnStates | None

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """In this context the running code may use the states of all keys."""
        return contextlib.nullcontext() if self.own is None else self.own.turns.alone()


class BatchRows(msgspec.Struct, frozen=True):
    """The rows of a batch: those to process, as a table and by key, and those to put out as late."""

    table: Any
    keys: KeyedRows
    late: KeyedRows
    is_empty: bool


class ProcessorRunner:
    """Calls `processor` for tables of rows. Pickles without its states.

    `has_output`: True if the sink has an output. Otherwise output rows are an error. `concurrency`: keys that are under
    way at a time in an asynchronous `process`; with `None` it is `CONCURRENCY`. `event_time`: says which rows are late.

    Raises `SettingsError` if the processor is none, or does not override exactly one of its two methods, if there is no
    key, if there is an output and no output schema, for a `concurrency` below 1 or with a synchronous processor, if
    another method than `process` is asynchronous, and if late rows are put out and there is no output.
    """

    def __init__(
        self,
        processor: KeyedProcessor,
        *,
        key: str | Sequence[str],
        order_by: str | Sequence[str],
        has_output: bool,
        concurrency: int | None = None,
        event_time: EventTime | None = None,
    ) -> None:
        if not isinstance(cast("object", processor), KeyedProcessor):
            hint = f": {processor.__name__}(...)" if isinstance(processor, type) else ""
            raise SettingsError(f"rows need a KeyedProcessor, an instance of it{hint}", processor=processor)
        self.processor: Final = processor
        self.key: Final = _names("key", key)
        self._has_output = has_output
        self._order_by = _names("order_by", order_by)
        self._takes_table = overrides(processor, "process_table")
        if self._takes_table == overrides(processor, "process"):
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
        if has_output and (twice := twice_in(processor.output_schema.names)):
            raise SettingsError(
                "output_schema names a column twice: rename one", processor=type(processor), columns=twice
            )
        check_close(processor)
        self.is_async: Final = _is_async(processor, "process")
        self._concurrency = _checked_concurrency(processor, concurrency, is_async=self.is_async)
        if event_time is not None and event_time.late == "output" and not has_output:
            raise SettingsError("late='output' puts late rows out, and the sink has no output: give it one")
        self._event_time = event_time
        self.fires_timers: Final = overrides(processor, "on_timer")
        self.late_rows = 0
        """How many rows of the last batch were late."""
        self.begun_rows = 0
        """How many rows of the last batch the processor was given so far. Any thread may look."""
        self.keys_under_way = 0
        """Calls of `process` that have begun and not ended."""
        self._opened: dict[KeyGroupRange, _OpenedCopy] = {}
        self._replaced: list[KeyedProcessor] = []
        """Copies whose state has been closed by others, to be closed with the next ones."""

    def __call__(
        self,
        table: Any,
        batch_id: int,
        backend: KeyedBackend,
        on_loop: OnLoop | None = None,
    ) -> Any:
        """Process rows of one batch, a `pyarrow.Table`, on `backend`, which owns their keys; its clock was moved.

        `on_loop` runs an asynchronous `process` on the loop of the backend, as `Portal.call` does; a synchronous one
        runs here. Returns the output rows as a `pyarrow.Table`, `None` if there is no output. Raises `InputError` for
        invalid keys or output rows, and what the processor raises.
        """
        batch = self.keys_of(table, backend.clock_before_s)
        if self.is_async:
            assert on_loop is not None, "an asynchronous process without a loop"
            return self.table_of(on_loop(partial(self.run, batch, batch_id, backend)))
        opened, more = self._open_on(backend, batch_id), list[Mapping[str, Any]]()
        with self._around(batch, opened, more):
            output = self._run_table(batch.table, opened) if self._takes_table else self._run_keys(batch, opened)
        if not self._takes_table:
            return self.table_of([*output, *more])
        return _pa.concat_tables([output, self.table_of(more)]) if more else output

    def keys_of(self, table: Any, before_s: float | None = None) -> BatchRows:
        """The rows of a batch by key, sorted now: for `run`, and for any thread but the loop's.

        Counts the rows that are late: those older than `before_s`, which is `clock_before_s` of the backend. Raises
        `InputError` if columns share a name, and for invalid keys, of late rows too: whether a batch is refused must
        not depend on where the clock stands.
        """
        check_distinct(table.column_names)
        if table.num_rows:  # without rows, the types may be nobody's
            check_columns(table, self.key, self._order_by, allows_nulls=self._takes_table)
        rows, late = table, None
        self.late_rows = self.begun_rows = self.keys_under_way = 0
        if (event_time := self._event_time) is not None:
            in_time, late = event_time.split(table, before_s)
            self.late_rows = late.num_rows
            rows = table if event_time.late == "keep" or not self.late_rows else in_time
            late = late if event_time.late == "output" else None
        keys = iter(()) if self._takes_table else self._by_key(rows)
        return BatchRows(rows, keys, iter(()) if late is None else self._by_key(late), is_empty=not table.num_rows)

    def _by_key(self, table: Any) -> KeyedRows:
        if not table.num_rows:
            return iter(())
        slab_rows = SLAB_ROWS_ON_LOOP if self.is_async else SLAB_ROWS
        return by_key(table, self.key, self._order_by, slab_rows=slab_rows)

    async def run(self, batch: BatchRows, batch_id: int, backend: KeyedBackend) -> list[Mapping[str, Any]]:
        """Process a batch by an asynchronous `process`, and return the output rows, in the order of the keys.

        When it returns, raises or is cancelled, no call of `process` is under way. Raises also `InputError` if one has
        used more than its own state. After an error or a cancellation, `backend` must be dropped.
        """
        opened = self._open_on(backend, batch_id)
        own, ranks, output = opened.own, dict[Key, int](), list[list[Mapping[str, Any]]]()
        assert own is not None, "a synchronous processor"
        own.turns.begin()
        more = list[Mapping[str, Any]]()
        with self._around(batch, opened, more):
            async with open_tasks() as tasks:
                calls = Batch(own.turns, tasks)

                async def call(key_and_rows: tuple[Key, Rows]) -> None:
                    key, rows = key_and_rows
                    yielded = list[Mapping[str, Any]]()
                    output.append(yielded)
                    ranks[key] = rank = len(ranks)
                    self.begun_rows += len(rows)
                    self.keys_under_way += 1
                    try:
                        with KeyCall(calls, key, rank):
                            await self._await_rows(opened.processor.process(key, rows, opened.context), key, yielded)
                    finally:
                        self.keys_under_way -= 1

                with noticing_left_generators():
                    await for_each(batch.keys, call, concurrency=self._concurrency)
                await anyio.lowlevel.checkpoint()  # generators that were left half way are closed now
            own.turns.check_unbroken()
            own.settle(ranks)
        return [*itertools.chain.from_iterable(output), *more]

    def table_of(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Output rows as a table of `output_schema`; `None` if the sink has no output. Raises `InputError`."""
        return table_of_rows(rows, self.processor.output_schema) if self._has_output else None

    def close(self, on_loop: OnLoop | None = None) -> None:
        """Close the copies of the processor, and drop them, and with them the states that they declared.

        `on_loop` is that of `__call__`. What `close` of the processor raises is logged.
        """
        copies = [*self._replaced, *(opened.processor for opened in self._opened.values())]
        self._opened, self._replaced = {}, []
        close_copies(copies, is_async=self.is_async, on_loop=on_loop)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}, "_replaced": []}

    def _open_on(self, backend: KeyedBackend, batch_id: int) -> _OpenedCopy:
        opened = self._opened.get(backend.key_groups)
        if opened is None or opened.backend is not backend:
            # On an executor other ranges may have closed meanwhile: their states must not stay in memory.
            left = dict(self._opened)
            self._opened = {owned: each for owned, each in left.items() if each.context.is_usable}
            self._opened.pop(backend.key_groups, None)
            self._replaced += [each.processor for owned, each in left.items() if owned not in self._opened]
            own = OwnStates(backend) if self.is_async else None
            context = ProcessorContext(backend if own is None else cast("KeyedBackend", own))
            opened = _OpenedCopy(copy.copy(self.processor), context, backend, own)
            opened.context.batch_id = batch_id
            with opened.alone():
                _call(opened.processor.open, opened.context)
            self._opened[backend.key_groups] = opened
        opened.context.batch_id = batch_id
        return opened

    @contextlib.contextmanager
    def _around(self, batch: BatchRows, opened: _OpenedCopy, output: list[Mapping[str, Any]]) -> Generator[None]:
        """Do all but the rows of a batch in their place, before and after the context. Adds what is put out.

        A batch that has neither rows nor due timers is not opened.
        """
        processor, context, backend = opened.processor, opened.context, opened.backend
        context.late_rows = self.late_rows
        is_idle = batch.is_empty and not (self.fires_timers and backend.has_due_timers)
        if not is_idle:
            with opened.alone():
                _call(processor.open_batch, context)
        yield
        with opened.alone():
            for key, rows in batch.late:
                self._add_rows(processor.process_late(key, rows, context), key, output)
            for at, key, context.timer_name in backend.due_timers() if self.fires_timers else ():
                self._add_rows(processor.on_timer(key, at, context), key, output)
            if not is_idle:
                _call(processor.close_batch, context)

    def _run_keys(self, batch: BatchRows, opened: _OpenedCopy) -> list[Mapping[str, Any]]:
        output: list[Mapping[str, Any]] = []
        for key, rows in batch.keys:
            self.begun_rows += len(rows)
            self.keys_under_way = 1
            self._add_rows(opened.processor.process(key, rows, opened.context), key, output)
            self.keys_under_way = 0
        return output

    def _add_rows(self, returned: Any, key: Key, output: list[Mapping[str, Any]]) -> None:
        if returned is None:
            return
        if not isinstance(returned, Iterable) or isinstance(returned, Mapping):
            kind = type(cast("object", returned))
            raise InputError(
                "process must yield mappings; if it is asynchronous, it must be an `async def`", key=key, returned=kind
            )
        before = len(output)
        output.extend(map(as_yielded, cast("Iterable[Mapping[str, Any]]", returned)))
        if len(output) > before:
            self._check_output(key)

    async def _await_rows(self, returned: Any, key: Key, output: list[Mapping[str, Any]]) -> None:
        """As `_add_rows`, for what an `async def` returns: a coroutine, or a generator, which is closed in any case."""
        if not inspect.isasyncgen(returned):
            self._add_rows(await returned, key, output)
            return
        yielded = cast("AsyncGenerator[Mapping[str, Any], None]", returned)
        try:
            async for row in yielded:
                if not self._has_output:
                    self._check_output(key)
                output.append(as_yielded(row))
        except BaseException:
            await yielded.aclose()
            raise

    def _check_output(self, key: Key) -> None:
        if not self._has_output:
            raise InputError("the processor yields rows and the sink has no output: give the sink one", key=key)

    def _run_table(self, table: Any, opened: _OpenedCopy) -> Any:
        if self._order_by and table.num_rows:
            table = in_order(table, self.key, self._order_by)
        self.begun_rows = table.num_rows
        output = opened.processor.process_table(table, opened.context) if table.num_rows else None
        if output is not None and not isinstance(output, _pa.Table):
            raise InputError("process_table must return a pyarrow.Table or None", returned=type(output))
        if not self._has_output:
            if output is not None:
                raise InputError("the processor returns a table and the sink has no output: give the sink one")
            return None
        schema = self.processor.output_schema
        return schema.empty_table() if output is None else fitted(output, schema)


def _call(hook: Callable[[ProcessorContext], object], context: ProcessorContext) -> None:
    """Call a method that puts nothing out. Raises `InputError` for rows, also of a generator, which has not run."""
    returned = hook(context)
    if has_rows(returned):
        raise InputError(
            "a method that puts nothing out returned or yielded rows: yield them in process, process_late or on_timer",
            method=getattr(hook, "__name__", repr(hook)),
            returned=type(returned),
        )


def _names(what: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    if isinstance(names, Iterable):
        columns = tuple(cast("Iterable[object]", names))
        if all(isinstance(name, str) for name in columns):
            return tuple(map(str, columns))
    raise SettingsError(f"{what} must be the name of a column, or a list of names", **{what: names})


def _is_async(processor: KeyedProcessor, method: str) -> bool:
    function = getattr(type(processor), method)
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _checked_concurrency(processor: KeyedProcessor, concurrency: int | None, *, is_async: bool) -> int:
    for method in ("open", "process_table", "open_batch", "process_late", "on_timer", "close_batch"):
        if _is_async(processor, method):
            raise SettingsError(
                f"{method} cannot be async, and nothing would await it: only process can", processor=type(processor)
            )
    if concurrency is None:
        return CONCURRENCY
    if type(concurrency) is not int or concurrency < 1:
        raise SettingsError("concurrency must be a whole number, of at least 1", concurrency=concurrency)
    if not is_async:
        raise SettingsError(
            "concurrency needs an asynchronous process: write `async def process`, or remove it",
            processor=type(processor),
            concurrency=concurrency,
        )
    return concurrency
