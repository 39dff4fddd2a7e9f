"""A host's record of one owner's checkpoint, from which a process that is started there later knows the local copies.

    file     := magic version:u8 checksum:u32 manifest                                   little-endian
    magic    := "sblocal"
    checksum := crc32 of magic, version and manifest
    manifest := msgpack map of the fields of `LocalSnapshot`

Within a version, a field may be added with a default; a reader passes over fields that it does not know.
"""

import struct
import zlib
from typing import Final

import msgspec

from statebackend.errors import CorruptObjectError, UnsupportedVersionError
from statebackend.ids import ChangeSetHandle, CheckpointId, KeyGroupRange, RocksDBFile

MAGIC: Final = b"sblocal"
VERSION: Final = 1
HEAD: Final = MAGIC + bytes([VERSION])
_CHECKSUM = struct.Struct("<I")
_START = len(HEAD) + _CHECKSUM.size


class LocalSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One owner's part of a checkpoint, all of whose files have a copy on this host.

    The handles are those of the primary. The local copies have the same keys, and a process that restores from them
    needs the primary's handles for the next commit. An empty `changelog` means a state without entries.
    """

    job: str
    operator: str
    checkpoint_id: CheckpointId
    key_groups: KeyGroupRange
    changelog: tuple[ChangeSetHandle, ...]  # written empty today, but an older release needs the field to decode
    rocksdb: tuple[RocksDBFile, ...] = msgspec.field(default=(), name="native")
    """The files of a RocksDB base of that checkpoint. They lie beside this one, under their own names."""


_decoder = msgspec.msgpack.Decoder(LocalSnapshot)


def encode_local_snapshot(snapshot: LocalSnapshot) -> bytes:
    """Return the bytes of the file."""
    manifest = msgspec.msgpack.encode(snapshot)
    return b"".join((HEAD, _CHECKSUM.pack(zlib.crc32(manifest, zlib.crc32(HEAD))), manifest))


def decode_local_snapshot(data: bytes, name: str) -> LocalSnapshot:
    """Return the snapshot in `data`. Raises `CorruptObjectError` or `UnsupportedVersionError`, naming the file."""
    if len(data) < _START or not data.startswith(MAGIC):
        raise CorruptObjectError("not a local snapshot, or cut off", object=name, offset=0, size=len(data))
    if zlib.crc32(data[_START:], zlib.crc32(data[: len(HEAD)])) != _CHECKSUM.unpack_from(data, len(HEAD))[0]:
        raise CorruptObjectError("local snapshot checksum differs", object=name, offset=len(HEAD))
    if (version := data[len(MAGIC)]) != VERSION:
        raise UnsupportedVersionError(
            "local snapshot of another release: upgrade", object=name, version=version, known=VERSION
        )
    try:
        return _decoder.decode(data[_START:])
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise CorruptObjectError(f"manifest does not decode: {error}", object=name, offset=_START) from error
