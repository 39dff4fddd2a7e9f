"""The backend that users hold: its states, and the checkpoints that make them durable.

One checkpoint, in the order of the calls:

    drain the states into the changelog -> persist -> register the local copies -> hold -> commit -> confirm
    -> begin bases

Up to the commit everything can be cancelled and nothing is lost; from there on it runs to its end.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import anyio
from msgspec import UNSET, UnsetType

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.writer import ChangelogWriter
from statebackend._checkpoint.commits import CommitLog
from statebackend._checkpoint.coordinator import CheckpointCoordinator
from statebackend._checkpoint.materialization import with_bases
from statebackend._checkpoint.materializer import Materializer
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.savepoints import check_name
from statebackend._checkpoint.spending import Spending
from statebackend._codec.commit import Commit, RangeState
from statebackend._codec.records import StateChange
from statebackend._local.retention import LocalRetention
from statebackend._state.aggregating_state import Aggregate, AggregatingState
from statebackend._state.keyed import KeyedStates
from statebackend._state.list_state import ListState
from statebackend._state.map_state import MapState
from statebackend._state.operator_state import Mode, OperatorState
from statebackend._state.reducing_state import ReducingState
from statebackend._state.timers import TimerClock, Timers
from statebackend._state.ttl import TimeToLive
from statebackend._state.value_state import ValueState
from statebackend._state.values import Upcast
from statebackend._tasks import finish
from statebackend.abc import CheckpointInfo, Clock, Observer, RestoreReport, Serializer
from statebackend.errors import BackendClosedError, InputError, StoreAccessError
from statebackend.ids import (
    CheckpointId,
    CommitSummary,
    Epoch,
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
    SourceMark,
)

V = TypeVar("V")
K = TypeVar("K")
R = TypeVar("R")

DRAIN_STEP: Final = 2048
"""Changes handed to the changelog between two turns of the loop."""


class StateBackend:
    """Keyed state, and the checkpoints that make it durable. Made by `open_backend`.

    State is read and written synchronously, by one thread at a time, not while a checkpoint runs. The coroutines are
    called on the loop. After an error of `checkpoint` other than `InputError` the backend is done for: what is in
    memory may be ahead of what is committed; open a new one and replay.
    """

    def __init__(
        self,
        states: KeyedStates,
        writer: ChangelogWriter,
        coordinator: CheckpointCoordinator,
        log: CommitLog,
        spending: Spending,
        *,
        materializer: Materializer,
        retention: LocalRetention | None,
        restored: RestoreReport | None,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.restored: Final = restored
        self._states = states
        self._writer = writer
        self._coordinator = coordinator
        self._log = log
        self._spending = spending
        self._retention = retention
        self._clock = clock
        self._observer = observer
        self._materializer = materializer
        committed = range_of(coordinator.base, states.key_groups)
        self._handles, self._bases = committed.changelog, committed.bases
        self._only_primary = _not_local(restored)  # keys of segments without a local copy
        self._changes: Iterator[StateChange] = iter(())  # drained from the states and not logged yet
        self._committed_to = SequenceNumber(0)  # everything below is in `_handles`
        self._snapshot_to = SequenceNumber(0)  # end of the last snapshot made: a commit may hold what lies below
        self._checkpointing = anyio.Lock()
        self._failure: Exception | None = None
        self._closed = False

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups this backend owns."""
        return self._states.key_groups

    @property
    def newest(self) -> CommitSummary | None:
        """The commit that the state stands on, `None` before the first one."""
        return None if self._coordinator.base is None else self._coordinator.base.summary

    @property
    def epoch(self) -> Epoch:
        """The reign that opening has begun: who opens the job after this has a larger one. 0 for who cannot commit."""
        return self._coordinator.epoch

    @property
    def next_checkpoint_id(self) -> CheckpointId:
        """The smallest id that the next checkpoint may have."""
        return self._coordinator.next_checkpoint_id

    def value_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        *,
        default: V | UnsetType = UNSET,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> ValueState[V]:
        """The value state of that name, declared on first use: a mapping from key to values of `type_`.

        `type_` is any type that msgspec can decode, or a `Serializer`. Its fields may be added with defaults, and
        removed, from one run to the next. `migrate` holds one function for each other change there ever was: it gets
        a value as it was before that change, as builtins, and returns it as after.

        Raises `StateTypeError` where the state was written with another type, `InputError` for a type that msgspec
        cannot decode. Nothing is written before the next checkpoint. All of this goes for the other kinds of state too.
        """
        self._check_usable()
        return self._states.value_state(name, type_, default=default, ttl=ttl, migrate=migrate)

    def list_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> ListState[V]:
        """The list state of that name: a mapping from key to a list of elements of `type_`."""
        self._check_usable()
        return self._states.list_state(name, type_, ttl=ttl, migrate=migrate)

    def map_state(
        self,
        name: str,
        key_type: type[K] | Serializer[K],
        type_: type[V] | Serializer[V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> MapState[K, V]:
        """The map state of that name: a mapping from key to a map from `key_type` to `type_`."""
        self._check_usable()
        return self._states.map_state(name, key_type, type_, ttl=ttl, migrate=migrate)

    def reducing_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        reduce: Callable[[V, V], V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> ReducingState[V]:
        """The reducing state of that name: a mapping from key to all that was added, reduced to one of `type_`."""
        self._check_usable()
        return self._states.reducing_state(name, type_, reduce, ttl=ttl, migrate=migrate)

    def aggregating_state(
        self,
        name: str,
        aggregate: Aggregate[Any, V, R],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> AggregatingState[V, R]:
        """The aggregating state of that name: a mapping from key to what `aggregate` makes of all that was added."""
        self._check_usable()
        return self._states.aggregating_state(name, aggregate, ttl=ttl, migrate=migrate)

    def timers(self, name: str, clock: TimerClock = "event") -> Timers:
        """The timers of that name: times of events, or of the processing, at which keys are due."""
        self._check_usable()
        return self._states.timers(name, clock)

    def operator_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        mode: Mode = "split",
        *,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> OperatorState[V]:
        """The operator state of that name: a list of elements of `type_` that belongs to this owner and to no key.

        With another number of owners, `split` deals the elements of all out anew, `union` gives all of them to each,
        and `broadcast` gives each a copy. All of it is in every commit: it is for offsets and the like. Raises
        `InputError` in the backend of a part of the key groups that was not told its `owners`.
        """
        self._check_usable()
        return self._states.operator_state(name, type_, mode, migrate=migrate)

    async def checkpoint(
        self, checkpoint_id: int, *, source: SourceMark | None = None, savepoint: str | None = None
    ) -> CheckpointInfo:
        """Make every change so far durable and commit it under `checkpoint_id`. An unchanged state commits as well.

        Returns when the commit object exists in the primary: from then on a restore sees all of it, before nothing.
        With `savepoint` it is kept under that name until that is dropped; the two come to exist in the same moment.
        Raises `SavepointExistsError` where the name is taken, `CheckpointExistsError` for an id that is not larger than
        every committed one (nothing has changed, go on), `UploadError` or its `MaterializationError`, `FencedError` or
        `OutcomeUnknownError` (open a new backend).

        Takes up to `persist_delay_max_s` longer where `put_budget_usd_month` wants it. Cancelled before its commit is
        sent, a checkpoint has committed nothing and lost nothing: the next one holds its changes. Cancelled later, it
        finishes first.
        """
        self._check_usable()
        async with self._checkpointing:
            begun, requests = self._clock.monotonic(), self._spending.requests
            self._coordinator.check(CheckpointId(checkpoint_id))
            if savepoint is not None:
                check_name(savepoint)
            with self._failing():
                self._materializer.check()
                snapshot, changes = await self._snapshot(CheckpointId(checkpoint_id))
                await self._spending.hold(requests)
                commit, commit_bytes = await finish(self._commit, snapshot, source, savepoint)
            spent = self._spending.since(requests)
            info = CheckpointInfo(
                checkpoint_id=commit.checkpoint_id,
                sequence=commit.sequence,
                changes=changes,
                primary_bytes=snapshot.primary_bytes + commit_bytes,
                local_bytes=snapshot.local_bytes,
                requests=spent.requests.total(),
                seconds=self._clock.monotonic() - begun,
                local=snapshot.local,
                requests_by_kind=dict(spent.requests),
                usd=spent.usd,
                usd_month=spent.usd_month,
                persist_delay_s=spent.persist_delay_s,
            )
            self._spending.tell()
            self._observer.checkpoint_committed(info)
            return info

    async def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that the state stands on, its parent, and so on to the job's first, or the oldest retained."""
        if self._coordinator.base is not None:
            async for commit in self._log.ancestors(self._coordinator.base):
                yield commit.summary

    async def close(self) -> None:
        """Let go of what no checkpoint needs. Uncommitted changes are forgotten; closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._materializer.close()
            await self._writer.truncate_and_close(self._snapshot_to)
            await self._materializer.wait_closed()
            if self._failure is None:
                await self._log.write_hint()

    async def _snapshot(self, checkpoint_id: CheckpointId) -> tuple[SnapshotResult, int]:
        await self._drain()
        operator = self._states.operator_report()
        to = self._writer.next_sequence_number()
        uploaded = await self._writer.persist(self._committed_to, checkpoint_id)
        primary_bytes, local_bytes = _stored_bytes(uploaded)
        self._only_primary.update(each.handle.segment.key for each in uploaded if not each.local)
        changelog = (*self._handles, *(each.handle for each in uploaded))
        state = self._with_new_bases(RangeState(self.key_groups, changelog, self._bases))
        segments = state.segments()
        snapshot = SnapshotResult(
            checkpoint_id=checkpoint_id,
            key_groups=self.key_groups,
            primary=state.changelog,
            local=self._retention is not None and segments.isdisjoint(self._only_primary),
            primary_bytes=primary_bytes,
            local_bytes=local_bytes,
            operator=operator,
            bases=state.bases,
        )
        self._snapshot_to = to
        if self._retention is not None:
            self._retention.register(segments, checkpoint_id)
        return snapshot, sum(each.handle.records for each in uploaded)

    def _with_new_bases(self, state: RangeState) -> RangeState:
        bases = self._materializer.ready()
        if bases is None:
            return state
        self._only_primary.update(bases.only_primary)
        return with_bases(state, bases)

    async def _drain(self) -> None:
        """Hand every change to the changelog, as fast as the store takes them. Cancelled, the next call goes on."""
        self._changes = itertools.chain(self._changes, self._states.drain())
        while step := list(itertools.islice(self._changes, DRAIN_STEP)):
            self._materializer.note(step)
            self._writer.extend(step)
            await self._writer.room()

    async def _commit(
        self, snapshot: SnapshotResult, source: SourceMark | None, savepoint: str | None
    ) -> tuple[Commit, int]:
        """Commit the snapshot and stand on it. Not to be cut in two: it runs within `finish`."""
        with self._failing():
            try:
                committed = await self._coordinator.commit(
                    snapshot.checkpoint_id, [snapshot], self._states.descriptors, source, savepoint
                )
            except StoreAccessError:  # refused, and read back: there is no commit that needs it
                self._materializer.refused()
                await self._writer.reset(self._committed_to, self._snapshot_to, snapshot.checkpoint_id)
                raise
            except InputError:  # nothing was written: the next checkpoint has it all
                self._materializer.refused()
                await self._writer.reset(self._committed_to, self._snapshot_to, snapshot.checkpoint_id)
                if self._retention is not None:
                    self._retention.abort(snapshot.checkpoint_id)
                raise
        self._writer.confirm(self._committed_to, self._snapshot_to, snapshot.checkpoint_id)
        await self._writer.truncate(self._snapshot_to)  # the next commit lists it again by itself
        if self._retention is not None:
            self._retention.confirm(snapshot.checkpoint_id)
        state = range_of(committed[0], self.key_groups)
        self._handles, self._bases = state.changelog, state.bases
        self._only_primary &= state.segments()
        self._committed_to = self._snapshot_to
        self._materializer.confirmed()
        self._materializer.begin_if_due(state)
        return committed

    @contextmanager
    def _failing(self) -> Generator[None, None, None]:
        """An error in here that is not the caller's ends the use of this backend."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            self._failure = error
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise BackendClosedError("the backend has failed: open a new one") from self._failure
        if self._closed:
            raise BackendClosedError("the backend is closed: open a new one")


def _not_local(restored: RestoreReport | None) -> set[str]:
    fallbacks = () if restored is None else restored.fallbacks
    return {fallback.name for fallback in fallbacks if not fallback.repaired}


def _stored_bytes(uploaded: Iterable[UploadedChangeSet]) -> tuple[int, int]:
    """Bytes of the segments in the primary, and of those with a local copy."""
    segments = {each.handle.segment: each.local for each in uploaded}
    return (
        sum(segment.length for segment in segments),
        sum(segment.length for segment, local in segments.items() if local),
    )
