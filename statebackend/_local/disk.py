"""Operations on a local disk: private directories, links, removals, and writes that survive a power cut.

Every function blocks on the disk: call it in a worker thread. Raises `OSError`s.
"""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path


def make_directory(path: Path) -> None:
    """Make `path` and its parents with mode 0700; one that exists is fine. Raises where we may not write there."""
    if not path.parent.exists():
        make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


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
