"""Looks at a job from outside: its log, the commits that are retained, its savepoints, and what else lies there.

Reads only, and needs no cooperation of whoever is at work. The order of the requests is what makes the picture true
enough to delete by: first the log, then everything. A mark lies there before its commit does, so that the marks of all
commits that were seen are seen. What comes into being later is not judged by what was seen earlier.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import anyio
import msgspec

from statebackend._codec.commit import Claim, Commit, Entry, decode_entry
from statebackend._log.names import (
    COMMITS,
    HINT_KEY,
    SavepointMarker,
    entry_key,
    floor_of,
    marker_of,
    parse_hint,
    sequence_of,
)
from statebackend._log.retention import Verdict
from statebackend._log.savepoints import Savepoints
from statebackend._tasks import in_order, in_thread
from statebackend.abc import Capability, ObjectInfo, ObjectStore
from statebackend.errors import CorruptCommitError, InputError, MissingObjectError, ObjectNotFoundError
from statebackend.objectstore import PROBE_KEY

CPU_THREADS_MAX: Final = 2


class View(msgspec.Struct, frozen=True):
    """A job as it was seen.

    `retained` are the newest commits of the branch, newest first; `pinned` says of single commits why they are kept;
    `known` has verdicts on the hint and on marks, by key.
    """

    entries: Mapping[int, ObjectInfo]
    objects: tuple[ObjectInfo, ...]
    end: Entry | None
    retained: tuple[Commit, ...]
    pinned: Mapping[int, str]
    known: Mapping[str, tuple[Verdict, str]]
    hint: int | None
    """The entry that the hint names."""
    begun_s: float
    """When the look began, by the monotonic clock."""


class Surveyor:
    """Reads one job in its primary. Raises `InputError` for a store that cannot list."""

    def __init__(self, store: ObjectStore, job: str, *, checkpoints_retained: int, concurrency_max: int) -> None:
        if Capability.LIST not in store.capabilities:
            raise InputError(
                "this needs a primary that can list its objects: nothing else finds what nobody refers to",
                needs=Capability.LIST.value,
            )
        self._store = store
        self._job = job
        self._checkpoints_retained = checkpoints_retained
        self._concurrency_max = concurrency_max
        self._savepoints = Savepoints(store, job)
        self._cpu = anyio.CapacityLimiter(CPU_THREADS_MAX)

    async def look(self, *, begun_s: float) -> View:
        """The job as it is, from `begun_s` on.

        Raises `DataError`s where an entry that matters is damaged, and `WrongJobError`.
        """
        entries = {
            sequence: info
            async for info in self._store.list(COMMITS)
            if (sequence := sequence_of(info.key)) is not None
        }
        objects = tuple([info async for info in self._store.list("")])
        end = await self.load(max(entries)) if entries else None
        retained = await self._branch(end, entries)
        savepoints, known = await self._marks(objects, -1 if end is None else end.sequence)
        pinned: dict[int, str] = {commit.sequence: f"savepoint {mark.name!r}" for mark, commit in savepoints.items()}
        if isinstance(end, Claim) and end.base is not None:
            pinned[end.base] = f"the writer of epoch {end.epoch} continues it"
        return View(
            entries=entries,
            objects=objects,
            end=end,
            retained=retained,
            pinned=pinned,
            known={
                **known,
                **_floors(objects),
                HINT_KEY: (Verdict.HINT, "where a search for the end begins"),
                PROBE_KEY: (Verdict.HINT, "shows that the store keeps put-if-absent"),
            },
            hint=await self._hint(),
            begun_s=begun_s,
        )

    async def load(self, sequence: int) -> Entry:
        """One entry, verified. Raises `MissingObjectError`, or as `decode_entry`."""
        key = entry_key(sequence)
        try:
            data = await self._store.get(key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("an entry of the log is gone: is another sweep at work?", object=key) from error
        return await in_thread(lambda: decode_entry(data, key, job=self._job), limiter=self._cpu)

    async def each(
        self, sequences: Iterable[int], consume: Callable[[int, Entry], None], *, doomed: Collection[int] = ()
    ) -> None:
        """Load these entries, several at a time, and hand them on in their order.

        Of those that are `doomed` a damaged one, or one that is gone by now, is left out; any other raises.
        """

        async def fetch(sequence: int) -> Entry | None:
            try:
                return await self.load(sequence)
            except (CorruptCommitError, MissingObjectError):
                if sequence in doomed:
                    return None
                raise

        async def take(sequence: int, entry: Entry | None) -> None:
            if entry is not None:
                consume(sequence, entry)

        await in_order(tuple(sequences), fetch, take, concurrency_max=self._concurrency_max)

    async def claims_after(self, sequence: int) -> list[Claim]:
        """The claims that were made behind `sequence`, which was the end of the log."""
        claims: list[Claim] = []
        while True:
            sequence += 1
            try:
                entry = await self.load(sequence)
            except MissingObjectError:
                return claims
            if isinstance(entry, Claim):
                claims.append(entry)

    async def _branch(self, end: Entry | None, entries: Collection[int]) -> tuple[Commit, ...]:
        found: list[Commit] = []
        following = end.newest if isinstance(end, Claim) else None if end is None else end.sequence
        while following is not None and following in entries and len(found) < self._checkpoints_retained:
            entry = end if end is not None and end.sequence == following else await self.load(following)
            if isinstance(entry, Claim):
                raise CorruptCommitError("a claim where a commit should be", object=entry_key(following), offset=0)
            assert entry is not None
            found.append(entry)
            following = entry.parent
        return tuple(found)

    async def _marks(
        self, objects: Iterable[ObjectInfo], end: int
    ) -> tuple[dict[SavepointMarker, Commit], dict[str, tuple[Verdict, str]]]:
        savepoints: dict[SavepointMarker, Commit] = {}
        known: dict[str, tuple[Verdict, str]] = {}
        for mark in filter(None, (marker_of(info.key) for info in objects)):
            if (commit := await self._savepoints.commit_of(mark)) is not None:
                savepoints[mark] = commit
                known[mark.key] = Verdict.SAVEPOINT, f"keeps commit {mark.sequence}"
            elif mark.sequence > end:
                known[mark.key] = Verdict.LIVE, f"commit {mark.sequence} may be about to be made"
            else:
                known[mark.key] = Verdict.ORPHAN, f"commit {mark.sequence} was not made with it"
        return savepoints, known

    async def _hint(self) -> int | None:
        try:
            hint = parse_hint(await self._store.get(HINT_KEY))
        except ObjectNotFoundError:
            return None
        return None if hint is None else hint.sequence


def _floors(objects: Iterable[ObjectInfo]) -> dict[str, tuple[Verdict, str]]:
    """Verdicts on what former sweeps have said of how far they went."""
    floors = {info.key: floor for info in objects if (floor := floor_of(info.key)) is not None}
    highest = max(floors.values(), default=0)
    return {
        key: (Verdict.HINT, "how far the log was swept")
        if floor == highest
        else (Verdict.SUPERSEDED, "the log was swept further since")
        for key, floor in floors.items()
    }
