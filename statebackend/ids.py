"""The small values that name things: key groups, sequence numbers, checkpoints, epochs, and durable pointers.

All are immutable and compare by value. Ranges of sequence numbers are `from` inclusive, `to` exclusive;
a `KeyGroupRange` includes both ends, as in the field's usual drawing of key groups.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NewType

import msgspec
from msgspec import UNSET, UnsetType

SequenceNumber = NewType("SequenceNumber", int)
"""Position of a change set in one writer's log: 0, 1, 2, ... A boundary marker, not a count of records."""

CheckpointId = NewType("CheckpointId", int)
"""The caller's name of a checkpoint. Grows; a gap is legal."""

CommitSequence = NewType("CommitSequence", int)
"""Position of an entry in the job's log: 0, 1, 2, ... without gaps. Claims are entries too, so there are gaps between
commits."""

Epoch = NewType("Epoch", int)
"""Number of a writer's turn at a job, from 1. Each claim begins the next epoch, and after it no commit of an older one
can be made."""

Key = str | int | bytes | tuple["Key", ...]
"""A key: `str`, `int` within 64 bits, `bytes`, or a non-empty tuple of the three."""

ClockKind = Literal["event", "processing"]
"""The clocks that timers and a job may go by: that of its rows, or that of the batches."""

MAX_PARALLELISM_LIMIT: Final = 32_768
"""Most key groups a job may have (the same bound as in the field: products of two must fit 31 bits)."""


