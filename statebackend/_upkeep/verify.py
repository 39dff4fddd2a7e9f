"""Verifies a job: reads every byte that a retained commit needs, in both copies, and reports what is damaged.

Nothing is repaired and nothing is written. A missing local copy is not damage: the primary is complete without it.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from statebackend._backend.stores import local_stores_of, readable_copies, rocksdb_copies
from statebackend._changelog.changelog_reader import SegmentRead, changes_of, frames_of
from statebackend._changelog.changelog_reader import verify as verify_whole
from statebackend._changelog.limiter import ByteLimiter
from statebackend._checkpoint.fetch import FETCHED_BYTES_MAX
from statebackend._codec.commit import Commit
from statebackend._local.layout import segments_directory
from statebackend._local.segments import LocalSegments
from statebackend._log.milestones import Milestone
from statebackend._log.names import (
    COMMITS,
    OUTBOX,
    SAVEPOINTS,
    SavepointMarker,
    entry_key,
    floor_key,
    marker_of,
    sequence_of,
)
from statebackend._log.outbox import read_part
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.spares import Spare, Spares
from statebackend._log.sweeping.inventory import check_can_list
from statebackend._tasks import in_order
from statebackend._upkeep.job_primary import JobPrimary, check_exists, open_job_primary
from statebackend._upkeep.progress import Meter, Tell
from statebackend.abc import ObjectStore
from statebackend.errors import CorruptObjectError, DataError, MissingObjectError, ObjectNotFoundError, StoreError
from statebackend.ids import ChangeSetHandle, Handle, RocksDBBase, RocksDBFile
from statebackend.settings import Settings

Copy = Literal["primary", "local"]
OF_ANOTHER_RUN: Final = "of another run"


class Damage(msgspec.Struct, frozen=True):
    """An object that is not as it was written. `checkpoints`: ids of the retained checkpoints that need it.

    `offset`: of the first bad byte, `None` if it is not known. `local_copy`: the path of an intact local copy, which
    `repair` puts back.
    """

    key: str
    copy: Copy
    offset: int | None
    reason: str
    checkpoints: tuple[int, ...]
    local_copy: str | None = None


Finding = Damage | Literal["of another run"] | int | None
"""One copy: its damage, or that it is another run's, or its size if it is undamaged; `None` if it is not there."""


class VerifyReport(msgspec.Struct, frozen=True):
    """The verified checkpoints, and what was found of them.

    `objects` and `size_bytes` count the undamaged objects and their bytes, by copy. `local_missing`: local copies that
    are not there, which is not damage. `local_of_others`: those in whose place another run has left its own, since it
    was left open or killed; nor is that damage.
    """

    checkpoints: tuple[int, ...]
    objects: Mapping[str, int]
    size_bytes: Mapping[str, int]
    local_missing: int
    damages: tuple[Damage, ...]
    local_of_others: int = 0


async def verify(settings: Settings, *, store: ObjectStore | None = None, tell: Tell = lambda _: None) -> VerifyReport:
    """Read every byte that a retained checkpoint needs, in the primary and in this host's local roots.

    Damage is reported, not raised. `tell` is called on the loop after each object with how far it is. Raises
    `InputError` if there is no such job or the store cannot list, `WrongJobError`, or `StoreError` if the primary does
    not answer.
    """
    async with open_job_primary(settings, store) as primary:
        check_can_list(primary.store)
        verification = Verification(settings, primary)
        report = await verification.run(tell)
        intact = {spare.key: path async for spare, path in verification.spares()}
        if report.damages:
            intact |= {spare.key: path for spare, path in await spares_here(settings, primary)}
    check_exists(settings, (*report.checkpoints, *report.damages))
    damages = tuple(
        msgspec.structs.replace(each, local_copy=intact.get(each.key)) if each.copy == "primary" else each
        for each in report.damages
    )
    return msgspec.structs.replace(report, damages=damages)


class _Wanted(msgspec.Struct):
    """An object to verify, the change sets in it, and the commits that need it: the newest, and all by their ids.

    `rocksdb`: the newest RocksDB base that it is a file of. Its local copy lies there.
    """

    segment: Handle
    newest: Commit
    change_sets: dict[ChangeSetHandle, None] = {}
    checkpoints: set[int] = set()
    rocksdb: tuple[RocksDBBase, RocksDBFile] | None = None


