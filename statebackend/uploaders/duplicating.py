"""Uploads segments to the primary and to the local copy at the same time: it takes as long as the slower one.

The primary decides. The local copy is best effort at every step: it may fail to open, write, sync or close, or hang,
and the upload still succeeds, at most `secondary_grace_s` after the primary did. Which copies are stale later,
`_local/registry.py` says.
"""

from collections.abc import Callable

from anyio.abc import TaskGroup

from statebackend._once import OnceLog
from statebackend.abc import ObjectStore, Segment, UploadedSegment
from statebackend.ids import Handle
from statebackend.uploaders.local_copies import CopyWriter
from statebackend.uploaders.primary import REMOVE_TIMEOUT_S, remove_quietly, segment_handle


class DuplicatingUploader:
    """A `StateChangeUploader` that writes two copies under the same key, to `primary` and to `secondary`.

    `tasks` is a task group that outlives every upload; leaving it waits for local copies that are being written.
    `dropped` is called on the loop with a segment's name and a reason when an upload succeeds without its local copy;
    it must not raise. While a copy that was given up still hangs, new segments on the same disk get none: a dead disk
    costs one `secondary_grace_s`, not one per segment. `root_of` maps a key to the number of its disk.

    `copies` writes the local copies. Other local files may be written with it, under the same rules.
    """

    def __init__(
        self,
        primary: ObjectStore,
        secondary: ObjectStore,
        *,
        secondary_grace_s: float,
        dropped: Callable[[str, str], None],
        tasks: TaskGroup,
        remove_timeout_s: float = REMOVE_TIMEOUT_S,
        root_of: Callable[[str], int] = lambda _: 0,
        log: OnceLog | None = None,
    ) -> None:
        """`log`: as for `CopyWriter`."""
        self._primary = primary
        self.copies = CopyWriter(
            secondary,
            grace_s=secondary_grace_s,
            dropped=dropped,
            tasks=tasks,
            remove_timeout_s=remove_timeout_s,
            root_of=root_of,
            log=log,
        )
        self._remove_timeout_s = remove_timeout_s

    async def upload(self, segment: Segment) -> UploadedSegment:
        """Store both copies. Returns when the primary's is durable and the local one is complete, failed or late.

        Raises what the primary raises, never a group. A failed or cancelled upload removes the primary's copy within
        `remove_timeout_s`; the task that owns the local copy removes that one.
        """
        handle = segment_handle(segment)
        copy = self.copies.start(handle.key, segment.body)
        try:
            await self._primary.put(handle.key, segment.body)
            segment.durable()
            is_complete = await self.copies.settle(segment.name, copy)
        except BaseException:
            copy.give_up("the upload failed")
            await self._remove_primary(handle)
            raise
        return UploadedSegment(primary=handle, local=handle if is_complete else None)

    async def discard(self, uploaded: UploadedSegment) -> None:
        """Remove both copies: the primary's before this returns, the local one in a task of its own. Logs errors.

        A cancelled call removes both as well. Each removal takes at most `remove_timeout_s`.
        """
        if uploaded.local is not None:
            self.copies.remove_soon(uploaded.local.key)
        await self._remove_primary(uploaded.primary)

    async def _remove_primary(self, handle: Handle) -> None:
        await remove_quietly(self._primary, handle.key, timeout_s=self._remove_timeout_s)
