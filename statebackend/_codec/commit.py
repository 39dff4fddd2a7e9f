"""The entries of a job's log: the commit object, whose put-if-absent makes a checkpoint exist, and the claim.

    entry    := magic version:u8 checksum:u32 length:u32 manifest inline              little-endian
    magic    := "sbcommt"
    checksum := crc32 of everything but itself
    manifest := msgpack map of the fields of `Commit` or `Claim`, and "entry": "commit" or "claim"; `length` bytes
    inline   := frame* part*           change sets of a small checkpoint, output rows of a small batch; none in a claim

A handle into the object's own inline frames has an empty key, and an offset that counts from where they begin. Decoding
makes it whole, as a later commit carries it: with the key, length and checksum of this object. A handle to an inline
part of the outbox is stored the same way; made whole, it has this object's key, and the part's offset in the object.

Within a version, a field may be added with a default; a reader passes over fields that it does not know. What a reader
must not pass over needs a new version. Version 2 is 1 with an outbox, which a reader of 1 would forget to publish. 3 is
either with RocksDB bases, without which the state would lack their key groups. 4 is 3 with a file of columnar states in
one of them, whose rows a reader of 3 would leave out. 5 is any of these with a clock, which a reader of 4 would lose. 6
is any of these with the place where the stream has to begin, which a reader of 5 would not compare, or with states that
were transformed, whose changes a reader of 5 would look for in vain.
"""

import itertools
import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from statebackend._codec.segment import EncodedFrame, checksum_of
from statebackend.errors import CorruptCommitError, InputError, UnsupportedVersionError, WrongJobError
from statebackend.ids import (
    MAX_PARALLELISM_LIMIT,
    ChangeSetHandle,
    CheckpointId,
    ClockMark,
    CommitSequence,
    CommitSummary,
    Epoch,
    Handle,
    RangeState,
    SourceMark,
    StagedOutput,
    StateDescriptor,
    cover_all,
)

MAGIC: Final = b"sbcommt"
VERSION: Final = 6
"""The newest known version. An entry is written in the oldest version that can say all of it."""
_HEAD_LENGTH: Final = len(MAGIC) + 1
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_MAP_16: Final = 0xDE  # of MessagePack: the head of a map of 16 fields or more
_START = _HEAD_LENGTH + _CHECKSUM.size + _LENGTH.size


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="commit", tag_field="entry"):
    """A committed checkpoint.

    `stamp` is unique to the attempt to commit. A writer that finds a commit at its sequence tells by the stamp whether
    it is its own, made by a request whose answer was lost. `parent` is the commit that this one continues.
    """

    job: str
    sequence: CommitSequence
    checkpoint_id: CheckpointId
    epoch: Epoch
    parent: CommitSequence | None
    stamp: str
    max_parallelism: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARALLELISM_LIMIT)]
    ranges: tuple[RangeState, ...]
    states: tuple[StateDescriptor, ...]
    source: SourceMark | None = None
    committed_at_s: float = 0.0
    release: str = ""
    outbox: tuple[StagedOutput, ...] = ()
    """Outputs that were not known to be published when this was made, oldest first; that of its own batch is last."""
    clock: ClockMark | None = None
    """The job's clock; `None` if it has none, or none yet."""
    marks: tuple[SourceMark, ...] | None = None
    """The newest batch of each query but that of `source` that the state has, the latest last; `None`: not recorded."""
    starts_from: Any = None
    """Where a stream has to begin that goes on from here, in JSON's types; `None` if nobody said, or one has begun."""
    transformed: tuple[str, ...] = ()
    """The states that this commit has other values of than its parent, by no change sets: see `transform`."""

    @property
    def summary(self) -> CommitSummary:
        """The commit without its handles."""
        return CommitSummary(
            self.sequence,
            self.checkpoint_id,
            self.epoch,
            self.parent,
            self.source,
            self.committed_at_s,
            self.clock,
            self.marks,
            self.starts_from,
        )

    def segments(self) -> frozenset[str]:
        """Keys of all objects that the commit points into; its own too, if it carries change sets or output inline."""
        return frozenset(part.key for output in self.outbox for part in output.parts).union(
            *(part.segments() for part in self.ranges)
        )


