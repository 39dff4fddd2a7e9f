"""Writes bases in the background, so that a commit need not list every change set since the job began.

`BaseSchedule` decides when, `bases` decides what. This module does the writing, one run at a time:

    idle -> writing -> written -> offered -> idle        a commit holds the bases
              └-> idle    └───────┘  ^ refused: offered to the next commit

A run starts at a commit, from a snapshot of the states in that commit, and continues while later commits are made. Once
all its bases are durable, the next commit lists them instead of the changelog of the commit that the run started at.
A run that starts when the job is opened is waited for by the first commit: there may be no other.
Until they are offered to a commit the bases belong to the writer, which deletes them if the run fails or the backend is
closed. It never deletes bases that a commit may hold.

States in RocksDB are written as their files, with the columns that lie in memory beside them in a file of their own
(`rocksdb_bases`), others entry by entry (`entry_bases`).
"""

import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.fetch import Fetched
from statebackend._checkpoint.materialization.base_schedule import BaseSchedule
from statebackend._checkpoint.materialization.bases import Bases, key_groups_to_write
from statebackend._checkpoint.materialization.entry_bases import EntryBases
from statebackend._checkpoint.materialization.merged_change_sets import ChangeSetMerging
from statebackend._checkpoint.materialization.rocksdb_bases import RocksDBBaseFiles, RocksDBBases
from statebackend._checkpoint.materialization.tiers import Neighbours
from statebackend._checkpoint.run_files import RunFiles
from statebackend._codec.change_sets.changes import Changes
from statebackend._runs.free_memory import BEHIND_BATCH, BESIDE_MERGE, FreeMemory
from statebackend._runs.open_base import OpenBase
from statebackend._state.declared import KeyedStates
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, Observer, UploadedSegment
from statebackend.errors import BackendClosedError
from statebackend.ids import Base, ChangeSetHandle, CheckpointId, RangeState

FIRST_WAIT_MIN_S: Final = 1.0
FIRST_WAIT_SHARE: Final = 4.0
"""The first checkpoint waits for bases begun at the opening this many times as long as the restore took, or
`FIRST_WAIT_MIN_S`. A restore takes longer the longer bases are missing, so in the end the wait is long enough."""

OPENED_AT_ONCE: Final = 4
"""Bases that were just written are opened again so many at a time, where tables look up in them."""

_logger = logging.getLogger(__name__)


class _Phase(enum.Enum):
    IDLE = enum.auto()
    WRITING = enum.auto()
    WRITTEN = enum.auto()
    OFFERED = enum.auto()
    CLOSED = enum.auto()


