"""The download cache: files of the primary that several readers want, each downloaded once.

    async with cache.open(handle) as file:
        data = await file.read(offset, length)

A file lies here exactly as it lies in the primary, to the byte: so it can be checked against its handle, every offset
means the same in both, and a local copy can be repaired from it. What is wanted of it is decompressed by each reader.
`cached_files` decides who downloads, who waits and what goes; this carries it out. Nothing is synced to the disk: what
lies here is of no use to the next process.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup

from statebackend._cache.cached_files import CachedFiles, FileState, HeldFile
from statebackend._local.scratch import open_scratch
from statebackend._tasks import foreign, in_thread, open_tasks
from statebackend.abc import Clock, ObjectStore, Observer
from statebackend.errors import BackendClosedError, CacheDiskError, DataError, InputError
from statebackend.ids import Handle
from statebackend.settings import Settings

_logger = logging.getLogger(__name__)

Verify = Callable[[bytes, Handle], None]
"""Raises a `DataError` unless the bytes are, to the byte, what the handle points to. Runs in a worker thread."""


class DownloadCache:
    """Files of one primary, for readers on one event loop. Made by `open_cache`."""

    def __init__(
        self,
        primary: ObjectStore,
        directory: Path,
        settings: Settings,
        *,
        verify: Verify,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.job: Final = settings.job
        self._primary = primary
        self._directory = directory
        self._verify = verify
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._files = CachedFiles(bytes_max=settings.cache_bytes_max, idle_s=settings.cache_idle_s)
        self._shelves: dict[int, _Shelf] = {}
        self._downloads = anyio.CapacityLimiter(settings.restore_concurrency_max)
        self._io = anyio.CapacityLimiter(settings.io_threads_max)
        self._cpu = anyio.CapacityLimiter(settings.cpu_threads_max)
        self._released = anyio.Event()
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Bytes of the files that lie here or are being downloaded. More than `cache_bytes_max` only while in use."""
        return self._files.held_bytes

    @asynccontextmanager
    async def open(self, handle: Handle) -> AsyncGenerator["CachedFile"]:
        """The whole file that `handle` points to, downloaded unless it is here, for as long as the context lasts.

        All who want a file while it is downloaded wait for the same download, and those of other files wait for nobody.
        Raises what the primary raises, `CorruptSegmentError` where the primary's bytes are wrong, or `CacheDiskError`:
        then all who waited for that download get the error, nothing is left of it, and the next call downloads again.
        Raises `BackendClosedError` where the cache is closed, or closes meanwhile.

        A call that is cancelled while it waits leaves the download to those who still wait for it. When nobody does,
        the download is cancelled.
        """
        held, shelf = await self._take(handle)
        file = CachedFile(
            handle,
            read=partial(self._read, held, shelf),
            condemn=partial(self._files.condemn, held),
            release=partial(self._release, held),
        )
        try:
            yield file
        finally:
            file.release()

    async def get(self, handle: Handle) -> bytes:
        """The whole content, verified. Where the disk of this cache fails, from the primary alone, and logged.

        Raises what the primary raises, or `CorruptSegmentError`. A cancelled call is as a cancelled `open`.
        """
        try:
            async with self.open(handle) as file:
                return await self._read_verified(file)
        except CacheDiskError as error:
            _logger.warning("the download cache is passed over: %s", error)
        data = await foreign(self._primary.get(handle.key))
        await in_thread(self._verify, data, handle, limiter=self._cpu)
        return data

    def close(self) -> None:
        """Let go of everything, in use or not. Who waits or reads gets `BackendClosedError`. Twice is fine."""
        self._closed = True
        for file in self._files.held:
            self._shelves[file.number].end(_closed())
        self._files.close()
        self._shelves.clear()
        self._observer.cache_changed(0)

    async def run_evictions(self) -> None:
        """Evict what has been idle for too long, as soon as it has. Runs for as long as the cache is open."""
        while True:
            while (due_s := self._files.next_eviction_s) is None:
                self._released = anyio.Event()
                await self._released.wait()
            await anyio.sleep(max(0.0, due_s - self._clock.monotonic()))
            self._evict()

    def check_invariants(self) -> None:
        """As those of its account; and each file of that has a shelf, and only those."""
        self._files.check_invariants()
        assert self._shelves.keys() == {file.number for file in self._files.held}, "a shelf without a file"

    async def _take(self, handle: Handle) -> "tuple[HeldFile, _Shelf]":
        """One more use of the file, which is here when this returns."""
        while True:
            if self._closed:
                raise _closed()
            file = self._files.find(handle)
            if file is None:
                file = self._begin(handle)
                break
            if file.state is not FileState.ABANDONED:
                self._files.use(file)
                self._observer.cache_hit(handle.length)
                break
            await self._shelves[file.number].ended.wait()  # a second download beside it would be one too many
        shelf = self._shelves[file.number]
        try:
            await shelf.ended.wait()
        except anyio.get_cancelled_exc_class():
            self._release(file)
            if file.state is FileState.ABANDONED:
                shelf.scope.cancel()
            raise
        if shelf.error is not None:
            raise shelf.error
        return file, shelf

    def _begin(self, handle: Handle) -> HeldFile:
        file = self._files.begin(handle)
        self._shelves[file.number] = _Shelf(self._directory / str(file.number))
        self._tasks.start_soon(self._download, file, self._shelves[file.number])
        self._evict()
        self._observer.cache_changed(self.held_bytes)
        return file

    async def _download(self, file: HeldFile, shelf: "_Shelf") -> None:
        begun_s, error = self._clock.monotonic(), None
        with shelf.scope:
            try:
                await self._fetch(file.handle, shelf.path)
            except Exception as failure:  # noqa: BLE001  # raised by those who wait
                error = failure
        if file.state is FileState.DOWNLOADING and error is None:
            self._files.downloaded(file)
            self._observer.cache_downloaded(file.handle.length, seconds=self._clock.monotonic() - begun_s)
        elif file.state is not FileState.GONE:
            self._files.stopped(file)
            self._forget(file)
            if error is not None:
                self._observer.cache_download_failed(file.handle, error)
        shelf.end(error)
        self._observer.cache_changed(self.held_bytes)

    async def _fetch(self, handle: Handle, path: Path) -> None:
        async with self._downloads:
            data = await foreign(self._primary.get(handle.key))
            await in_thread(self._verify, data, handle, limiter=self._cpu)
            with _disk_errors(handle):
                await in_thread(_write, path, data, limiter=self._io)

    async def _read(self, file: HeldFile, shelf: "_Shelf", offset: int, length: int) -> bytes:
        async with shelf.reading:
            try:
                with _disk_errors(file.handle):
                    return await in_thread(_read_exactly, shelf.path, offset, length, limiter=self._io)
            except CacheDiskError:
                if self._closed:
                    raise _closed() from None
                self._files.condemn(file)
                raise

    async def _read_verified(self, file: "CachedFile") -> bytes:
        data = await file.read()
        try:
            await in_thread(self._verify, data, file.handle, limiter=self._cpu)
        except DataError as error:
            file.condemn()
            raise CacheDiskError("a cached file is damaged", object=file.handle.key, reason=str(error)) from error
        return data

    def _release(self, file: HeldFile) -> None:
        self._files.release(file, self._clock.monotonic())
        self._evict()
        self._released.set()

    def _evict(self) -> None:
        evictions = self._files.evict(self._clock.monotonic())
        for eviction in evictions:
            self._forget(eviction.file)
            self._observer.cache_evicted(eviction.file.handle.length, reason=eviction.reason)
        if evictions:
            self._observer.cache_changed(self.held_bytes)

    def _forget(self, file: HeldFile) -> None:
        """Delete what is there of a file that is gone from the account."""
        self._tasks.start_soon(self._delete, self._shelves.pop(file.number).path)

    async def _delete(self, path: Path) -> None:
        try:
            await in_thread(_unlink, path, limiter=self._io)
        except OSError as error:
            _logger.warning("a cached file stays until the cache is closed: path=%s reason=%s", path, error)


