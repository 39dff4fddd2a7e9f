"""Says which local copies belong to which checkpoint, and which of them are superseded. Pure.

    register(keys, 1)      a snapshot was made: its copies belong to checkpoint 1, committed or not
    register(keys, 2)      a copy that both use belongs to both
    confirm(2)          -> the copies that only checkpoint 1 used: the caller deletes them
    abort(2)               checkpoint 2 was given up; what it shared with checkpoint 1 stays as it was

A copy is registered when its snapshot is made, not when the commit is confirmed. In between the log may drop the change
set because it was materialized: nobody would register the copy then, and a later checkpoint would delete what the
newest one needs (FLINK-30863). Restored copies are registered too, under the checkpoint they were restored from:
otherwise they would belong to no checkpoint and stay for ever, or be deleted while new checkpoints still use them.

A key that was never registered is unknown here. It belongs to the changelog, which deletes both of its copies.
"""

from collections.abc import Iterable, Sequence

from statebackend.ids import CheckpointId


class LocalRegistry:
    """The local copies that checkpoints use. The methods are events; `confirm` returns what is to be deleted.

    Checkpoint ids grow from commit to commit. A checkpoint that is neither confirmed nor aborted is under way, or its
    outcome is unknown: its copies stay until a newer one is confirmed.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._used: dict[CheckpointId, set[str]] = {}

    def register(self, keys: Iterable[str], checkpoint_id: CheckpointId) -> None:
        """These copies belong to `checkpoint_id` too. Called before it is committed; twice is fine.

        Not for a key that `confirm` has returned: its copy is being deleted.
        """
        added = set(keys)
        self._used.setdefault(checkpoint_id, set()).update(added)
        self._known.update(added)

    def confirm(self, checkpoint_id: CheckpointId) -> Sequence[str]:
        """`checkpoint_id` is committed. Return, sorted, the keys that neither it nor a newer one uses; forget them."""
        self._used = {newer: keys for newer, keys in self._used.items() if newer >= checkpoint_id}
        needed = set[str]().union(*self._used.values())
        superseded = sorted(self._known - needed)
        self._known = needed
        return superseded

    def abort(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` will never be committed. That alone deletes nothing.

        A restore needs what the last good checkpoint uses, and the next checkpoint may use what only the aborted one
        used, because its primary copy is uploaded already. What that one does not use goes with its `confirm`.
        """
        self._used.pop(checkpoint_id, None)

    def __contains__(self, key: object) -> bool:
        """True if a checkpoint uses the copy, or may yet."""
        return key in self._known

    def __len__(self) -> int:
        """Number of known copies."""
        return len(self._known)
