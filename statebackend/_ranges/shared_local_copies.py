"""The local copies of a host, shared by the processes that work on ranges of a job.

Each attempt writes names that no other attempt has, and reads only files that never change, so no attempt waits for
another. Meanwhile it holds the lock of each root shared with the others; a backend of the whole job holds it
exclusively, and so does a sweep. An attempt takes a second lock to read the whole of a large commit. Another that
cannot have it does not wait, and reads less. Any attempt may remove the files that `superseded` names.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio

from statebackend._backend.stores import LEFTOVERS_AGE_S, clear_leftovers, local_stores_of, threads_of
from statebackend._checkpoint.restore import LocalCopies
from statebackend._codec.commit import Commit
from statebackend._codec.commit_parts import CommitParts
from statebackend._local.job_directories import open_local_directories
from statebackend._local.layout import job_directory
from statebackend._local.locks import lock_file
from statebackend._local.segments import LocalSegments
from statebackend._log.names import entry_key
from statebackend._log.sweeping.retention import superseded
from statebackend.abc import Clock
from statebackend.errors import ObjectNotFoundError, StoreError
from statebackend.ids import Epoch
from statebackend.settings import Settings
from statebackend.uploaders.local_copies import CopyWriter

TIDY_EVERY: Final = 16
"""Commits between two looks for superseded files: each look lists the roots."""


class HostCopies:
    """The local copies of one job as one process sees them. A root that hangs once is not touched again.

    Each process bounds the copies by `local_bytes_max` on its own: it counts what lies there at the beginning of each
    attempt, and not what others write during it.
    """

    def __init__(self, settings: Settings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.threads: Final = threads_of(settings)
        self._stores = local_stores_of(settings, self.threads)
        self._hanging: set[int] = set()
        self._segments = self._made() if self._stores else None
        self._tidied_at = -TIDY_EVERY

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[LocalCopies | None]:
        """The copies, for one attempt: writable unless a root is locked exclusively. `None` without roots.

        Raises `LocalRootError`.
        """
        roots = [root for place, root in enumerate(self._settings.local) if place not in self._hanging]
        if self._segments is None or not roots:
            yield None
            return
        opening = open_local_directories(
            roots, self._settings.job, self.threads, timeout_s=self._settings.local_read_timeout_s, shared=True
        )
        async with opening as directories:
            found = zip(roots, directories, strict=True)
            hanging = {self._settings.local.index(root) for root, directory in found if directory is None}
            if hanging:
                self._hanging |= hanging
                self._segments = self._made()
            writable = all(directory is None or directory.owned or directory.failing for directory in directories)
            if writable and self._settings.local_bytes_max:
                await self._segments.take_stock()
            yield LocalCopies(self._segments, writable=writable)

    @asynccontextmanager
    async def reading_whole(self, copies: LocalCopies | None, parts: CommitParts, epoch: Epoch) -> AsyncGenerator[bool]:
        """True if this attempt has to read the whole of a commit: to copy what it carries, or else to tidy up by it.

        Of all attempts on this host that would have to, one does so at a time, until it ends. Best effort.
        """
        if copies is None or not copies.writable:
            wanted = False
        elif parts.carries_changes:
            wanted = not await _is_there(copies, parts.whole.key)
        else:
            wanted = self._is_untidy(parts.rest, epoch)
        if not wanted:
            yield False
            return
        with ExitStack() as locks:
            yield await self._locked(locks)

    async def _locked(self, locks: ExitStack) -> bool:
        """True if this process has the host's lock for reading whole commits, which `locks` will release."""
        root = next(root for place, root in enumerate(self._settings.local) if place not in self._hanging)
        path = job_directory(Path(root), self._settings.job) / "whole"

        def lock() -> bool:
            found = lock_file(path)
            locks.callback(found.close)
            return found.held

        with suppress(OSError), anyio.move_on_after(self._settings.local_read_timeout_s):
            return await self.threads.of_root(root).io(lock, abandon_after_s=0.0)
        return False

    async def tidy(self, copies: LocalCopies, base: Commit | None, epoch: Epoch) -> None:
        """Remove superseded files, every 16 commits. Best effort; a cancelled call has removed some of them."""
        if base is None or not copies.writable or not self._is_untidy(base, epoch):
            return
        self._tidied_at = base.sequence
        await copies.store.remove_some(lambda keys: superseded(keys, base, epoch))
        before_s = self._clock.time() - LEFTOVERS_AGE_S
        for place, store in enumerate(self._stores):
            if place not in self._hanging and not await clear_leftovers(
                self._settings, place, store, before_s=before_s
            ):
                self._hanging.add(place)
                self._segments = self._made()

    def _is_untidy(self, base: Commit, epoch: Epoch) -> bool:
        return base.epoch == epoch and base.sequence >= self._tidied_at + TIDY_EVERY

    def _made(self) -> LocalSegments:
        return LocalSegments(
            self._stores,
            bytes_max=self._settings.local_bytes_max,
            read_timeout_s=self._settings.local_read_timeout_s,
            hanging=self._hanging,
        )


@asynccontextmanager
async def copying_base(
    base: Commit | None, body: bytes, local: LocalCopies | None, copies: CopyWriter | None
) -> AsyncGenerator[None]:
    """Write, during the work, a local copy of the base commit, if it carries changes and has no copy yet."""
    key = None if base is None else entry_key(base.sequence)
    if key is None or base is None or key not in base.segments() or local is None or copies is None:
        yield
        return
    if await _is_there(local, key):
        yield
        return
    copy = copies.start(key, (body,))
    try:
        yield
    except BaseException:
        copy.give_up("the attempt failed")
        raise
    await copies.settle(key, copy)


async def _is_there(local: LocalCopies, key: str) -> bool:
    """True if there is such a copy, or if its root cannot be asked."""
    try:
        await local.store.get_range(key, 0, 1)
    except ObjectNotFoundError:
        return False
    except StoreError:
        return True
    return True
