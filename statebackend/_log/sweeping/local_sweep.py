"""Finds and removes local copies that dead processes left in a job's local roots, without opening the job.

Only in roots whose lock is free: while the process that owns a root lives, nobody else knows what it needs there.
"""

import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import closing
from pathlib import Path

import msgspec

from statebackend._local.disk import is_failing, remove_directory
from statebackend._local.job_directories import LocalDirectory, lock_root
from statebackend._local.layout import segments_directory
from statebackend._local.rocksdb_copies import copied_bases
from statebackend._log.names import is_ours
from statebackend._threads import FileThreads
from statebackend.abc import ObjectInfo
from statebackend.errors import LocalRootError, StoreError, StoreUnavailableError
from statebackend.objectstore.local import LocalStore

_logger = logging.getLogger(__name__)


class LocalFile(msgspec.Struct, frozen=True):
    """A local copy: the object it copies, its path, and whether it may be needed. `failure`: why it was not removed.

    `foreign`: its name is not one of ours, so it is nobody's to remove here.
    """

    info: ObjectInfo
    path: str
    owned: bool
    needed: bool
    failure: str | None = None
    foreign: bool = False


async def sweep_roots(
    roots: Iterable[str], job: str, needed: Collection[str], threads: FileThreads, *, dry_run: bool
) -> AsyncIterator[LocalFile]:
    """Yield every local copy of `job` in these roots. Those not `needed` are removed, unless it is a dry run.

    A root that does not exist is passed over, and not made. `owned` is false if a living process has the lock: then
    its files are listed and left alone. A backend that opens while its root is being swept writes no local copies, so
    each root is unlocked as soon as it is done. One whose disk fails is left as it is, and the log is told. Raises
    `LocalRootError`, `StoreError` for what is the user's to mend.
    """
    for root in roots:
        files: list[LocalFile] = []
        try:
            if await threads.io(segments_directory(Path(root), job).is_dir):
                with closing(await threads.io(lock_root, root, job)) as directory:
                    files += await _sweep_root(directory, needed, threads, dry_run=dry_run)
                    files += await threads.io(_sweep_rocksdb, directory, job, needed, dry_run)
        except (LocalRootError, OSError) as error:
            if not is_failing(error):
                raise
            _logger.warning("a local root cannot be swept: root=%s reason=%s", root, error)
        for file in files:
            yield file


async def _sweep_root(
    directory: LocalDirectory, needed: Collection[str], threads: FileThreads, *, dry_run: bool
) -> list[LocalFile]:
    store = LocalStore(directory.segments, threads=threads)
    found: list[LocalFile] = []
    async for info in store.list(""):
        keep, foreign = info.key in needed, not is_ours(info.key)
        failure = None
        if directory.owned and not keep and not foreign and not dry_run:
            try:
                await store.delete(info.key)
            except StoreError as error:
                failure = str(error)
        path = str(Path(directory.segments, info.key))
        foreign = foreign and not keep
        found.append(LocalFile(info, path, owned=directory.owned, needed=keep, failure=failure, foreign=foreign))
    if directory.owned and not dry_run:
        await store.remove_leftovers()
    return found


def _sweep_rocksdb(directory: LocalDirectory, job: str, needed: Collection[str], dry_run: bool) -> list[LocalFile]:
    """The same for the directories of RocksDB bases, each of which is needed as a whole or not at all."""
    try:
        bases = copied_bases(directory.root, job)
    except OSError as error:
        raise StoreUnavailableError(
            "a local root cannot be read", root=str(directory.root), reason=error.strerror
        ) from error
    found: list[LocalFile] = []
    for base in bases:
        keep, failure = bool(base.keys) and base.keys <= frozenset(needed), None
        if directory.owned and not keep and not dry_run:
            try:
                remove_directory(base.path)
            except OSError as error:
                failure = str(error)
        info = ObjectInfo(base.path.name, base.size_bytes, base.modified_s)
        found.append(LocalFile(info, str(base.path), owned=directory.owned, needed=keep, failure=failure))
    return found
