"""What this host keeps of one owner's checkpoints, by their ids.

    <checkpoint directory>/snapshot    see `layout`, and `_codec/local_snapshot.py` for what is in it
    <checkpoint directory>/<file>      the files of a RocksDB base, if there is one

It lies on disk so that a process that is started here again finds it (FLINK-25817). The commit decides what is
restored; this only says what a restore here could save. The copies of segments belong to the local registry.
"""

import logging
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio

from statebackend._codec.local_snapshot import LocalSnapshot, decode_local_snapshot, encode_local_snapshot
from statebackend._local.layout import LocalLayout, checkpoint_of
from statebackend._local.snapshot_directory import SnapshotDirectory, remove_directory
from statebackend._tasks import in_thread
from statebackend.errors import DataError, InputError, StoreUnavailableError
from statebackend.ids import CheckpointId, RocksDBFile

T = TypeVar("T")

SNAPSHOT_NAME: Final = "snapshot"
_logger = logging.getLogger(__name__)


class LocalStateStore:
    """The local snapshots of one owner of key groups, oldest first. Opened by `open_local_state_store`.

    Calls come from the loop; the disk is touched in a worker thread, by one call at a time. Removing is best effort: an
    error is logged, and what is left goes when the store is opened next and its owner confirms. A thread that hangs is
    left behind `abandon_after_s` after its call was cancelled.
    """

    def __init__(
        self,
        layout: LocalLayout,
        known: Collection[CheckpointId],
        *,
        restores: bool = True,
        abandon_after_s: float | None = None,
    ) -> None:
        self.layout: Final = layout
        self._restores = restores
        self._abandon_after_s = abandon_after_s
        self._snapshots: dict[CheckpointId, LocalSnapshot | None] = dict.fromkeys(sorted(known))  # None: not read yet
        self._disk = anyio.CapacityLimiter(1)
        self._confirmed = CheckpointId(-1)
        self._disposed = False

    @property
    def checkpoints(self) -> Collection[CheckpointId]:
        """Which checkpoints are kept, those of an earlier process among them."""
        return self._snapshots.keys()

    async def store(self, snapshot: LocalSnapshot, files: Path | None = None) -> None:
        """Keep a snapshot, also through a power cut, in place of one of the same checkpoint.

        The files of a RocksDB base are taken in from the directory `files`, and shared with it where they never change.
        One that comes late is not kept: a newer one is, or was confirmed. Raises `InputError` for another owner's,
        `StoreUnavailableError`, an `OSError`, where the disk does not take it; then nothing of that checkpoint is kept.
        A cancelled call has stored it or not, whole either way.
        """
        self._check_owner(snapshot)
        checkpoint_id = snapshot.checkpoint_id
        late = checkpoint_id < max(self._snapshots, default=self._confirmed) and checkpoint_id not in self._snapshots
        if late or self._disposed:
            await self._remove([checkpoint_id])
            return
        directory = SnapshotDirectory(self.layout.checkpoint_directory(checkpoint_id))
        self._snapshots[checkpoint_id] = None  # from now on something may lie there
        try:
            sources = {file: files / file.name for file in snapshot.rocksdb} if files is not None else {}
            await self._on_disk(partial(_write, directory, encode_local_snapshot(snapshot), sources))
        except OSError as error:
            self._snapshots.pop(checkpoint_id, None)
            raise StoreUnavailableError(
                "a local snapshot could not be stored", path=directory.path, reason=str(error)
            ) from error
        if checkpoint_id in self._snapshots:  # else it was pruned meanwhile, and who did that removes it after us
            self._snapshots[checkpoint_id] = snapshot

    async def retrieve(self, checkpoint_id: CheckpointId) -> LocalSnapshot | None:
        """The snapshot of a checkpoint, from memory or from the disk. `None` where there is none that can be used.

        One that does not decode, or is another's, is removed: it would not be better the next time. Always `None` where
        this store was opened with `restores=False`.
        """
        if checkpoint_id not in self._snapshots or not self._restores:
            return None
        if (known := self._snapshots[checkpoint_id]) is not None:
            return known
        path = self.layout.checkpoint_directory(checkpoint_id) / SNAPSHOT_NAME
        try:
            snapshot = decode_local_snapshot(await self._on_disk(path.read_bytes), str(path))
            self._check_owner(snapshot)
            if snapshot.checkpoint_id != checkpoint_id:
                raise InputError("a local snapshot of another checkpoint", found=snapshot.checkpoint_id)
        except (OSError, DataError, InputError) as error:
            _logger.warning("a local snapshot cannot be used, and is removed: path=%s reason=%s", path, error)
            await self._remove([checkpoint_id])
            return None
        if checkpoint_id in self._snapshots:
            self._snapshots[checkpoint_id] = snapshot
        return snapshot

    async def confirm(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` is committed: what is older is removed."""
        self._confirmed = max(self._confirmed, checkpoint_id)
        await self.prune(lambda kept: kept >= checkpoint_id)

    async def abort(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` will never be committed: it is removed, and no other."""
        await self.prune(lambda kept: kept != checkpoint_id)

    async def prune(self, keep: Callable[[CheckpointId], bool]) -> None:
        """Remove every checkpoint that is not to be kept. A restore keeps the one that it stands on (FLINK-8777).

        A cancelled call has removed some of them, and knows none of them any more.
        """
        await self._remove([checkpoint_id for checkpoint_id in self._snapshots if not keep(checkpoint_id)])

    async def dispose(self) -> None:
        """Remove all of this owner's directories, and keep nothing from now on. Again is fine."""
        self._disposed = True
        self._snapshots.clear()
        for directory in self.layout.owner_directories:
            await self._remove_directory(directory)

    def _check_owner(self, snapshot: LocalSnapshot) -> None:
        mine = (self.layout.job, self.layout.operator, self.layout.key_groups)
        found = (snapshot.job, snapshot.operator, snapshot.key_groups)
        if mine != found:
            raise InputError("a local snapshot of another owner", mine=str(mine), found=str(found))

    async def _remove(self, checkpoint_ids: Collection[CheckpointId]) -> None:
        for checkpoint_id in checkpoint_ids:
            self._snapshots.pop(checkpoint_id, None)
        for checkpoint_id in checkpoint_ids:
            await self._remove_directory(self.layout.checkpoint_directory(checkpoint_id))

    async def _remove_directory(self, directory: Path) -> None:
        try:
            await self._on_disk(partial(remove_directory, directory))
        except OSError as error:
            _logger.warning("could not remove a local snapshot: path=%s reason=%s", directory, error)

    async def _on_disk(self, function: Callable[[], T]) -> T:
        return await in_thread(function, limiter=self._disk, abandon_after_s=self._abandon_after_s)


async def open_local_state_store(
    layout: LocalLayout, *, restores: bool = True, abandon_after_s: float | None = None
) -> LocalStateStore:
    """The store of one owner, with what an earlier process left there. Makes no directory.

    What lies in the wrong root, because the number of roots was changed, and what was never completed, is removed. With
    `restores=False` snapshots are kept and pruned, but never handed out. Errors of the disk are logged.
    """
    found = await in_thread(_find, layout, limiter=anyio.CapacityLimiter(1), abandon_after_s=abandon_after_s)
    return LocalStateStore(layout, found, restores=restores, abandon_after_s=abandon_after_s)


def _find(layout: LocalLayout) -> Collection[CheckpointId]:
    found: set[CheckpointId] = set()
    for directory in layout.owner_directories:
        try:
            entries = list(directory.iterdir()) if directory.exists() else []
            for path in entries:
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


def _write(directory: SnapshotDirectory, content: bytes, files: Mapping[RocksDBFile, Path]) -> None:
    """Fill the directory anew and complete it, or leave nothing of it."""
    remove_directory(directory.path)
    try:
        directory.make()
        for file, source in files.items():
            directory.take_in(file.name, source, never_changes=file.never_changes)
        with (directory.path / SNAPSHOT_NAME).open("xb") as metadata:
            metadata.write(content)
            metadata.flush()
            os.fsync(metadata.fileno())
        directory.complete()
    except BaseException:
        with suppress(OSError):
            directory.clean_up()
        raise
