"""Writes bases behind the checkpoints' backs, so that a commit need not list every change set since the job began.

What is written when is decided by `materialization`; here it is done, one materialization at a time:

    idle -> writing -> written -> offered -> idle        its bases are in a commit
              └-> idle    └───────┘  ^ refused: offered to the next commit

It begins at a commit, with a snapshot of the states as they are in that commit, and goes on while others are made. Its
bases take the place of what that commit listed, in the first commit after they are all durable. Until then they belong
to the materializer, which deletes them if they come to nothing; what a commit may hold it does not touch.

States in RocksDB are written as the files that it has then (`rocksdb`); others, entry by entry.
"""

import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import anyio
from anyio.abc import TaskGroup

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.bases import (
    SEGMENT_BYTES_MAX,
    Bases,
    base_of,
    first_interval_s,
    is_due,
    key_groups_to_write,
    pack,
)
from statebackend._checkpoint.rocksdb_bases import RocksDBBases
from statebackend._codec.records import StateChange
from statebackend._state.declared import KeyedStates
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tasks import breathe, in_thread
from statebackend.abc import Clock, Observer, UploadedSegment
from statebackend.errors import BackendClosedError, MaterializationError
from statebackend.ids import Base, CheckpointId, RangeState
from statebackend.settings import Settings

_log = logging.getLogger(__name__)


CHANGES_AT_ONCE: Final = 512
"""Changes that are placed in a frame between two pauses."""


class _Phase(enum.Enum):
    IDLE = enum.auto()
    WRITING = enum.auto()
    WRITTEN = enum.auto()
    OFFERED = enum.auto()
    CLOSED = enum.auto()


