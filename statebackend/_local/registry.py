"""Which local copies belong to which checkpoint, and therefore which of them nobody needs any more. Pure.

    register(keys, 1)      a snapshot was made: its copies belong to checkpoint 1, committed or not
    register(keys, 2)      what both use belongs to both
    confirm(2)          -> what only checkpoint 1 used: the caller deletes it
    abort(2)               checkpoint 2 comes to nothing; what it shared with checkpoint 1 stays as it was

A copy is registered when its snapshot is made and not when the commit is confirmed. In between the log may drop the
change set (it was materialized): nobody would register the copy then, and a later checkpoint would delete what the
newest one needs (FLINK-30863). Restored copies are registered too, under the checkpoint they were restored from:
otherwise they would belong to nobody and stay for ever, or be deleted while new checkpoints still use them.

A key that was never registered is not known here. It belongs to the changelog, which deletes both of its copies.
"""

from collections.abc import Iterable, Sequence

from statebackend.ids import CheckpointId


class LocalRegistry:
    """The local copies that checkpoints use. Methods are the events; `confirm` says what is to be deleted.

    Checkpoint ids grow from commit to commit. A checkpoint that is neither confirmed nor aborted is under way, or its
    outcome is unknown: what it uses is kept until a newer one is confirmed.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._used: dict[CheckpointId, set[str]] = {}

    def register(self, keys: Iterable[str], checkpoint_id: CheckpointId) -> None:
        """These copies belong to `checkpoint_id` too. Said before it is committed; twice is fine.

        Not for a key that `confirm` has returned: its copy is being deleted.
        """
        added = set(keys)
        self._used.setdefault(checkpoint_id, set()).update(added)
        self._known.update(added)

    def confirm(self, checkpoint_id: CheckpointId) -> Sequence[str]:
        """`checkpoint_id` is committed. Returns, in order, what neither it nor a newer one uses, and forgets it."""
        self._used = {newer: keys for newer, keys in self._used.items() if newer >= checkpoint_id}
        needed = set[str]().union(*self._used.values())
        superseded = sorted(self._known - needed)
        self._known = needed
        return superseded

    def abort(self, checkpoint_id: CheckpointId) -> None:
        """`checkpoint_id` will never be committed. Nothing is deleted for that.

        What the last good checkpoint uses is needed by a restore, and what only the aborted one used may be used by the
        next one, because its primary copy is uploaded already. Whatever that one does not use goes with its `confirm`.
        """
        self._used.pop(checkpoint_id, None)

    def __contains__(self, key: object) -> bool:
        """Whether a checkpoint uses the copy, or may yet."""
        return key in self._known

    def __len__(self) -> int:
        """Number of copies that are known."""
        return len(self._known)


class LocalRegistries:
    """The registries of several owners of key groups that share the copies of a host, by the owners' names.

    Their segments are shared, and their checkpoints are not: one owner has confirmed a checkpoint while another has yet
    to make its snapshot of it. So each is told of its own, and a copy goes when the last of them gives it up.
    """

    def __init__(self) -> None:
        self._owners: dict[str, LocalRegistry] = {}

    def of(self, owner: str) -> LocalRegistry:
        """The registry of one owner. `confirm` is not for it, but for `confirm` of all of them."""
        return self._owners.setdefault(owner, LocalRegistry())

    def confirm(self, checkpoint_id: CheckpointId, owner: str) -> Sequence[str]:
        """As `confirm` of the owner's, but for what another owner knows."""
        superseded = self.of(owner).confirm(checkpoint_id)
        return [key for key in superseded if not any(key in each for each in self._owners.values())]
