"""The local snapshots of one owner of key groups, one directory per checkpoint.

    <checkpoint directory>/snapshot    see `layout`, and `_codec/local_snapshot.py` for the format
    <checkpoint directory>/<file>      the files of a RocksDB base, if there is one

They lie on disk so that the next process on this host finds them (FLINK-25817). The commit alone decides what is
restored; a snapshot only says what a restore here could save. The copies of segments belong to the local registry.
"""

import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio

from statebackend._codec.local_snapshot import LocalSnapshot, decode_local_snapshot, encode_local_snapshot
from statebackend._local.disk import is_ours, linked, make_directory, remove_directory, sync_directory, sync_file
from statebackend._local.layout import LocalLayout, checkpoint_of
from statebackend._threads import FileThreads
from statebackend.errors import DataError, InputError, StoreUnavailableError
from statebackend.ids import CheckpointId, RocksDBFile

T = TypeVar("T")

SNAPSHOT_NAME: Final = "snapshot"
_logger = logging.getLogger(__name__)


class LocalSnapshots:
    """The local snapshots of one owner of key groups, oldest first. Opened by `open_local_snapshots`.

    Calls come from the loop; the disk is touched in a worker thread, by one call at a time. Removal is best effort: an
    error is logged, and what remains goes when the directory is opened next and its owner confirms. A thread that hangs
    is abandoned `abandon_after_s` after its call was cancelled.
    """

    def __init__(
        self,
        layout: LocalLayout,
        known: Collection[CheckpointId],
        threads: FileThreads,
        *,
        abandon_after_s: float | None = None,
    ) -> None:
        self.layout: Final = layout
        self._abandon_after_s = abandon_after_s
        self._checkpoints = set(known)
        self._threads = threads
        self._turn = anyio.Lock()  # what is pruned while it is stored is removed after that
        self._confirmed = CheckpointId(-1)

    @property
    def checkpoints(self) -> Collection[CheckpointId]:
        """The checkpoints that have a snapshot here, those of earlier processes included."""
        return sorted(self._checkpoints)

    async def store(self, snapshot: LocalSnapshot, files: Path | None = None) -> None:
        """Store a snapshot durably, replacing one of the same checkpoint.

        The files of a RocksDB base are taken from the directory `files`: linked where they never change, else copied.
        A snapshot that comes late, after a newer one was stored or confirmed, is dropped. Raises `InputError` for
        another owner's snapshot, `StoreUnavailableError`, an `OSError`, where the disk fails: then nothing of that
        checkpoint remains. A cancelled call has stored the whole snapshot or nothing.
        """
        self._check_owner(snapshot)
        checkpoint_id = snapshot.checkpoint_id
        if checkpoint_id < max(self._checkpoints, default=self._confirmed) and checkpoint_id not in self._checkpoints:
            await self._remove([checkpoint_id])
            return
        directory = self.layout.checkpoint_directory(checkpoint_id)
        self._checkpoints.add(checkpoint_id)  # from now on something may lie there
        try:
            sources = {file: files / file.name for file in snapshot.rocksdb} if files is not None else {}
            await self._on_disk(partial(_write, directory, encode_local_snapshot(snapshot), sources))
        except OSError as error:
            self._checkpoints.discard(checkpoint_id)
            raise StoreUnavailableError(
                "a local snapshot could not be stored", path=directory, reason=str(error)
            ) from error

    async def mend(self, snapshot: LocalSnapshot) -> bool:
        """Write the record of a snapshot anew if it cannot be read; its files stay. False if it is of other files.

        Raises `StoreUnavailableError` where the disk fails: then it is as it was.
        """
        directory = self.layout.checkpoint_directory(snapshot.checkpoint_id)
        content = encode_local_snapshot(snapshot)
        try:
            found = decode_local_snapshot(await self._on_disk((directory / SNAPSHOT_NAME).read_bytes), str(directory))
        except DataError as error:
            _logger.warning("writing the record of a local snapshot anew: path=%s reason=%s", directory, error)
        except OSError as error:
            raise StoreUnavailableError("a local snapshot cannot be read", path=str(directory)) from error
        else:
            return found == snapshot
        try:
            await self._on_disk(partial(_write_record, directory, content))
        except OSError as error:
            raise StoreUnavailableError("a local snapshot could not be mended", path=str(directory)) from error
        return True

    async def confirm(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` is committed: remove the older snapshots."""
        self._confirmed = max(self._confirmed, checkpoint_id)
        await self.prune(lambda each: each >= checkpoint_id)

    async def abort(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` will never be committed: remove its snapshot, and no other."""
        await self.prune(lambda each: each != checkpoint_id)

    async def prune(self, keep: Callable[[CheckpointId], bool]) -> None:
        """Remove every snapshot for which `keep` is false. A restore keeps the one it starts from (FLINK-8777).

        A cancelled call has removed some of them from the disk, and forgotten all of them.
        """
        await self._remove([checkpoint_id for checkpoint_id in self.checkpoints if not keep(checkpoint_id)])

    def _check_owner(self, snapshot: LocalSnapshot) -> None:
        mine = (self.layout.job, self.layout.operator, self.layout.key_groups)
        found = (snapshot.job, snapshot.operator, snapshot.key_groups)
        if mine != found:
            raise InputError("a local snapshot of another owner", mine=str(mine), found=str(found))

    async def _remove(self, checkpoint_ids: Collection[CheckpointId]) -> None:
        self._checkpoints.difference_update(checkpoint_ids)
        for checkpoint_id in checkpoint_ids:
            directory = self.layout.checkpoint_directory(checkpoint_id)
            try:
                await self._on_disk(partial(remove_directory, directory))
            except OSError as error:
                _logger.warning("could not remove a local snapshot: path=%s reason=%s", directory, error)

    async def _on_disk(self, function: Callable[[], T]) -> T:
        async with self._turn:
            return await self._threads.io(function, abandon_after_s=self._abandon_after_s)


async def open_local_snapshots(
    layout: LocalLayout, threads: FileThreads, *, abandon_after_s: float | None = None
) -> LocalSnapshots:
    """The snapshots of one owner, with those that earlier processes left. Makes no directory.

    Removes directories that were never completed, and those in the wrong root because the number of roots has changed.
    Errors of the disk are logged.
    """
    found = await threads.io(_find, layout, abandon_after_s=abandon_after_s)
    return LocalSnapshots(layout, found, threads, abandon_after_s=abandon_after_s)


def _find(layout: LocalLayout) -> Collection[CheckpointId]:
    found: set[CheckpointId] = set()
    for directory in layout.owner_directories:
        try:
            entries = list(directory.iterdir()) if is_ours(directory) else []
            for path in filter(is_ours, entries):
                checkpoint_id = checkpoint_of(path.name)
                if checkpoint_id is None:
                    continue
                if path == layout.checkpoint_directory(checkpoint_id) and (path / SNAPSHOT_NAME).exists():
                    found.add(checkpoint_id)
                else:
                    remove_directory(path)
        except OSError as error:
            _logger.warning("could not look for local snapshots: path=%s reason=%s", directory, error)
    return found


def _write(directory: Path, content: bytes, files: Mapping[RocksDBFile, Path]) -> None:
    """Fill the directory anew, durably, or leave nothing of it."""
    remove_directory(directory)
    try:
        make_directory(directory)
        for file, source in files.items():
            target = directory / file.name
            if not (file.never_changes and linked(source, target)):
                shutil.copyfile(source, target)
            sync_file(target)
        _write_record(directory, content)  # last: without it the directory is incomplete
        sync_directory(directory.parent)
    except BaseException:
        with suppress(OSError):
            remove_directory(directory)
        raise


def _write_record(directory: Path, content: bytes) -> None:
    """Write the record durably, whole or as it was before."""
    temporary = directory / f"{SNAPSHOT_NAME}.tmp"
    with temporary.open("wb") as record:
        record.write(content)
        record.flush()
        os.fsync(record.fileno())
    temporary.replace(directory / SNAPSHOT_NAME)
    sync_directory(directory)
