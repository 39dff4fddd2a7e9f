"""Writes local copies beside an upload, or another operation that decides and waits for them only briefly.

One task owns each copy from its first byte until it is accepted or removed. It runs in a task group that outlives the
operation, because a thread that is stuck in fsync cannot be abandoned: waiting for the task means waiting for the disk.
The operation waits for an event instead, and can stop waiting at any time.
"""

import logging
from collections.abc import Callable, Hashable

import anyio
from anyio.abc import TaskGroup

from statebackend._once import OnceLog, reason_of
from statebackend._tasks import foreign
from statebackend.abc import Body, ObjectStore
from statebackend.uploaders.primary import REMOVE_TIMEOUT_S, remove_quietly

_logger = logging.getLogger(__name__)


class LocalCopy:
    """One copy, shared by the task that owns it and the operation it is written for.

    The task sets `written` when it will not touch the copy any more, complete or not. The operation sets `settled` when
    it has accepted the copy or given it up; the task then removes a copy that was not accepted.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.written = anyio.Event()
        self.settled = anyio.Event()
        self.accepted = False
        self.reason = "cancelled"
        self.cause: Hashable = None
        """The reason without what is particular to this copy."""
        self._complete = False
        self._scope = anyio.CancelScope()

    async def write(self, store: ObjectStore, key: str, body: Body) -> None:
        """Write the copy. Ends without an error, even if given up; `reason` then says why it is incomplete."""
        try:
            with self._scope:
                await foreign(store.put(key, body))
                self._complete = True
        except Exception as error:  # noqa: BLE001  best effort: whatever goes wrong here, the primary has it all
            self.reason, self.cause = repr(error), reason_of(error)
        finally:
            self.written.set()

    def accept(self) -> bool:
        """Settle a complete copy as accepted. False if it is not complete; it is then not settled either."""
        if self._complete:
            self.accepted = True
            self.settled.set()
        return self.accepted

    def fail(self, reason: str) -> None:
        """Mark the copy as never begun, because of `reason`."""
        self.reason = self.cause = reason
        self.written.set()

    def give_up(self, reason: str) -> None:
        """Settle without accepting, and cancel the writing. If it was still going on, `reason` is why."""
        if not self.written.is_set():
            self.reason = self.cause = reason
        self.settled.set()
        self._scope.cancel()


class CopyWriter:
    """Writes copies into `secondary`, each in a task of `tasks`, and removes those that are given up.

    `dropped` is called on the loop with a name and a reason when a copy is given up although the operation succeeded;
    it must not raise. The log has it once for each disk and reason. While a copy that was given up still hangs, no new
    ones are begun on the same disk: a dead disk costs one `grace_s`, not one per copy. `root_of` maps a key to the
    number of its disk.
    """

    def __init__(
        self,
        secondary: ObjectStore,
        *,
        grace_s: float,
        dropped: Callable[[str, str], None],
        tasks: TaskGroup,
        remove_timeout_s: float = REMOVE_TIMEOUT_S,
        root_of: Callable[[str], int] = lambda _: 0,
        log: OnceLog | None = None,
    ) -> None:
        """`log`: shared with others who write to the same disks."""
        self._secondary = secondary
        self._grace_s = grace_s
        self._dropped = dropped
        self._tasks = tasks
        self._remove_timeout_s = remove_timeout_s
        self._root_of = root_of
        self._hanging: set[LocalCopy] = set()
        self._log = log or OnceLog(_logger)

    def start(self, key: str, body: Body) -> LocalCopy:
        """Begin to write. The caller must settle the copy, by `settle` or by its `give_up`."""
        copy = LocalCopy(self._root_of(key))
        if any(hanging.root == copy.root for hanging in self._hanging):
            copy.fail("an earlier local copy still hangs")
        else:
            self._tasks.start_soon(self._own, copy, key, body)
        return copy

    async def settle(self, name: str, copy: LocalCopy) -> bool:
        """Wait for the copy for at most `grace_s`, when all else is done. True if it is complete, and so accepted.

        A cancelled call leaves the copy unsettled.
        """
        with anyio.move_on_after(self._grace_s):
            await copy.written.wait()
        if copy.accept():
            return True
        if not copy.written.is_set():
            self._hanging.add(copy)
        copy.give_up(f"not complete {self._grace_s} s after the primary")
        self._log.warning(
            copy.root,
            copy.cause,
            "a local copy was given up, and the primary has it all: root=%d name=%s reason=%s",
            copy.root,
            name,
            copy.reason,
        )
        self._dropped(name, copy.reason)
        return False

    def remove_soon(self, key: str) -> None:
        """Remove, in the background, an accepted copy that is not needed after all."""
        self._tasks.start_soon(self._remove, key)

    async def _own(self, copy: LocalCopy, key: str, body: Body) -> None:
        try:
            await copy.write(self._secondary, key, body)
        finally:
            self._hanging.discard(copy)
            with anyio.CancelScope(shield=True):  # the operation always settles, even when cancelled
                await copy.settled.wait()
            if not copy.accepted:
                await self._remove(key)

    async def _remove(self, key: str) -> None:
        def failed(error: BaseException) -> None:
            root = self._root_of(key)
            self._log.warning(
                root, reason_of(error), "could not remove a local copy: root=%d key=%s reason=%r", root, key, error
            )

        await remove_quietly(self._secondary, key, timeout_s=self._remove_timeout_s, failed=failed)