class SpareObject(msgspec.Struct, frozen=True):
    """The whole local copy of an object that the primary has damaged or lost; and the newest commit that needs it."""

    key: str
    body: bytes
    commit: Commit


class _Findings:
    """The report in the making."""

    def __init__(self) -> None:
        self.damages: list[Damage] = []
        self._objects: dict[str, int] = {"primary": 0, "local": 0}
        self._bytes: dict[str, int] = {"primary": 0, "local": 0}
        self._local_missing = 0
        self._local_of_others = 0

    def add(self, copy: Copy, found: Finding) -> None:
        """Count one object."""
        if isinstance(found, Damage):
            self.damages.append(found)
        elif found == OF_ANOTHER_RUN:
            self._local_of_others += 1
        elif found is None:
            self._local_missing += 1
        else:
            self._objects[copy] += 1
            self._bytes[copy] += found

    def report(self, checkpoints: Iterable[int]) -> VerifyReport:
        return VerifyReport(
            checkpoints=tuple(sorted(checkpoints)),
            objects=self._objects,
            size_bytes=self._bytes,
            local_missing=self._local_missing,
            damages=tuple(self.damages),
            local_of_others=self._local_of_others,
        )


class Verification:
    """Verifies one job, once."""

    def __init__(self, settings: Settings, primary: JobPrimary) -> None:
        self._settings = settings
        self._primary = primary
        self._log, self._threads = primary.log, primary.threads
        self._stores: dict[Copy, ObjectStore] = {"primary": primary.store}
        roots = local_stores_of(settings, primary.threads)
        self._local = LocalSegments(roots, owned=[False] * len(roots)) if roots else None
        if self._local is not None:
            self._stores["local"] = self._local
        self._rocksdb = rocksdb_copies(settings, primary.threads)
        self._room = ByteLimiter(FETCHED_BYTES_MAX)
        self._findings = _Findings()
        self._damaged: list[_Wanted] = []

    async def run(self, tell: Tell) -> VerifyReport:
        """Verify the retained commits and the savepoints. Raises `StoreError` if the primary does not answer."""
        commits = await self._commits()
        wanted = _wanted_by(commits.values())
        reads: list[tuple[Copy, _Wanted]] = [(copy, each) for each in wanted.values() for copy in self._stores]
        parts = tuple(_parts_of(commits.values()).items())
        total_bytes = sum(each.segment.length for _, each in reads) + sum(part.length for part, _ in parts)
        meter = Meter("verifying", total_bytes, tell)

        async def note(read: tuple[Copy, _Wanted], found: Finding) -> None:
            copy, each = read
            self._findings.add(copy, found)
            if copy == "primary" and isinstance(found, Damage):
                self._damaged.append(each)
            changes = sum(handle.records for handle in each.change_sets)
            meter.step(each.segment.length, changes=changes, size_bytes=each.segment.length)

        async def note_part(part: tuple[Handle, tuple[int, ...]], damage: Damage | None) -> None:
            handle, _ = part
            if damage is not None:
                self._findings.add("primary", damage)
            elif handle.key.startswith(OUTBOX):  # output that a commit carries itself is no object of its own
                self._findings.add("primary", handle.length)
            meter.step(handle.length, changes=0, size_bytes=handle.length)

        await in_order(reads, self._read, note, concurrency_max=self._settings.restore_concurrency_max)
        await in_order(parts, self._read_part, note_part, concurrency_max=self._settings.restore_concurrency_max)
        return self._findings.report(commit.checkpoint_id for commit in commits.values())

    async def _commits(self) -> dict[int, Commit]:
        """The retained commits that can be read, those of savepoints, and milestones.

        A commit below the sweep floor is there for what it carries, if it is none of these two: nobody can open it.
        """
        entries = {sequence async for sequence, _ in self._log.listed()}
        listed = self._stores["primary"].list(SAVEPOINTS)
        markers = [marker async for info in listed if (marker := marker_of(info.key)) is not None]
        found: dict[int, Commit] = {}
        floor, milestones = await self._floor()  # after they were listed: a sweep raises it first
        await self._look_for_lost_entry()
        await self._look_for_holes([sequence for sequence in entries if sequence >= floor])
        if entries:
            branch = self._log.branch(
                max(entries),
                count_max=self._settings.checkpoints_retained,
                listed=entries,
                damaged=self._note_damaged_entry,
            )
            found = {commit.sequence: commit async for commit in branch if commit.sequence >= floor}
        keepers: list[SavepointMarker | Milestone] = [*markers, *milestones]
        for keeper in keepers:
            if keeper.sequence in entries:
                try:
                    entry = await self._log.load(keeper.sequence)
                except DataError as error:
                    self._note_damaged_entry(keeper.sequence, error)
                    continue
                if isinstance(entry, Commit) and keeper.names(entry):
                    found[keeper.sequence] = entry
        return found

    async def _floor(self) -> tuple[int, Collection[Milestone]]:
        """The sweep floor, and the commits below it that are kept for their age."""
        savepoints = self._primary.positions.savepoints
        try:
            floor, milestones = await savepoints.milestones()
        except CorruptObjectError as error:
            floor = await savepoints.floor()
            self._findings.damages.append(_damage(floor_key(floor), "primary", error, ()))
            return floor, ()
        return floor, milestones.values()

    async def _look_for_lost_entry(self) -> None:
        if (end := await self._log.end()) is not None and end.lost is not None:
            try:
                end.check()
            except DataError as error:
                self._note_damaged_entry(end.lost.sequence, error)

    async def _look_for_holes(self, retained: Collection[int]) -> None:
        """Entries that are gone, though others before and behind them are there, and no sweep has removed them."""
        for sequence in sorted(set(range(min(retained, default=0), max(retained, default=0))).difference(retained)):
            if not await self._log.exists(sequence):
                self._note_damaged_entry(
                    sequence,
                    MissingObjectError("it is gone, though later entries are there", object=entry_key(sequence)),
                )

    def _note_damaged_entry(self, sequence: int, error: DataError) -> None:
        damage = _damage(entry_key(sequence), "primary", error, ())
        if damage not in self._findings.damages:
            self._findings.damages.append(damage)

    async def _read(self, read: tuple[Copy, _Wanted]) -> Finding:
        """Read that copy and judge it. Raises `StoreError` if the primary does not answer."""
        copy, wanted = read
        key, checkpoints = wanted.segment.key, tuple(sorted(wanted.checkpoints))
        try:
            async with self._room.held(wanted.segment.length):
                return len(await self._checked(copy, wanted))
        except ObjectNotFoundError:
            return None if copy == "local" else Damage(key, copy, None, "it is gone", checkpoints)
        except DataError as error:
            if copy == "local" and await self._is_of_another_run(wanted):
                return OF_ANOTHER_RUN
            return _damage(key, copy, error, checkpoints)
        except StoreError as error:
            if copy == "primary":
                raise
            return Damage(key, copy, None, str(error), checkpoints)

    async def _is_of_another_run(self, wanted: _Wanted) -> bool:
        """True if the local copy says of itself that it is whole, and that another run has made it in this place."""
        if self._rocksdb is not None and wanted.rocksdb is not None:
            return await self._rocksdb.is_of_another_run(*wanted.rocksdb)
        if (sequence := sequence_of(wanted.segment.key)) is None:  # any other name has been given once
            return False
        try:
            entry = await self._log.load(sequence, body=await self._stores["local"].get(wanted.segment.key))
            return entry.stamp != (await self._log.load(sequence)).stamp
        except (DataError, StoreError):
            return False

    async def spares(self) -> AsyncIterator[tuple[SpareObject, str]]:
        """After `run`: the objects that the primary has damaged or lost, and whose local copy is intact; its path."""
        if self._local is None:
            return
        for wanted in self._damaged:
            key = wanted.segment.key
            try:
                body = await self._checked("local", wanted)
            except (DataError, StoreError):
                continue
            path = _path(self._settings, self._local, key)
            if self._rocksdb is not None and wanted.rocksdb is not None:
                path = str(self._rocksdb.path_of(*wanted.rocksdb))
            yield SpareObject(key, body, wanted.newest), path

    async def _checked(self, copy: Copy, wanted: _Wanted) -> bytes:
        if copy == "local" and self._rocksdb is not None and wanted.rocksdb is not None:
            data = await self._rocksdb.read(*wanted.rocksdb)
        else:
            data = await self._stores[copy].get(wanted.segment.key)
        await self._threads.cpu(_check, data, wanted)
        return data

    async def _read_part(self, part: tuple[Handle, tuple[int, ...]]) -> Damage | None:
        """The damage to a part of staged output, if any. It has no local copy."""
        handle, checkpoints = part
        try:
            data = await self._stores["primary"].get_range(handle.key, handle.offset, handle.length)
            await self._threads.cpu(read_part, data, handle)
        except ObjectNotFoundError:
            return Damage(handle.key, "primary", None, "it is gone", checkpoints)
        except DataError as error:
            return _damage(handle.key, "primary", error, checkpoints)
        return None


