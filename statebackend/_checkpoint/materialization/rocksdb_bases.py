"""Writes RocksDB bases: the files that RocksDB has at a commit, of which only new ones are uploaded.

    begun -> copied -> each file: shared, or uploaded -> copied on this host -> in a commit: the next base may share it

The rows of columnar states, which are in memory, are written beside the copied files, as segments of a few megabytes.

A file is shared by the handle under which this very database uploaded or restored it, never by its name alone: two
databases that began with the same files give one name to different content (FLINK-29095, 29913, 32761).
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.materialization.bases import pack
from statebackend._codec.segment import EncodedSegment, SealedSet, encode_segment
from statebackend._local.disk import remove_directory
from statebackend._local.rocksdb_copies import RocksDBCopies
from statebackend._tables.files_copy import FilesCopy
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tables.table import TableFiles
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore, Observer, UploadedSegment
from statebackend.errors import StoreError
from statebackend.ids import COLUMNS_PREFIX, CheckpointId, Handle, KeyGroupRange, RocksDBBase, RocksDBFile
from statebackend.settings import Compression

REMOVE_TIMEOUT_S: Final = 1.0
"""Seconds that leaving a backend waits for directories to be removed. The next open prunes the others."""

_logger = logging.getLogger(__name__)


class RocksDBBaseFiles(NamedTuple):
    """A base that was begun: the files that its directory will have."""

    checkpoint_id: CheckpointId
    directory: Path
    copy: FilesCopy
    columns: StatesSnapshot


class RocksDBBases:
    """The RocksDB bases of the owner of `key_groups`. Its entries lie in `tables`; `scratch` is on the same disk.

    `adopted`: the base whose files the tables took over, if they were restored like that. `compression` is that of the
    columns, in segments of about `segment_bytes_max`.
    """

    def __init__(
        self,
        tables: TableFiles,
        scratch: Path,
        *,
        key_groups: KeyGroupRange,
        adopted: RocksDBBase | None,
        scheduler: UploadScheduler,
        primary: ObjectStore,
        copies: RocksDBCopies | None,
        concurrency_max: int,
        segment_bytes_max: int,
        compression: Compression,
        threads: WorkerThreads,
        tasks: TaskGroup,
        observer: Observer,
    ) -> None:
        self._tables = tables
        self._scratch = scratch
        self._key_groups = key_groups
        self._shared: Mapping[str, Handle] = {} if adopted is None else shareable(adopted)
        self._scheduler = scheduler
        self._primary = primary
        self._copies = copies
        self._concurrency_max = concurrency_max
        self._segment_bytes_max = segment_bytes_max
        self._compression: Compression = compression
        self._tasks = tasks
        self._observer = observer
        self._threads = threads

    def begin(self, checkpoint_id: CheckpointId, columns: StatesSnapshot) -> "RocksDBBaseFiles":
        """Begin a base of the tables as they are now, in the commit of `checkpoint_id`. They may be changed at once.

        `columns`: the states that are in no file of the tables, as they are now. The caller writes the base, or gives
        it up: until then new writes wait in memory.
        """
        directory = self._scratch / f"base-{checkpoint_id}"
        return RocksDBBaseFiles(checkpoint_id, directory, self._tables.copy_files(directory), columns)

    async def write(
        self, begun: "RocksDBBaseFiles", uploaded: list[UploadedSegment], pause: Callable[[], None]
    ) -> tuple[RocksDBBase, bool]:
        """Make a base durable; true if this host has a copy of it. `pause`: as for `EntryBases.write`.

        What was stored is in `uploaded` and belongs to the caller, also after a failed or cancelled call.
        """
        try:
            await self._threads.io(begun.copy.run)
            await self._write_columns(begun, pause)
            files = await self._stored(begun.directory, uploaded)
            base = RocksDBBase(self._key_groups, begun.checkpoint_id, (self._key_groups,), files)
            return base, await self._copy_on_host(base, begun.directory)
        finally:
            begun.copy.give_up()
            with anyio.CancelScope(shield=True):
                await self._threads.io(remove_directory, begun.directory)

    def confirmed(self, base: RocksDBBase) -> None:
        """A commit holds this base: the next base may share its files."""
        self._shared = shareable(base)
        if self._copies is not None:
            self._soon(self._copies.confirm, base)

    def discarded(self, base: RocksDBBase) -> None:
        """No commit holds this base or ever will. The caller removes what was uploaded for it."""
        if self._copies is not None:
            self._soon(self._copies.abort, base)

    async def _write_columns(self, begun: "RocksDBBaseFiles", pause: Callable[[], None]) -> None:
        """Write the columns into the directory, which must be there: a part at a time is in memory."""
        groups = frozenset(self._key_groups)
        pieces = pack(begun.columns.changes(groups, pause), groups, segment_bytes_max=self._segment_bytes_max)
        for number in count():
            if (piece := await self._threads.background(next, pieces, None)) is None:
                return
            encoded = await self._threads.background(encode_segment, _paused(piece.frames, pause), self._compression)
            await self._threads.io(_write, begun.directory / f"{COLUMNS_PREFIX}{number:06d}", encoded)

    async def _stored(self, directory: Path, uploaded: list[UploadedSegment]) -> tuple[RocksDBFile, ...]:
        sizes = await self._threads.io(_sizes, directory)
        files: list[RocksDBFile] = []

        async def take(name: str, shared: Handle | None) -> None:
            if shared is None:
                found = await self._scheduler.upload_file(sizes[name], (directory / name).read_bytes)
                uploaded.append(found)
                shared = found.primary
            files.append(RocksDBFile(name, shared))

        async def find(name: str) -> Handle | None:
            return await self._find_shared(name, sizes[name])

        await in_order(sorted(sizes), find, take, concurrency_max=self._concurrency_max)
        return tuple(files)

    async def _find_shared(self, name: str, size_bytes: int) -> Handle | None:
        """Return where the file is stored already, `None` if it has to be uploaded.

        The primary is asked: a commit that names a file which is gone could not be restored.
        """
        handle = self._shared.get(name)
        if handle is None or handle.length != size_bytes:
            return None
        found = await self._primary.head(handle.key)
        if found is not None and found.size_bytes == size_bytes:
            return handle
        _logger.error("a file that a commit needs is gone from the primary, and is uploaded again: key=%s", handle.key)
        return None

    async def _copy_on_host(self, base: RocksDBBase, directory: Path) -> bool:
        """Store a copy on this host; true if that worked. The base is durable either way."""
        if self._copies is None or not self._copies.writable:
            return False
        try:
            await self._copies.store(base, directory)
        except StoreError as error:
            self._observer.local_copy_dropped(f"base-{base.checkpoint_id}", str(error))
            return False
        return True

    def _soon(self, call: Callable[[RocksDBBase], Awaitable[None]], base: RocksDBBase) -> None:
        with suppress(RuntimeError):  # anyio: the task group has ended; the next open prunes
            self._tasks.start_soon(self._told, call, base)

    async def _told(self, call: Callable[[RocksDBBase], Awaitable[None]], base: RocksDBBase) -> None:
        try:
            with anyio.move_on_after(REMOVE_TIMEOUT_S, shield=True):  # also while the backend is being left
                await call(base)
        except StoreError as error:
            _logger.warning("local copies of RocksDB bases stay: checkpoint=%d reason=%s", base.checkpoint_id, error)


def shareable(base: RocksDBBase) -> Mapping[str, Handle]:
    """The handles of the files of a base that a later one of the same database may have, by name."""
    return {file.name: file.handle for file in base.files if file.is_table}


def _paused(frames: Iterable[SealedSet], pause: Callable[[], None]) -> Iterator[SealedSet]:
    for frame in frames:
        pause()
        yield frame


def _write(path: Path, segment: EncodedSegment) -> None:
    with path.open("xb") as file:
        file.writelines(segment.chunks)


def _sizes(directory: Path) -> Mapping[str, int]:
    """The sizes of a database's files, by name, without its empty write-ahead log, which is not used."""
    sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
    return {name: size_bytes for name, size_bytes in sizes.items() if size_bytes > 0}
