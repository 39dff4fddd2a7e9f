"""Compression of one payload, of a frame or of staged output. The codes below are stored: never reuse one.

The stored bytes have neither a size nor a checksum of their own; the frame has both. Without its checksum, zstd would
silently decode a flipped bit to wrong data. The size in the frame is checked before that much memory is allocated: the
format of each codec bounds how many raw bytes a stored byte can stand for.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import cramjam

from statebackend.settings import Compression

ReadBuffer = bytes | bytearray | memoryview


class _Codec(NamedTuple):
    code: int
    compress: Callable[[ReadBuffer], ReadBuffer]
    decompress_into: Callable[[ReadBuffer, bytearray], int]
    expansion_max: int
    """Most raw bytes that one stored byte can stand for, by the rules of the codec's format."""


def _copy_into(stored: ReadBuffer, output: bytearray) -> int:
    if len(stored) != len(output):
        raise ValueError("length differs")
    output[:] = stored
    return len(output)


def _lz4(raw: ReadBuffer) -> memoryview:
    return memoryview(cramjam.lz4.compress_block(raw, store_size=False))


def _lz4_into(stored: ReadBuffer, output: bytearray) -> int:
    return cramjam.lz4.decompress_block_into(stored, output, output_len=len(output))


def _snappy(raw: ReadBuffer) -> memoryview:
    return memoryview(cramjam.snappy.compress_raw(raw))


def _zstd(raw: ReadBuffer) -> memoryview:
    return memoryview(cramjam.zstd.compress(raw, level=1))


# Expansion: a byte lengthens an lz4 match by 255; 3 bytes are a snappy copy of 64, 4 bytes a zstd block of 128 KiB.
# zstd at level 1 and lz4 by blocks: the higher levels cost 2 to 10 times the CPU for a few per cent.
_CODECS: Final[dict[Compression, _Codec]] = {
    "none": _Codec(0, bytes, _copy_into, 1),
    "lz4": _Codec(1, _lz4, _lz4_into, 255),
    "snappy": _Codec(2, _snappy, cramjam.snappy.decompress_raw_into, 64),
    "zstd": _Codec(3, _zstd, cramjam.zstd.decompress_into, 32_768),
}
_BY_CODE: Final = {codec.code: codec for codec in _CODECS.values()}


def compress(raw: ReadBuffer, compression: Compression) -> tuple[int, ReadBuffer]:
    """Return the codec's code and the stored bytes; the code of `none` if compression would not make them smaller.

    The stored bytes are the library's own, not copied: a copy of megabytes costs a third of compressing them.
    """
    codec = _CODECS[compression]
    stored = codec.compress(raw)
    if len(stored) < len(raw) or compression == "none":
        return codec.code, stored
    return _CODECS["none"].code, bytes(raw)


def decompress(stored: ReadBuffer, code: int, raw_length: int) -> bytearray:
    """Return exactly `raw_length` bytes, and never take more memory than that. Raises `ValueError` otherwise."""
    codec = _BY_CODE.get(code)
    if codec is None:
        raise ValueError(f"unknown codec {code}")
    if raw_length > len(stored) * codec.expansion_max:
        raise ValueError(f"{len(stored)} stored bytes cannot hold {raw_length}")
    output = bytearray(raw_length)
    try:
        written = codec.decompress_into(stored, output)
    except cramjam.DecompressionError as error:
        raise ValueError(f"does not decompress: {error}") from error
    if written != raw_length:
        raise ValueError(f"decompressed to {written} bytes instead of {raw_length}")
    return output
