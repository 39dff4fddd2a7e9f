"""The download cache: files of the primary that several readers want, each downloaded once.

    async with cache.open(handle) as file:
        data = await file.read(offset, length)

A cached file has exactly the bytes of its object in the primary: it can be checked against the handle, offsets mean the
same in both, and a local copy can be repaired from it. Each reader decompresses what it reads. `cached_files` decides
who downloads, who waits and what is evicted; this module carries it out. Nothing is synced: the files are useless to
the next process.
"""

import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup

from statebackend._cache.cached_files import CachedFile, CachedFiles, FileState
from statebackend._cache.download_ends import FileReader, VerifiedSource
from statebackend._local.disk import is_failing
from statebackend._local.scratch import open_scratch_in
from statebackend._once import OnceLog, reason_of
from statebackend._tasks import open_tasks
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, Observer
from statebackend.errors import BackendClosedError, CacheDiskError, DataError, LocalRootError
from statebackend.ids import Handle

_logger = logging.getLogger(__name__)


class DownloadCache:
    """Files of one primary, for readers on one event loop. Made by `open_cache`."""

    def __init__(
        self,
        source: VerifiedSource,
        directory: Path | None,
        files: CachedFiles,
        *,
        job: str,
        downloads_max: int,
        threads: WorkerThreads,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
    ) -> None:
        """`downloads_max`: files that are downloaded at a time. `directory`: `None` where no disk takes one."""
        self.job: Final = job
        self._source = source
        self._directory = directory
        self._files = files
        self._threads = threads
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._downloads: dict[int, _Download] = {}
        self._download_turns = anyio.Semaphore(downloads_max)
        self._released = anyio.Event()
        self._closed = False
        self._log = OnceLog(_logger)

    @property
    def held_bytes(self) -> int:
        """Bytes of the files that are here or being downloaded. Only files in use make it exceed `cache_bytes_max`."""
        return self._files.held_bytes

    @asynccontextmanager
    async def open(self, handle: Handle) -> AsyncGenerator[FileReader]:
        """The whole file that `handle` points to, downloaded unless it is here, for as long as the context lasts.

        Everyone who wants a file while it is downloaded waits for the same download; other files do not wait for it.
        Raises what the primary raises, `CorruptSegmentError` where the primary's bytes are wrong, or `CacheDiskError`:
        everyone who waited for that download gets the error, nothing of it remains, and the next call downloads again.
        Raises `BackendClosedError` where the cache is closed, or closes meanwhile.

        A call that is cancelled while it waits leaves the download to the others who wait for it. If there are none,
        the download is cancelled.
        """
        file, download = await self._take(handle)
        reader = FileReader(
            handle,
            read=partial(self._read, file, download),
            condemn=partial(self._files.condemn, file),
            release=partial(self._release, file),
        )
        try:
            yield reader
        finally:
            reader.release()

    async def get(self, handle: Handle) -> bytes:
        """The whole content, verified. If the cache's disk fails, the primary is read directly, and each reason logged.

        Raises what the primary raises, or `CorruptSegmentError`. Cancelling it does what cancelling `open` does.
        """
        try:
            if self._directory is not None:
                async with self.open(handle) as reader:
                    return await self._read_verified(reader)
        except CacheDiskError as error:
            reason = reason_of(error)
            self._log.warning("get", reason, "reading the primary directly, without the download cache: %s", error)
        return await self._source.get(handle)

    def close(self) -> None:
        """Drop every file, in use or not. Those who wait or read get `BackendClosedError`. Twice is fine."""
        self._closed = True
        for file in self._files.held:
            self._downloads[file.number].end(_closed())
        self._files.close()
        self._downloads.clear()
        self._observer.cache_changed(0)

    async def run_evictions(self) -> None:
        """Evict files as soon as they have been idle for too long. Runs for as long as the cache is open."""
        while True:
            while (due_s := self._files.next_eviction_s) is None:
                self._released = anyio.Event()
                await self._released.wait()
            await anyio.sleep(max(0.0, due_s - self._clock.monotonic()))
            self._evict()

    def check_invariants(self) -> None:
        """Assert what `CachedFiles` does, and that its files are those that were downloaded."""
        self._files.check_invariants()
        assert self._downloads.keys() == {file.number for file in self._files.held}, "a download without a file"

    async def _take(self, handle: Handle) -> "tuple[CachedFile, _Download]":
        """Add a user to the file, and wait until it is here."""
        while True:
            if self._closed:
                raise _closed()
            if self._directory is None:
                raise CacheDiskError("no disk takes the files of the download cache: set cache_dir", object=handle.key)
            file = self._files.find(handle)
            if file is None:
                file = self._begin(handle, self._directory)
                break
            if file.state is not FileState.ABANDONED:
                self._files.use(file)
                self._observer.cache_hit(handle.length)
                break
            await self._downloads[file.number].ended.wait()  # never two downloads of one file at once
        download = self._downloads[file.number]
        try:
            await download.ended.wait()
        except anyio.get_cancelled_exc_class():
            self._release(file)
            if file.state is FileState.ABANDONED:
                download.scope.cancel()
            raise
        if download.error is not None:
            raise download.error
        return file, download

    def _begin(self, handle: Handle, directory: Path) -> CachedFile:
        file = self._files.begin(handle)
        self._downloads[file.number] = _Download(directory / str(file.number))
        self._tasks.start_soon(self._run, file, self._downloads[file.number])
        self._evict()
        self._observer.cache_changed(self.held_bytes)
        return file

    async def _run(self, file: CachedFile, download: "_Download") -> None:
        begun_s, error = self._clock.monotonic(), None
        with download.scope:
            try:
                await self._fetch(file.handle, download.path)
            except Exception as failure:  # noqa: BLE001  # raised by those who wait
                error = failure
        # The state may have changed during the download: abandoned, or gone because the cache was closed.
        if file.state is FileState.DOWNLOADING and error is None:
            self._files.downloaded(file)
            self._observer.cache_downloaded(file.handle.length, seconds=self._clock.monotonic() - begun_s)
        elif file.state is not FileState.GONE:
            self._files.stopped(file)
            self._forget(file)
            if error is not None:
                self._observer.cache_download_failed(file.handle, error)
        download.end(error)
        self._observer.cache_changed(self.held_bytes)

    async def _fetch(self, handle: Handle, path: Path) -> None:
        async with self._download_turns:
            data = await self._source.get(handle)
            with _disk_errors(handle):
                await self._threads.io(_write, path, data)

    async def _read(self, file: CachedFile, download: "_Download", offset: int, length: int) -> bytes:
        async with download.reading:
            if self._closed:  # the file may still lie there, until the directory is removed
                raise _closed()
            try:
                with _disk_errors(file.handle):
                    return await self._threads.io(_read_exactly, download.path, offset, length)
            except CacheDiskError:
                if self._closed:
                    raise _closed() from None
                self._files.condemn(file)
                raise

    async def _read_verified(self, reader: FileReader) -> bytes:
        data = await reader.read()
        try:
            await self._source.check(data, reader.handle)
        except DataError as error:
            reader.condemn()
            raise CacheDiskError("a cached file is damaged", object=reader.handle.key, reason=str(error)) from error
        return data

    def _release(self, file: CachedFile) -> None:
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

    def _forget(self, file: CachedFile) -> None:
        """Delete what is on the disk of a file that is gone from the account."""
        self._tasks.start_soon(self._delete, self._downloads.pop(file.number).path)

    async def _delete(self, path: Path) -> None:
        try:
            await self._threads.io(_unlink, path)
        except OSError as error:
            reason = reason_of(error)
            self._log.warning("delete", reason, "a cached file stays until the cache is closed: reason=%s", error)


