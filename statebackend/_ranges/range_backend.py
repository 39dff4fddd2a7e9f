"""The backend of one attempt at a range: it contributes once to a commit that another process makes."""

from collections.abc import Sequence

from statebackend._checkpoint.backend import KeyedBackend, Machinery
from statebackend._checkpoint.snapshots import InlineEncoder
from statebackend.ids import CheckpointId, SnapshotResult


class RangeBackend(KeyedBackend):
    """The state of one range for one attempt. Bases are written only if the attempt is told to: `begin_bases`."""

    def __init__(self, machinery: Machinery, *, inline: InlineEncoder) -> None:
        super().__init__(machinery)
        self._inline = inline

    @property
    def changed(self) -> frozenset[int]:
        """The key groups that have changed since their last base."""
        return self._base_writer.changed

    @property
    def base_failures(self) -> int:
        """How many times in a row writing bases has failed."""
        return self._base_writer.failures

    async def begin_bases(self) -> None:
        """Begin to write bases of the attempt's commit, before anything is changed. `contribute` waits for them."""
        checkpoint_id = CheckpointId(0) if self.newest is None else self.newest.checkpoint_id
        self._base_writer.begin_if_due(self._snapshots.committed, checkpoint_id, due=True)

    async def contribute(self, checkpoint_id: int) -> tuple[SnapshotResult, Sequence[bytes]]:
        """Every change so far, durable or in the returned frames: what is small is not uploaded, the commit carries it.

        Bases that were begun are in the snapshot by now, unless they could not be written. Raises as
        `OwnerBackend.snapshot`. A cancelled call has lost nothing, and may be repeated.
        """
        await self._base_writer.settled()
        async with self._checkpointing:
            return await self._contribute(checkpoint_id, self._inline)
