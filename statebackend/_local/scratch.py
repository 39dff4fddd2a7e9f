"""Scratch directories, for files that are useless once their process has ended.

    <parent>/lock                locked while a directory is made, or dead ones are removed
    <parent>/<name>/lock         locked by the process that uses the directory; dies with it
    <parent>/<name>/...          its files
    name := "scratch-" and 16 hex digits

Before a process makes a directory it removes those that are not locked: their processes are dead. Anything with another
name is not ours: users put `cache_dir` where other things are. `<parent>` must be writable for no other user: in the
system's directory for temporary files anyone could have made it.
"""

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

import anyio

from statebackend._local.disk import make_directory
from statebackend._local.locks import FileLock, lock_file
from statebackend._threads import FileThreads
from statebackend.errors import LocalRootError

_LOCK_NAME: Final = "lock"
_NAME: Final = re.compile(r"scratch-[0-9a-f]{16}")


def scratch_parent(directory: str, local_roots: Sequence[str]) -> Path:
    """`directory`, or one below the first local root, or else one below the system's temporary directory."""
    if directory:
        return Path(directory)
    if local_roots:
        return Path(local_roots[0], "scratch")
    return Path(tempfile.gettempdir(), f"statebackend-{os.geteuid()}")


@asynccontextmanager
async def open_scratch(parent: Path, threads: FileThreads) -> AsyncGenerator[Path]:
    """A fresh directory below `parent`, removed with everything in it when the context ends.

    Raises `LocalRootError` where it cannot be made. A failed or cancelled call leaves nothing but `parent`.
    """
    with ExitStack() as locks:  # entered in the thread, so that a cancelled call cannot lose the lock
        path = await threads.io(lambda: _made(parent, locks))
        try:
            yield path
        finally:
            with anyio.CancelScope(shield=True):
                await threads.io(_remove, path)


def _made(parent: Path, locks: ExitStack) -> Path:
    if not parent.is_absolute():
        raise LocalRootError("the directory for scratch files must be an absolute path", directory=str(parent))
    try:
        make_directory(parent)
        check_ours(parent)
        with closing(lock_file(parent / _LOCK_NAME, wait=True)):
            _remove_dead(parent)
            path, lock = _made_and_locked(parent)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        if isinstance(error, LocalRootError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LocalRootError(
            "the directory for scratch files cannot be used", directory=str(parent), reason=reason
        ) from error
    locks.callback(lock.close)
    return path


def _made_and_locked(parent: Path) -> tuple[Path, FileLock]:
    path = parent / f"scratch-{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    lock = lock_file(path / _LOCK_NAME)
    assert lock.held, "another process has locked a directory with a random name"
    return path, lock


def check_ours(parent: Path) -> None:
    """Raise `LocalRootError` where another user could have written to `parent`, `OSError` where it does not exist."""
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise LocalRootError(
            "the directory for scratch files must be ours, and writable for no other user: set cache_dir or table_dir",
            directory=str(parent),
            owner=found.st_uid,
            mode=oct(stat.S_IMODE(found.st_mode)),
        )


def _remove_dead(parent: Path) -> None:
    """Remove the directories of dead processes. One that cannot be removed stays for the next process to try."""
    for path in parent.iterdir():
        if not _NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        with suppress(OSError), closing(lock_file(path / _LOCK_NAME)) as lock:  # its process may be removing it
            if lock.held:
                _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
