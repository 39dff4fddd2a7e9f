"""Stores objects as files under a directory: atomic, durable, and never on the event loop.

A write is one hop to a worker thread: temporary file beside the target, write, fsync, then rename (put) or hard link
(put_if_absent: the file system picks the winner), then fsync of the directory. So after a kill or a power cut a key
holds a whole object or none. A deletion ends with that fsync, too: a sweep deletes in an order, and what comes back
must not need what is gone. One hop, because a hop for each step costs 1.5 to 2.5 times as much. A thread that has
begun runs to its end, so a cancelled write leaves no temporary file.

A file cannot be a directory too: while 'a' is an object, 'a/b' is refused, and the other way round.

Paths are strings here. Before Python 3.12.6 each name that `pathlib` has parsed stays in memory for ever, and a job
makes a few new names with each checkpoint.
"""

import math
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import aiofiles.os
import anyio

from statebackend._threads import FileThreads
from statebackend.abc import Body, Capability, ObjectInfo, ObjectStore
from statebackend.errors import (
    ObjectNotFoundError,
    StoreError,
)
from statebackend.objectstore.listing import PAGE, next_page, walk
from statebackend.objectstore.local_files import (
    create,
    info_at,
    link,
    link_or_copy,
    make_root,
    read,
    read_each,
    remove_temporaries,
    store_errors,
    sync_directory,
    temporary_name,
    unlink,
    write_all,
)
from statebackend.objectstore.memory import check_key, check_range

Args = TypeVarTuple("Args")
T = TypeVar("T")

_read_in_thread: Final = aiofiles.os.wrap(read)


