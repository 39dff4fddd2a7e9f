"""Merges small change sets of ranges, for the next commit to carry them as one. Pure.

An attempt at a range lives for one batch: nobody merges behind its checkpoints, as
`_checkpoint/materialization/merged_change_sets.py` does. But the process that commits has the newest commits at hand,
and with them the small change sets that they carry. In each commit it merges those of some ranges, of the others in the
commits after it, so that all commits are about as large.

Change sets that were uploaded, or lie in older commits, stay as they are until bases replace them.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from statebackend._changelog.changelog_reader import changes_of, frames_of, plan_reads
from statebackend._checkpoint.materialization.bases import Bases, with_bases
from statebackend._checkpoint.materialization.tiers import due, merged_id
from statebackend._codec.change_sets.changes import Changes, change_set
from statebackend._codec.commit import carried
from statebackend._codec.segment import encode_for_segment
from statebackend.ids import ChangeSetHandle, RangeState, SnapshotResult
from statebackend.settings import Compression

Snapshots = Sequence[SnapshotResult]


def places_in_turn(count: int, turn: int, fan_in: int) -> Sequence[int]:
    """The places of the ranges whose turn it is: each has its turn once in `fan_in` commits. Below 2: none."""
    return range(turn % fan_in, count, fan_in) if fan_in > 1 else ()


def merged_in_commits(
    snapshots: Snapshots,
    inline: Sequence[bytes],
    recent: Mapping[str, bytes],
    *,
    turn: int,
    fan_in: int,
    compression: Compression,
) -> tuple[Snapshots, Sequence[bytes]]:
    """The snapshots and frames of `combine`, with change sets merged of the ranges whose `turn` it is.

    `recent`: commits by their keys, as `CheckpointCoordinator.recent`. `fan_in`: the setting `materialize_fan_in`. A
    range that has not something in every batch has fewer change sets when its turn comes: a quarter is enough.
    """
    merged, frames = [*snapshots], [*inline]
    for place in places_in_turn(len(merged), turn, fan_in):
        state, more = _merged(merged[place].state, recent, max(2, fan_in // 4), sum(map(len, frames)), compression)
        merged[place] = msgspec.structs.replace(merged[place], state=state)
        frames += more
    return merged, frames


def _merged(
    state: RangeState, recent: Mapping[str, bytes], enough: int, offset: int, compression: Compression
) -> tuple[RangeState, Sequence[bytes]]:
    """The state with neighbours merged, if there are `enough`, into a frame behind `offset` bytes of others."""
    end = len(state.changelog)
    while end and state.changelog[end - 1].segment.key not in recent:  # those of this very commit
        end -= 1
    elsewhere = {handle for handle in state.changelog[:end] if handle.segment.key not in recent}
    if (place := due(state.changelog[:end], enough, elsewhere)) is None:
        return state, ()
    members = state.changelog[place.first : place.end]
    changes = [*_changes_of(members, state, recent)]
    frames, handles = carried(
        [encode_for_segment(change_set(*merged_id(members), changes), compression)] if changes else []
    )
    handles = tuple(msgspec.structs.replace(handle, offset=handle.offset + offset) for handle in handles)
    return with_bases(state, Bases((), frozenset(), place.end, frozenset(), first=place.first, merged=handles)), frames


def _changes_of(
    members: Sequence[ChangeSetHandle], state: RangeState, recent: Mapping[str, bytes]
) -> Iterator[Changes]:
    for read in plan_reads(members, state.key_groups):
        yield from changes_of(frames_of(recent[read.segment.key], read), read.change_sets)