class Claim(msgspec.Struct, frozen=True, kw_only=True, tag="claim", tag_field="entry"):
    """A writer's first entry: behind it, only this writer appends. `newest` is the last commit before it, if any.

    `base` is the commit that the writer continues from, if that is not `newest`: no sweep deletes it until the next
    commit.
    """

    job: str
    sequence: CommitSequence
    epoch: Epoch
    stamp: str
    newest: CommitSequence | None
    claimed_at_s: float = 0.0
    release: str = ""
    base: CommitSequence | None = None
    newest_stamp: str | UnsetType = UNSET
    """Stamp of `newest`: proves that a copy is that commit. Unset where it could not be read, and in older claims."""


Entry = Commit | Claim
_Entries = TypeVar("_Entries", Commit, Claim)

_decoder: Final[msgspec.msgpack.Decoder[Commit | Claim]] = msgspec.msgpack.Decoder(Commit | Claim)
IN_HERE: Final = Handle("", 0, 0, 0)
"""The segment of a handle into the inline frames of the object that carries the handle."""


class EncodedEntry(msgspec.Struct, Generic[_Entries], frozen=True):
    """The bytes of an entry, and the entry as decoding gives it: its handles to inline frames are whole."""

    entry: _Entries
    body: bytes


def encode_entry(entry: _Entries, key: str, inline: Sequence[bytes] = ()) -> EncodedEntry[_Entries]:
    """Encode an entry to be created at `key`. Raises `InputError` if a part has a wrong type.

    It is decoded before it is returned, because a struct does not check its fields when it is made, and an entry in the
    log that does not decode would close the job for good.
    """
    try:
        manifest = _with_short_head(msgspec.msgpack.encode(entry))
        _decoder.decode(manifest)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"a part of the commit has a wrong type: {error}", sequence=entry.sequence) from error
    assert (wrong := _contradiction(entry)) is None, wrong
    covered = b"".join((_LENGTH.pack(len(manifest)), manifest, *inline))
    head = MAGIC + bytes([_version_of(entry)])
    body = b"".join((head, _CHECKSUM.pack(checksum_of((head, covered))), covered))
    return EncodedEntry(_resolve(entry, key, body, _START + len(manifest)), body)


def _with_short_head(manifest: bytes) -> bytes:
    """The map with the head of its size. msgspec writes that of 16 fields or more, though it leaves some out."""
    fields = int.from_bytes(manifest[1:3], "big")
    return bytes([0x80 | fields]) + manifest[3:] if manifest[0] == _MAP_16 and fields < 16 else manifest


def carried(frames: Sequence[EncodedFrame]) -> tuple[Sequence[bytes], tuple[ChangeSetHandle, ...]]:
    """Return the bytes of frames, for `encode_entry`, and handles to them, for the commit that carries them."""
    entries = [frame.entry for frame in frames]
    offsets = itertools.accumulate((entry.length for entry in entries), initial=0)
    return [b"".join((head, payload)) for head, payload, _ in frames], tuple(
        ChangeSetHandle(
            segment=IN_HERE,
            log_id=entry.log_id,
            sequence_number=entry.sequence_number,
            offset=offset,
            length=entry.length,
            key_groups=entry.key_groups,
            records=entry.records,
        )
        for entry, offset in zip(entries, offsets, strict=False)
    )


def decode_entry(data: bytes, key: str, *, job: str) -> Commit | Claim:
    """Return the entry that lies at `key`, checked against its checksum and the job it should belong to.

    Raises `CorruptCommitError`, `UnsupportedVersionError` or `WrongJobError`, naming the object.
    """
    if len(data) < _START or not data.startswith(MAGIC):
        raise CorruptCommitError("not a commit object, or cut off", object=key, offset=0, size=len(data))
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD_LENGTH)
    covered = memoryview(data)[_HEAD_LENGTH + _CHECKSUM.size :]
    if checksum_of((data[:_HEAD_LENGTH], covered)) != checksum:
        raise CorruptCommitError("commit checksum differs, or the object is cut off", object=key, offset=_HEAD_LENGTH)
    if not 1 <= (version := data[len(MAGIC)]) <= VERSION:
        raise UnsupportedVersionError("commit of another release: upgrade", object=key, version=version, known=VERSION)
    (length,) = _LENGTH.unpack_from(covered)
    if _START + length > len(data):
        raise CorruptCommitError("the manifest is longer than the object", object=key, offset=_START, length=length)
    try:
        entry = _decoder.decode(data[_START : _START + length])
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise CorruptCommitError(f"manifest does not decode: {error}", object=key, offset=_START) from error
    if (newer := _newer_than(entry, version)) is not None:
        raise CorruptCommitError(f"{newer} in a version that has none", object=key, offset=len(MAGIC))
    if (wrong := _contradiction(entry)) is not None:
        raise CorruptCommitError(
            f"{wrong}, as no release writes it: put the right object back, or open an older checkpoint by its id",
            object=key,
            offset=_START,
        )
    if entry.job != job:
        raise WrongJobError("the commit belongs to another job", object=key, job=job, job_found=entry.job)
    return _resolve(entry, key, data, _START + length) if isinstance(entry, Commit) else entry