class LocalStore:
    """An `ObjectStore` in the directory `root`. The first write makes it (mode 0700).

    At most `io_threads_max` calls touch the disk at a time; further ones wait. Listing holds a bounded number
    of names in memory.

    `abandon_after_s`: for copies that may be lost, on a disk that may hang for ever. A cancelled read abandons its
    thread at once, any other cancelled call after that many seconds; its write may take effect later. `None`: a
    cancelled call waits for its thread. Copies that may be lost may come back as well: after a power cut an object is
    there again that `delete` had removed.
    """

    def __init__(
        self,
        root: Path,
        *,
        io_threads_max: int = 8,
        abandon_after_s: float | None = None,
        threads: FileThreads | None = None,
    ) -> None:
        """`threads`: shared with other components, in place of `io_threads_max` threads of this store's own."""
        self._abandon_after_s = abandon_after_s
        self._root = root
        self._threads = threads or FileThreads(io_threads_max)
        self._directories: set[str] = set()  # known to exist and to be durable
        self._making = threading.Lock()  # a thread must not rely on a directory that another one has yet to sync

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.LIST, Capability.PUT_IF_ABSENT, Capability.DURABLE})

    @asynccontextmanager
    async def apart(self) -> AsyncGenerator["LocalStore"]:
        """The same directory, for another loop, with threads of its own."""
        yield LocalStore(self._root)

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, durably. A cancelled call has stored all of it or nothing."""
        await self._write(key, body, os.replace)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body` unless `key` is taken: `ObjectExistsError`. A cancelled call has stored all or nothing."""
        await self._write(key, body, link)

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """Link the object of another such store to `key`, durably, or copy it where a link is impossible.

        A link takes no room: an object is never changed, so two names can share one file. A cancelled call has stored
        all of it or nothing.
        """
        if not isinstance(source, LocalStore):
            return False
        origin, path = source._path(source_key), self._path(key)  # noqa: SLF001  # of the same class
        with store_errors(key, writing=True):
            try:
                await self._on_disk(self._copy_durably, origin, path)
            except FileNotFoundError as error:
                raise ObjectNotFoundError("no object at that key", key=source_key) from error
        return True

    async def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectNotFoundError`."""
        return await self._read(key, 0, -1)

    async def get_many(self, keys: Sequence[str]) -> Sequence[bytes | StoreError]:
        """Return what `get` would return or raise for each key, with one hop to a thread: for small objects."""
        return await self._reading(read_each, [(key, self._path(key)) for key in keys])

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end of the object. Raises `ObjectNotFoundError`."""
        check_range(offset, length)
        return await self._read(key, offset, length)

    async def open_copy(self, key: str, open_: Callable[[Path], T]) -> T:
        """Call `open_` with the path of the object's file, in a thread. Its `OSError`s are raised as those of `get`."""
        path = Path(self._path(key))
        with store_errors(key):
            return await self._reading(open_, path)

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, or `None` if there is none."""
        path = self._path(key)
        with store_errors(key):
            return await self._reading(info_at, path, key)

    async def delete(self, key: str) -> None:
        """Remove the object, if there is one, durably. A cancelled call may have removed it."""
        if (failure := await self._on_disk(self._delete_each, [(key, self._path(key))])) is not None:
            raise failure

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, durably, with one hop to a thread. Tries all, then raises the first error."""
        failure = await self._on_disk(self._delete_each, [(key, self._path(key)) for key in keys])
        if failure is not None:
            raise failure

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects under `prefix`, in the order of their keys."""
        found, more = walk(self._root, prefix), True
        while more:
            with store_errors(prefix):
                page = await self._reading(next_page, found)
            for info in page:
                yield info
            more = len(page) == PAGE

    async def remove_leftovers(self, prefix: str = "", *, before_s: float = math.inf) -> int:
        """Remove the temporary files that killed writers left beside objects under `prefix`; return their number.

        `prefix` is empty or ends with '/'. Removes only files last changed before `before_s`, in seconds since the
        Unix epoch. The caller must know that no process is still writing one of them: that write would fail. Best
        effort: files that cannot be listed or removed stay. A cancelled call has removed all of them or none.
        """
        return await self._on_disk(remove_temporaries, self._root / prefix, before_s)

    async def _write(self, key: str, body: Body, publish: Callable[[str, str], None]) -> None:
        path = self._path(key)
        with store_errors(key, writing=True):
            await self._threads.io(
                self._write_durably, path, body, publish, abandon_after_s=self._abandon_after_s, writing_to=self._root
            )

    async def _read(self, key: str, offset: int, length: int) -> bytes:
        path = self._path(key)
        if self._abandon_after_s is not None:
            with store_errors(key):
                return await self._reading(read, path, offset, length)
        content = b""
        async with self._threads.executor() as executor:
            with store_errors(key), anyio.CancelScope(shield=True):  # a read that has begun keeps its thread
                content = await _read_in_thread(path, offset, length, executor=executor)
        return content

    async def _on_disk(self, function: Callable[[*Args], T], *args: *Args) -> T:
        return await self._threads.io(function, *args, abandon_after_s=self._abandon_after_s)

    async def _reading(self, function: Callable[[*Args], T], *args: *Args) -> T:
        abandon_after_s = None if self._abandon_after_s is None else 0.0
        return await self._threads.io(function, *args, abandon_after_s=abandon_after_s)

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _write_durably(self, path: str, body: Body, publish: Callable[[str, str], None]) -> None:
        directory = path.rpartition("/")[0]
        temporary = f"{directory}/{temporary_name()}"
        try:
            with self._created(directory, temporary) as descriptor:
                write_all(descriptor, body)
                os.fsync(descriptor)
            publish(temporary, path)
        finally:
            with suppress(OSError):  # after a rename it is gone; otherwise the error under way matters more
                os.unlink(temporary)
        sync_directory(directory)

    def _copy_durably(self, origin: str, path: str) -> None:
        directory = path.rpartition("/")[0]
        temporary = f"{directory}/{temporary_name()}"
        self._make_directory(directory)
        try:
            link_or_copy(origin, temporary)
            os.replace(temporary, path)  # of two names of one file it changes nothing, and leaves both
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        sync_directory(directory)

    def _delete_each(self, paths: Sequence[tuple[str, str]]) -> StoreError | None:
        """Each directory is synced once, however many of its files were removed."""
        failure: StoreError | None = None
        directories: dict[str, str] = {}
        for key, path in paths:
            try:
                with store_errors(key):
                    if unlink(path) and self._abandon_after_s is None:
                        directories[path.rpartition("/")[0]] = key
            except StoreError as error:
                failure = failure or error
        for directory, key in directories.items():
            try:
                with store_errors(key), suppress(FileNotFoundError):  # it was removed meanwhile, with all in it
                    sync_directory(directory)
            except StoreError as error:
                failure = failure or error
        return failure

    @contextmanager
    def _created(self, directory: str, path: str) -> Generator[int]:
        self._make_directory(directory)
        try:
            descriptor = create(path)
        except FileNotFoundError:  # somebody has removed the directory since we made it
            self._directories.clear()
            self._make_directory(directory)
            descriptor = create(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_directory(self, path: str) -> None:
        """Make `path` and its missing parents. Returns when all of them are durable, also those made by others."""
        if path in self._directories:
            return
        with self._making:
            make_root(self._root)
            inner = str(self._root)
            for part in path[len(inner) :].split("/")[1:]:
                outer, inner = inner, f"{inner}/{part}"
                self._make_inner(inner, outer)
            self._directories.add(path)

    def _make_inner(self, path: str, outer: str) -> None:
        if path not in self._directories:
            with suppress(FileExistsError):
                os.mkdir(path, mode=0o700)
            sync_directory(outer)  # even if it existed: its maker may not have reached this line yet
            self._directories.add(path)
