"""Ranges of key groups in processes that come and go: opened at a committed base, worked on, contributed.

    async with open_range_owners() as owners:               once in a process
        async with owners.attempt(task) as attempt:         for each task
            ...                                             read and write the states of `attempt.backend`
            contribution = await attempt.contribute()

The process that commits hands out a `RangeTask` for each range, and makes the commit of what comes back: `combine`,
then `CheckpointCoordinator.commit`. Several attempts may be made at one range, at once and on several hosts; what they
upload has names that no other attempt has, and whichever of them is committed has won.

What an attempt leaves behind is of use for the next one only if that goes on from there, which its lineage tells.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from statebackend._backend.copies import OpenUploader, choose_copies
from statebackend._backend.host import HostCopies, copying_base
from statebackend._backend.host_tables import held_on_host
from statebackend._backend.job import Job, Position
from statebackend._backend.kept import Held, KeptRange, KeptRanges, RangeName, held_in_memory, range_name
from statebackend._backend.names import attempt_names, new_log_id
from statebackend._backend.pace import BasePace
from statebackend._backend.stores import Primary, open_store, primary_of, telling_requests
from statebackend._backend.wiring import Opened, Restored, empty_states, fill, put_together, restoring
from statebackend._checkpoint.backend import StateBackend
from statebackend._checkpoint.contributions import Contribution, Found, combine, reported_to
from statebackend._checkpoint.coordinator import CommittedBase
from statebackend._checkpoint.lineage import Lineage, bases_id, id_of, lineage_of
from statebackend._checkpoint.rescale import range_of
from statebackend._clock import SystemClock
from statebackend._codec.commit import Commit, decode_entry
from statebackend._observers import Observers
from statebackend._state.keyed import KeyedStates
from statebackend._tasks import foreign, open_tasks
from statebackend.abc import Clock, ObjectStore, Observer, RestoreReport, StateChangeUploader
from statebackend.errors import BackendClosedError, CorruptCommitError, MissingObjectError, ObjectNotFoundError
from statebackend.ids import CheckpointId, Epoch, KeyGroupRange, NativeBase, OperatorElements, SnapshotResult
from statebackend.settings import KiB, Settings

__all__ = ["Attempt", "Contribution", "RangeOwners", "RangeTask", "combine", "open_range_owners"]

INLINE_BYTES_MIN: Final = 4 * KiB
"""What each range may have of a commit, however many share `inline_bytes_max`: a PUT of its own costs more."""


class RangeTask(msgspec.Struct, frozen=True):
    """What an attempt at a range has to know. Pickles; the secrets of `settings` do not.

    `owners` are all ranges of this run, `key_groups` among them. `epoch` is that of who commits, `base` the commit that
    is continued, `None` before the first: `CheckpointCoordinator.epoch` and `.committed`.
    """

    settings: Settings
    key_groups: KeyGroupRange
    owners: tuple[KeyGroupRange, ...]
    epoch: Epoch
    checkpoint_id: CheckpointId
    base: CommittedBase | None


class Attempt:
    """One attempt at a range. `backend` holds its states, at the committed base; `found` says where they were."""

    def __init__(
        self,
        task: RangeTask,
        opened: Opened,
        backend: StateBackend,
        *,
        held: Held,
        found: Found,
        adopted: NativeBase | None,
        pace: BasePace | None,
    ) -> None:
        """`adopted`: the native base whose files the tables have. `pace`: told of bases, where these are written."""
        self.task: Final = task
        self.backend: Final = backend
        self.found: Final[Found] = found
        self._opened = opened
        self._held = held
        self._adopted = adopted
        self._pace = pace

    @property
    def report(self) -> RestoreReport | None:
        """Of what had to be read to be there, `None` where nothing had."""
        return self.backend.restored

    async def contribute(self) -> Contribution:
        """Make every change durable, or take it along. Once, and nothing is to be changed after it.

        Raises as `StateBackend.snapshot`; then the attempt has come to nothing. A cancelled call may be made again.
        """
        snapshot, inline = await self.backend.contribute(self.task.checkpoint_id)
        if self._pace is not None:
            self._pace.told(written=not self.backend.base_failures, now_s=self._opened.clock.monotonic())
        self._held.keep(self._kept(snapshot))
        base = self._opened.position.base
        return Contribution(snapshot, tuple(inline), None if base is None else base.sequence, self.found, self.report)

    def _kept(self, snapshot: SnapshotResult) -> KeptRange:
        base = self._opened.position.base
        before = range_of(base, self.task.key_groups)
        last = id_of(snapshot.primary[-1]) if snapshot.primary else lineage_of(base, self.task.key_groups).last
        return KeptRange(
            lineage=Lineage(snapshot.history, last),
            tables=self._held.tables,
            states=self._opened.states,
            epoch=self.task.epoch,
            bases=bases_id(snapshot.bases, snapshot.native),
            changed=self.backend.changed,
            native=next((native for native in snapshot.native if native not in before.native), self._adopted),
        )


class RangeOwners:
    """The ranges of key groups that one process works on, in turn or several at once. Made by `open_range_owners`.

    Of one event loop in one process: not for a child that was forked since.
    """

    def __init__(
        self,
        *,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
        clock: Clock,
        observer: Observer,
        tasks: TaskGroup,
    ) -> None:
        self._stores = _HeldStores(store, tasks)
        self._uploader = uploader
        self._clock = clock
        self._observer = observer
        self._kept = KeptRanges()
        self._host: tuple[Settings, HostCopies] | None = None
        self._paces: dict[RangeName, tuple[Epoch, BasePace]] = {}
        self._process = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Take no more attempts. Twice is fine."""
        self._closed = True

    def _host_of(self, settings: Settings) -> HostCopies:
        """What is known of the roots goes on from attempt to attempt, until there is one with other settings."""
        if self._host is None or self._host[0] != settings:
            self._host = settings, HostCopies(settings, clock=self._clock)
        return self._host[1]

    def _pace_of(self, task: RangeTask, base: Commit | None) -> BasePace | None:
        """The pace of the range, if it is to write bases. Raises `MaterializationError`. It begins with the reign."""
        name, now_s = range_name(task.settings, task.key_groups), self._clock.monotonic()
        epoch, pace = self._paces.get(name, (None, None))
        if pace is None or epoch != task.epoch:
            pace = BasePace(task.settings, task.key_groups, now_s)
            self._paces[name] = task.epoch, pace
        return pace if pace.is_due(range_of(base, task.key_groups), now_s) else None

    def _held(self, task: RangeTask, base: Commit | None) -> AbstractAsyncContextManager[Held]:
        if task.settings.table == "heap":
            return held_in_memory(self._kept, task.settings, task.key_groups, task.owners, base)
        return held_on_host(task.settings, task.key_groups, task.owners, task.epoch, base)

    async def contribute(self, task: RangeTask, work: Callable[[StateBackend], Awaitable[None] | None]) -> Contribution:
        """One attempt in one call: `work` reads and writes the states. It is called on the loop, and perhaps awaited.

        Raises as `attempt` and `Attempt.contribute`, and what `work` raises.
        """
        async with self.attempt(task) as attempt:
            working = work(attempt.backend)
            if working is not None:
                await foreign(working)
            return await attempt.contribute()

    @asynccontextmanager
    async def attempt(self, task: RangeTask) -> AsyncGenerator[Attempt]:
        """The range of `task`, open at its base until the context is left: nothing of it goes on after that.

        Raises `CorruptCommitError`, `MissingObjectError`, `StoreError`s, `SettingsError`, as `open_backend` for what
        it restores, and `BackendClosedError`. Left without a contribution, an attempt has changed nothing; what it has
        uploaded is removed as far as that can be done.
        """
        if self._closed or os.getpid() != self._process:
            raise BackendClosedError("the ranges of another process, or of a context that was left: open them here")
        settings, clock, observer = _of_one_attempt(task), self._clock, self._observer
        async with self._stores.store_of(task.settings) as store:
            primary = primary_of(settings, store, clock=clock, observer=observer)
            base, at_hand = await _committed(task, primary)
            pace = self._pace_of(task, base)
            async with (
                telling_requests(primary.spending),
                self._host_of(task.settings).open() as local,
                self._held(task, base) as held,
                open_tasks() as tasks,
            ):
                copies = choose_copies(
                    self._uploader, primary.store, local, settings=settings, tasks=tasks, observer=observer
                )
                opened = Opened(
                    settings=settings,
                    primary=primary,
                    local=local,
                    job=Job(primary.store, settings, clock=clock),
                    position=Position(None, base, base),
                    epoch=task.epoch,
                    new_name=attempt_names(task.epoch, base),
                    log_id=new_log_id(task.key_groups),
                    states=_states(task, base, held),
                    tables=held.opened,
                    copies=copies,
                    tasks=tasks,
                    clock=clock,
                    observer=observer,
                )
                restored = await _restore(opened, held, at_hand)
                found = held.found or _found(restored.report)
                observer.range_opened(found)
                history = lineage_of(base, task.key_groups).history
                backend = put_together(opened, restored, retention=None, history=history)
                if pace is not None:
                    await backend.begin_bases()
                try:
                    async with copying_base(base, next(iter(at_hand.values()), b""), local, copies.of_commits):
                        yield Attempt(
                            task, opened, backend, held=held, found=found, adopted=restored.adopted, pace=pace
                        )
                finally:
                    with anyio.move_on_after(settings.close_timeout_s, shield=True):
                        await backend.close()
                if local is not None:
                    await self._host_of(task.settings).tidy(local, base, task.epoch)