class BaseWriter:
    """The bases of one backend. It works in `tasks`; only `settled` and `wait_closed` wait for that.

    `changed`: the key groups that the restored changelog changed since their last base. `rocksdb` writes the files of
    the tables; without it, bases are made of entries.
    """

    def __init__(
        self,
        states: KeyedStates,
        scheduler: UploadScheduler,
        merging: ChangeSetMerging,
        schedule: BaseSchedule,
        *,
        entries: EntryBases,
        changed: Iterable[int],
        rocksdb: RocksDBBases | None = None,
        runs: RunFiles | None = None,
        threads: WorkerThreads,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._states = states
        self._rocksdb = rocksdb
        self._runs = runs
        self._take_over: Callable[[], None] | None = None  # has the tables look up in `_bases`
        self._entries = entries
        self._threads = threads
        self._scheduler = scheduler
        self._merging = merging
        self._cannot_merge = False
        self._schedule = schedule
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._phase = _Phase.IDLE
        self._free = FreeMemory()
        self._changed: set[int] = set(changed)
        self._uploaded: list[UploadedSegment] = []  # ours, until a commit may hold them
        self._bases: Bases | None = None
        self._scope = anyio.CancelScope()
        self._ended: anyio.Event | None = None
        self._first_wait_s = 0.0
        self._discarded = anyio.Event()
        self._discarded.set()

    @property
    def changed(self) -> frozenset[int]:
        """The key groups changed since their last base, or since the run that is writing one began."""
        return frozenset(self._changed)

    @property
    def failures(self) -> int:
        """Number of times in a row that bases could not be written."""
        return self._schedule.failures

    @property
    def to_take_over(self) -> Callable[[], None] | None:
        """Has the tables look up in the bases that were offered: call it once a commit is known to hold them."""
        return self._take_over if self._phase is _Phase.OFFERED else None

    def note(self, changes: Changes) -> None:
        """Record the key groups of changes that go into the changelog."""
        self._changed.update(changes.distinct_groups())

    def check(self) -> None:
        """Raise `MaterializationError` if bases could not be written too many times in a row."""
        self._schedule.check()

    def begin_at_opening(self, committed: RangeState, checkpoint_id: CheckpointId, *, restored_s: float) -> None:
        """As `begin_if_due`, for a backend that was just restored to `committed`, which took `restored_s`.

        `settled_for_first` waits for what is begun here.
        """
        self.begin_if_due(committed, checkpoint_id, opening=True)
        if self._phase is _Phase.WRITING:
            self._first_wait_s = max(FIRST_WAIT_MIN_S, FIRST_WAIT_SHARE * restored_s)

    def begin_if_due(
        self, committed: RangeState, checkpoint_id: CheckpointId, *, due: bool = False, opening: bool = False
    ) -> None:
        """Begin to write bases, if they are due. `committed` is in that checkpoint, with the states as they are now.

        `due`: they are, by a schedule that outlives this backend. `opening`: all of it was just read. When the call
        returns the states may be changed again: there is a reference to each entry, or RocksDB's files are being copied
        while new writes wait. The rest runs in the background, and `check` raises its errors.
        """
        self._free.rows_bytes_max = self._states.runs.memory_bytes
        self._give_back_behind(BEHIND_BATCH)
        now_s = self._clock.monotonic()
        rocksdb = self._rocksdb if self._states.are_in_files else None
        if self._phase is not _Phase.IDLE:
            return
        runs = self._states.runs
        in_layers = rocksdb is None and self._runs is not None and runs.looks_up
        is_due = partial(
            self._schedule.is_due, committed, now_s, in_files=rocksdb is not None, in_layers=in_layers, opening=opening
        )
        by_triggers = is_due(due=due or self._cannot_merge)
        for_memory = self._runs is not None and runs.want_base and is_due(due=True)
        if not by_triggers and not for_memory:
            if not opening:
                self._begin_merge(committed.changelog)
            return
        changed: Iterable[int] = self._changed
        if for_memory and runs.is_whole:
            runs.leave_memory()
            changed = self._states.key_groups
        handles = len(committed.changelog)
        if in_layers and (first := self._first_to_merge(committed)) is not None:
            every = key_groups_to_write(self._changed, committed.bases)
            write = partial(self._write_layer, self._states.snapshot(), committed, first, every)
            self._start(partial(self._run, write, frozenset(), len(self._changed)))
            return
        # Here, not in the task: soon the states are no longer the commit's.
        if rocksdb is not None:
            key_groups = frozenset(self._states.key_groups)
            begun = rocksdb.begin(checkpoint_id, self._states.snapshot_in_memory())
            write = partial(self._write_files, rocksdb, begun, key_groups, handles)
        else:
            key_groups = key_groups_to_write(changed, committed.bases, committed.rocksdb)
            write = partial(self._write_entries, self._states.snapshot(), key_groups, handles)
        if self._start(partial(self._run, write, key_groups)):
            # Groups changed from here on are not in this run: they count as changed since the bases it writes.
            self._changed = set[int]()
            if not by_triggers:
                _logger.info(
                    "bases are due: changed rows or drops fill half of table_memory_bytes or state_memory_bytes: %d",
                    len(key_groups),
                )

    def _first_to_merge(self, committed: RangeState) -> int | None:
        """The first layer that a new one takes in; `None` where it has to be a base."""
        can = self._states.runs.can_take_layer and not self._cannot_merge
        return self._schedule.first_to_merge(committed) if can else None

    def _begin_merge(self, changelog: Sequence[ChangeSetHandle]) -> None:
        if (place := self._merging.due(changelog)) is not None:
            self._start(partial(self._run_merge, changelog, place))

    def _start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        try:
            self._tasks.start_soon(run)
        except RuntimeError:  # anyio: the task group has ended; the next owner writes the bases
            return False
        self._phase, self._ended = _Phase.WRITING, anyio.Event()
        return True

    def ready(self) -> Bases | None:
        """The bases for the next commit to list, if there are any; `confirmed` or `refused` says whether it did.

        If neither is called, a commit may hold them: from here on they are never deleted.
        """
        if self._phase is _Phase.WRITTEN:
            self._phase = _Phase.OFFERED
        return self._bases if self._phase is _Phase.OFFERED else None

    def confirmed(self, bases: Bases | None) -> None:
        """A commit holds these bases. Does nothing for `None`, or for bases of an earlier run."""
        if bases is not None and bases is self._bases:
            if self._rocksdb is not None and bases.rocksdb is not None:
                self._rocksdb.confirmed(bases.rocksdb)
            if self._take_over is not None:
                self._take_over()
            self._phase, self._bases, self._take_over, self._uploaded = _Phase.IDLE, None, None, []
            self._give_back_behind(BESIDE_MERGE)

    def refused(self, bases: Bases | None) -> None:
        """No commit holds these bases or ever will: they are offered to the next one. Otherwise as `confirmed`."""
        if bases is not None and bases is self._bases and self._phase is _Phase.OFFERED:
            self._phase = _Phase.WRITTEN

    async def settled_for_first(self) -> None:
        """Wait until bases that were begun at the opening are written, but not for ever. Later calls do not wait.

        A cancelled call has changed nothing.
        """
        if self._first_wait_s:
            with anyio.move_on_after(self._first_wait_s):
                await self.settled()
            self._first_wait_s = 0.0

    async def settled(self) -> None:
        """Wait until nothing is being written. A cancelled call does not end the run."""
        if self._ended is not None:
            await self._ended.wait()

    def close(self) -> None:
        """End a run, and begin to delete the bases that no commit can hold."""
        phase, self._phase = self._phase, _Phase.CLOSED
        self._scope.cancel()
        if phase is _Phase.WRITTEN:  # not OFFERED: a commit whose outcome is unknown may hold those
            self._discard()

    async def wait_closed(self) -> None:
        """Wait until all that `close` began has ended. A cancelled call does not stop it, the end of `tasks` does."""
        await self.settled()
        await self._discarded.wait()

    async def _run(self, write: Callable[[], Awaitable[Bases]], key_groups: frozenset[int], changed: int = 0) -> None:
        """`key_groups`: those of a base. `changed`: the number of those that a layer may have changes of."""
        assert self._ended is not None
        begun_s = self._clock.monotonic()
        try:
            with self._scope:
                self._observer.materialization_begun(len(key_groups) or changed)
                self._finish(await write(), begun_s, changed)
        except Exception as error:  # noqa: BLE001  # `check` raises it at a checkpoint, if it happens too often
            if self._phase is not _Phase.CLOSED:
                await self._fail(error, key_groups)
        finally:
            if self._bases is None:
                self._discard()
            self._ended.set()

    async def _run_merge(self, changelog: Sequence[ChangeSetHandle], place: Neighbours) -> None:
        assert self._ended is not None
        try:
            with self._scope:
                merged = await self._merging.write(changelog, place, self._uploaded, self._pause)
                if self._phase is _Phase.WRITING:  # `close` may have been called meanwhile
                    self._bases, self._phase = merged, _Phase.IDLE if merged is None else _Phase.WRITTEN
        except Exception as error:  # noqa: BLE001  # the state has what these change sets hold: bases replace them
            if self._phase is not _Phase.CLOSED:
                _logger.warning("change sets could not be merged, bases will replace them: %r", error)
                self._cannot_merge = True
                await self._give_up()
        finally:
            if self._bases is None:
                self._discard()
            self._ended.set()

    async def _write_entries(self, snapshot: StatesSnapshot, key_groups: frozenset[int], handles: int) -> Bases:
        await self._come_in()
        runs = self._runs if self._states.runs.looks_up else None
        if runs is not None:
            await self._threads.background(self._states.runs.check_taken_in, key_groups, snapshot)
        bases = await self._entries.write(snapshot, key_groups, handles, self._uploaded, self._pause)
        if runs is not None:
            opened = await self._open(runs, bases.written)
            self._take_over = partial(self._states.runs.replace, opened, key_groups, snapshot)
        return bases

    async def _write_layer(
        self, snapshot: StatesSnapshot, committed: RangeState, first: int, key_groups: frozenset[int]
    ) -> Bases:
        assert self._runs is not None
        await self._come_in()
        found = await self._entries.write_layer(
            snapshot,
            committed.changelog,
            first,
            key_groups=key_groups,
            in_runs=self._states.runs.ids,
            uploaded=self._uploaded,
            pause=self._pause,
        )
        if found is None:  # too much else has changed: a base is made of what there is, and reads no changes
            return await self._write_entries(snapshot, key_groups, len(committed.changelog))
        opened = await self._open(self._runs, found.segments)
        self._take_over = partial(self._states.runs.put_layer, opened, first + 1, snapshot)
        return found.bases

    async def _come_in(self) -> None:
        """Wait for the copies of what the tables look up in: read by the page it would be read for hours."""
        if self._runs is not None:
            await self._runs.incoming.ended()

    async def _open(self, runs: RunFiles, bases: Sequence[Base]) -> Sequence[OpenBase]:
        """Open them now, in the background: a damaged copy is no base."""
        opened: list[OpenBase] = []

        async def take(_: Base, found: Fetched[OpenBase]) -> None:
            assert found.content.is_in_order, "keys of a base that is not in order would not be found"
            found.content.file.forget_others()  # the states have them
            opened.append(found.content)

        await in_order(bases, runs.open, take, concurrency_max=OPENED_AT_ONCE)
        return opened

    async def _write_files(
        self, rocksdb: RocksDBBases, begun: RocksDBBaseFiles, key_groups: frozenset[int], handles: int
    ) -> Bases:
        base, is_local = await rocksdb.write(begun, self._uploaded, self._pause)
        only_primary = () if is_local else (file.handle.key for file in base.files)
        return Bases((), key_groups, handles, frozenset(only_primary), base)

    def _pause(self) -> None:
        """Called in a worker thread: let checkpoints go first, and end early once the backend is left.

        A thread cannot be cancelled, and closing must not wait until millions of keys are encoded.
        """
        if self._phase is _Phase.CLOSED:
            raise BackendClosedError("the backend was left while bases were being written")
        self._free.give_back(BESIDE_MERGE)
        self._threads.give_way()

    def _give_back_behind(self, share: int) -> None:
        """In a thread: the loop has no 20 ms for it."""
        if self._free.rows_bytes_max:
            with suppress(RuntimeError):  # as in `_start`
                self._tasks.start_soon(self._threads.background, self._free.give_back, share)

    def _finish(self, bases: Bases, begun_s: float, changed: int) -> None:
        now_s = self._clock.monotonic()
        self._schedule.succeeded()
        self._cannot_merge = False
        self._schedule.begin_interval(now_s)
        if self._phase is _Phase.WRITING:  # `close` may have been called meanwhile
            self._bases, self._phase = bases, _Phase.WRITTEN
        key_groups, segments, seconds = len(bases.key_groups) or changed, len(self._uploaded), now_s - begun_s
        size_bytes = sum(uploaded.primary.length for uploaded in self._uploaded)
        _logger.info(
            "%s written: key_groups=%d segments=%d bytes=%d change_sets=%d seconds=%.3f",
            "bases" if bases.key_groups else "a layer",
            key_groups,
            segments,
            size_bytes,
            bases.handles - bases.first,
            seconds,
        )
        self._observer.materialized(key_groups=key_groups, segments=segments, size_bytes=size_bytes, seconds=seconds)

    async def _fail(self, error: Exception, key_groups: frozenset[int]) -> None:
        now_s = self._clock.monotonic()
        self._schedule.failed(now_s, error)
        self._schedule.begin_interval(now_s)
        self._changed |= key_groups  # they have no base newer than before
        _logger.warning("bases could not be written, %d times in a row: %r", self.failures, error)
        self._observer.materialization_failed(error, failures=self.failures)
        await self._give_up()

    async def _give_up(self) -> None:
        """Delete what was written. Idle only when it is gone: `wait_closed` knows of one deletion at a time."""
        self._discard()
        await self._discarded.wait()
        if self._phase is _Phase.WRITING:
            self._phase = _Phase.IDLE

    def _discard(self) -> None:
        if self._rocksdb is not None and self._bases is not None and self._bases.rocksdb is not None:
            self._rocksdb.discarded(self._bases.rocksdb)
        self._take_over = None
        if self._uploaded:
            self._discarded = self._scheduler.discard(self._uploaded)
            self._uploaded = []
