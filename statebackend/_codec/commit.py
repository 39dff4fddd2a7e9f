"""The commit object: the one object whose put-if-absent makes a checkpoint exist.

    commit   := magic version:u8 checksum:u32 length:u32 manifest                        little-endian
    magic    := "sbcommt"
    checksum := crc32 of magic, version, length and manifest
    manifest := msgpack map of the fields of `Commit`

A field may be added with a default in the same version; a reader passes over fields it does not know. A reader that
must not pass over something needs a new version.
"""

import struct
import zlib
from typing import Final

import msgspec

from statebackend.errors import CorruptCommitError, InputError, UnsupportedVersionError, WrongJobError
from statebackend.ids import (
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    CommitSummary,
    Epoch,
    KeyGroupRange,
    SourceMark,
)

MAGIC: Final = b"sbcommt"
VERSION: Final = 1
HEAD: Final = MAGIC + bytes([VERSION])
_LENGTH = struct.Struct("<I")
_PREFIX = struct.Struct("<II")


class StateDescriptor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A declared state: its number in the changes, its name and kind, and what its values were written with.

    `schema` is the one of the newest declaration, `earlier` are those of the same version that stored values may have
    besides. A cell that names no version is of version 0. `key_schema` is of the keys within a map.
    """

    state_id: int
    name: str
    kind: str
    schema: str
    key_schema: str = ""
    version: int = 0
    earlier: tuple[str, ...] = ()


class RangeState(msgspec.Struct, frozen=True):
    """The state of one range of key groups: change sets, in the order in which they are to be applied."""

    key_groups: KeyGroupRange
    changelog: tuple[ChangeSetHandle, ...]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint.

    `stamp` is unique to the attempt: whoever finds a commit at the sequence he wanted tells by it whether it is
    his own, made by a request whose answer was lost. `parent` is the commit this one continues.
    """

    job: str
    sequence: CommitSequence
    checkpoint_id: CheckpointId
    epoch: Epoch
    parent: CommitSequence | None
    stamp: str
    max_parallelism: int
    ranges: tuple[RangeState, ...]
    states: tuple[StateDescriptor, ...]
    source: SourceMark | None = None
    committed_at_s: float = 0.0
    release: str = ""

    @property
    def summary(self) -> CommitSummary:
        """The commit without its handles."""
        return CommitSummary(
            self.sequence, self.checkpoint_id, self.epoch, self.parent, self.source, self.committed_at_s
        )

    def segments(self) -> frozenset[str]:
        """Keys of every segment the commit points into."""
        return frozenset(handle.segment.key for part in self.ranges for handle in part.changelog)


_decoder = msgspec.msgpack.Decoder(Commit)


def encode_commit(commit: Commit) -> bytes:
    """The bytes of the commit object, known to decode. Raises `InputError` where a part has a wrong type.

    A struct does not check its fields when it is made, and a commit that does not decode closes the job for good.
    """
    try:
        manifest = msgspec.msgpack.encode(commit)
        _decoder.decode(manifest)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"a part of the commit has a wrong type: {error}", sequence=commit.sequence) from error
    length = _LENGTH.pack(len(manifest))
    return b"".join((HEAD, _LENGTH.pack(_checksum(HEAD, length, manifest)), length, manifest))


def decode_commit(data: bytes, name: str, *, job: str) -> Commit:
    """The commit in `data`, checked against its checksum and the job it should belong to.

    Raises `CorruptCommitError`, `UnsupportedVersionError` or `WrongJobError`, naming the object.
    """
    start = len(HEAD) + _PREFIX.size
    if len(data) < start or not data.startswith(MAGIC):
        raise CorruptCommitError("not a commit object, or cut off", object=name, offset=0, size=len(data))
    checksum, length = _PREFIX.unpack_from(data, len(HEAD))
    if len(data) - start != length:
        raise CorruptCommitError("commit object has the wrong length", object=name, offset=start, length=length)
    if _checksum(data[: len(HEAD)], _LENGTH.pack(length), data[start:]) != checksum:
        raise CorruptCommitError("commit checksum differs", object=name, offset=len(HEAD))
    if (version := data[len(MAGIC)]) != VERSION:
        raise UnsupportedVersionError("commit of another release", object=name, version=version, known=VERSION)
    try:
        commit = _decoder.decode(data[start:])
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise CorruptCommitError(f"manifest does not decode: {error}", object=name, offset=start) from error
    if commit.job != job:
        raise WrongJobError("the commit belongs to another job", object=name, job=job, job_found=commit.job)
    return commit


def _checksum(*parts: bytes) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
