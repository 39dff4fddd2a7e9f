"""Scratch directories: for files that are of no use to anybody once their process has ended.

    <parent>/lock                held for the moment in which a directory is made, or the dead ones are removed
    <parent>/<name>/lock         held by the process that uses the directory; dies with it
    <parent>/<name>/...          its files
    name := "scratch-" and 16 hex digits

Whoever makes a directory first removes those whose lock nobody holds: their processes are dead. What has another name
is not ours: users put `cache_dir` where other things are. `<parent>` is writable for nobody else: below the system's
directory for temporary files anybody could have put it there.
"""

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

import anyio

from statebackend._local.disk import make_directory
from statebackend._local.locks import FileLock, lock_file
from statebackend._tasks import in_thread
from statebackend.errors import LocalRootError
from statebackend.settings import Settings

_LOCK_NAME: Final = "lock"
_NAME: Final = re.compile(r"scratch-[0-9a-f]{16}")


def scratch_parent(directory: str, settings: Settings) -> Path:
    """The directory that is named, or else below the first local root, or else below the temporary directory."""
    if directory:
        return Path(directory)
    if settings.local:
        return Path(settings.local[0], "scratch")
    return Path(tempfile.gettempdir(), f"statebackend-{os.geteuid()}")


@asynccontextmanager
async def open_scratch(parent: Path) -> AsyncGenerator[Path]:
    """A fresh directory below `parent`, which is removed with all that is in it when the context ends.

    Raises `LocalRootError` where it cannot be made. Failed or cancelled, it leaves nothing but `parent`.
    """
    limiter = anyio.CapacityLimiter(1)
    with ExitStack() as claims:
        # Entered in the thread, so that a cancelled call cannot lose it.
        path = await in_thread(lambda: _claimed(parent, claims), limiter=limiter)
        try:
            yield path
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(_remove, path, limiter=limiter)


def _claimed(parent: Path, claims: ExitStack) -> Path:
    if not parent.is_absolute():
        raise LocalRootError("the directory for scratch files must be an absolute path", directory=str(parent))
    try:
        make_directory(parent)
        check_ours(parent)
        with closing(lock_file(parent / _LOCK_NAME, wait=True)):
            _remove_dead(parent)
            path, lock = _made(parent)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        if isinstance(error, LocalRootError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LocalRootError(
            "the directory for scratch files cannot be used", directory=str(parent), reason=reason
        ) from error
    claims.callback(lock.close)
    return path


def _made(parent: Path) -> tuple[Path, FileLock]:
    path = parent / f"scratch-{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    lock = lock_file(path / _LOCK_NAME)
    assert lock.held, "a lock in a directory that nobody else knows"
    return path, lock


def check_ours(parent: Path) -> None:
    """Raise `LocalRootError` where somebody else could have put something into `parent`, `OSError` without one."""
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise LocalRootError(
            "the directory for scratch files must be ours, and writable for nobody else: set cache_dir or table_dir",
            directory=str(parent),
            owner=found.st_uid,
            mode=oct(stat.S_IMODE(found.st_mode)),
        )


def _remove_dead(parent: Path) -> None:
    """Remove the directories of dead processes. What cannot be removed stays, for the next one to try."""
    for path in parent.iterdir():
        if not _NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        with suppress(OSError), closing(lock_file(path / _LOCK_NAME)) as lock:  # its owner may be removing it just now
            if lock.held:
                _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
