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

import errno
import itertools
import math
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple

import aiofiles.os
import anyio

from statebackend._threads import FileThreads
from statebackend.abc import Body, Capability, ObjectInfo, ObjectStore
from statebackend.errors import (
    InputError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnfitStoreError,
)
from statebackend.objectstore.listing import PAGE, info_of, next_page, walk
from statebackend.objectstore.memory import TEMPORARY_SUFFIX, check_key, check_range

Args = TypeVarTuple("Args")
T = TypeVar("T")

_CHUNKS_PER_CALL: Final = 512  # Linux takes 1024 at a time; POSIX promises only 16
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_LINKS: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_AN_OBJECT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_NOT_A_FILE: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})

_RUN: Final = secrets.token_hex(8)
_NUMBERS: Final = itertools.count()
_TEMPORARY: Final = re.compile(rf"\.\d+-[0-9a-z]+-\d+{re.escape(TEMPORARY_SUFFIX)}")
"""The names of `_temporary_name`, which are the only ones that are removed."""


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

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, durably. A cancelled call has stored all of it or nothing."""
        await self._write(key, body, os.replace)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body` unless `key` is taken: `ObjectExistsError`. A cancelled call has stored all or nothing."""
        await self._write(key, body, _link)

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """Link the object of another such store to `key`, durably, or copy it where a link is impossible.

        A link takes no room: an object is never changed, so two names can share one file. A cancelled call has stored
        all of it or nothing.
        """
        if not isinstance(source, LocalStore):
            return False
        origin, path = source._path(source_key), self._path(key)  # noqa: SLF001  # of the same class
        with _store_errors(key, writing=True):
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
        return await self._reading(_read_each, [(key, self._path(key)) for key in keys])

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end of the object. Raises `ObjectNotFoundError`."""
        check_range(offset, length)
        return await self._read(key, offset, length)

    async def open_copy(self, key: str, open_: Callable[[Path], T]) -> T:
        """Call `open_` with the path of the object's file, in a thread. Its `OSError`s are raised as those of `get`."""
        path = Path(self._path(key))
        with _store_errors(key):
            return await self._reading(open_, path)

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, or `None` if there is none."""
        path = self._path(key)
        with _store_errors(key):
            return await self._reading(_stat, path, key)

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
            with _store_errors(prefix):
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
        return await self._on_disk(_remove_temporaries, self._root / prefix, before_s)

    async def _write(self, key: str, body: Body, publish: Callable[[str, str], None]) -> None:
        path = self._path(key)
        with _store_errors(key, writing=True):
            await self._threads.io(
                self._write_durably, path, body, publish, abandon_after_s=self._abandon_after_s, writing_to=self._root
            )

    async def _read(self, key: str, offset: int, length: int) -> bytes:
        path = self._path(key)
        if self._abandon_after_s is not None:
            with _store_errors(key):
                return await self._reading(_read, path, offset, length)
        content = b""
        async with self._threads.executor() as executor:
            with _store_errors(key), anyio.CancelScope(shield=True):  # a read that has begun keeps its thread
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
        temporary = f"{directory}/{_temporary_name()}"
        try:
            with self._created(directory, temporary) as descriptor:
                _write_all(descriptor, body)
                os.fsync(descriptor)
            publish(temporary, path)
        finally:
            with suppress(OSError):  # after a rename it is gone; otherwise the error under way matters more
                os.unlink(temporary)
        _sync_directory(directory)

    def _copy_durably(self, origin: str, path: str) -> None:
        directory = path.rpartition("/")[0]
        temporary = f"{directory}/{_temporary_name()}"
        self._make_directory(directory)
        try:
            _link_or_copy(origin, temporary)
            os.replace(temporary, path)  # of two names of one file it changes nothing, and leaves both
        finally:
            with suppress(OSError):
                os.unlink(temporary)
        _sync_directory(directory)

    def _delete_each(self, paths: Sequence[tuple[str, str]]) -> StoreError | None:
        """Each directory is synced once, however many of its files were removed."""
        failure: StoreError | None = None
        directories: dict[str, str] = {}
        for key, path in paths:
            try:
                with _store_errors(key):
                    if _unlink(path) and self._abandon_after_s is None:
                        directories[path.rpartition("/")[0]] = key
            except StoreError as error:
                failure = failure or error
        for directory, key in directories.items():
            try:
                with _store_errors(key), suppress(FileNotFoundError):  # it was removed meanwhile, with all in it
                    _sync_directory(directory)
            except StoreError as error:
                failure = failure or error
        return failure

    @contextmanager
    def _created(self, directory: str, path: str) -> Generator[int]:
        self._make_directory(directory)
        try:
            descriptor = _create(path)
        except FileNotFoundError:  # somebody has removed the directory since we made it
            self._directories.clear()
            self._make_directory(directory)
            descriptor = _create(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_directory(self, path: str) -> None:
        """Make `path` and its missing parents. Returns when all of them are durable, also those made by others."""
        if path in self._directories:
            return
        with self._making:
            _make_root(self._root)
            inner = str(self._root)
            for part in path[len(inner) :].split("/")[1:]:
                outer, inner = inner, f"{inner}/{part}"
                self._make_inner(inner, outer)
            self._directories.add(path)

    def _make_inner(self, path: str, outer: str) -> None:
        if path not in self._directories:
            with suppress(FileExistsError):
                os.mkdir(path, mode=0o700)
            _sync_directory(outer)  # even if it existed: its maker may not have reached this line yet
            self._directories.add(path)


def _read(path: str, offset: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


_read_in_thread: Final = aiofiles.os.wrap(_read)


def _read_each(paths: Sequence[tuple[str, str]]) -> Sequence[bytes | StoreError]:
    found: list[bytes | StoreError] = []
    for key, path in paths:
        try:
            with _store_errors(key):
                found.append(_read(path, 0, -1))
        except StoreError as error:
            found.append(error)
    return found


def _temporary_name() -> str:
    """A name that no other write uses. Forked processes share the run and the count, and differ in the process id."""
    return f".{os.getpid()}-{_RUN}-{next(_NUMBERS)}{TEMPORARY_SUFFIX}"


def _remove_temporaries(root: Path, before_s: float) -> int:
    removed = 0
    for directory, _, names in os.walk(root):
        for path in (f"{directory}/{name}" for name in filter(_TEMPORARY.fullmatch, names)):
            with suppress(OSError):
                if stat.S_ISREG((status := os.lstat(path)).st_mode) and status.st_mtime < before_s:
                    os.unlink(path)
                    removed += 1
    return removed


def _make_root(root: Path) -> None:
    """Make `root` and its missing parents, mode 0700, each made durable in the one above it."""
    if root.is_dir():
        return
    _make_root(root.parent)
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:  # another process made it first, or it is no directory
        if not root.is_dir():
            raise StoreAccessError("the store's root is not a directory: correct the primary", root=str(root)) from None
    _sync_directory(root.parent)


@contextmanager
def _store_errors(key: str, *, writing: bool = False) -> Generator[None]:
    """Translate errors of the operating system to errors of a store. Nothing else in this module does."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise _translated(error, key, writing=writing) from error


