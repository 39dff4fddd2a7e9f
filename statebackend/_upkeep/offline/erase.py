"""Erases keys from a job: each object that the newest commit needs, and that has them, is written again without them.

    look at each object -> claim -> write again those that have the keys -> drop savepoints -> mark -> commit

The commit is an edit by hand, and a barrier: what is older cannot be opened any more from the moment it exists, not by
its id, by a moment, nor by a rollback, and the next sweep deletes it. The mark that is made before the commit says so
(`_log/names.py`). The decision is told in `docs/decisions/erased-keys-stay-erased.md`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.log_reader import LogReader
from statebackend._log.names import Erasure, entry_key, floor_key, is_ours, sequence_of
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._log.sweeping.inventory import check_can_list
from statebackend._log.sweeping.retention import ENTRY_AGE_MIN_S
from statebackend._tasks import in_order
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.offline.key_search import KeySearch, WantedKeys
from statebackend._upkeep.offline.offline_commit import Contents, OfflineJob, Uploads, open_offline
from statebackend._upkeep.offline.written_again import WrittenAgain
from statebackend.abc import Clock, ObjectInfo, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import FencedError, InputError
from statebackend.ids import CheckpointId, CommitSequence, Key
from statebackend.settings import Settings

KeptSavepoints = Literal["refuse", "drop"]
"""The choices for savepoints that have the keys: erase nothing, or drop them."""
ROCKSDB: Final = "a RocksDB file: its key group may be in it"


class KeyHolder(msgspec.Struct, frozen=True):
    """An object that still has an erased key. `key`: of the object, or the path of a local copy; `size_bytes`: of it.

    `sweepable_from_s`: Unix time in seconds, by the store's clock, from which a sweep may delete it; `None` where no
    sweep will.
    """

    key: str
    size_bytes: int
    reason: str
    sweepable_from_s: float | None = None


class EraseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an erasure, or of a dry run. The keys themselves are not in it.

    `checkpoint_id`: of the new commit; `None` for a dry run, and where the keys had been erased already. `changes`: how
    many stored changes of the keys the checkpoint `read_id` had. `rewritten`: the objects that had them, and were
    written again without. `holders`: the objects that still have them, until a sweep.
    """

    job: str
    read_id: CheckpointId
    keys: int
    states: tuple[str, ...]
    key_groups: tuple[int, ...]
    dry_run: bool
    changes: int = 0
    checkpoint_id: CheckpointId | None = None
    rewritten: tuple[str, ...] = ()
    savepoints_dropped: tuple[str, ...] = ()
    holders: tuple[KeyHolder, ...] = ()
    outputs_pending: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    requests: int = 0