class CachedFile:
    """A file of the cache, for one reader. It stays where it is until it is released."""

    def __init__(
        self,
        handle: Handle,
        *,
        read: Callable[[int, int], Awaitable[bytes]],
        condemn: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self.handle: Final = handle
        self._read = read
        self._condemn = condemn
        self._release = release
        self._released = False

    async def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes from `offset`, all that follows by default. One read of a file at a time; others wait.

        Raises `InputError` where that is not within the file, or it was released; `CacheDiskError` where the file was
        damaged or removed behind our back: then it is condemned. Raises `BackendClosedError` where the cache is closed.
        """
        if length is None:
            length = self.handle.length - offset
        if self._released or offset < 0 or length < 0 or offset + length > self.handle.length:
            raise InputError(
                "not within the file, or released",
                object=self.handle.key,
                offset=offset,
                length=length,
                size=self.handle.length,
                released=self._released,
            )
        return await self._read(offset, length)

    def condemn(self) -> None:
        """Say that the content is damaged: it is downloaded again for whoever opens it from now on."""
        self._condemn()

    def release(self) -> None:
        """Let go of the file. Once is enough, twice is fine, and so is after the cache was closed."""
        if not self._released:
            self._released = True
            self._release()


class _Shelf:
    """What belongs to one file beside its account: where it lies, its download, and who may read it."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.scope: Final = anyio.CancelScope()
        self.ended: Final = anyio.Event()
        self.reading: Final = anyio.Lock()
        self.error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        """The download has ended, well or with an error. Only the first end counts."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()


@asynccontextmanager
async def open_cache(
    primary: ObjectStore, parent: Path, settings: Settings, *, verify: Verify, clock: Clock, observer: Observer
) -> AsyncGenerator[DownloadCache]:
    """A cache in a directory of its own below `parent`, which is gone when the context ends, with all files in it.

    Raises `LocalRootError` where the directory cannot be made.
    """
    async with open_scratch(parent) as directory, open_tasks() as tasks:
        cache = DownloadCache(primary, directory, settings, verify=verify, tasks=tasks, clock=clock, observer=observer)
        tasks.start_soon(cache.run_evictions)
        try:
            yield cache
        finally:
            cache.close()


def _closed() -> BackendClosedError:
    return BackendClosedError("the download cache is closed")


@contextmanager
def _disk_errors(handle: Handle) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CacheDiskError(
            "the download cache's disk failed", object=handle.key, reason=error.strerror or str(error)
        ) from error


def _write(path: Path, data: bytes) -> None:
    """Write the file so that it is there whole or not at all, whatever happens to this process."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        _unlink(temporary)
        raise


def _read_exactly(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise OSError(f"{len(data)} bytes at {offset} where there were {length}")
    return data


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
