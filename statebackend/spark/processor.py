"""`KeyedProcessor`: what a user writes of what happens to the rows of one key, or to a whole table of them."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from statebackend._checkpoint.backend import StateBackend
from statebackend.ids import KeyGroupRange
from statebackend.spark.grouping import Rows


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
    def is_usable(self) -> bool:
        """Whether its states can be used: their backend is neither closed nor has it failed."""
        return self._backend.is_usable

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups whose keys come here: all of them in the driver, a range on an executor."""
        return self._backend.key_groups

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_state") and not name.startswith("_"):  # a kind of state that came later than this class
            return getattr(self._backend, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class KeyedProcessor:
    """What to do with the rows of a batch: `StatefulSink(Fleet(), settings, key="tailnum")`.

    A subclass overrides `process`, to be called for each key, or `process_table`, to be called once; and `open`, where
    it declares its states. All run one at a time, in the driver on one thread, and none of them is `async`.

    On executors a batch is several calls of `process_table`, one for each range of key groups that has rows; each range
    has a copy of the processor, and of its states those of its keys.
    """

    output_schema: ClassVar[Any] = None
    """A `pyarrow.Schema`: the columns of the rows that come out. Needed where the sink has an `output`."""

    def open(self, context: ProcessorContext) -> None:
        """Declare states: `self.legs = context.value_state("legs", Leg)`. Before the first batch on an opened state.

        On a copy (`copy.copy`) of the processor that the sink was given, so once per copy. On executors each attempt
        at a range has its own: what it leaves in `self` is gone after the batch.
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
