"""Changes of one state in columns, and the change sets that are logged.

No object is made for a single change on the way from a state to the log and back: keys, data and key groups are each
one column. Their bytes are in `parts`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import ClassVar, Final, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend.errors import DataError
from statebackend.ids import EMPTY_RANGE, KeyGroupRange, SequenceNumber
from statebackend.settings import MiB

C = TypeVar("C", bound="Changes")

KeyGroups = npt.NDArray[np.int16]
"""One key group per change, 0 to 32,767; -1 only in the metadata of early releases."""
GROUP: Final = np.dtype("<i2")

PART_RECORDS_MAX: Final = 16_384
"""Changes in one `Changes`. To encode or decode as many holds the interpreter lock for about a millisecond."""
PART_BYTES_MAX: Final = MiB
"""Bytes from which one `Changes` is cut, for the same reason. A single change may be larger."""


class Only(msgspec.Struct, frozen=True):
    """The part of a change set that a reader wants: the changes of one state, and of its `columns` only these."""

    state_id: int
    columns: frozenset[str] | None = None


class Changes(ABC):
    """Changes of one state, in the order in which they are applied. Immutable once made; never empty.

    Their maker keeps them to `PART_RECORDS_MAX` changes and about `PART_BYTES_MAX`: `cut` helps.
    """

    __slots__ = ("_size_bytes", "_span", "groups", "state_id")

    kind: ClassVar[int]
    """The code of the kind in a part. Codes are stored: never reuse one."""

    def __init__(self, state_id: int, groups: KeyGroups) -> None:
        self.state_id: Final = state_id
        self.groups: Final = groups
        self._size_bytes: int | None = None
        self._span: KeyGroupRange | None = None

    @property
    def records(self) -> int:
        """The number of changes: keys or entries set or removed."""
        return len(self.groups)

    @property
    def size_bytes(self) -> int:
        """Estimated size when encoded, before compression; for thresholds only."""
        if self._size_bytes is None:
            self._size_bytes = self._estimated_bytes()
        return self._size_bytes

    @property
    def span(self) -> KeyGroupRange:
        """The smallest range with the key groups of all changes."""
        if self._span is None:
            last = int(self.groups.max())
            self._span = KeyGroupRange(int(self.groups.min()), last) if last >= 0 else EMPTY_RANGE
        return self._span

    def distinct_groups(self) -> Sequence[int]:
        """The key groups that have changes, each once, in order."""
        return np.flatnonzero(np.bincount(self.groups)).tolist()

    def of_groups(self, wanted: Iterable[KeyGroupRange]) -> Self | None:
        """The changes of these key groups, in order: itself if all are wanted, `None` if none is."""
        wanted, span = tuple(wanted), self.span
        if any(each.first <= span.first and span.last <= each.last for each in wanted):
            return self
        is_wanted = np.zeros(max(0, span.last) + 1, dtype=np.bool_)
        for each in wanted:
            is_wanted[each.first : each.last + 1] = True
        chosen = np.flatnonzero(is_wanted[self.groups])
        return self.taken(chosen) if len(chosen) else None

    def cut(self, bytes_max: int, first_bytes: int | None = None) -> Iterator[Self]:
        """Neighbouring changes together, each piece ending with the change by which it reaches `bytes_max`.

        The first piece ends at `first_bytes`, if given. What is smaller than that is yielded as it is.
        """
        limit = bytes_max if first_bytes is None else first_bytes
        if self.size_bytes <= limit or self.records == 1:
            yield self
            return
        ends = np.cumsum(self.sizes())
        start, reached = 0, 0
        while start < self.records:
            # at least one, also for a limit of no bytes
            end = min(self.records, max(start, int(np.searchsorted(ends, reached + limit))) + 1)
            yield self.between(start, end)
            start, reached, limit = end, int(ends[end - 1]), bytes_max

    @abstractmethod
    def sizes(self) -> npt.NDArray[np.int64]:
        """The estimated bytes of each change. They add up to `size_bytes`."""

    @abstractmethod
    def between(self, start: int, end: int) -> Self:
        """The changes from `start` up to, not including, `end`."""

    @abstractmethod
    def taken(self, chosen: npt.NDArray[np.intp]) -> Self:
        """The changes at these places, in the order given."""

    @abstractmethod
    def with_groups(self, groups: KeyGroups) -> Self:
        """The same changes in other key groups, as if the job had another `max_parallelism`."""

    @abstractmethod
    def body(self) -> Sequence[bytes | bytearray | memoryview]:
        """The body of a part, in chunks."""

    @classmethod
    @abstractmethod
    def read_body(
        cls, state_id: int, records: int, body: memoryview, *, columns: Collection[str] | None = None
    ) -> Iterator[Self]:
        """The `records` changes of a part, some at a time. They keep no reference to `body`. Of their columns, if they
        have any, only `columns` are decoded.

        Raises `ValueError` if the body is not as `body` makes it, and `ValueDecodeError` for a key that is no key.
        """

    @abstractmethod
    def _estimated_bytes(self) -> int:
        """The estimate for `size_bytes`, made once."""


class ChangeSet(msgspec.Struct, frozen=True, eq=False):
    """The changes of one writer under one sequence number. Immutable once it is made; never empty."""

    log_id: str
    sequence_number: SequenceNumber
    changes: Sequence[Changes]
    key_groups: KeyGroupRange
    """The smallest range with the key groups of all changes."""
    size_bytes: int
    """Estimated size when encoded, before compression."""

    @property
    def records(self) -> int:
        """The number of changes."""
        return sum(each.records for each in self.changes)


def change_set(log_id: str, sequence_number: SequenceNumber, changes: Sequence[Changes]) -> ChangeSet:
    """Return a change set of `changes`, which must not be empty."""
    spans = [each.span for each in changes]
    span = KeyGroupRange(min(each.first for each in spans), max(each.last for each in spans))
    return ChangeSet(log_id, sequence_number, changes, span, sum(each.size_bytes for each in changes))


def of_kind(changes: Changes, kind: type[C]) -> C:
    """The changes, if they are such. Raises `DataError` for those of another kind of state."""
    if not isinstance(changes, kind):
        raise DataError("changes of another kind than the state's", state_id=changes.state_id, kind=changes.kind)
    return changes