class Materializer:
    """The bases of one backend. Its work runs in `tasks`; no call but `wait_closed` waits for it.

    `changed`: the key groups that the restored changelog has changed since their last base. `rocksdb` writes the files
    of the tables; without it bases are made of entries.
    """

    def __init__(
        self,
        states: KeyedStates,
        scheduler: UploadScheduler,
        settings: Settings,
        *,
        changed: Iterable[int],
        rocksdb: RocksDBBases | None = None,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._states = states
        self._rocksdb = rocksdb
        self._scheduler = scheduler
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._cpu = anyio.CapacityLimiter(1)
        self._segment_bytes_max = min(SEGMENT_BYTES_MAX, settings.in_flight_bytes_max // 4)
        self._phase = _Phase.IDLE
        self._changed: set[int] = set(changed)
        self._uploaded: list[UploadedSegment] = []  # ours, until a commit may hold them
        self._bases: Bases | None = None
        self._scope = anyio.CancelScope()
        self._ended: anyio.Event | None = None
        self._discarded = anyio.Event()
        self._discarded.set()
        self._failures = 0
        self._failure: Exception | None = None
        now_s = clock.monotonic()
        self._interval_ends_s = now_s + first_interval_s(
            settings.job, states.key_groups, settings.materialize_interval_s
        )
        self._pause_ends_s = now_s

    @property
    def changed(self) -> frozenset[int]:
        """The key groups that were changed since their last base, or since one that is being written was begun."""
        return frozenset(self._changed)

    @property
    def failures(self) -> int:
        """Times in a row that bases could not be written."""
        return self._failures

    def note(self, changes: Iterable[StateChange]) -> None:
        """These changes go into the changelog."""
        self._changed.update({change.key_group for change in changes})

    def check(self) -> None:
        """Raise `MaterializationError` where bases have failed to be written too often."""
        if self._failures > self._settings.materialize_failures_max:
            raise MaterializationError(
                "bases cannot be written: mend the store, then reopen, and replay", failures=self._failures
            ) from self._failure

    async def begin_if_due(self, committed: RangeState, checkpoint_id: CheckpointId, *, due: bool = False) -> None:
        """Begin to write bases, if it is time to. `committed` is in that checkpoint, with the states as they are now.

        `due`: by the word of who has been here for longer. When this returns the states may be changed again: there is
        a copy of a reference for each key, or of RocksDB's files; all else is done behind the back, and what goes wrong
        is told by `check`.
        """
        now_s = self._clock.monotonic()
        interval_is_over = self._settings.materialize_interval_s > 0 and self._interval_ends_s <= now_s
        if (
            self._phase is not _Phase.IDLE
            or now_s < self._pause_ends_s
            or not (due or is_due(committed, self._settings, interval_is_over=interval_is_over))
        ):
            return
        copied, handles = anyio.Event(), len(committed.changelog)
        if self._rocksdb is not None:
            key_groups = frozenset(self._states.key_groups)
            write = partial(self._write_files, self._rocksdb, checkpoint_id, key_groups, handles, copied.set)
        else:
            key_groups = key_groups_to_write(self._changed, committed.bases, committed.rocksdb)
            write = partial(self._write_entries, self._states.snapshot(), key_groups, handles)
            copied.set()
        with suppress(RuntimeError):  # anyio's word for a task group that has ended: the next owner does it
            self._tasks.start_soon(self._run, write, key_groups, copied)
            self._phase, self._changed, self._ended = _Phase.WRITING, set[int](), anyio.Event()
            with anyio.CancelScope(shield=True):  # whoever cancels goes on to change the states
                await copied.wait()

    def ready(self) -> Bases | None:
        """The bases that a commit is to take now, if there are any; `confirmed` or `refused` says whether it did.

        Where neither does, a commit may hold them: they are never deleted from here on.
        """
        if self._phase is _Phase.WRITTEN:
            self._phase = _Phase.OFFERED
        return self._bases if self._phase is _Phase.OFFERED else None

    def confirmed(self, bases: Bases | None) -> None:
        """A commit holds these bases, or none that were offered."""
        if bases is not None and bases is self._bases:
            if self._rocksdb is not None and bases.rocksdb is not None:
                self._rocksdb.confirmed(bases.rocksdb)
            self._phase, self._bases, self._uploaded = _Phase.IDLE, None, []

    async def settled(self) -> None:
        """Wait until nothing is under way. A cancelled call leaves it under way."""
        if self._ended is not None:
            await self._ended.wait()

    def refused(self, bases: Bases | None) -> None:
        """No commit has these bases, or none that were offered, nor will one: they are offered to the next one."""
        if bases is not None and bases is self._bases and self._phase is _Phase.OFFERED:
            self._phase = _Phase.WRITTEN

    def close(self) -> None:
        """End what is under way, and begin to delete what no commit can hold."""
        phase, self._phase = self._phase, _Phase.CLOSED
        self._scope.cancel()
        if phase is _Phase.WRITTEN:
            self._discard()

    async def wait_closed(self) -> None:
        """Wait until `close` has come to its end. After a cancelled call it goes on, as long as `tasks` do."""
        if self._ended is not None:
            await self._ended.wait()
        await self._discarded.wait()

    async def _run(
        self, write: Callable[[], Awaitable[Bases]], key_groups: frozenset[int], copied: anyio.Event
    ) -> None:
        assert self._ended is not None
        begun_s = self._clock.monotonic()
        try:
            with self._scope:
                self._observer.materialization_begun(len(key_groups))
                self._finish(await write(), begun_s)
        except Exception as error:  # noqa: BLE001  # told at a checkpoint, if it goes on like that
            if self._phase is not _Phase.CLOSED:
                await self._fail(error, key_groups)
        finally:
            copied.set()
            if self._bases is None:
                self._discard()
            self._ended.set()

    async def _write_files(
        self,
        rocksdb: RocksDBBases,
        checkpoint_id: CheckpointId,
        key_groups: frozenset[int],
        handles: int,
        copied: Callable[[], None],
    ) -> Bases:
        base, is_local = await rocksdb.write(checkpoint_id, copied, self._uploaded)
        only_primary = () if is_local else (file.handle.key for file in base.files)
        return Bases((), key_groups, handles, frozenset(only_primary), base)

    async def _write_entries(self, snapshot: StatesSnapshot, key_groups: frozenset[int], handles: int) -> Bases:
        written: list[Base] = []
        changes = self._paused(snapshot.changes(key_groups, self._pause))
        pieces = pack(changes, key_groups, segment_bytes_max=self._segment_bytes_max)
        while (piece := await in_thread(next, pieces, None, limiter=self._cpu)) is not None:
            uploaded = await self._scheduler.upload_alone(piece.frames, self._pause)
            self._uploaded.append(uploaded)
            written.append(base_of(piece, uploaded.primary))
        return Bases(tuple(written), key_groups, handles, self._only_primary())

    def _paused(self, changes: Iterator[StateChange]) -> Iterator[StateChange]:
        while step := list(islice(changes, CHANGES_AT_ONCE)):
            self._pause()
            yield from step

    def _pause(self) -> None:
        """In a worker thread: checkpoints go first, and who leaves does not wait for millions of keys."""
        if self._phase is _Phase.CLOSED:
            raise BackendClosedError("the backend was left while bases were being written")
        breathe()

    def _only_primary(self) -> frozenset[str]:
        return frozenset(uploaded.primary.key for uploaded in self._uploaded if uploaded.local is None)

    def _finish(self, bases: Bases, begun_s: float) -> None:
        now_s = self._end_interval()
        self._failures, self._failure = 0, None
        if self._phase is _Phase.WRITING:  # and not closed meanwhile
            self._bases, self._phase = bases, _Phase.WRITTEN
        self._observer.materialized(
            key_groups=len(bases.key_groups),
            segments=len(self._uploaded),
            size_bytes=sum(uploaded.primary.length for uploaded in self._uploaded),
            seconds=now_s - begun_s,
        )

    async def _fail(self, error: Exception, key_groups: frozenset[int]) -> None:
        self._failures += 1
        self._failure = error
        self._changed |= key_groups
        self._pause_ends_s = self._end_interval() + self._settings.materialize_retry_delay_s * 2 ** (self._failures - 1)
        _log.warning("bases could not be written, %d times in a row: %r", self._failures, error)
        self._observer.materialization_failed(error, failures=self._failures)
        self._discard()
        await self._discarded.wait()
        if self._phase is _Phase.WRITING:
            self._phase = _Phase.IDLE

    def _end_interval(self) -> float:
        now_s = self._clock.monotonic()
        self._interval_ends_s = now_s + self._settings.materialize_interval_s
        return now_s

    def _discard(self) -> None:
        if self._rocksdb is not None and self._bases is not None and self._bases.rocksdb is not None:
            self._rocksdb.discarded(self._bases.rocksdb)
        if self._uploaded:
            self._discarded = self._scheduler.discard(self._uploaded)
            self._uploaded = []
