"""Operations on a local disk: private directories, links, removals, and writes that survive a power cut.

Every function blocks on the disk: call it in a worker thread. Raises `OSError`s.
"""

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from statebackend.errors import LocalRootError, StateBackendError

_FAILING: Final = frozenset(
    {
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ENXIO,
        errno.ENODEV,
        errno.ESTALE,
        errno.ENOTCONN,
        getattr(errno, "EUCLEAN", errno.EIO),  # Linux alone has it: a file system that needs to be checked
    }
)
"""Read-only, full or out of inodes, broken, gone: a disk may become so at any time, however well it was chosen."""


def make_directory(path: Path) -> None:
    """Make `path` and its parents with mode 0700; one that exists is fine. Raises where we may not write there."""
    if not path.parent.exists():
        make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def check_ours(path: Path, advice: str) -> None:
    """Raise `LocalRootError` with `advice` unless `path` is a directory, and no link, that no other user can write to.

    Raises `OSError` where it does not exist. Below such a directory nobody else can have made anything.
    """
    found = path.lstat()
    if not _is_ours(found):
        raise LocalRootError(
            f"a directory must be ours, no link, and writable for no other user: {advice}",
            directory=str(path),
            is_link=stat.S_ISLNK(found.st_mode),
            owner=found.st_uid,
            mode=oct(stat.S_IMODE(found.st_mode)),
        )


def is_ours(path: Path) -> bool:
    """True for a directory that `check_ours` accepts; false if there is none."""
    try:
        return _is_ours(path.lstat())
    except FileNotFoundError:
        return False


def _is_ours(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def is_failing(error: BaseException | None) -> bool:
    """True if `error`, or its cause, says that a disk takes nothing now; false if the path or its rights are wrong."""
    if isinstance(error, StateBackendError):
        error = error.__cause__
    return isinstance(error, OSError) and error.errno in _FAILING


def remove_directory(path: Path) -> None:
    """Remove a directory with everything in it; one that does not exist is fine."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def linked(source: Path, target: Path) -> bool:
    """Give a file a second name. False if the file system cannot; raises `FileNotFoundError` without the file."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, one without links, or too many of them
        return False
    return True


def sync_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
