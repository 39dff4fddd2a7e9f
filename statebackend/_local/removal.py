"""Removes superseded local copies in the background."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from statebackend._local.registry import LocalRegistry
from statebackend._local.segments import LocalSegments
from statebackend._once import reason_of
from statebackend.ids import CheckpointId


class LocalRetention:
    """The local registry and the deletions it asks for. No call waits, and none fails because of the disk.

    Deletions run in `tasks`, one at a time, so a disk that hangs occupies one thread. Leaving a backend waits for them
    for a while, by `removed`; a copy that is not deleted before `tasks` end, or cannot be, is pruned when the directory
    is opened next. `is_own`: false for copies that others may need, which are left to them, or to the next epoch.
    """

    def __init__(
        self, segments: LocalSegments, *, tasks: TaskGroup, is_own: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._segments = segments
        self._tasks = tasks
        self._is_own = is_own
        self._registry = LocalRegistry()
        self._superseded: dict[str, None] = {}  # a set that keeps its order: the oldest copies go first
        self._removed = anyio.Event()
        self._removed.set()

    def register(self, keys: Iterable[str], checkpoint_id: CheckpointId) -> None:
        """The snapshot or the restore of `checkpoint_id` uses these copies. Called before it commits.

        A key without a local copy is fine: deleting it later changes nothing.
        """
        self._registry.register(filter(self._is_own, keys), checkpoint_id)

    def confirm(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` is committed: the copies that only older checkpoints use will be removed."""
        self._superseded.update(dict.fromkeys(self._registry.confirm(checkpoint_id)))
        if self._superseded and self._removed.is_set():
            with suppress(RuntimeError):  # anyio's word for a task group that has ended: the next open prunes
                self._tasks.start_soon(self._remove_superseded)
                self._removed = anyio.Event()

    def abort(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` will never be committed. Its copies stay: the next checkpoint may use them."""
        self._registry.abort(checkpoint_id)

    async def removed(self) -> None:
        """Wait until no superseded copy is left, or `tasks` have ended. A cancelled call changes nothing."""
        await self._removed.wait()

    async def _remove_superseded(self) -> None:
        try:
            while self._superseded:
                key = next(iter(self._superseded))
                del self._superseded[key]
                await self._remove(key)
        finally:
            self._removed.set()

    async def _remove(self, key: str) -> None:
        try:
            await self._segments.delete(key)
        except Exception as error:  # noqa: BLE001  best effort: a checkpoint that is committed does not fail for this
            root = self._segments.root_of(key)
            self._segments.given_up.warning(
                root,
                reason_of(error),
                "could not remove a superseded local copy: root=%d key=%s reason=%r",
                root,
                key,
                error,
            )
