"""When bases are written, of which key groups, in which pieces, and what the next commit makes of them. Pure.

    changelog:  h0 h1 h2 h3 h4 | h5 h6      a commit with five handles; two more checkpoints while bases are written
    bases:      A[0, 63] B[64, 127]         the groups 0, 3 and 90 were changed by h0 to h4

    next commit:  changelog h5 h6, bases A[1, 2][4, 63] B[64, 89][91, 127] C[0, 0][3, 3][90, 90]

A base is the state of a commit, so nothing is lost whether it is used or not. Key groups that were not changed since
their last base keep it. A base that stands for less than half of what was written into it is given up: its other groups
are written anew too, so that all bases together are at most about twice the state.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from statebackend._changelog.ledger import size_of
from statebackend._codec.records import ChangeSet, StateChange, change_set
from statebackend.ids import Base, Handle, KeyGroupRange, RangeState, RocksDBBase, SequenceNumber
from statebackend.settings import KiB, MiB, Tuning

LOG_ID: Final = "base"
"""The log id of a base's frames: no writer has it, for those are called after their key groups."""
FRAME_BYTES_MIN: Final = 64 * KiB
"""A frame takes in neighbouring key groups until it has as much: smaller ones compress badly."""
FRAME_BYTES_MAX: Final = MiB
"""A key group larger than this takes several frames."""
SEGMENT_BYTES_MAX: Final = 16 * MiB
"""What a segment has before another one is begun, at the next key group."""


AnyBase = TypeVar("AnyBase", Base, RocksDBBase)


class Bases(msgspec.Struct, frozen=True):
    """What a materialization has written: every entry of `key_groups`, as of a commit with so many handles."""

    written: tuple[Base, ...]
    key_groups: frozenset[int]
    handles: int
    only_primary: frozenset[str]
    """Keys of those that have no local copy."""
    rocksdb: RocksDBBase | None = None


class Piece(msgspec.Struct, frozen=True):
    """A segment to be: its frames, and the key groups for which it will stand, those without any entry among them."""

    frames: list[ChangeSet]
    key_groups: tuple[KeyGroupRange, ...]


def is_due(state: RangeState, tuning: Tuning, *, interval_is_over: bool) -> bool:
    """Whether bases are to be written for what is committed. Never where there is no changelog to replace."""
    if not state.changelog:
        return False
    if interval_is_over or 0 < tuning.materialize_handles_max <= len(state.changelog):
        return True
    if tuning.materialize_changelog_ratio == 0:
        return False
    limit_bytes = max(tuning.materialize_changelog_bytes_min, tuning.materialize_changelog_ratio * _base_bytes(state))
    return sum(handle.length for handle in state.changelog) >= limit_bytes


def first_interval_s(job: str, key_groups: KeyGroupRange, interval_s: float) -> float:
    """When the first interval is over: anywhere in it, but always the same for these key groups of this job.

    Otherwise all jobs and owners that were started together would write their bases together, for ever (FLINK-26306).
    """
    return zlib.crc32(f"{job} {key_groups}".encode()) / 2**32 * interval_s


def key_groups_to_write(
    changed: Iterable[int], bases: Iterable[Base], rocksdb: Iterable[RocksDBBase] = ()
) -> frozenset[int]:
    """The groups that were changed since their last base, and those whose base is mostly stale without them.

    And those of RocksDB bases: once they are written, the job can do without RocksDB.
    """
    wanted = {*changed, *(group for base in rocksdb for each in base.key_groups for group in each)}
    for base in bases:
        live = {group for each in base.key_groups for group in each} - wanted
        if 2 * len(live) < base.key_groups_written:
            wanted |= live
    return frozenset(wanted)


def with_bases(state: RangeState, bases: Bases) -> RangeState:
    """The state of a range in the next commit: `bases`, what they leave of the others, and the changes since."""
    rocksdb = _without(state.rocksdb, bases.key_groups)
    return msgspec.structs.replace(
        state,
        changelog=state.changelog[bases.handles :],
        bases=(*_without(state.bases, bases.key_groups), *bases.written),
        rocksdb=rocksdb if bases.rocksdb is None else (*rocksdb, bases.rocksdb),
    )


def pack(changes: Iterable[StateChange], key_groups: Iterable[int], *, segment_bytes_max: int) -> Iterator[Piece]:
    """The segments of the bases of `key_groups`, whose entries come in the order of their groups.

    A segment ends with a key group, so that one base stands for it; it is larger than `segment_bytes_max` by at most
    one group. Each is handed out before the next one is begun. None for groups without entries.
    """
    groups = sorted(key_groups)
    frames: list[ChangeSet] = []
    size_bytes = 0
    for frame in _frames(changes):
        border = frame.key_groups.first
        if frames and size_bytes >= segment_bytes_max and border > frames[-1].key_groups.last:
            yield Piece(frames, ranges_of(group for group in groups if group < border))
            frames, size_bytes, groups = [], 0, [group for group in groups if group >= border]
        frames.append(frame)
        size_bytes += frame.size_bytes
    if frames:
        yield Piece(frames, ranges_of(groups))


def base_of(piece: Piece, segment: Handle) -> Base:
    """What the commit says of a piece that was uploaded."""
    return Base(segment, piece.key_groups, sum(map(len, piece.key_groups)))


def ranges_of(groups: Iterable[int]) -> tuple[KeyGroupRange, ...]:
    """The fewest ranges that hold exactly these groups, in order."""
    ranges: list[list[int]] = []
    for group in sorted(groups):
        if ranges and ranges[-1][1] == group - 1:
            ranges[-1][1] = group
        else:
            ranges.append([group, group])
    return tuple(KeyGroupRange(first, last) for first, last in ranges)


def _frames(changes: Iterable[StateChange]) -> Iterator[ChangeSet]:
    number, size_bytes = 0, 0
    frame: list[StateChange] = []
    for change in changes:
        limit_bytes = FRAME_BYTES_MIN if frame and frame[-1].key_group != change.key_group else FRAME_BYTES_MAX
        if size_bytes >= limit_bytes:
            yield change_set(LOG_ID, SequenceNumber(number), frame, size_bytes)
            number, size_bytes, frame = number + 1, 0, []
        frame.append(change)
        size_bytes += size_of(change)
    if frame:
        yield change_set(LOG_ID, SequenceNumber(number), frame, size_bytes)


def _without(bases: Iterable[AnyBase], groups: frozenset[int]) -> tuple[AnyBase, ...]:
    """What these bases still stand for when others stand for `groups`."""
    return tuple(left for base in bases if (left := _narrowed(base, groups)).key_groups)


def _narrowed(base: AnyBase, groups: frozenset[int]) -> AnyBase:
    if not any(group in groups for each in base.key_groups for group in each):
        return base
    left = (group for each in base.key_groups for group in each if group not in groups)
    return msgspec.structs.replace(base, key_groups=ranges_of(left))


def _base_bytes(state: RangeState) -> float:
    """Stored bytes of the bases, each by the share of it that is live."""
    return sum(base.size_bytes * _live_share(base) for base in state.all_bases)


def _live_share(base: Base | RocksDBBase) -> float:
    return base.live / base.key_groups_written if base.key_groups_written else 1.0