def _translated(error: OSError, key: str, *, writing: bool) -> InputError | StoreError:
    facts = {"key": key, "reason": error.strerror or str(error)}
    if error.errno == errno.EEXIST:
        return ObjectExistsError("there is already an object at that key", key=key)
    if writing and error.errno in _NOT_A_FILE:
        return InputError("the key is below that of another object, or another object is below it", **facts)
    if not writing and error.errno in _NOT_AN_OBJECT:
        return ObjectNotFoundError("no object at that key", key=key)
    if error.errno in _REFUSED:
        return StoreAccessError("the file system refuses", **facts)
    if error.errno in _FULL:
        return StoreFullError("the file system has no room", **facts)
    return StoreUnavailableError("the file system failed", **facts)


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target) from None
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise UnfitStoreError(
            "the file system has no hard links, which put-if-absent needs (mounted buckets have none): use another",
            path=target,
            reason=error.strerror,
        ) from error


def _write_all(descriptor: int, body: Body) -> None:
    chunks: Sequence[memoryview] = [memoryview(chunk).cast("B") for chunk in body if len(chunk)]
    while chunks:
        chunks = _rest(chunks, os.writev(descriptor, chunks[:_CHUNKS_PER_CALL]))


def _link_or_copy(origin: str, target: str) -> None:
    """Give the file another name; where the file system cannot, or the two are on different ones, copy it durably."""
    try:
        os.link(origin, target)
    except OSError as error:
        if error.errno not in _NO_LINKS | {errno.EXDEV, errno.EMLINK}:
            raise
        descriptor = _create(target)
        try:
            shutil.copyfile(origin, target)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _rest(chunks: Sequence[memoryview], written: int) -> Sequence[memoryview]:
    """`chunks` without their first `written` bytes."""
    for index, chunk in enumerate(chunks):
        if written < len(chunk):
            return [chunk[written:], *chunks[index + 1 :]]
        written -= len(chunk)
    return []


def _sync_directory(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink(path: str) -> bool:
    """Remove an object's file; false if there was none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISREG(os.lstat(path).st_mode):  # a directory is no object and stays
            os.unlink(path)
            return True
    return False


def _stat(path: str, key: str) -> ObjectInfo | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info_of(key, status) if stat.S_ISREG(status.st_mode) else None