COLUMNS_PREFIX: Final = "columns-"
"""The names of the files of columnar states begin with it. RocksDB gives no such name."""
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class KeyGroupRange(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Key groups `first` to `last`, both included. `EMPTY_RANGE` is the only range with no groups.

    Raises `ValueError` for a negative end, for `first > last`, and for a group that no job can have.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if (self.first, self.last) != (0, -1) and not 0 <= self.first <= self.last < MAX_PARALLELISM_LIMIT:
            raise ValueError(f"not a key-group range: [{self.first}, {self.last}]")

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __bool__(self) -> bool:
        return self.last >= self.first

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.first <= key_group <= self.last

    def __str__(self) -> str:
        return f"[{self.first}, {self.last}]" if self else "[]"

    def intersection(self, other: "KeyGroupRange") -> "KeyGroupRange":
        """The key groups in both ranges, `EMPTY_RANGE` if there are none. Symmetric."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first, last) if first <= last else EMPTY_RANGE


EMPTY_RANGE: Final = KeyGroupRange(0, -1)


def all_key_groups(max_parallelism: int) -> KeyGroupRange:
    """The range of a backend that owns every key group of its job."""
    return KeyGroupRange(0, max_parallelism - 1)


def ranges_of(groups: Iterable[int]) -> tuple[KeyGroupRange, ...]:
    """The fewest ranges that hold exactly these groups, in order."""
    ranges: list[list[int]] = []
    for group in sorted(groups):
        if ranges and ranges[-1][1] == group - 1:
            ranges[-1][1] = group
        else:
            ranges.append([group, group])
    return tuple(KeyGroupRange(first, last) for first, last in ranges)


def cover_all(ranges: Sequence[KeyGroupRange], max_parallelism: int) -> bool:
    """True if these ranges, in this order, have every key group of a job exactly once.

    All borders are compared, so that nothing behind the last key group goes unseen.
    """
    ends = [key_groups.last + 1 for key_groups in ranges]
    return all(ranges) and [0, *ends] == [*(key_groups.first for key_groups in ranges), max_parallelism]


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """Durable pointer to bytes in a store: `length` bytes from `offset` of the object at `key`, and their crc32.

    `key` is relative to the job's root in the primary, so that a job's data can be moved as a whole.
    """

    key: str
    offset: int
    length: int
    checksum: int


class ChangeSetHandle(msgspec.Struct, frozen=True, array_like=True):
    """Durable pointer to one change set: a frame of a segment.

    `segment` points to the whole object, `offset` and `length` to the frame in it. A frame has a checksum of its own,
    so that both a copy of the whole file and a ranged read can be verified.
    """

    segment: Handle
    log_id: str
    sequence_number: SequenceNumber
    offset: int
    length: int
    key_groups: KeyGroupRange
    records: int


class Lifetime(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time-to-live of a state as of a commit, and since when it applies. Times are those of its clock.

    `untimed_since_s`: what was stored without a time of writing counts as written then, the time of the first commit
    with a time-to-live; `None`, before the clock has begun: it never expires. `gone_until_s`: what was written then or
    before had expired when the time-to-live was made longer, and stays so; `None`: it never was.
    """

    seconds: float
    untimed_since_s: float | None = None
    gone_until_s: float | None = None

    def is_live(self, stamp: float | None, seconds: float, now: float) -> bool:
        """True if what was written then has not expired `now`, under a time-to-live of so many seconds."""
        stamp = self.untimed_since_s if stamp is None else stamp
        if stamp is None:
            return True
        return now < stamp + seconds and (self.gone_until_s is None or stamp > self.gone_until_s)

    def changed_to(self, seconds: float, at: float | None) -> "Lifetime":
        """With another number of seconds; `at`: the time up to which the former one has applied, if it is known."""
        gone_until_s = self.gone_until_s
        if seconds > self.seconds and at is not None:
            gone_until_s = max(at - self.seconds, -math.inf if gone_until_s is None else gone_until_s)
        return Lifetime(seconds, self.untimed_since_s, gone_until_s)


class StateDescriptor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A declared state: its number in the changes, its name and kind, and the schemas of its values.

    `schema` is that of the newest declaration, `earlier` are the others of the same version that stored values may
    have. A cell that names no version is of version 0. `key_schema` is that of the keys within a map.
    """

    state_id: int
    name: str
    kind: str
    schema: str
    key_schema: str = ""
    version: int = 0
    earlier: tuple[str, ...] = ()
    lifetime: Lifetime | None = None
    """`None` if it was last declared without a time-to-live, or committed by a release that did not say."""


class OperatorElements(msgspec.Struct, frozen=True, omit_defaults=True):
    """One owner's elements of one operator state, each encoded.

    `is_untaken`: all elements of a union state, given to an owner that has not declared the state since. All that are
    untaken are the same, and count once.
    """

    state_id: int
    elements: tuple[bytes, ...]
    is_untaken: bool = False


class Base(msgspec.Struct, frozen=True, array_like=True):
    """A segment with every entry of `key_groups` as of some moment. It may also hold stale entries of other groups.

    Bases of one range do not overlap: when some key groups are written again, the older base loses them.
    `key_groups_written`: how many it had when it was written; 0 if that is unknown.
    """

    segment: Handle
    key_groups: tuple[KeyGroupRange, ...]
    key_groups_written: int = 0

    @property
    def live(self) -> int:
        """How many key groups it stands for now."""
        return sum(map(len, self.key_groups))

    @property
    def size_bytes(self) -> int:
        """Stored bytes."""
        return self.segment.length


class RocksDBFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a RocksDB base: its name in the RocksDB's directory, and the object that holds it."""

    name: str
    handle: Handle

    def __post_init__(self) -> None:
        if not _FILE_NAME.fullmatch(self.name):
            raise ValueError(f"not the name of a RocksDB file: {self.name!r}")

    @property
    def never_changes(self) -> bool:
        """True if the file is only ever read or removed once it is complete."""
        return self.is_table or self.is_columns

    @property
    def is_table(self) -> bool:
        """True for a file with RocksDB's entries, which the next base of the same database may have too."""
        return self.name.endswith(".sst")

    @property
    def is_columns(self) -> bool:
        """True for a segment with rows of columnar states, which lie beside RocksDB's files. Each base has its own."""
        return self.name.startswith(COLUMNS_PREFIX)


class RocksDBBase(msgspec.Struct, frozen=True, array_like=True):
    """The files of a RocksDB with every entry of `owner` as of `checkpoint_id`. It stands for `key_groups` now.

    The rows of columnar states, which lie in memory, are in files of their own beside them.

    Several bases may name the same objects: a file that never changes is uploaded once.
    """

    owner: KeyGroupRange
    checkpoint_id: CheckpointId
    key_groups: tuple[KeyGroupRange, ...]
    files: tuple[RocksDBFile, ...]

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("a database has files, also when it is empty")

    @property
    def key_groups_written(self) -> int:
        """How many key groups it stood for when it was written."""
        return len(self.owner)

    @property
    def live(self) -> int:
        """How many key groups it stands for now."""
        return sum(map(len, self.key_groups))

    @property
    def size_bytes(self) -> int:
        """Stored bytes of all its files."""
        return sum(file.handle.length for file in self.files)

    @property
    def columns_bytes(self) -> int:
        """Stored bytes of its files of columnar states."""
        return sum(file.handle.length for file in self.files if file.is_columns)


def _none() -> tuple[Any, ...]:
    """A default that is written nevertheless: `omit_defaults` does not see through a function."""
    return ()


class StateSize(msgspec.Struct, frozen=True, array_like=True):
    """How much there is of a state in one range of key groups; of several states, where they are only known together.

    `keys` are counted, `size_bytes` is reckoned: the encoded values before compression, without the keys. With
    `is_estimate` both are what RocksDB says of its files: keys that were written again may count twice, and the bytes
    are those of the files.
    """

    states: tuple[int, ...]
    keys: int
    size_bytes: int
    is_estimate: bool = False


class RestoreSource(msgspec.Struct, frozen=True, array_like=True):
    """Where an opening found the state of a range: files and stored bytes by the copy they were read from."""

    files_local: int
    files_primary: int
    bytes_local: int
    bytes_primary: int
    seconds: float


class RangeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one range of key groups, as a commit holds it: bases, then change sets in order.

    A field that was added later is written only where it says something, so that older commits keep their bytes.
    """

    key_groups: KeyGroupRange
    changelog: tuple[ChangeSetHandle, ...]
    bases: tuple[Base, ...] = msgspec.field(default_factory=_none)
    operator: tuple[OperatorElements, ...] = msgspec.field(default_factory=_none)
    """The owner's operator state, which lies under no key."""
    history: bytes | UnsetType = UNSET
    """Digest of all change sets that ever made this state (`_checkpoint/lineage.py`); unset where none is recorded."""
    rocksdb: tuple[RocksDBBase, ...] = msgspec.field(default=(), name="native")
    """Applied before `bases`, which hold other key groups."""
    next_timer_s: float | UnsetType | None = UNSET
    """No timer of the job's clock is due before this; `None`: none ever is; unset where it is not known."""
    sizes: tuple[StateSize, ...] | UnsetType = UNSET
    """How much there is of each keyed state; unset where it is not known."""
    restored: RestoreSource | UnsetType = UNSET
    """Only in the first commit after the range was opened, if anything was read then. It proves that an owner made this
    of what it had read: no edit from outside has it.
    """

    @property
    def all_bases(self) -> tuple[Base | RocksDBBase, ...]:
        """RocksDB bases and others. No two of them stand for the same key group."""
        return (*self.rocksdb, *self.bases)

    def segments(self) -> frozenset[str]:
        """Keys of every object the range points into."""
        return frozenset(handle.key for handle in self.objects())

    def objects(self) -> Iterator[Handle]:
        """Every object the range points into, some of them more than once."""
        yield from (handle.segment for handle in self.changelog)
        yield from (base.segment for base in self.bases)
        yield from (file.handle for base in self.rocksdb for file in base.files)


class SnapshotResult(msgspec.Struct, frozen=True):
    """One owner's contribution to a checkpoint: `state` is what the commit will say of its key groups.

    `local` is true only when *every* part of it has a local copy as well: a readable but incomplete local copy would
    restore wrong state silently. `primary_bytes` and `local_bytes`: stored bytes of the segments uploaded for it.
    """

    checkpoint_id: CheckpointId
    state: RangeState
    local: bool
    primary_bytes: int = 0
    local_bytes: int = 0
    epoch: Epoch = Epoch(0)
    """The epoch in which it was uploaded: a sweep may have deleted it before a commit of another epoch names it."""
    states: tuple[StateDescriptor, ...] = ()
    """Every state that the owner knows."""
    base: CheckpointId | None = None
    """The checkpoint that the owner stood on: `state` is that and all changes since. `None` before the first."""
    pending: tuple[CheckpointId, ...] = ()
    """Checkpoints that had no outcome yet when it was taken: `state` has the changes of these, too."""
    clock: "ClockMark | None" = None
    """The job's clock as the owner has moved it: what has expired there and has fired went by it."""

    def continues(self, checkpoint_id: CheckpointId | None) -> bool:
        """True if the state is that of the checkpoint, and changes since. `None`: if it begins with nothing."""
        return checkpoint_id == self.base or checkpoint_id in self.pending


class SourceMark(msgspec.Struct, frozen=True):
    """The micro-batch that a commit holds: Spark's query id and batch id, and the run that delivered it.

    The pair (query id, batch id) decides whether a delivery is a replay. The run id is for people only. `time_zone`:
    that of the session, in which dates and hours were made of the batch's times; unset where it is not known.
    """

    query_id: str
    batch_id: int
    run_id: str = ""
    time_zone: str | UnsetType = UNSET


class ClockMark(msgspec.Struct, frozen=True):
    """The job's clock as of a commit, in seconds: moved by event times, or by the times of batches (processing).

    Raises `ValueError` for a time that is not finite.
    """

    now_s: float
    kind: ClockKind

    def __post_init__(self) -> None:
        if not math.isfinite(self.now_s):
            raise ValueError(f"not a time: {self.now_s}")


class StagedOutput(msgspec.Struct, frozen=True):
    """The output rows of a micro-batch, to be published as the same bytes however often.

    `schema` is that of the rows, as an Arrow IPC message. `parts` are in order, each a `part` of the format in
    `_codec/staged.py`: an object of its own, or a piece of a commit. Without rows there are no parts.
    """

    source: SourceMark
    rows: int
    schema: bytes
    parts: tuple[Handle, ...] = ()


class CommitSummary(msgspec.Struct, frozen=True):
    """One commit of a job's history, and its parent. `source`: the batch that it was made for; `None` if by hand.

    `marks`: the newest batch of each other query that the state has, the latest last; `None` where an earlier release
    did not say.
    """

    sequence: CommitSequence
    checkpoint_id: CheckpointId
    epoch: Epoch
    parent: CommitSequence | None
    source: SourceMark | None
    committed_at_s: float
    clock: ClockMark | None = None
    marks: tuple[SourceMark, ...] | None = None
    starts_from: Any = None
    """Where a stream has to begin that goes on from here, in JSON's types: see `seed`. `None` once one has begun."""

    @property
    def newest_mark(self) -> SourceMark | None:
        """The newest batch of Spark that the state has, whether or not this commit was made for it."""
        return self.source or (self.marks[-1] if self.marks else None)

    def mark_of(self, query_id: str) -> SourceMark | None:
        """The newest batch of the query that the state has, as far as this commit says."""
        known = (*(self.marks or ()), *(() if self.source is None else (self.source,)))
        return next((mark for mark in known if mark.query_id == query_id), None)
