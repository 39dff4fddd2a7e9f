"""The files of a `LocalStore`: written whole and durably, read, listed as leftovers, and errors in the store's words.

Every function blocks on the disk: call it in a worker thread. Paths are strings, as `local.py` says.
"""

import errno
import itertools
import os
import re
import secrets
import shutil
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from statebackend.abc import Body, ObjectInfo
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
from statebackend.objectstore.listing import info_of
from statebackend.objectstore.memory import TEMPORARY_SUFFIX

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


def read(path: str, offset: int, length: int) -> bytes:
    """Some bytes of a file; with `length` -1 all from there."""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


def read_each(paths: Sequence[tuple[str, str]]) -> Sequence[bytes | StoreError]:
    """All bytes of each file, by its key and path, or why it cannot be read."""
    found: list[bytes | StoreError] = []
    for key, path in paths:
        try:
            with store_errors(key):
                found.append(read(path, 0, -1))
        except StoreError as error:
            found.append(error)
    return found


def temporary_name() -> str:
    """A name that no other write uses. Forked processes share the run and the count, and differ in the process id."""
    return f".{os.getpid()}-{_RUN}-{next(_NUMBERS)}{TEMPORARY_SUFFIX}"


def remove_temporaries(root: Path, before_s: float) -> int:
    """Remove what killed writers left below `root` before that time, as far as possible; return how many."""
    removed = 0
    for directory, _, names in os.walk(root):
        for path in (f"{directory}/{name}" for name in filter(_TEMPORARY.fullmatch, names)):
            with suppress(OSError):
                if stat.S_ISREG((status := os.lstat(path)).st_mode) and status.st_mtime < before_s:
                    os.unlink(path)
                    removed += 1
    return removed


def make_root(root: Path) -> None:
    """Make `root` and its missing parents, mode 0700, each made durable in the one above it."""
    if root.is_dir():
        return
    make_root(root.parent)
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:  # another process made it first, or it is no directory
        if not root.is_dir():
            raise StoreAccessError("the store's root is not a directory: correct its path", root=str(root)) from None
    sync_directory(root.parent)


@contextmanager
def store_errors(key: str, *, writing: bool = False) -> Generator[None]:
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


def create(path: str) -> int:
    """The descriptor of a new file."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def link(source: str, target: str) -> None:
    """Give a file another name, which must be free. Raises `UnfitStoreError` where that is impossible."""
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


def write_all(descriptor: int, body: Body) -> None:
    """Write all chunks."""
    chunks: Sequence[memoryview] = [memoryview(chunk).cast("B") for chunk in body if len(chunk)]
    while chunks:
        chunks = _rest(chunks, os.writev(descriptor, chunks[:_CHUNKS_PER_CALL]))


def link_or_copy(origin: str, target: str) -> None:
    """Give the file another name; where the file system cannot, or the two are on different ones, copy it durably."""
    try:
        os.link(origin, target)
    except OSError as error:
        if error.errno not in _NO_LINKS | {errno.EXDEV, errno.EMLINK}:
            raise
        descriptor = create(target)
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


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unlink(path: str) -> bool:
    """Remove an object's file; false if there was none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISREG(os.lstat(path).st_mode):  # a directory is no object and stays
            os.unlink(path)
            return True
    return False


def info_at(path: str, key: str) -> ObjectInfo | None:
    """Size and time of an object's file."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info_of(key, status) if stat.S_ISREG(status.st_mode) else None
