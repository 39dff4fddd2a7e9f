"""The contribution of one attempt at a range, and how those of all ranges become one commit. Pure.

An owner whose batch brought it nothing sends nothing: it contributes what the commit before says of its key groups.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET

from statebackend._checkpoint.lineage import lineage_of
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import IN_HERE, Commit
from statebackend._state.kinds.operator_state import OperatorStates, with_copies
from statebackend.abc import RestoreReport
from statebackend.errors import InputError
from statebackend.ids import (
    CheckpointId,
    CommitSequence,
    Epoch,
    KeyGroupRange,
    OperatorElements,
    RangeState,
    SnapshotResult,
)

Found = Literal["process", "host", "primary", "new"]
"""The place of a range's state: this process, this host, the primary at least in part; "new" if there was none."""


class Contribution(msgspec.Struct, frozen=True):
    """The result of one attempt at a range: every change is durable, or in here. Encodes as MessagePack.

    `inline`: frames for the commit to carry; handles of `snapshot` into them are those of `carried`. `base`: the
    commit that the attempt stood on. `report`: of what had to be read, `None` where nothing had.
    """

    snapshot: SnapshotResult
    inline: tuple[bytes, ...]
    base: CommitSequence | None
    found: Found
    report: RestoreReport | None = None


def combine(
    contributions: Sequence[Contribution],
    base: Commit | None,
    owners: Sequence[KeyGroupRange],
    *,
    checkpoint_id: CheckpointId,
    epoch: Epoch,
) -> tuple[Sequence[SnapshotResult], Sequence[bytes]]:
    """The snapshots of all `owners`, and the frames, for `CheckpointCoordinator.commit(..., inline=...)`.

    Raises `InputError` for a contribution of nobody, or to another commit than `base`, and for two of one owner.
    """
    found = {each.snapshot.state.key_groups: each for each in contributions}
    if len(found) != len(contributions) or not found.keys() <= set(owners):
        raise InputError(
            "one contribution of each owner, and of nobody else",
            found=[str(each.snapshot.state.key_groups) for each in contributions],
            owners=list(map(str, owners)),
        )
    expected = None if base is None else base.sequence
    if any(each.base != expected for each in contributions):
        raise InputError(
            "a contribution stands on another commit", base=expected, found=[c.base for c in contributions]
        )
    snapshots: list[SnapshotResult] = []
    frames: list[bytes] = []
    for key_groups in sorted(owners):
        if (each := found.get(key_groups)) is not None:
            snapshots.append(_moved(each.snapshot, sum(map(len, frames))))
            frames += each.inline
        else:
            snapshots.append(_unchanged(base, key_groups, owners, checkpoint_id, epoch, others=contributions))
    return snapshots, frames


def _moved(snapshot: SnapshotResult, offset: int) -> SnapshotResult:
    """The snapshot with its own frames behind `offset` bytes of others'."""
    if not offset:
        return snapshot
    changelog = tuple(
        msgspec.structs.replace(handle, offset=handle.offset + offset) if handle.segment == IN_HERE else handle
        for handle in snapshot.state.changelog
    )
    return msgspec.structs.replace(snapshot, state=msgspec.structs.replace(snapshot.state, changelog=changelog))


def _unchanged(
    base: Commit | None,
    key_groups: KeyGroupRange,
    owners: Sequence[KeyGroupRange],
    checkpoint_id: CheckpointId,
    epoch: Epoch,
    *,
    others: Sequence[Contribution],
) -> SnapshotResult:
    """The part of these key groups in the commit before. If there are `others`, they describe the states."""
    state = range_of(base, key_groups)
    if base is None:
        state = msgspec.structs.replace(state, sizes=())
    if base is None and any(each.snapshot.state.next_timer_s is not UNSET for each in others):
        state = msgspec.structs.replace(state, next_timer_s=None)  # before the first commit there are no timers
    return SnapshotResult(
        checkpoint_id=checkpoint_id,
        state=msgspec.structs.replace(
            state,
            operator=_operator(base, key_groups, owners, epoch),
            history=lineage_of(base, key_groups).history,
        ),
        local=False,  # on which host?
        epoch=epoch,
        states=() if base is None or others else base.states,
        base=None if base is None else base.checkpoint_id,
    )


def _operator(
    base: Commit | None, key_groups: KeyGroupRange, owners: Sequence[KeyGroupRange], epoch: Epoch
) -> tuple[OperatorElements, ...]:
    reported, among = reported_to(base, key_groups, owners, epoch)
    return OperatorStates(key_groups, () if base is None else base.states, reported, among).report()


def opened_with(
    base: Commit | None, key_groups: KeyGroupRange, owners: Sequence[KeyGroupRange], epoch: Epoch
) -> tuple[Sequence[RangeState], Sequence[KeyGroupRange]]:
    """As `reported_to`, for a range that is opened, not only carried on: it gets what only others have of a broadcast.

    A range may be opened in any batch of an epoch, and others have begun the state by then. Until it is opened it has
    no copy, so that it takes over the newest, and nobody takes over an old one of it.
    """
    reported, among = reported_to(base, key_groups, owners, epoch)
    if base is None or base.epoch != epoch:
        return reported, among
    return [
        with_copies(each, base.ranges, base.states) if each.key_groups == key_groups else each for each in reported
    ], among


def reported_to(
    base: Commit | None, key_groups: KeyGroupRange, owners: Sequence[KeyGroupRange], epoch: Epoch
) -> tuple[Sequence[RangeState], Sequence[KeyGroupRange]]:
    """The parts whose operator state is divided, and the owners among whom: in one epoch an owner keeps its own.

    Otherwise all is divided among all. A range is opened for each checkpoint, but `union` is handed out once an epoch.
    """
    if base is None:
        return (), owners
    own = [part for part in base.ranges if part.key_groups == key_groups]
    return (own, [key_groups]) if own and base.epoch == epoch else (base.ranges, owners)