async def erase(
    settings: Settings,
    keys: Iterable[Key],
    *,
    states: Literal["all"] | Sequence[str] = "all",
    savepoints: KeptSavepoints = "refuse",
    dry_run: bool = False,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> EraseReport:
    """Delete these keys from the job's keyed states, or from those named, so that nothing of the job brings them back.

    The newest checkpoint is committed again without the keys; only the objects that have them are written again. Older
    checkpoints cannot be opened any more, and a sweep deletes them when they are an hour old. `savepoints`: what to do
    if savepoints have the keys, "refuse" by default. Stop the stream first: an erasure fences a writer that has the job
    open. Local copies are not touched: the next opening, or a sweep, removes them. `verify_erased` proves the result.

    Raises `InputError` if nothing of the job has the keys, if savepoints have them and may not be dropped, for an
    unknown state, no key, a job without a checkpoint, and a store that cannot list; `KeyTypeError`; `FencedError` if
    another writer opened the job meanwhile; and as `open_backend` and `StateBackend.checkpoint` do. A failed or
    cancelled call may have dropped savepoints, and has changed nothing else: call it again.
    """
    if savepoints not in ("refuse", "drop"):
        raise InputError("savepoints must be 'refuse' or 'drop'", savepoints=savepoints)
    wanted = WantedKeys.of(keys)
    async with open_job_primary(settings, store) as primary:
        check_can_list(primary.store)
        newest, _ = await primary.find()
    wanted = msgspec.structs.replace(wanted, states=state_ids(newest, states))
    settings = msgspec.structs.replace(settings, max_parallelism=newest.max_parallelism)
    opening = open_offline(settings, commits=not dry_run, store=store, clock=clock or SystemClock())
    async with opening as opened:
        once = Erasing(opened, wanted)
        requests = opened.primary.spending.requests
        position = await opened.job.look()
        assert position.base is not None, "it was just found"
        found = await once.look(position.base)
        report = once.report(found, dry_run=dry_run)
        if not found.changes and not found.holders and not found.savepoints:
            raise InputError("nothing of the job has these keys: correct keys, states or job", keys=report.keys)
        if savepoints == "refuse" and found.savepoints:
            raise InputError(
                "savepoints have the keys: drop them first, or with savepoints='drop'",
                savepoints=[each.name for each in found.savepoints],
            )
        if not dry_run and not found.is_done:
            position = await opened.job.claim(position)
            if position.base is None or position.base.stamp != found.commit.stamp:
                raise FencedError("the job was committed to meanwhile: stop its stream, and erase again")

            async def before(sequence: int) -> None:
                for each in found.savepoints:
                    await once.savepoints.drop(each.name)
                await once.mark(Erasure(CommitSequence(sequence), position.epoch))

            new_id, uploads = await opened.commit(position, once.writing(found), before=before)
            await once.raise_floor()
            report = msgspec.structs.replace(
                report,
                checkpoint_id=new_id,
                bytes_written=uploads.written[1],
                savepoints_dropped=tuple(each.name for each in found.savepoints),
            )
        spent = opened.primary.spending.since(requests)
    return msgspec.structs.replace(report, bytes_read=once.bytes_read, requests=spent.requests.total())


def state_ids(commit: Commit, states: Literal["all"] | Sequence[str]) -> frozenset[int] | None:
    """The ids of these states; `None` for all. Raises `InputError` for a name that the commit does not have, and for
    none.
    """
    if states == "all":
        return None
    if isinstance(states, str) or not states:  # text would be a name for each of its letters
        raise InputError("give the names of states in a list, or 'all'", states=states)
    known = {state.name: state.state_id for state in commit.states}
    if unknown := [name for name in states if name not in known]:
        raise InputError("the job has no state of that name", state=unknown[0], known=", ".join(sorted(known)))
    return frozenset(known[name] for name in states)


class KeysFound(msgspec.Struct, frozen=True):
    """The commit that was looked at, and its objects that have the keys. `rocksdb`: ranges whose RocksDB may have them.

    `holders`: what has them, is listed in the primary, and will be needed by nothing. `savepoints`: those with them.
    """

    commit: Commit
    objects: Mapping[str, int]
    rocksdb: frozenset[int]
    holders: Sequence[KeyHolder]
    savepoints: Sequence[SavepointInfo]
    is_closed: bool
    """No commit that needs one of the holders can be opened any more."""

    @property
    def is_done(self) -> bool:
        """True if there is nothing left to do for an erasure but to wait for a sweep."""
        return self.is_closed and not self.changes and not self.savepoints

    @property
    def changes(self) -> int:
        """How many changes of the keys the commit's objects have; of RocksDB files one, whatever they have."""
        return sum(self.objects.values()) + len(self.rocksdb)


class Erasing:
    """Erases `wanted` from one job, once."""

    def __init__(self, opened: OfflineJob, wanted: WantedKeys) -> None:
        self._opened = opened
        self._wanted = wanted
        self._store = opened.primary.store
        self._search = KeySearch(self._store, opened.job.log, wanted, opened.threads)
        self._restored_bytes = 0
        self._erasure: Erasure | None = None
        self.savepoints: Final = opened.job.savepoints

    @property
    def bytes_read(self) -> int:
        """Bytes of data that were read."""
        return self._search.bytes_read + self._restored_bytes

    def _count_read(self, size_bytes: int) -> None:
        self._restored_bytes += size_bytes

    def report(self, found: KeysFound, *, dry_run: bool) -> EraseReport:
        """The report before anything is done."""
        commit, ids = found.commit, self._wanted.states
        return EraseReport(
            job=commit.job,
            read_id=commit.checkpoint_id,
            keys=len(self._wanted.keys),
            states=tuple(each.name for each in commit.states if ids is None or each.state_id in ids),
            key_groups=tuple(sorted(self._wanted.groups(commit.max_parallelism))),
            dry_run=dry_run,
            changes=found.changes,
            rewritten=tuple(sorted(found.objects)),
            holders=tuple(found.holders),
            outputs_pending=len(commit.outbox),
        )

    async def look(self, commit: Commit) -> KeysFound:
        """Look at every object of the job that may have the keys."""
        groups = self._wanted.groups(commit.max_parallelism)
        listed = {info.key: info async for info in self._store.list("")}
        commits = await commits_in(listed, self._opened.job.log)
        files = {
            file.handle.key for each in commits for part in each.ranges for base in part.rocksdb for file in base.files
        }
        counts: dict[str, int | None] = {}

        async def count(info: ObjectInfo) -> int | None:
            return None if info.key in files else await self._search.count(info.key, info.size_bytes, groups)

        async def note(info: ObjectInfo, found: int | None) -> None:
            counts[info.key] = found

        data = [info for key, info in listed.items() if is_ours(key)]
        await in_order(data, count, note, concurrency_max=self._opened.settings.restore_concurrency_max)
        rocksdb = frozenset(
            place
            for place, part in enumerate(commit.ranges)
            if any(not groups.isdisjoint(base.owner) for base in part.rocksdb)
        )
        needed = commit.segments()
        objects = {key: found for key in needed if (found := counts.get(key))}
        doomed = {key for place in rocksdb for key in commit.ranges[place].segments()}
        kept = needed - objects.keys() - doomed
        infos = [each for each in await self.savepoints.all() if each.sequence <= commit.sequence]
        by_sequence = {each.sequence: each for each in commits}
        held = [each for each in infos if self._has(by_sequence.get(each.sequence), counts, groups)]
        holders = [
            KeyHolder(
                key,
                listed[key].size_bytes,
                ROCKSDB if found is None else f"{found} changes of the keys",
                _sweepable_from_s(key, listed, commits),
            )
            for key, found in sorted(counts.items())
            if found != 0 and key not in kept
        ]
        held_by = {holder.key for holder in holders}
        users = [each.sequence for each in commits if not held_by.isdisjoint(each.segments())]
        floor, milestones = await self.savepoints.milestones()
        is_closed = max(users, default=-1) < floor and milestones.keys().isdisjoint(users)
        return KeysFound(commit, objects, rocksdb, holders, held, is_closed)

    def _has(self, commit: Commit | None, counts: Mapping[str, int | None], groups: frozenset[int]) -> bool:
        if commit is None:
            return False
        return any(counts.get(key) for key in commit.segments()) or any(
            not groups.isdisjoint(base.owner) for part in commit.ranges for base in part.rocksdb
        )

    async def mark(self, erasure: Erasure) -> None:
        """Say that the commit which is made next erases keys. Without that commit it means nothing."""
        await self._store.put(erasure.key, ())
        self._erasure = erasure

    async def raise_floor(self) -> None:
        """After the commit: spare those who ask for the floor a look at that commit."""
        assert self._erasure is not None
        await self._store.put(floor_key(self._erasure.sequence), ())

    def writing(self, found: KeysFound) -> Callable[[Uploads], Awaitable[Contents]]:
        """Writes the commit again without the keys."""
        opened, commit = self._opened, found.commit
        again = WrittenAgain(
            commit,
            self._store,
            self._wanted.without,
            keys=found.objects,
            places=found.rocksdb,
            settings=opened.settings,
            threads=opened.threads,
            clock=opened.clock,
            read=self._count_read,
            kept=self._search.kept,
        )

        async def write(uploads: Uploads) -> Contents:
            return Contents(await again.write(uploads), commit.states, frozenset(found.objects))

        return write


async def commits_in(keys: Iterable[str], log: LogReader, concurrency_max: int = 8) -> list[Commit]:
    """The commits among the objects with these keys, in their order, but for those that are damaged, or gone by now."""
    found: list[Commit] = []

    def take(_: int, entry: object) -> None:
        if isinstance(entry, Commit):
            found.append(entry)

    sequences = [sequence for key in keys if (sequence := sequence_of(key)) is not None]
    await log.each(sequences, take, doomed=frozenset(sequences), concurrency_max=concurrency_max)
    return found


def _sweepable_from_s(key: str, listed: Mapping[str, ObjectInfo], commits: Sequence[Commit]) -> float:
    """When a sweep may delete it: an hour after it, and after the last commit that needs it, was made."""
    users = [entry_key(each.sequence) for each in commits if key in each.segments()]
    made_s = max(listed[each].modified_s for each in (key, *users) if each in listed)
    return made_s + ENTRY_AGE_MIN_S