def _parts_of(commits: Iterable[Commit]) -> dict[Handle, tuple[int, ...]]:
    """The parts of staged output that the commits name, each with the ids of the checkpoints that name it."""
    found: dict[Handle, tuple[int, ...]] = {}
    for commit in commits:
        for part in (part for output in commit.outbox for part in output.parts):
            found[part] = tuple(sorted({*found.get(part, ()), commit.checkpoint_id}))
    return found


def _wanted_by(commits: Iterable[Commit]) -> dict[str, _Wanted]:
    wanted: dict[str, _Wanted] = {}
    for commit in sorted(commits, key=lambda commit: commit.sequence):
        in_rocksdb = (base for part in commit.ranges for base in part.rocksdb)
        for base, file in ((each, file) for each in in_rocksdb for file in each.files):
            wanted.setdefault(file.handle.key, _Wanted(file.handle, commit)).rocksdb = (base, file)
        for segment, change_set in _handles(commit):
            each = wanted.setdefault(segment.key, _Wanted(segment, commit))
            each.newest = commit
            each.checkpoints.add(commit.checkpoint_id)
            if change_set is not None:
                each.change_sets[change_set] = None
    return wanted


def _handles(commit: Commit) -> Iterator[tuple[Handle, ChangeSetHandle | None]]:
    for part in commit.ranges:
        for handle in part.changelog:
            yield handle.segment, handle
        for base in part.bases:
            yield base.segment, None
        for rocksdb in part.rocksdb:
            for file in rocksdb.files:
                yield file.handle, None


