"""The crew that works on a job: one backend that commits by itself, or a coordinator and the owners of key groups."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

import statebackend as sb
from statebackend._tables.key_groups import key_group
from statebackend.errors import InputError
from statebackend.ids import ClockMark
from tests.knobs import replaced, settings_with
from tests.models.contents import Contents, Pairs
from tests.models.invariants import Timed, Visible, assert_alarms_ring_once
from tests.models.kinds import Kinds
from tests.models.places import HOSTS, Places

T = TypeVar("T")

Copied = tuple[int | None, sb.owners.KeyGroupRange]
"""A host, and the key groups of which it has local copies."""

MAX_PARALLELISM = 16
RETAINED = 2


def settings_in(places: Places) -> sb.Settings:
    """Of the job; nothing waits, and bases are written only where a plan says so."""
    return settings_with(
        job="model",
        primary="memory://unused",
        max_parallelism=MAX_PARALLELISM,
        checkpoints_retained=RETAINED,
        persist_delay_s=0.0,
        upload__retry_delay_s=0.0,
        upload__attempts_max=2,
        upload__primary_outage_s=0.0,
        secondary_grace_s=60.0,  # a slow machine must not cost a local copy
        materialize_interval_s=0.0,
        materialize_retry_delay_s=0.0,
        cache_dir=str(places.root),
    )


@dataclass(frozen=True)
class Plan:
    """How a job is opened: by whom, with which settings, and whether they declare its states."""

    cuts: frozenset[int] = frozenset()
    coordinated: bool = False
    """True if a coordinator commits even where one owner has all key groups. Several owners always have one."""
    first_host: int | None = 0
    """The host of the first owner; the others have the hosts after it. `None` for no local copies."""
    declares: bool = True
    """If not, there is one owner: what several hand on of a union state counts once, and the model lacks that."""
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def ranges(self) -> list[sb.owners.KeyGroupRange]:
        firsts = [0, *sorted(self.cuts if self.declares else ())]
        ends = [*firsts[1:], MAX_PARALLELISM]
        return [sb.owners.KeyGroupRange(first, end - 1) for first, end in zip(firsts, ends, strict=True)]


class Held(Generic[T]):
    """A context that is entered and left in one task, which lives from the one to the other."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context
        self._opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def enter(self) -> T:
        """What the context gives. Raises what entering raises."""
        await asyncio.wait([self._opened, self._task], return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            await self._task
        return self._opened.result()

    async def leave(self, *, killed: bool = False) -> None:
        """Leave it, or be cancelled in it."""
        if killed:
            self._task.cancel()
        self._over.set()
        await asyncio.wait([self._task])
        if not killed:
            await self._task

    async def _live(self) -> None:
        async with self._context as found:
            self._opened.set_result(found)
            await self._over.wait()


@dataclass
class Owner:
    """A backend, as it is held, and the states in it."""

    key_groups: sb.owners.KeyGroupRange
    host: int | None
    held: Held[Any]
    backend: Any
    kinds: Kinds | None

    @property
    def copied(self) -> Copied:
        """What he would have a local copy of, and where."""
        return self.host, self.key_groups


class Crew:
    """Made by `open_crew`. `store` is the primary as all of them see it."""

    def __init__(
        self, places: Places, settings: sb.Settings, plan: Plan, store: sb.ObjectStore, now: Callable[[], float]
    ) -> None:
        self.plan = plan
        self.owners: list[Owner] = []
        self._places = places
        self._settings = replaced(settings, **dict(plan.settings))
        self._store = store
        self._now = now
        self._coordinating: Held[sb.owners.CheckpointCoordinator] | None = None
        self._coordinator: sb.owners.CheckpointCoordinator | None = None

    @property
    def is_alone(self) -> bool:
        """True if one backend owns all key groups and commits by itself."""
        return len(self.plan.ranges) == 1 and not self.plan.coordinated

    @property
    def declares(self) -> bool:
        return self.plan.declares

    @property
    def is_over_runs(self) -> list[bool]:
        """Of each owner, if its columns have outgrown the limit of their memory; nothing where there is none."""
        if not self._settings.state_memory_bytes:
            return []
        tables: list[Any] = [kinds.rows._rows.table for kinds in self.all_kinds]
        return [not table.memory.is_whole for table in tables]

    @property
    def newest(self) -> sb.CommitSummary | None:
        """What the crew stands on."""
        if self._coordinator is None:
            return self.owners[0].backend.newest
        return None if self._coordinator.base is None else self._coordinator.base.summary

    async def open(self, **options: Any) -> None:
        """Everybody, one after the other. What fails leaves nobody behind."""
        try:
            if not self.is_alone:
                self._coordinating = Held(
                    sb.owners.open_coordinator(self._settings, store=self._store, clock=self._places.clock, **options)
                )
                self._coordinator = await self._coordinating.enter()
            for number in range(len(self.plan.ranges)):
                self.owners.append(await self._open_owner(number, **options))
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Everybody leaves; what is not committed is forgotten."""
        for owner in self.owners:
            await owner.held.leave()
        if self._coordinating is not None:
            await self._coordinating.leave()
        self.owners = []

    async def replace(self, number: int, *, killed: bool) -> None:
        """One owner leaves, or is cancelled, and another one takes his place on what the crew stands on."""
        assert self._coordinator is not None
        await self.owners[number].held.leave(killed=killed)
        base = self._coordinator.base
        options = {} if base is None else {"checkpoint_id": base.checkpoint_id}
        self.owners[number] = await self._open_owner(number, **options)

    async def _open_owner(self, number: int, **options: Any) -> Owner:
        settings, key_groups = self._settings, self.plan.ranges[number]
        host = None if self.plan.first_host is None else (self.plan.first_host + number) % HOSTS
        if host is not None:
            settings, local = self._places.at(host, settings)
            options |= local
        if not self.is_alone:
            options |= {"key_groups": key_groups, "owners": self.plan.ranges}
        held = Held(sb.open_backend(settings, store=self._store, clock=self._places.clock, **options))
        backend = await held.enter()
        backend.advance_clock(self._now(), "processing")
        return Owner(key_groups, host, held, backend, Kinds(backend, self._now) if self.plan.declares else None)

    def sources(self) -> dict[str, int]:
        """How many files were restored from where."""
        reports = [owner.backend.restored for owner in self.owners]
        return {
            "local files": sum(report.files_local for report in reports if report is not None),
            "primary files": sum(report.files_primary for report in reports if report is not None),
            "repaired files": sum(
                each.repaired for report in reports if report is not None for each in report.fallbacks
            ),
        }

    # ------------------------------------------------------------------------------------------------- the state

    def owner_of(self, key: sb.Key) -> Owner:
        group = key_group(key, MAX_PARALLELISM)
        return next(owner for owner in self.owners if group in owner.key_groups)

    def move_clock(self) -> None:
        """To the time that it is, in each owner: it goes back in none."""
        for owner in self.owners:
            owner.backend.advance_clock(self._now(), "processing")

    @property
    def all_kinds(self) -> list[Kinds]:
        """The states of every owner."""
        return [owner.kinds for owner in self.owners if owner.kinds is not None]

    def apply(self, name: str, pairs: Pairs) -> None:
        """An operation on several keys, by the owners of each."""
        self.move_clock()
        for owner in self.owners:
            if owner.kinds is not None and (own := [pair for pair in pairs if self.owner_of(pair[0]) is owner]):
                getattr(owner.kinds, name)(own)

    def ring(self, contents: Contents) -> set[Timed]:
        """What is due by the job's clock, of every owner: also of those that have got nothing to do otherwise.

        It is what is due in `contents`, where it then has rung, too.
        """
        self.move_clock()
        rung = set[Timed]().union(*(kinds.ring() for kinds in self.all_kinds))
        is_left = any(kinds.has_due_alarms for kinds in self.all_kinds)
        assert_alarms_ring_once(rung, contents.ring(self._now()), is_left=is_left)
        return rung

    def visible(self) -> Sequence[Visible]:
        """All that can be read, of each owner."""
        self.move_clock()
        return [kinds.visible() for kinds in self.all_kinds]

    # ------------------------------------------------------------------------------------------- the checkpoints

    async def checkpoint(self, checkpoint_id: int, **options: Any) -> set[Copied]:
        """By one alone, or by all together; who has a local copy of all that he needs."""
        if self.is_alone:
            (owner,) = self.owners
            info = await owner.backend.checkpoint(checkpoint_id, **options)
            return {owner.copied} if info.local else set()
        snapshots = await self.snapshots(checkpoint_id)
        copied = await self.commit(checkpoint_id, snapshots, **options)
        await self.tell_complete(checkpoint_id)
        return copied

    async def snapshots(self, checkpoint_id: int) -> list[sb.owners.SnapshotResult]:
        """Of every owner, as they arrive in another process."""
        found = [await owner.backend.snapshot(checkpoint_id) for owner in self.owners]
        return msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=list[sb.owners.SnapshotResult])

    async def commit(
        self, checkpoint_id: int, snapshots: Sequence[sb.owners.SnapshotResult], **options: Any
    ) -> set[Copied]:
        """Of one that is not alone; who has a local copy of all that he needs."""
        assert self._coordinator is not None
        clock = ClockMark(self._now(), "processing")
        await self._coordinator.commit(checkpoint_id, snapshots, clock=clock, **options)
        return {owner.copied for owner, found in zip(self.owners, snapshots, strict=True) if found.local}

    async def tell_complete(self, checkpoint_id: int) -> None:
        """Everybody who has not been told yet."""
        for owner in self.owners:
            with suppress(InputError):
                await owner.backend.notify_complete(checkpoint_id)

    async def tell_aborted(self, checkpoint_id: int) -> None:
        """Every owner that has a snapshot of it and was not told yet; a backend that is alone takes none."""
        for owner in () if self.is_alone else self.owners:
            with suppress(InputError):
                await owner.backend.notify_aborted(checkpoint_id)

    async def tell_subsumed(self, checkpoint_id: int) -> None:
        for owner in self.owners:
            await owner.backend.notify_subsumed(checkpoint_id)
