"""Decodes MessagePack of any type, also maps that have maps among their keys, which no dict of Python can hold.

A record is a map in MessagePack, and may be a key in a dict or in a map state. msgspec decodes it by its class; without
the class it would be a dict, which cannot be hashed. Here such a map becomes a list of pairs.
"""

from contextlib import suppress
from typing import Any, Final

import msgspec

_SIZES: Final = dict(
    zip(b"\xcc\xcd\xce\xcf\xd0\xd1\xd2\xd3\xca\xcb", (2, 3, 5, 9, 2, 3, 5, 9, 5, 9), strict=True)
) | dict(zip(b"\xd4\xd5\xd6\xd7\xd8", (3, 4, 6, 10, 18), strict=True))
"""Bytes of numbers, and of extensions of a fixed length, by the first of them. What is not here has one byte."""
_COUNTS: Final = dict(zip(b"\xc4\xc5\xc6\xd9\xda\xdb\xc7\xc8\xc9", (1, 2, 4) * 3, strict=True)) | dict(
    zip(b"\xdc\xdd\xde\xdf", (2, 4) * 2, strict=True)
)
"""Bytes of the count behind the first byte: of the octets of bytes, a text or an extension, or of an array's items."""


def decode_any(data: bytes) -> Any:
    """The value. Raises `ValueError` for what is not MessagePack, `RecursionError` for what is nested too deep."""
    try:
        return msgspec.msgpack.decode(data)
    except msgspec.MsgspecError:
        with suppress(IndexError):
            found, end = _value(data, 0)
            if end == len(data):
                return found
        raise


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    head = data[at]
    if 0x80 <= head < 0xA0:
        count, begin = head & 0x0F, at + 1
    elif head in _COUNTS:
        begin = at + 1 + _COUNTS[head]
        count = int.from_bytes(data[at + 1 : begin], "big")
    else:
        count, begin = 0, at
    if 0x80 <= head < 0x90 or head in (0xDE, 0xDF):
        return _map(data, begin, count)
    if 0x90 <= head < 0xA0 or head in (0xDC, 0xDD):
        return _array(data, begin, count)
    if begin > at:
        end = begin + count + (0xC7 <= head <= 0xC9)  # an extension's type lies before its octets
    else:
        end = at + (1 + (head & 0x1F) if 0xA0 <= head < 0xC0 else _SIZES.get(head, 1))
    return msgspec.msgpack.decode(data[at:end]), end


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    for _ in range(count):
        value, at = _value(data, at)
        found.append(value)
    return found, at


def _map(data: bytes, at: int, count: int) -> tuple[Any, int]:
    pairs: list[tuple[Any, Any]] = []
    for _ in range(count):
        key, at = _value(data, at)
        value, at = _value(data, at)
        pairs.append((key, value))
    return pairs if any(isinstance(key, list | dict) for key, _ in pairs) else dict(pairs), at
