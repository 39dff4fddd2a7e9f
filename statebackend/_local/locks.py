"""A lock that dies with its process: an flock on an open file.

The kernel releases it when the process ends, however it ends, so there is never a stale lock to break.
"""

import fcntl
import io
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final


class FileLock:
    """An open lock file. `held`: we have the lock. Closing releases it; closing twice is fine."""

    def __init__(self, file: io.FileIO, *, held: bool) -> None:
        self.held: Final = held
        self._file = file
        _open_locks.add(self)

    def close(self) -> None:
        """Release the lock, even while a process that is being started has a copy of the open file.

        Does not block: nothing was written to the file. Raises nothing: where the disk has failed, the
        lock ends with its file.
        """
        if not self._file.closed:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the file without unlocking it: a forked child leaves the lock to its parent."""
        self._file.close()


_open_locks: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    """Close the child's copies of our open files: a child that outlives us would keep the locks."""
    for lock in list(_open_locks):
        lock.forget()


os.register_at_fork(after_in_child=_close_in_forked_child)


def lock_file(path: Path, *, wait: bool = False, shared: bool = False) -> FileLock:
    """Make the file with mode 0600 and lock it. Where another has the lock, wait for it or return without it.

    Any number of processes can have a `shared` lock at once, but not beside one that is exclusive. Blocks on the disk.
    Raises `OSError`.
    """
    file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    try:
        return FileLock(file, held=_flocked(file, wait=wait, shared=shared))
    except BaseException:
        file.close()
        raise


def _flocked(file: io.FileIO, *, wait: bool, shared: bool) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
