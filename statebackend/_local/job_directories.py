"""The directories of a job below the local roots, and the lock that says who may write there.

    <root>/job_<job>/lock          locked by the one backend that may write and prune; the lock dies with its process
    <root>/job_<job>/taskowned/    the copies of segments

Owners of parts of the key groups, in several processes, share the lock, each while it works: such an owner removes only
copies that none of the others needs.

Directories are made with mode 0700. The lock file itself is never removed: a process that removed it could hold a lock
on a file that the next process does not see.
"""

import logging
import math
import os
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio

from statebackend._local.disk import check_ours, is_failing, make_directory
from statebackend._local.layout import job_directory, segments_directory
from statebackend._local.locks import FileLock, lock_file
from statebackend._threads import RootThreads, WorkerThreads
from statebackend.errors import LocalRootError

_LOCK_NAME: Final = "lock"
_logger = logging.getLogger(__name__)


class LocalDirectory:
    """One local root as one backend sees it. `owned`: it may write and prune here; otherwise it may only read.

    `lock` is `None` where the disk takes nothing: then it is `failing`, owned by nobody, and what lies there can still
    be read. Closing releases the lock; closing twice is fine.
    """

    def __init__(self, root: Path, segments: Path, lock: FileLock | None) -> None:
        self.root = root
        self.segments = segments
        self.owned = lock is not None and lock.held
        self.failing: Final = lock is None
        self._lock = lock

    def close(self) -> None:
        """Release the lock. Does not block."""
        if self._lock is not None:
            self._lock.close()


def lock_root(root: str | os.PathLike[str], job: str, *, shared: bool = False) -> LocalDirectory:
    """Make the job's directories under `root`, and own them unless another live backend does. Blocks on the disk.

    `shared`: own them together with all others that pass it. Raises `LocalRootError` with the path and the reason if
    `root` is relative, or cannot be made, read and written, or if a directory below it is a link, another user's, or
    writable for others.
    """
    path = Path(root)
    if not path.is_absolute():
        raise LocalRootError("a local root must be an absolute path", root=str(path))
    try:
        return _locked(path, job, shared=shared)
    except LocalRootError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LocalRootError("a local root cannot be used", root=str(path), reason=reason) from error


def has_copies(root: str | os.PathLike[str], job: str) -> bool:
    """True if a local copy of the job lies in this root. Blocks on the disk."""
    names = ("taskowned", "op_*_kg_*_*")
    found = (path for name in names for path in job_directory(Path(root), job).glob(f"{name}/**/*"))
    return any(path.is_file() for path in found)


@asynccontextmanager
async def open_local_directories(
    roots: Sequence[str | os.PathLike[str]],
    job: str,
    threads: WorkerThreads,
    *,
    timeout_s: float = math.inf,
    shared: bool = False,
) -> AsyncGenerator[tuple[LocalDirectory | None, ...]]:
    """Lock every root, in the order given, for as long as the context lasts. `None`: the root hung for `timeout_s`.

    A root whose disk is full, read-only or broken is `failing`: the log is told, and nothing is raised. Raises
    `LocalRootError` for the first root that cannot be used for another reason, which is the user's to mend. A failed or
    cancelled call leaves directories behind but no lock. A thread that hangs is abandoned, and releases what it has
    locked once it goes on.
    """
    with ExitStack() as opened:
        directories: list[LocalDirectory | None] = []
        for root in roots:
            opening = _RootOpening(root, job, threads.of_root(root), shared=shared)
            opened.callback(opening.close)
            directories.append(await opening.directory_within(timeout_s))
        yield tuple(directories)


class _RootOpening:
    """The locking of one root, which can be given up while the disk hangs."""

    def __init__(self, root: str | os.PathLike[str], job: str, threads: RootThreads, *, shared: bool) -> None:
        self._root = root
        self._job = job
        self._threads = threads
        self._shared = shared
        self._turn = threading.Lock()
        self._directory: LocalDirectory | None = None
        self._closed = False

    async def directory_within(self, timeout_s: float) -> LocalDirectory | None:
        """The directory, or `None` if there is none after `timeout_s`. Raises `LocalRootError`."""
        with anyio.move_on_after(timeout_s):
            try:
                return await self._threads.io(self._open, abandon_after_s=0.0)
            except LocalRootError as error:
                if not is_failing(error):
                    raise
                _logger.warning("a local root takes nothing, and gets no copies: %s", error)
                root = Path(self._root)
                return LocalDirectory(root, segments_directory(root, self._job), None)
        _logger.warning("a local root hangs, and is not used: root=%s", self._root)
        self.close()
        return None

    def close(self) -> None:
        """Release the lock, now or as soon as an abandoned thread has it. Does not block on the disk."""
        with self._turn:
            self._closed = True
            if self._directory is not None:
                self._directory.close()

    def _open(self) -> LocalDirectory:
        directory = lock_root(self._root, self._job, shared=self._shared)
        with self._turn:  # `close` runs on the loop: whichever of the two is second releases the lock
            self._directory = directory
            if self._closed:
                directory.close()
        return directory


def _locked(root: Path, job: str, *, shared: bool) -> LocalDirectory:
    segments = segments_directory(root, job)
    for directory in (root, segments.parent, segments):
        make_directory(directory)
    links = [path for path in segments.iterdir() if path.is_symlink()]
    for directory in (segments.parent, segments, *links):
        check_ours(directory, "remove it, or name another local root")
    return LocalDirectory(root, segments, lock_file(job_directory(root, job) / _LOCK_NAME, shared=shared))
