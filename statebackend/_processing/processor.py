"""`KeyedProcessor`: what users write to process the rows of one key, or a whole table; and the context it gets."""

from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from typing import Any, ClassVar, Final

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._processing.grouping import Rows
from statebackend.ids import KeyGroupRange

Processed = Iterable[Mapping[str, Any]] | None
"""Output rows, or none."""
Yielded = AsyncIterable[Mapping[str, Any]]
"""Output rows of an `async def` that yields them."""


class ProcessorContext:
    """A processor's view of its batch and its states: `context.value_state("legs", Leg)` and so on.

    Made by the sink, anew each time the state is opened. Of the backend it offers only what declares states.
    """

    def __init__(self, backend: KeyedBackend) -> None:
        self.batch_id = -1
        """Spark's id of the current batch; in `open`, that of the first one."""
        self._backend: Final = backend
        self.value_state: Final = backend.value_state
        self.list_state: Final = backend.list_state
        self.map_state: Final = backend.map_state
        self.reducing_state: Final = backend.reducing_state
        self.aggregating_state: Final = backend.aggregating_state
        self.columnar_state: Final = backend.columnar_state
        self.operator_state: Final = backend.operator_state
        self.timers: Final = backend.timers

    @property
    def is_usable(self) -> bool:
        """True while its states can be used: their backend has neither closed nor failed."""
        return self._backend.is_usable

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups processed here: all of them in the driver, one range on an executor."""
        return self._backend.key_groups

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_state") and not name.startswith("_"):  # a kind of state that is newer than this class
            return getattr(self._backend, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class KeyedProcessor:
    """Processes the rows of a batch: `StatefulSink(Fleet(), settings, key="tailnum")`.

    A subclass overrides `open`, to declare its states, and either `process`, which is called for each key, or
    `process_table`, which is called once per batch. They run one at a time, in the driver on one thread, unless
    `process` is `async def`.

    On executors a batch is several calls of `process_table`, one for each range of key groups that has rows. Each range
    has its own copy of the processor, with the states of the range's keys.
    """

    output_schema: ClassVar[Any] = None
    """A `pyarrow.Schema`: the columns of the output rows. Required if the sink has an `output`."""

    def open(self, context: ProcessorContext) -> None:
        """Declare states: `self.legs = context.value_state("legs", Leg)`. Called before the first batch on a state.

        Called once on each copy (`copy.copy`) of the processor that the sink was given; the state is opened with a new
        copy. On executors every attempt at a range has a copy of its own, so what it stores in `self` is gone after the
        batch.
        """

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
