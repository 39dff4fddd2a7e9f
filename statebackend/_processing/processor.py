"""`KeyedProcessor`: what users write to process the rows of one key, or a whole table; and the context it gets."""

from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._processing.event_time import as_output
from statebackend._processing.grouping import Rows
from statebackend._state.declarations import StateDeclarations
from statebackend.ids import KeyGroupRange

Processed = Iterable[Mapping[str, Any]] | None
"""Output rows, or none."""
Yielded = AsyncIterable[Mapping[str, Any]]
"""Output rows of an `async def` that yields them."""


class ProcessorContext(StateDeclarations):
    """A processor's view of its batch and its states: `context.value_state("legs", Leg)` and so on.

    Made by the sink, anew each time the state is opened. Of the backend it offers only what declares states, and time.
    """

    def __init__(self, backend: KeyedBackend) -> None:
        self.batch_id = -1
        """Spark's id of the current batch; in `open`, that of the first one."""
        self.late_rows = 0
        """How many rows of the current batch are older than the clock was before it."""
        self.timer_name = ""
        """In `on_timer`: the name of the timers that the due one belongs to."""
        self._backend: Final = backend
        for name in _DECLARING:  # the backend's own, and not the ones below: it may give each call a state of its own
            setattr(self, name, getattr(backend, name))

    @property
    def clock_s(self) -> float | None:
        """The job's clock in this batch, in seconds: what time-to-live and timers go by. `None` before it has begun."""
        return self._backend.clock_s

    @property
    def clock_before_s(self) -> float | None:
        """The clock in the batch before: no timer can be registered for a time before it."""
        return self._backend.clock_before_s

    @property
    def is_usable(self) -> bool:
        """True while its states can be used: their backend has neither closed nor failed."""
        return self._backend.is_usable

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups processed here: all of them in the driver, one range on an executor."""
        return self._backend.key_groups

    def _declaring(self) -> NoReturn:
        raise AssertionError("the backend declares")

    if not TYPE_CHECKING:  # type checkers know the kinds that there are

        def __getattr__(self, name: str) -> Any:
            if name.endswith("_state") and not name.startswith("_"):  # a kind of state that is newer than this class
                return getattr(self._backend, name)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


_DECLARING: Final = [name for name in vars(StateDeclarations) if name == "timers" or name.endswith("_state")]


class KeyedProcessor:
    """Processes the rows of a batch: `StatefulSink(Fleet(), settings, key="tailnum")`.

    A subclass overrides `open`, to declare its states, and either `process`, which is called for each key, or
    `process_table`, which is called once per batch. They run one at a time, in the driver on one thread, unless
    `process` is `async def`.

    On executors a batch is several calls of `process_table`, one for each range of key groups that has rows. Each range
    has its own copy of the processor, with the states of the range's keys.

    In each range that has rows or due timers, a batch is `open_batch`, the rows, `process_late`, `on_timer` for each
    timer that is due by the job's clock, and `close_batch`. In the driver there is one range.
    """

    output_schema: ClassVar[Any] = None
    """A `pyarrow.Schema`: the columns of the output rows. Required if the sink has an `output`."""

    def open(self, context: ProcessorContext) -> None:
        """Declare states: `self.legs = context.value_state("legs", Leg)`. Called before the first batch on a state.

        Called once on each copy (`copy.copy`) of the processor that the sink was given; the state is opened with a new
        copy, so what a failed batch left in `self` does not count again with the replay. All copies share what
        `__init__` made and `process` changes in place, such as a list: make it here. On executors every attempt at a
        range has a copy of its own, so what it stores in `self` is gone after the batch.
        """

    def open_batch(self, context: ProcessorContext) -> None:
        """Prepare for the rows of a batch. Called once in each range that has rows or due timers."""

    def process(self, key: Any, rows: Rows, context: ProcessorContext) -> Processed | Awaitable[Processed] | Yielded:
        """Process the rows of one key, in order. Called once for each key in the batch; the keys have no order.

        Yields output rows: mappings with exactly the columns of `output_schema`. `key` is the value of the key column,
        or a tuple if there are several.

        It may be `async def`, and yield rows or return them. Then other keys are processed while it awaits: `open` and
        `process` run on the event loop, a call may use the state of its own key only, and operator state, which it
        reads as it was before the batch. All calls have ended before the checkpoint. The first error cancels the
        others and fails the batch. Output rows, and what is logged, come in the order of the keys, as if one call had
        followed the other.
        """
        raise NotImplementedError

    def process_table(self, table: Any, context: ProcessorContext) -> Any:
        """Process all rows of a batch, a `pyarrow.Table`. Not called for a batch without rows.

        The rows are sorted by key, and by `order_by` within a key, if the sink has an `order_by`; otherwise they come
        as Spark sent them. Returns a `pyarrow.Table` with the columns of `output_schema`, or `None`.
        """
        raise NotImplementedError

    def process_late(self, key: Any, rows: Rows, context: ProcessorContext) -> Iterable[Mapping[str, Any]] | None:
        """Put out the late rows of one key. Called with `late="output"`, for each key that has any, after the rows.

        They have not been processed. Yields output rows; by default the rows as they came, with the columns that
        `output_schema` has.
        """
        return [as_output(row, self.output_schema) for row in rows]

    def on_timer(self, key: Any, at: float, context: ProcessorContext) -> Iterable[Mapping[str, Any]] | None:
        """Act on a timer of `key` that is due: `at` is not after `context.clock_s`. Called after the rows of the batch.

        Earliest first, each timer once in a batch, also for keys and ranges without rows; of all timers that the
        processor has declared for the job's clock, `context.timer_name` says whose. It is deleted before the call.
        Yields output rows. Without this method, timers wait for `Timers.due`.
        """
        raise NotImplementedError

    def close_batch(self, context: ProcessorContext) -> None:
        """End a batch, before its checkpoint. Called once for each `open_batch`, unless the batch has failed."""

    def close(self) -> Awaitable[None] | None:
        """Close what `open` has made, such as a client. Called once for each `open` that did not raise.

        In the driver that is when the state is closed: with the sink, after a failed batch, when the query ends or is
        started again with the same sink. On executors it is after every attempt at a range, whether it failed or not.
        Using a state raises `BackendClosedError`. It may be `async def`, and then has 10 s; it runs on the event loop
        if it is, or if `process` is. What it raises is logged and changes nothing. Not called if the process is
        killed, so what must not be lost belongs into `close_batch`.
        """


def overrides(processor: KeyedProcessor, method: str) -> bool:
    """True if the processor has that method of its own."""
    return getattr(type(processor), method) is not getattr(KeyedProcessor, method)
