"""The backend of one owner among several: it takes snapshots, and a `CheckpointCoordinator` elsewhere commits them."""

from typing import TYPE_CHECKING, Any

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._checkpoint.snapshots import Pending
from statebackend._tasks import finish
from statebackend.ids import CheckpointId, SnapshotResult


class OwnerBackend(KeyedBackend):
    """The state of the key groups that one owner has. Made by `open_backend(key_groups=...)`; it claims nothing.

    State is read and written synchronously, by one thread at a time, not while a snapshot is taken. The coroutines are
    called on the loop. After an error of `snapshot` other than `InputError` the backend cannot be used any more: open
    a new one and replay.
    """

    if not TYPE_CHECKING:  # type checkers know that there is none

        def __getattr__(self, name: str) -> Any:
            if name == "checkpoint":
                raise AttributeError(
                    "an owner does not commit: call snapshot() and have a CheckpointCoordinator commit it, or open the"
                    " job without key_groups"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    async def snapshot(self, checkpoint_id: int) -> SnapshotResult:
        """Make every change so far durable, for a `CheckpointCoordinator` to commit it with those of the other owners.

        Report the outcome of the checkpoint by one of the three methods below; until then the next snapshots hold the
        changes, too. Bases that are due are begun here, and are in a later snapshot. Ids grow. Raises
        `CheckpointExistsError`, and `UploadError` or its `MaterializationError` (open a new backend). A cancelled call
        has lost nothing: the next one holds its changes.
        """
        self._home.check_loop()
        self._check_usable()
        with self._failing():
            self._base_writer.check()
        async with self._checkpointing:
            snapshot, _ = await self._contribute(checkpoint_id)
            with self._failing():
                self._base_writer.begin_if_due(snapshot.state, snapshot.checkpoint_id)
            return snapshot

    async def notify_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is committed: files that only older ones used may go, here and in the local copy.

        Waits for a snapshot that is being taken. Raises `InputError` if no snapshot of that checkpoint is pending. A
        cancelled call takes effect all the same.
        """
        await finish(self._notify_complete, checkpoint_id)

    async def notify_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never be committed: its changes go with the next one. Raises as `notify_complete`."""
        await finish(self._notify_aborted, checkpoint_id)

    async def notify_subsumed(self, checkpoint_id: int) -> None:
        """No checkpoint up to this one will be restored any more. It may be unknown here."""
        self._check_usable()
        await self._writer.subsume(CheckpointId(checkpoint_id))

    async def _notify_complete(self, checkpoint_id: int) -> None:
        async with self._checkpointing:  # a snapshot being taken builds on the commit that its owner stood on before
            snapshot = self._pending(checkpoint_id).snapshot
            await self._snapshots.complete(snapshot.checkpoint_id, snapshot.state)

    async def _notify_aborted(self, checkpoint_id: int) -> None:
        async with self._checkpointing:
            await self._snapshots.abort(self._pending(checkpoint_id).snapshot.checkpoint_id)

    def _pending(self, checkpoint_id: int) -> Pending:
        self._check_usable()
        return self._snapshots.pending(checkpoint_id)
