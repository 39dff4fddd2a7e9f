"""Writes all states as bases, those of each owner apart, as running owners would contribute them."""

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from statebackend._checkpoint.materialization.bases import Piece, pack
from statebackend._state.declared import KeyedStates
from statebackend._tables.snapshot import PlacedStates
from statebackend._threads import WorkerThreads
from statebackend._upkeep.key_group_change import Owner
from statebackend._upkeep.offline.offline_commit import Uploads
from statebackend._upkeep.progress import Meter
from statebackend.ids import Base, RangeState


async def write_bases(
    states: KeyedStates,
    owners: Sequence[Owner],
    uploads: Uploads,
    *,
    threads: WorkerThreads,
    segment_bytes_max: int,
    meter: Meter,
) -> list[RangeState]:
    """Write the bases of each owner; return their ranges. `meter` counts key groups."""
    bases: dict[int, list[Base]] = {place: [] for place in range(len(owners))}
    reached = 0
    pieces = _pieces(states.snapshot().placed(frozenset(states.key_groups)), owners, segment_bytes_max)
    while (found := await threads.cpu(next, pieces, None)) is not None:
        place, piece = found
        changes = sum(frame.records for frame in piece.frames)  # before the upload, which empties the frames
        bases[place].append(base := await uploads.base(piece))
        end = piece.key_groups[-1].last + 1
        meter.step(end - reached, changes=changes, size_bytes=base.size_bytes)
        reached = end
    sizes = states.state_sizes() if len(owners) == 1 else UNSET  # only a single one knows its sizes
    return [
        RangeState(owner.key_groups, (), tuple(bases[place]), owner.operator, sizes=sizes)
        for place, owner in enumerate(owners)
    ]


def _pieces(states: PlacedStates, owners: Sequence[Owner], segment_bytes_max: int) -> Iterator[tuple[int, Piece]]:
    """The segments to write, in the order of their key groups, each for one owner; made one at a time."""
    for place, owner in enumerate(owners):
        groups = list(owner.key_groups)
        for piece in pack(states.changes(groups), groups, segment_bytes_max=segment_bytes_max):
            yield place, piece
