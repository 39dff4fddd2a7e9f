"""Small checkpoints travel in their commit: its one PUT is then all that they cost."""

from collections.abc import Sequence
from typing import Final

import anyio
import msgspec

from statebackend._changelog.segment_upload import INLINE_ENCODE_BYTES_MAX
from statebackend._changelog.writer import ChangelogWriter
from statebackend._codec.commit import encode_inline
from statebackend._codec.records import ChangeSet
from statebackend._tasks import in_thread
from statebackend.ids import ChangeSetHandle, SequenceNumber
from statebackend.settings import Compression, Settings


class InlineFrames(msgspec.Struct, frozen=True):
    """Change sets as a commit carries them, and the handles by which it says where in itself they lie."""

    frames: Sequence[bytes]
    handles: tuple[ChangeSetHandle, ...]


class InlineEncoder:
    """Takes from the changelog what is small enough for a commit. `bytes_max` 0: nothing."""

    def __init__(self, settings: Settings, *, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        self._compression: Compression = settings.compression
        self._cpu = anyio.CapacityLimiter(settings.cpu_threads_max)

    async def take(self, writer: ChangelogWriter, from_: SequenceNumber) -> InlineFrames | None:
        """Everything from `from_` on, if it is small and none of it is uploaded or on its way; otherwise `None`.

        It stays in the log until that is told of a commit. Raises as `ChangelogWriter.persist`. A cancelled call leaves
        nothing behind.
        """
        change_sets = writer.take_inline(from_, self._bytes_max)
        return None if change_sets is None else InlineFrames(*await self._encode(change_sets))

    async def _encode(self, change_sets: Sequence[ChangeSet]) -> tuple[Sequence[bytes], tuple[ChangeSetHandle, ...]]:
        if sum(change_set.size_bytes for change_set in change_sets) <= INLINE_ENCODE_BYTES_MAX:
            return encode_inline(change_sets, self._compression)
        return await in_thread(encode_inline, change_sets, self._compression, limiter=self._cpu)