@asynccontextmanager
async def open_range_owners(
    *,
    store: ObjectStore | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[RangeOwners]:
    """What a process needs to work on ranges, for as long as the context lasts; all attempts are over by then.

    `store`, `uploader`, `clock`, `observer`: as for `open_backend`.
    """
    async with open_tasks() as tasks:
        owners = RangeOwners(
            store=store,
            uploader=uploader,
            clock=clock or SystemClock(),
            observer=Observers(observer or Observer()),
            tasks=tasks,
        )
        try:
            yield owners
        finally:
            owners.close()


class _HeldStores:
    """The primary of the job that is worked on, open from its first attempt until there is one at another job."""

    def __init__(self, instead: ObjectStore | None, tasks: TaskGroup) -> None:
        self._instead = instead
        self._tasks = tasks
        self._opening = anyio.Lock()
        self._newest: _HeldStore | None = None

    @asynccontextmanager
    async def store_of(self, settings: Settings) -> AsyncGenerator[ObjectStore]:
        """Raises as `open_store`."""
        if self._instead is not None:
            yield self._instead
            return
        async with self._opening:
            held = self._newest
            if held is None or held.settings != settings:
                held = await self._tasks.start(_hold, settings)
                if self._newest is not None:
                    self._newest.retire()
                self._newest = held
            held.users += 1
        try:
            yield held.store
        finally:
            held.users -= 1
            if held is not self._newest:
                held.retire()


class _HeldStore:
    """An open store, until nobody uses it and a newer one has taken its place."""

    def __init__(self, settings: Settings, store: ObjectStore) -> None:
        self.settings: Final = settings
        self.store: Final = store
        self.users = 0
        self.unused = anyio.Event()

    def retire(self) -> None:
        """Close it, unless somebody uses it; then he does."""
        if not self.users:
            self.unused.set()


async def _hold(settings: Settings, *, task_status: TaskStatus[_HeldStore]) -> None:
    async with open_store(settings, commits=False) as store:
        held = _HeldStore(settings, store)
        task_status.started(held)
        await held.unused.wait()


def _of_one_attempt(task: RangeTask) -> Settings:
    """The settings of an attempt: nobody keeps its change sets company, and others share the commit with it."""
    shared = task.settings.inline_bytes_max
    return msgspec.structs.replace(
        task.settings,
        persist_delay_s=0.0,
        inline_bytes_max=min(shared, max(shared // len(task.owners), INLINE_BYTES_MIN)),
    )


async def _committed(task: RangeTask, primary: Primary) -> tuple[Commit | None, Mapping[str, bytes]]:
    """The base of a task, and its bytes by its key."""
    if task.base is None:
        return None, {}
    key, body = task.base.key, task.base.body
    if not body:
        try:
            body = await primary.store.get(key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("the commit that the task stands on is gone", object=key) from error
    entry = decode_entry(body, key, job=task.settings.job)
    if not isinstance(entry, Commit):
        raise CorruptCommitError("a claim where a commit should be", object=key, offset=0)
    return entry, {key: body}


def _states(task: RangeTask, base: Commit | None, held: Held) -> KeyedStates:
    """The states at the base, as far as they are at hand."""
    kept = held.kept
    if (
        kept is not None
        and kept.states is not None
        and base is not None
        and not held.missing
        and kept.epoch == base.epoch == task.epoch
        and kept.states.descriptors == base.states
        and _operator_of(base, task.key_groups) == kept.states.operator_report()  # no history tells of that
    ):
        kept.states.forget_types()
        return kept.states
    reported, among = reported_to(base, task.key_groups, task.owners, task.epoch)
    return empty_states(task.settings, task.key_groups, base, reported=reported, owners=among, open_table=held.tables)


def _operator_of(base: Commit, key_groups: KeyGroupRange) -> tuple[OperatorElements, ...] | None:
    return next((part.operator for part in base.ranges if part.key_groups == key_groups), None)


async def _restore(opened: Opened, held: Held, at_hand: Mapping[str, bytes]) -> Restored:
    base, kept = opened.position.base, held.kept
    if base is None or (kept is not None and not held.missing):
        restored = Restored()
    else:
        once = restoring(opened, at_hand=at_hand, at_hand_first=True)
        restored = await fill(opened, base, once, missing=None if kept is None else held.missing)
    if kept is None:
        return restored
    state = range_of(base, opened.states.key_groups)
    return msgspec.structs.replace(
        restored,
        changed=kept.changed_since(state, restored.changed),
        adopted=kept.native if kept.native in state.native else None,  # else it may be swept while we point to it
    )


def _found(report: RestoreReport | None) -> Found:
    if report is None:
        return "new"
    return "host" if report.files_local and not report.files_primary else "primary"  # and what came with the task
