"""Scratch directories, for files that are useless once their process has ended.

    <parent>/lock                locked while a directory is made, or dead ones are removed
    <parent>/<name>/lock         locked by the process that uses the directory; dies with it
    <parent>/<name>/...          its files
    name := "scratch-" and 16 hex digits

Before a process makes a directory it removes those that are not locked: their processes are dead. Anything with another
name is not ours: users put `cache_dir` where other things are. `<parent>` must be writable for no other user: in the
system's directory for temporary files anyone could have made it.
"""

import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final, TypeVar

import anyio

from statebackend._local.disk import check_ours, is_failing, make_directory
from statebackend._local.locks import FileLock, lock_file
from statebackend._tasks import finish
from statebackend._threads import FileThreads
from statebackend.errors import LocalRootError, StoreUnavailableError

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_LOCK_NAME: Final = "lock"
ADVICE: Final = "set cache_dir or table_dir"
"""To do if a directory for scratch files is not ours."""
_NAME: Final = re.compile(r"scratch-[0-9a-f]{16}")


def scratch_parent(directory: str, local_roots: Sequence[str]) -> Path:
    """`directory`, or one below the first local root, or else one below the system's temporary directory."""
    return scratch_parents(directory, local_roots)[0]


def scratch_parents(directory: str, local_roots: Sequence[str]) -> Sequence[Path]:
    """As `scratch_parent`, and the ones to fall back to, in order, while the disk of that one takes nothing."""
    chosen = [Path(directory)] if directory else []
    temporary = Path(tempfile.gettempdir(), f"statebackend-{os.geteuid()}")
    return [*chosen, *(Path(root, "scratch") for root in local_roots), temporary]


@asynccontextmanager
async def open_scratch_in(
    parents: Sequence[Path], threads: FileThreads, use: Callable[[Path], Awaitable[T]]
) -> AsyncGenerator[T]:
    """Yield what `use` makes of a directory below the first of `parents` whose disk takes it, as `open_scratch`.

    `use` raises `StoreUnavailableError` where the disk fails it, and leaves nothing open then. The last parent's error
    is raised; of the others the log is told. Raises at once if a directory is not ours, or its path is wrong.
    """
    for place, parent in enumerate(parents):
        is_last = place == len(parents) - 1
        async with AsyncExitStack() as stack:
            try:
                directory = await stack.enter_async_context(open_scratch(parent, threads))
                used = await use(directory)
            except (LocalRootError, StoreUnavailableError) as error:
                if is_last or not (isinstance(error, StoreUnavailableError) or is_failing(error)):
                    raise
                _logger.warning("a disk for scratch files takes nothing, and another one is used: reason=%s", error)
                continue
            yield used
            return


@asynccontextmanager
async def open_scratch(parent: Path, threads: FileThreads) -> AsyncGenerator[Path]:
    """A fresh directory below `parent`, removed with everything in it when the context ends.

    Raises `LocalRootError` where it cannot be made. A failed or cancelled call leaves nothing but `parent`.
    """
    made: list[Path] = []
    with ExitStack() as locks:
        try:
            # To its end: what a thread makes for a call that is gone, nobody would remove or unlock.
            await finish(threads.io, lambda: made.append(_made(parent, locks)))
            yield made[0]
        finally:
            with anyio.CancelScope(shield=True):
                for path in made:
                    await threads.io(_remove, path)


def _made(parent: Path, locks: ExitStack) -> Path:
    if not parent.is_absolute():
        raise LocalRootError("the directory for scratch files must be an absolute path", directory=str(parent))
    try:
        make_directory(parent)
        check_ours(parent, ADVICE)
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