class _Download:
    """The download of one file, and where it lies afterwards."""

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
    source: VerifiedSource,
    parents: Sequence[Path],
    files: CachedFiles,
    *,
    job: str,
    downloads_max: int,
    threads: WorkerThreads,
    clock: Clock,
    observer: Observer,
) -> AsyncGenerator[DownloadCache]:
    """A cache in a directory of its own, which is removed with all its files when the context ends.

    It lies below the first of `parents` whose disk takes it; if none does, the cache has no files, and passes all reads
    on to the primary. Raises `LocalRootError` where a parent is not ours, or its path is wrong.
    """
    async with _directory_in(parents, threads) as directory, open_tasks() as tasks:
        cache = DownloadCache(
            source,
            directory,
            files,
            job=job,
            downloads_max=downloads_max,
            threads=threads,
            tasks=tasks,
            clock=clock,
            observer=observer,
        )
        tasks.start_soon(cache.run_evictions)
        try:
            yield cache
        finally:
            cache.close()


@asynccontextmanager
async def _directory_in(parents: Sequence[Path], threads: WorkerThreads) -> AsyncGenerator[Path | None]:
    async with AsyncExitStack() as stack:
        directory = None
        try:
            directory = await stack.enter_async_context(open_scratch_in(parents, threads, _unchanged))
        except LocalRootError as error:
            if not is_failing(error):
                raise
            _logger.warning("no disk takes the files of the download cache, so the primary is read: reason=%s", error)
        yield directory


async def _unchanged(directory: Path) -> Path:
    return directory


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
    """Write the file whole or not at all, whatever happens to this process."""
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
