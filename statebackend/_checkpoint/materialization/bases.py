"""Decides which key groups get new bases, in which segments, and what the next commit lists then. Pure.

    changelog:  h0 h1 h2 h3 h4 | h5 h6      a commit with five handles; two more checkpoints while bases are written
    bases:      A[0, 63] B[64, 127]         the groups 0, 3 and 90 were changed by h0 to h4

    next commit:  changelog h5 h6, bases A[1, 2][4, 63] B[64, 89][91, 127] C[0, 0][3, 3][90, 90]

A base is the state of a commit, so nothing is lost whether it is used or not. Key groups that were not changed since
their last base keep it. A base that stands for less than half of what was written into it is given up, by writing its
other groups anew as well: so all bases together have at most about twice the size of the state.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from statebackend._checkpoint.materialization.tiers import ChangeSetId
from statebackend._codec.change_sets.changes import Changes, ChangeSet, change_set
from statebackend._codec.change_sets.paged_changes import is_paged
from statebackend._codec.segment import FrameOfPages, SealedSet
from statebackend.ids import (
    Base,
    ChangeSetHandle,
    Handle,
    KeyGroupRange,
    RangeState,
    RocksDBBase,
    SequenceNumber,
    ranges_of,
)
from statebackend.settings import KiB, MiB

LOG_ID: Final = "base"
"""The log id of a base's frames. No writer has it: writers are named after their key groups."""
FRAME_BYTES_MIN: Final = 64 * KiB
"""A frame takes in neighbouring key groups until it has this size: smaller frames compress badly."""
FRAME_BYTES_MAX: Final = MiB
"""Key groups that are larger than this together take several frames, unless their rows lie in pages."""
SEGMENT_BYTES_MAX: Final = 16 * MiB
"""A segment that has this size ends with its key group."""
ALONE_BYTES_MIN: Final = 6 * MiB
"""A key group of this size has a segment of its own: larger ones are hardly read faster, and erasing a key writes all
of its segment again."""
SMALL_BYTES: Final = 4 * MiB
ROWS_SHARE: Final = 8
"""Of the memory for rows, a segment takes so small a part."""
SMALL_BASES_MAX: Final = 16
"""So many bases smaller than `SMALL_BYTES` are left beside new ones; if there were more they are written together."""


AnyBase = TypeVar("AnyBase", Base, RocksDBBase)


class Bases(msgspec.Struct, frozen=True):
    """The result of one run: every entry of `key_groups`, as of a commit with `handles` handles in its changelog.

    Or of a merge: `merged` takes the place of the handles from `first` up to `handles`, and there is nothing else.
    """

    written: tuple[Base, ...]
    key_groups: frozenset[int]
    handles: int
    only_primary: frozenset[str]
    """Keys of the objects that have no local copy."""
    rocksdb: RocksDBBase | None = None
    first: int = 0
    merged: tuple[ChangeSetHandle, ...] = ()


class Piece(msgspec.Struct, frozen=True):
    """A segment to be uploaded: its frames, and the key groups it will stand for, including those without an entry."""

    frames: list[SealedSet]
    key_groups: tuple[KeyGroupRange, ...]


def key_groups_to_write(
    changed: Iterable[int], bases: Iterable[Base], rocksdb: Iterable[RocksDBBase] = ()
) -> frozenset[int]:
    """The groups changed since their last base, and the other groups of a base that would be mostly stale then.

    Also the groups of small bases, if there were more than `SMALL_BASES_MAX` left: a restore reads a file for each. And
    all groups of RocksDB bases: once they are written as entries, the job no longer needs RocksDB.
    """
    bases = tuple(bases)
    wanted = {*changed, *(group for base in rocksdb for group in _groups_of(base))}
    for base in bases:
        live = _groups_of(base) - wanted
        if 2 * len(live) < base.key_groups_written:
            wanted |= live
    small = [base for base in bases if base.size_bytes < SMALL_BYTES and not wanted.issuperset(_groups_of(base))]
    if len(small) > SMALL_BASES_MAX:
        wanted.update(*map(_groups_of, small))
    return frozenset(wanted)


def with_bases(state: RangeState, bases: Bases) -> RangeState:
    """The state with these bases: they replace what older bases and the changelog hold of their key groups."""
    rocksdb = _without(state.rocksdb, bases.key_groups)
    return msgspec.structs.replace(
        state,
        changelog=(*state.changelog[: bases.first], *bases.merged, *state.changelog[bases.handles :]),
        bases=(*_without(state.bases, bases.key_groups), *bases.written),
        rocksdb=rocksdb if bases.rocksdb is None else (*rocksdb, bases.rocksdb),
    )


