"""Proves that erased keys are gone: every object that is left is read, in the primary and in local roots."""

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.commit import Commit
from statebackend._local.layout import segments_directory
from statebackend._local.rocksdb_copies import copied_bases
from statebackend._log.names import is_ours
from statebackend._log.sweeping.inventory import check_can_list
from statebackend._tasks import in_order
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend._upkeep.offline.erase import state_ids
from statebackend._upkeep.offline.key_search import KeySearch, Unknown, WantedKeys
from statebackend._upkeep.offline.keys_found import KeyHolder, entries_in
from statebackend._upkeep.read_commit import open_commit
from statebackend.abc import ObjectInfo, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import ObjectNotFoundError
from statebackend.ids import Key, RangeState, RocksDBBase
from statebackend.objectstore import LocalStore
from statebackend.settings import Settings


class ErasureProof(msgspec.Struct, frozen=True):
    """The objects and their bytes that were read, in the primary and in local roots, and those that have the keys.

    An object of which it cannot be known is among the `holders`.
    """

    objects: int
    size_bytes: int
    holders: tuple[KeyHolder, ...]

    @property
    def is_proved(self) -> bool:
        """True if no object that is left has the keys."""
        return not self.holders


async def verify_erased(
    settings: Settings,
    keys: Iterable[Key],
    *,
    states: Literal["all"] | Sequence[str] = "all",
    store: ObjectStore | None = None,
) -> ErasureProof:
    """Read every object that is left of the job, in the primary and in `settings.local`, and look for these keys.

    Call it after an erasure and a sweep. A RocksDB base is read by RocksDB if its commit was made since the log was
    last swept or keys were erased; a file of any other could have the keys under later entries, and counts as one that
    has them. Nothing is written, and nobody is fenced.

    Raises `InputError` for no key, an unknown state, a job without a checkpoint, and a store that cannot list;
    `KeyTypeError`, `DataError`, `StoreError`.
    """
    wanted = WantedKeys.of(keys)
    async with open_job_primary(settings, store) as primary:
        check_can_list(primary.store)
        newest, _ = await primary.find()
        wanted = msgspec.structs.replace(wanted, states=state_ids(newest, states))
        return await _Proving(primary, wanted).run()


class _Proving:
    """Looks at all objects of one job, once."""

    def __init__(self, primary: JobPrimary, wanted: WantedKeys) -> None:
        self._primary = primary
        self._wanted = wanted
        self._holders: list[KeyHolder] = []
        self._objects = self._bytes = 0

    async def run(self) -> ErasureProof:
        primary = self._primary
        listed = [info async for info in primary.store.list("") if is_ours(info.key)]
        entries = await entries_in((info.key for info in listed), primary.log)
        commits = [entry for entry in entries.values() if isinstance(entry, Commit)]
        files = await self._rocksdb_files(commits)
        await self._look(primary.store, [info for info in listed if files.get(info.key) != 0], "")
        proved = {key for key, found in files.items() if found == 0}
        self._count([info for info in listed if info.key in proved])
        for root in primary.settings.local:
            directory = segments_directory(Path(root), primary.settings.job)
            if await primary.threads.io(directory.is_dir):
                copies = LocalStore(directory, threads=primary.threads)
                infos = [info async for info in copies.list("") if is_ours(info.key)]
                await self._look(copies, infos, f"{directory}/")
            for base in await primary.threads.io(copied_bases, Path(root), primary.settings.job):
                self._objects, self._bytes = self._objects + 1, self._bytes + base.size_bytes
                if not base.keys or not base.keys <= proved:
                    self._holders.append(KeyHolder.of(str(base.path), base.size_bytes, Unknown.ROCKSDB))
        return ErasureProof(self._objects, self._bytes, tuple(self._holders))

    def _count(self, infos: Sequence[ObjectInfo]) -> None:
        self._objects += len(infos)
        self._bytes += sum(info.size_bytes for info in infos)

    async def _look(self, store: ObjectStore, infos: Sequence[ObjectInfo], prefix: str) -> None:
        """Look at these objects. One that is swept meanwhile is none that is left."""
        search = KeySearch(store, self._primary.log, self._wanted, self._primary.threads)

        async def count(info: ObjectInfo) -> int | Unknown:
            try:
                return await search.count(info.key, info.size_bytes)
            except ObjectNotFoundError:
                return 0

        async def note(info: ObjectInfo, found: int | Unknown) -> None:
            if found != 0:
                self._holders.append(KeyHolder.of(f"{prefix}{info.key}", info.size_bytes, found))

        await in_order(infos, count, note, concurrency_max=self._primary.settings.restore_concurrency_max)
        self._count(infos)

    async def _rocksdb_files(self, commits: Sequence[Commit]) -> dict[str, int]:
        """How many entries of the keys RocksDB bases have, by the keys of their files, of all that can be known."""
        floor = await self._primary.positions.savepoints.floor()
        found: dict[str, int] = {}
        async for base, count in self._in_rocksdb([commit for commit in commits if commit.sequence >= floor]):
            for file in base.files:
                found[file.handle.key] = found.get(file.handle.key, 0) + count
        return found

    async def _in_rocksdb(self, commits: Sequence[Commit]) -> AsyncIterator[tuple[RocksDBBase, int]]:
        primary, seen = self._primary, set[tuple[str, ...]]()
        for commit in commits:
            settings = msgspec.structs.replace(primary.settings, max_parallelism=commit.max_parallelism)
            for base in (base for part in commit.ranges for base in part.rocksdb):
                files = tuple(file.handle.key for file in base.files)
                if files in seen:
                    continue
                seen.add(files)
                whole = msgspec.structs.replace(base, key_groups=(base.owner,))
                alone = msgspec.structs.replace(commit, ranges=(RangeState(base.owner, (), rocksdb=(whole,)),))
                counted = 0

                def count(changes: Sequence[Changes]) -> frozenset[int]:
                    nonlocal counted
                    counted += self._wanted.count(changes)
                    return frozenset()

                opening = open_commit(
                    settings,
                    primary.store,
                    commit.states,
                    at_hand={},
                    threads=primary.threads,
                    clock=SystemClock(),
                )
                async with opening as (_, restore):
                    await restore.run(alone, base.owner, count)
                yield base, counted