def _check(data: bytes, wanted: _Wanted) -> None:
    """Check the whole object by its checksum, and each change set by its own."""
    verify_whole(data, wanted.segment)
    read = SegmentRead(wanted.segment, tuple(wanted.change_sets))
    for _ in changes_of(frames_of(data, read), read.change_sets):
        pass


def _damage(key: str, copy: Copy, error: DataError, checkpoints: tuple[int, ...]) -> Damage:
    offset = error.facts.get("offset")
    return Damage(key, copy, offset, error.message, checkpoints)


async def spares_here(settings: Settings, primary: JobPrimary) -> list[tuple[Spare, str]]:
    """The copies in the local roots of commits that the log should have, and that cannot be read there; their paths.

    What lies below the sweep floor was swept, and what lies above the end was never made, as far as the log knows.
    """
    local = readable_copies(settings, None, primary.threads)
    end = await primary.log.end()
    if local is None or end is None:
        return []
    floor = await Savepoints(primary.store, primary.log).floor()
    last = end.sequence if end.lost is None else end.lost.sequence
    spares = Spares(primary.store, primary.log, lambda: local)
    found: list[tuple[Spare, str]] = []
    for sequence in [sequence_of(info.key) async for info in local.list(COMMITS)]:
        if sequence is not None and floor <= sequence <= last:
            spare = await spares.find(sequence, end)
            if spare is not None:
                found.append((spare, _path(settings, local, spare.key)))
    return found


def _path(settings: Settings, local: LocalSegments, key: str) -> str:
    return str(segments_directory(Path(settings.local[local.root_of(key)]), settings.job) / key)
