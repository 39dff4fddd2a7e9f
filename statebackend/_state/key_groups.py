"""Which key group a key belongs to: the same number Spark computes, so that the JVM can place rows by it.

    key group  = xxh64(key bytes, seed 42) as signed 64 bit, mod max_parallelism, never negative
    key bytes  = str: UTF-8; bytes: themselves; int: eight bytes, little-endian, signed
    tuple      = each part hashed with the hash of the part before as its seed; nested tuples as if written flat

which is `pmod(xxhash64(key), max_parallelism)` in Spark for string, binary and bigint columns; an `int` column must be
cast to bigint first, since Spark hashes it in four bytes.
"""

from typing import Final, cast

from xxhash import xxh64_intdigest

from statebackend.errors import KeyTypeError
from statebackend.ids import Key

SEED: Final = 42
KEY_DEPTH_MAX: Final = 16
"""Tuples within tuples. A key nested without bound would be logged and then fail to be read back."""
_SIGN = 1 << 63
_WRAP = 1 << 64


def key_group(key: Key, max_parallelism: int) -> int:
    """The key's group, 0 to `max_parallelism - 1`. Raises `KeyTypeError` for what is not a key."""
    digest = key_hash(key, SEED)
    return (digest - _WRAP if digest >= _SIGN else digest) % max_parallelism


def key_hash(key: Key, seed: int, depth_max: int = KEY_DEPTH_MAX) -> int:
    """xxh64 of the key's canonical bytes, unsigned. Raises `KeyTypeError`."""
    kind: type = type(key)  # not isinstance: True is an int and equals 1, numpy's str is a str and its repr differs
    if kind is str:
        return xxh64_intdigest(_utf8(cast("str", key)), seed)
    if kind is int:
        return xxh64_intdigest(_eight_bytes(cast("int", key)), seed)
    if kind is bytes:
        return xxh64_intdigest(cast("bytes", key), seed)
    if kind is tuple and key:
        if depth_max == 0:
            raise KeyTypeError("a key's tuples are nested too deeply: write it flat", depth_max=KEY_DEPTH_MAX)
        for part in cast("tuple[Key, ...]", key):
            seed = key_hash(part, seed, depth_max - 1)
        return seed
    raise KeyTypeError("a key is a str, an int, bytes, or a non-empty tuple of them: convert it", type=kind.__name__)


def _utf8(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise KeyTypeError("a str key must be valid Unicode: it holds a lone surrogate", key=ascii(key)) from error


def _eight_bytes(key: int) -> bytes:
    try:
        return key.to_bytes(8, "little", signed=True)
    except OverflowError as error:
        raise KeyTypeError("an int key must fit 64 bits, signed", key=key) from error
