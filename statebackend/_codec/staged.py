"""A part of the output rows of a batch: an object until it is published and swept, or a piece of a commit.

    part     := magic version:u8 checksum:u32 codec:u8 raw_length:u64 payload                        little-endian
    magic    := "sboutpt"
    checksum := crc32 of everything but itself
    payload  := an Arrow IPC stream, whole, compressed by one of the codecs of a frame

The payload is not looked into here. It is published to the byte as it was staged, and a reader that finds it damaged
publishes nothing.
"""

import struct
from typing import Final

from statebackend._codec.compression import ReadBuffer, compress, decompress
from statebackend._codec.segment import checksum_of
from statebackend.errors import CorruptObjectError, UnsupportedVersionError
from statebackend.settings import Compression

MAGIC: Final = b"sboutpt"
VERSION: Final = 1
HEAD: Final = MAGIC + bytes([VERSION])
_CHECKSUM = struct.Struct("<I")
_FIELDS = struct.Struct("<BQ")
_START = len(HEAD) + _CHECKSUM.size + _FIELDS.size


def encode_part(payload: ReadBuffer, compression: Compression) -> bytes:
    """Return the bytes of a part that holds this Arrow IPC stream."""
    code, stored = compress(payload, compression)
    fields = _FIELDS.pack(code, len(payload))
    return b"".join((HEAD, _CHECKSUM.pack(checksum_of((HEAD, fields, stored))), fields, stored))


def decode_part(data: bytes, name: str) -> bytearray:
    """Return the Arrow IPC stream in `data`, which lies at `name`.

    Raises `CorruptObjectError` or `UnsupportedVersionError`, naming the object.
    """
    if len(data) < _START or not data.startswith(MAGIC):
        raise CorruptObjectError("not a part of staged output, or cut off", object=name, offset=0, size=len(data))
    (checksum,) = _CHECKSUM.unpack_from(data, len(HEAD))
    covered = memoryview(data)[len(HEAD) + _CHECKSUM.size :]
    if checksum_of((data[: len(HEAD)], covered)) != checksum:
        raise CorruptObjectError("checksum of staged output differs", object=name, offset=len(HEAD))
    if (version := data[len(MAGIC)]) != VERSION:
        raise UnsupportedVersionError(
            "staged output of another release: upgrade", object=name, version=version, known=VERSION
        )
    code, raw_length = _FIELDS.unpack_from(covered)
    try:
        return decompress(covered[_FIELDS.size :], code, raw_length)
    except ValueError as error:
        raise CorruptObjectError(f"staged output {error}", object=name, offset=_START) from error