def base_segment_bytes(in_flight_bytes_max: int, rows_bytes_max: int = 0) -> int:
    """Size at which a segment of bases ends: a quarter of what may be in flight, so that others find room beside it.

    `rows_bytes_max`: the memory for rows over runs, if there are any. Where that is short, segments are smaller: two of
    them are in memory at a time, one that is made and one that is sent.
    """
    enough = max(SMALL_BYTES, rows_bytes_max // ROWS_SHARE) if rows_bytes_max else SEGMENT_BYTES_MAX
    return min(SEGMENT_BYTES_MAX, enough, in_flight_bytes_max // 4)


def pack(
    changes: Iterable[Changes], key_groups: Iterable[int], *, segment_bytes_max: int, merged: ChangeSetId | None = None
) -> Iterator[Piece]:
    """Cut the entries of `key_groups`, which come in the order of their groups, into segments.

    Neighbouring groups that come together, state after state, stay together. A segment ends with a key group, so that a
    group lies in one base only; it exceeds `segment_bytes_max` by at most those that came together, and ends earlier
    with a large group that it begins with. Each segment is yielded before the next is begun, so one at a time is in
    memory. No entries, no segments.

    `merged`: the id of the change set that these are pieces of, if they are no bases. Each piece is one frame then, or
    few, since a commit lists them.
    """
    groups = sorted(key_groups)
    frames: list[SealedSet] = []
    size_bytes, reached = 0, -1
    for frame in _frames(changes, segment_bytes_max, merged):
        border = frame.key_groups.first
        is_alone = bool(frames) and frames[0].key_groups.first == reached
        enough = min(ALONE_BYTES_MIN, segment_bytes_max) if is_alone else segment_bytes_max
        if frames and size_bytes >= enough and border > reached:
            yield Piece(frames, ranges_of(group for group in groups if group < border))
            frames, size_bytes, groups = [], 0, [group for group in groups if group >= border]
        frames.append(frame)
        size_bytes += frame.size_bytes
        reached = max(reached, frame.key_groups.last)
    if frames:
        yield Piece(frames, ranges_of(groups))


def base_of(piece: Piece, segment: Handle) -> Base:
    """The base that a commit lists for a piece uploaded as `segment`."""
    return Base(segment, piece.key_groups, sum(map(len, piece.key_groups)))


def _frames(changes: Iterable[Changes], segment_bytes_max: int, merged: ChangeSetId | None) -> Iterator[SealedSet]:
    """Rows in pages have frames of their own: these are not compressed, so they are encoded at once."""
    number, reached = 0, -1
    # Frames of a layer are listed by commits, so they are few, and end with a key group where that is possible.
    enough, most = (FRAME_BYTES_MIN, FRAME_BYTES_MAX) if merged is None else (segment_bytes_max, 2 * segment_bytes_max)
    frame: _FrameOfChanges | FrameOfPages | None = None
    for each in changes:
        if frame is not None:
            # Pages are read one by one, so a frame of them has the key group whole: each part costs an opening.
            beyond = max(most, segment_bytes_max) if is_paged(each) else most
            is_full = frame.size_bytes >= (enough if each.span.first > reached else beyond)
            if is_full or is_paged(each) != isinstance(frame, FrameOfPages):
                yield frame.ended(*(merged or (LOG_ID, SequenceNumber(number))))
                number, frame = number + 1, None
        if frame is None:
            frame = FrameOfPages() if is_paged(each) else _FrameOfChanges()
        frame.add(each)
        reached = max(reached, each.span.last)
    if frame is not None:
        yield frame.ended(*(merged or (LOG_ID, SequenceNumber(number))))


class _FrameOfChanges:
    """As `FrameOfPages`, of changes that are encoded later, when they are compressed."""

    def __init__(self) -> None:
        self._changes: list[Changes] = []
        self.size_bytes = 0

    def add(self, changes: Changes) -> None:
        self._changes.append(changes)
        self.size_bytes += changes.size_bytes

    def ended(self, log_id: str, sequence_number: SequenceNumber) -> ChangeSet:
        return change_set(log_id, sequence_number, self._changes)


def _groups_of(base: Base | RocksDBBase) -> set[int]:
    return {group for each in base.key_groups for group in each}


def _without(bases: Iterable[AnyBase], groups: frozenset[int]) -> tuple[AnyBase, ...]:
    """These bases without `groups`, for which newer ones stand."""
    return tuple(left for base in bases if (left := _narrowed(base, groups)).key_groups)


def _narrowed(base: AnyBase, groups: frozenset[int]) -> AnyBase:
    if not any(group in groups for each in base.key_groups for group in each):
        return base
    left = (group for each in base.key_groups for group in each if group not in groups)
    return msgspec.structs.replace(base, key_groups=ranges_of(left))
