"""Segments to the primary and to the local copy at the same time: the cost is that of the slower one, not the sum.

The primary decides. The local copy is best effort at every step: it may fail to open, write, sync or close, it may
hang, and the upload still succeeds, at most `secondary_grace_s` after the primary did.

One task owns each local copy from its first byte to its end, which is "kept" or "removed". It runs in the task group
of the uploader's owner and not in the upload, because a thread that is stuck in fsync cannot be interrupted: who
waits for the task waits for the disk. The upload waits for an event, and can stop doing so.
"""

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from statebackend._tasks import foreign
from statebackend.abc import Body, ObjectStore, Segment, UploadedSegment
from statebackend.ids import Handle
from statebackend.uploaders.primary import REMOVE_TIMEOUT_S, remove_quietly, segment_handle


class DuplicatingUploader:
    """A `StateChangeUploader` that keeps two copies under the same key, in `primary` and in `secondary`.

    `tasks` is a task group that outlives every upload; leaving it waits for the local copies on their way. `dropped`
    is called on the loop with a segment's name and a reason when an upload succeeds without its local copy; it must not
    raise. While a copy that was given up still hangs, new segments get none: a dead disk costs one
    `secondary_grace_s`, not one for each segment. `root_of` tells by a key on which disk of several it lies: a dead one
    costs only the copies that would lie there.
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
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._secondary_grace_s = secondary_grace_s
        self._dropped = dropped
        self._tasks = tasks
        self._remove_timeout_s = remove_timeout_s
        self._root_of = root_of
        self._hanging: set[_LocalCopy] = set()

    async def upload(self, segment: Segment) -> UploadedSegment:
        """Store both copies; return when the primary's is durable and the local one is complete, failed or late.

        Raises what the primary raises, never a group. A failed or cancelled upload removes the primary's copy within
        `remove_timeout_s`, and leaves the local one to its own task, which removes it.
        """
        handle = segment_handle(segment)
        copy = self._start_copy(handle, segment.body)
        try:
            await self._primary.put(handle.key, segment.body)
            segment.durable()
            with anyio.move_on_after(self._secondary_grace_s):
                await copy.written.wait()
        except BaseException:
            copy.give_up("the upload failed")
            await self._remove_primary(handle)
            raise
        return self._settle(segment.name, handle, copy)

    async def discard(self, uploaded: UploadedSegment) -> None:
        """Remove both copies: the primary's before this returns, the local one in its owner's tasks. Errors are logged.

        A cancelled call removes both just the same, within `remove_timeout_s`.
        """
        if uploaded.local is not None:
            self._tasks.start_soon(self._remove_secondary, uploaded.local)
        await self._remove_primary(uploaded.primary)

    def _start_copy(self, handle: Handle, body: Body) -> "_LocalCopy":
        copy = _LocalCopy(self._root_of(handle.key))
        if any(hanging.root == copy.root for hanging in self._hanging):
            copy.fail("an earlier local copy still hangs")
        else:
            self._tasks.start_soon(self._own_copy, copy, handle, body)
        return copy

    def _settle(self, name: str, handle: Handle, copy: "_LocalCopy") -> UploadedSegment:
        if copy.keep():
            return UploadedSegment(primary=handle, local=handle)
        if not copy.written.is_set():
            self._hanging.add(copy)
        copy.give_up(f"not complete {self._secondary_grace_s} s after the primary")
        self._dropped(name, copy.reason)
        return UploadedSegment(primary=handle)

    async def _own_copy(self, copy: "_LocalCopy", handle: Handle, body: Body) -> None:
        try:
            await copy.write(self._secondary, handle.key, body)
        finally:
            self._hanging.discard(copy)
            with anyio.CancelScope(shield=True):  # its upload always settles, also when it is cancelled
                await copy.settled.wait()
            if not copy.kept:
                await self._remove_secondary(handle)

    async def _remove_primary(self, handle: Handle) -> None:
        await remove_quietly(self._primary, handle.key, timeout_s=self._remove_timeout_s)

    async def _remove_secondary(self, handle: Handle) -> None:
        await remove_quietly(self._secondary, handle.key, timeout_s=self._remove_timeout_s)


class _LocalCopy:
    """What an upload and the task that owns its local copy tell each other.

    The task says `written`: it will not touch the copy any more, complete or not. The upload then says `settled`: kept
    or not. Not kept means that the task removes it.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.written = anyio.Event()
        self.settled = anyio.Event()
        self.kept = False
        self.reason = "cancelled"
        self._complete = False
        self._scope = anyio.CancelScope()

    async def write(self, store: ObjectStore, key: str, body: Body) -> None:
        """Write the copy. Ends without an error, also when given up; `reason` says why it is not complete."""
        try:
            with self._scope:
                await foreign(store.put(key, body))
                self._complete = True
        except Exception as error:  # noqa: BLE001  best effort: whatever is wrong with this copy, the primary has it all
            self.reason = repr(error)
        finally:
            self.written.set()

    def keep(self) -> bool:
        """Settle as kept if the copy is complete; say whether it is."""
        if self._complete:
            self.kept = True
            self.settled.set()
        return self.kept

    def fail(self, reason: str) -> None:
        """There is no copy, and none will be written."""
        self.reason = reason
        self.written.set()

    def give_up(self, reason: str) -> None:
        """Settle as not kept. Where the writing still goes on, cancel it: `reason` is then why."""
        if not self.written.is_set():
            self.reason = reason
        self.settled.set()
        self._scope.cancel()
