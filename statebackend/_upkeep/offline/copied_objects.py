"""Copies the objects of a commit into another job, under names of that job's epoch, and points the handles there.

A copy's name is made of that of its object. So a second call finds what the first one has copied, and two at a time
write the same bytes to the same names.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from statebackend._changelog.changelog_reader import verify
from statebackend._log.names import OUTBOX, data_name, sequence_of
from statebackend._log.outbox import read_part
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend._upkeep.progress import Meter, Tell
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import MissingObjectError, ObjectNotFoundError
from statebackend.ids import Epoch, Handle, RangeState, RocksDBBase, StagedOutput
from statebackend.objectstore.scoped import ScopedStore


class CopiedObjects:
    """Copies objects of `source` to `target`, whose writer has claimed `epoch`."""

    def __init__(
        self, source: ObjectStore, target: ScopedStore, epoch: Epoch, threads: WorkerThreads, *, concurrency_max: int
    ) -> None:
        self._source = source
        self._target = target
        self._epoch = epoch
        self._threads = threads
        self._concurrency_max = concurrency_max
        self.found = 0
        """Objects that were there already."""
        self.copied = 0
        """Objects that the stores have copied."""

    async def copy(self, handles: Iterable[Handle], tell: Tell) -> Mapping[str, str]:
        """Copy these whole objects; return the new key of each by its old one.

        Where the bytes pass through here, they are verified. Raises `MissingObjectError`, `CorruptSegmentError`,
        `StoreError`. A failed or cancelled call leaves some of the copies.
        """
        wanted = {handle.key: handle for handle in sorted(handles, key=lambda handle: handle.key)}
        names = {key: self._name(number, key) for number, key in enumerate(wanted)}
        meter = Meter("copying", sum(handle.length for handle in wanted.values()), tell)
        there = await self._there()

        async def one(handle: Handle) -> None:
            name = names[handle.key]
            size_bytes = there.get(name) if there is not None else await self._size_of(name)
            if size_bytes == handle.length:
                self.found += 1
            else:
                await self._copy(handle, name)

        async def done(handle: Handle, _: None) -> None:
            meter.step(handle.length, changes=0, size_bytes=handle.length)

        await in_order(list(wanted.values()), one, done, concurrency_max=self._concurrency_max)
        return names

    async def outbox(self, outputs: Sequence[StagedOutput], names: Mapping[str, str]) -> tuple[StagedOutput, ...]:
        """The outputs with their parts among the copies; those that commits carry become objects."""
        found: list[StagedOutput] = []
        for output in outputs:
            parts = [await self._part(part, names) for part in output.parts]
            found.append(msgspec.structs.replace(output, parts=tuple(parts)))
        return tuple(found)

    async def _part(self, part: Handle, names: Mapping[str, str]) -> Handle:
        if part.key in names:
            return msgspec.structs.replace(part, key=names[part.key])
        data = await self._source.get_range(part.key, part.offset, part.length)
        read_part(data, part)
        name = OUTBOX + self._name(part.offset, part.key).rpartition("/")[2]
        await self._target.put(name, (data,))
        return Handle(name, 0, part.length, part.checksum)

    async def _copy(self, handle: Handle, name: str) -> None:
        try:
            if await self._target.copy_from(self._source, handle.key, name, handle.length):
                self.copied += 1
                return
            data = await self._source.get(handle.key)
        except ObjectNotFoundError as error:
            raise MissingObjectError(
                "an object that the source's checkpoint needs is gone", object=handle.key
            ) from error
        await self._threads.cpu(verify, data, handle)
        await self._target.put(name, (data,))

    async def _there(self) -> Mapping[str, int] | None:
        """The objects of the target, with their sizes; `None` if it cannot list."""
        if Capability.LIST not in self._target.capabilities:
            return None
        return {info.key: info.size_bytes async for info in self._target.list("")}

    async def _size_of(self, name: str) -> int | None:
        info = await self._target.head(name)
        return None if info is None else info.size_bytes

    def _name(self, number: int, key: str) -> str:
        directory, slash, _ = key.rpartition("/")
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return f"{directory}{slash}{data_name(self._epoch, number, digest)}"


def whole_objects(ranges: Iterable[RangeState], outputs: Iterable[StagedOutput]) -> Sequence[Handle]:
    """The objects that these need, but for commits: of what those carry, others make objects."""
    found = {handle.key: handle for part in ranges for handle in part.objects()}
    found.update((part.key, part) for output in outputs for part in output.parts)
    return [handle for key, handle in found.items() if sequence_of(key) is None]


def pointed_at(part: RangeState, names: Mapping[str, str]) -> RangeState:
    """The range with its handles into the copies. An object that has no copy keeps its key."""

    def moved(handle: Handle) -> Handle:
        return msgspec.structs.replace(handle, key=names.get(handle.key, handle.key))

    def rocksdb(base: RocksDBBase) -> RocksDBBase:
        files = (msgspec.structs.replace(file, handle=moved(file.handle)) for file in base.files)
        return msgspec.structs.replace(base, files=tuple(files))

    return msgspec.structs.replace(
        part,
        changelog=tuple(msgspec.structs.replace(each, segment=moved(each.segment)) for each in part.changelog),
        bases=tuple(msgspec.structs.replace(each, segment=moved(each.segment)) for each in part.bases),
        rocksdb=tuple(rocksdb(each) for each in part.rocksdb),
        history=msgspec.UNSET,
        restored=msgspec.UNSET,
    )
