"""A stored value with its version and its time, and several of them in a row.

    cell   := value                                         no version, no stamp, and no c1 at its beginning
            | c1 flags:u8 [version:u32] [stamp:f64] value   little-endian
    flags  := 1 a version follows, otherwise it is 0 | 2 a stamp follows
    cells  := framed*
    framed := length data                                   length := u8 below 255 | ff length:u32

MessagePack never uses the byte c1, so a value that msgspec encoded is its own cell. Each cell says what it has: a state
can gain or lose its time-to-live, or move to another version, and no stored value has to be rewritten.
"""

import struct
from typing import Final

import msgspec

from statebackend.errors import ValueDecodeError

HEADER: Final = b"\xc1"
"""First byte of a cell that does not begin with its value."""
_VERSIONED: Final = 1
_STAMPED: Final = 2
_VERSION = struct.Struct("<I")
_STAMP = struct.Struct("<d")
_LENGTH = struct.Struct("<I")
_SHORT_END: Final = 255
_SMALL_END: Final = 128
"""Lengths below this are the same byte as a small integer of MessagePack."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """The parts of a cell. `stamp` is the time of writing, in seconds by the clock of the state's time-to-live."""

    value: bytes
    version: int = 0
    stamp: float | None = None


def pack(value: bytes, version: int = 0, stamp: float | None = None) -> bytes:
    """Return the cell of an encoded value."""
    if stamp is None and not version:
        return value if value[:1] != HEADER else b"\xc1\x00" + value
    if stamp is None:
        return b"\xc1\x01" + _VERSION.pack(version) + value
    if not version:
        return b"\xc1\x02" + _STAMP.pack(stamp) + value
    return b"\xc1\x03" + _VERSION.pack(version) + _STAMP.pack(stamp) + value


def unpack(cell: bytes) -> Cell:
    """Return the parts of a cell. Raises `ValueDecodeError` if its header is cut off or unknown."""
    if cell[:1] != HEADER:
        return Cell(cell)
    try:
        flags, at, version, stamp = cell[1], 2, 0, None
        if flags & _VERSIONED:
            (version,) = _VERSION.unpack_from(cell, at)
            at += _VERSION.size
        if flags & _STAMPED:
            (stamp,) = _STAMP.unpack_from(cell, at)
            at += _STAMP.size
    except (IndexError, struct.error) as error:
        raise ValueDecodeError("the header of a stored value is cut off", size_bytes=len(cell)) from error
    if flags > _VERSIONED | _STAMPED:
        raise ValueDecodeError("the header of a stored value is not known", flags=flags)
    return Cell(cell[at:], version, stamp)


def stamp_of(cell: bytes) -> float | None:
    """The time of writing, `None` if the cell does not tell."""
    return unpack(cell).stamp if cell[:1] == HEADER else None


def framed(data: bytes) -> bytes:
    """Return `data` with its length in front."""
    length = len(data)
    if length < _SHORT_END:
        return length.to_bytes(1, "little") + data
    return b"\xff" + _LENGTH.pack(length) + data


def split(row: bytes) -> list[bytes]:
    """Return the elements that were framed, in order. Raises `ValueDecodeError` if the last one is cut off."""
    parts: list[bytes] = []
    at, end = 0, len(row)
    while at < end:
        length = row[at]
        at += 1
        if length == _SHORT_END:
            length, at = _long_length(row, at)
        parts.append(row[at : at + length])
        at += length
    if at > end:
        raise ValueDecodeError("a stored element is cut off", offset=at, size_bytes=end)
    return parts


def joined(row: bytes | bytearray) -> tuple[int, bytearray] | None:
    """Return how many elements were framed, and all of them without their lengths; `None` if it needs a loop.

    It works if all elements are short and of one length, as floats, small numbers or codes are: slicing with a step
    then drops all lengths at once.
    """
    if not row or row[0] == _SHORT_END or len(row) % (step := row[0] + 1):
        return None
    lengths = row[::step]
    if lengths.count(row[0]) < len(lengths):
        return None
    data = bytearray(row)
    del data[::step]
    return len(lengths), data


def count_small(row: bytes | bytearray) -> int:
    """Return how many elements were framed; 0 if one of them has 128 bytes or more, or is cut off.

    Such a row is MessagePack as it stands: each length is an integer, and its element follows. So an array of twice as
    many items decodes it in one call, and nothing has to be cut out.
    """
    found, at, end = 0, 0, len(row)
    while at < end:
        length = row[at]
        if length >= _SMALL_END:
            return 0
        at += length + 1
        found += 1
    return found if at == end else 0


def count(row: bytes | bytearray) -> int:
    """Return how many elements were framed. Raises `ValueDecodeError` if the last one is cut off."""
    found, at, end = 0, 0, len(row)
    while at < end:
        length = row[at]
        if length == _SHORT_END:
            length, at = _long_length(row, at + 1)
            at += length
        else:
            at += length + 1
        found += 1
    if at > end:
        raise ValueDecodeError("a stored element is cut off", offset=at, size_bytes=end)
    return found


def _long_length(row: bytes | bytearray, at: int) -> tuple[int, int]:
    if at + _LENGTH.size > len(row):
        raise ValueDecodeError("the length of a stored element is cut off", offset=at)
    return _LENGTH.unpack_from(row, at)[0], at + _LENGTH.size