def manifest_of(body: bytes) -> memoryview:
    """The manifest in the bytes of an entry that has been checked."""
    return memoryview(body)[_START : inline_offset_of(body)]


def inline_offset_of(body: bytes) -> int:
    """Where the inline frames begin in the bytes of an entry that has been checked: at their end if there are none."""
    length: int = _LENGTH.unpack_from(body, _START - _LENGTH.size)[0]
    return _START + length


def _contradiction(entry: Entry) -> str | None:
    """Why the parts of an entry cannot belong together, whatever its checksum says; `None` if they can.

    What a key group had would be missing without a word where no range has it, and would count twice where two have it.
    """
    before = entry.parent if isinstance(entry, Commit) else entry.newest
    if before is not None and before >= entry.sequence:
        return "the entry continues one that comes after it"
    if isinstance(entry, Claim):
        return None
    if not cover_all([part.key_groups for part in entry.ranges], entry.max_parallelism):
        return "the ranges of the commit do not have each key group once"
    for names in ([state.state_id for state in entry.states], [state.name for state in entry.states]):
        if len(set(names)) < len(names):
            return "two states of the commit have one number or one name"
    return None


def _newer_than(entry: Entry, version: int) -> str | None:
    """The part of the entry that its version has no place for; `None` without one."""
    parts = (
        ("RocksDB bases", _has_rocksdb, 3),
        ("RocksDB bases with columns", _has_columns, 4),
        ("a clock", _has_clock, 5),
        ("a start", _has_start, 6),
        ("states that were transformed", _is_transformation, 6),
    )
    return next((part for part, is_there, since in parts if version < since and is_there(entry)), None)


def _has_rocksdb(entry: Commit | Claim) -> bool:
    return isinstance(entry, Commit) and any(part.rocksdb for part in entry.ranges)


def _has_columns(entry: Commit | Claim) -> bool:
    return isinstance(entry, Commit) and any(base.columns_bytes for part in entry.ranges for base in part.rocksdb)


def _has_clock(entry: Commit | Claim) -> bool:
    return isinstance(entry, Commit) and entry.clock is not None


def _has_start(entry: Commit | Claim) -> bool:
    return isinstance(entry, Commit) and entry.starts_from is not None


def _is_transformation(entry: Commit | Claim) -> bool:
    return isinstance(entry, Commit) and bool(entry.transformed)


def _resolve(entry: _Entries, key: str, body: bytes, inline_offset: int) -> _Entries:
    """Return the entry with whole handles to its own inline frames, which begin at `inline_offset` of `body`."""
    if isinstance(entry, Claim) or len(body) == inline_offset:
        return entry
    return with_whole_handles(entry, Handle(key, 0, len(body), zlib.crc32(body)), inline_offset)


def with_whole_handles(entry: Commit, here: Handle, inline_offset: int) -> Commit:
    """Return the commit, whose object is `here`, with whole handles to its own inline frames."""

    def whole(handle: ChangeSetHandle) -> ChangeSetHandle:
        if handle.segment != IN_HERE:
            return handle
        return msgspec.structs.replace(handle, segment=here, offset=inline_offset + handle.offset)

    def placed(part: Handle) -> Handle:
        return part if part.key else msgspec.structs.replace(part, key=here.key, offset=inline_offset + part.offset)

    ranges = tuple(
        msgspec.structs.replace(part, changelog=tuple(whole(handle) for handle in part.changelog))
        for part in entry.ranges
    )
    outbox = tuple(
        msgspec.structs.replace(output, parts=tuple(placed(part) for part in output.parts)) for output in entry.outbox
    )
    return msgspec.structs.replace(entry, ranges=ranges, outbox=outbox)


def _version_of(entry: Entry) -> int:
    if _has_start(entry) or _is_transformation(entry):
        return 6
    if _has_clock(entry):
        return 5
    if _has_rocksdb(entry):
        return 4 if _has_columns(entry) else 3
    return 2 if isinstance(entry, Commit) and entry.outbox else 1
