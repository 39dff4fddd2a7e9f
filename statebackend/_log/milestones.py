"""Milestones: single commits below the sweep floor that are kept for their age. The floor itself names them. Pure.

    content of a floor := nothing | checksum " " JSON array of [sequence, stamp, checkpoint id, seconds since 1970]
    checksum           := CRC-32 of the JSON, 8 hexadecimal digits

Which commits are milestones, and below which entry there are only such and savepoints, changes in one request, since
one object says both. What erases keys is a floor without milestones: nothing older can be opened any more.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.moments import ROUNDED_S
from statebackend.errors import CorruptObjectError
from statebackend.ids import CheckpointId, CommitSequence

NONE: Final[Mapping[int, "Milestone"]] = {}


class Milestone(msgspec.Struct, frozen=True, array_like=True):
    """A commit that is kept for its age: where it lies, its stamp, its id, and when it was made."""

    sequence: CommitSequence
    stamp: str
    checkpoint_id: CheckpointId
    committed_at_s: float

    @classmethod
    def of(cls, commit: Commit) -> "Milestone":
        """That of the commit."""
        return cls(commit.sequence, commit.stamp, commit.checkpoint_id, commit.committed_at_s)

    def names(self, commit: Commit) -> bool:
        """True if it is `commit`, and no other one at its place in the log."""
        return (commit.sequence, commit.stamp) == (self.sequence, self.stamp)


def floor_content(milestones: Iterable[Milestone]) -> bytes:
    """The content of a floor that names these; of none, nothing."""
    found = sorted(milestones, key=lambda each: each.sequence)
    if not found:
        return b""
    said = msgspec.json.encode(found)
    return b"%08x %s" % (zlib.crc32(said), said)


def milestones_in(content: bytes, key: str) -> Mapping[int, Milestone]:
    """The milestones that a floor names, by sequence, oldest first. Raises `CorruptObjectError`."""
    if not content:
        return NONE
    checksum, _, said = content.partition(b" ")
    try:
        if checksum != b"%08x" % zlib.crc32(said):
            raise ValueError("the checksum differs")
        return {each.sequence: each for each in msgspec.json.decode(said, type=tuple[Milestone, ...])}
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptObjectError(
            "it does not say which older commits are kept: a sweep with checkpoints_retained_s=0 gives them up",
            object=key,
        ) from error


def newest_until(milestones: Sequence[Milestone], at_s: float) -> Milestone | None:
    """The newest that is not later than the moment."""
    found = [each for each in milestones if each.committed_at_s <= at_s + ROUNDED_S]
    return max(found, key=lambda each: each.sequence, default=None)
