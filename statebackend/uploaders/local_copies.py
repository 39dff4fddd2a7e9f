"""Local copies that are written beside something else, which decides, and does not wait for them for long.

One task owns each copy from its first byte to its end, which is "kept" or "removed". It runs in a task group that
outlives whatever the copy is written beside, because a thread that is stuck in fsync cannot be abandoned: who waits for
the task waits for the disk. The other side waits for an event, and can stop doing so.
"""

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from statebackend._tasks import foreign
from statebackend.abc import Body, ObjectStore
from statebackend.uploaders.primary import REMOVE_TIMEOUT_S, remove_quietly


class LocalCopy:
    """What the task that owns a copy and whoever it is written for tell each other.

    The task says `written`: it will not touch the copy any more, complete or not. The other then says `settled`: kept
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


class CopyWriter:
    """Writes copies into `secondary`, each in a task of `tasks`, and removes those that are not kept.

    `dropped` is called on the loop with a name and a reason where a copy is given up though all else went well; it must
    not raise. While a copy that was given up still hangs there are no new ones: a dead disk costs one `grace_s`, not
    one for each copy. `root_of` tells by a key on which disk of several it lies: a dead one costs only the copies that
    would lie there.
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
    ) -> None:
        self._secondary = secondary
        self._grace_s = grace_s
        self._dropped = dropped
        self._tasks = tasks
        self._remove_timeout_s = remove_timeout_s
        self._root_of = root_of
        self._hanging: set[LocalCopy] = set()

    def start(self, key: str, body: Body) -> LocalCopy:
        """Begin to write. Whoever calls this settles the copy, by `settle` or by `give_up`."""
        copy = LocalCopy(self._root_of(key))
        if any(hanging.root == copy.root for hanging in self._hanging):
            copy.fail("an earlier local copy still hangs")
        else:
            self._tasks.start_soon(self._own, copy, key, body)
        return copy

    async def settle(self, name: str, copy: LocalCopy) -> bool:
        """All else is done: wait for the copy for `grace_s` at most, and say whether it is kept.

        A cancelled call has settled nothing.
        """
        with anyio.move_on_after(self._grace_s):
            await copy.written.wait()
        if copy.keep():
            return True
        if not copy.written.is_set():
            self._hanging.add(copy)
        copy.give_up(f"not complete {self._grace_s} s after the primary")
        self._dropped(name, copy.reason)
        return False

    def remove_soon(self, key: str) -> None:
        """Remove a copy that was kept and is not needed after all, in its own time."""
        self._tasks.start_soon(self._remove, key)

    async def _own(self, copy: LocalCopy, key: str, body: Body) -> None:
        try:
            await copy.write(self._secondary, key, body)
        finally:
            self._hanging.discard(copy)
            with anyio.CancelScope(shield=True):  # whoever it is for always settles, also when cancelled
                await copy.settled.wait()
            if not copy.kept:
                await self._remove(key)

    async def _remove(self, key: str) -> None:
        await remove_quietly(self._secondary, key, timeout_s=self._remove_timeout_s)
