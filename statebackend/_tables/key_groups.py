"""The key group of a key: the same number that Spark computes, so that the JVM can place rows by it.

    key group  = xxh64(key bytes, seed 42) as signed 64 bit, mod max_parallelism, never negative
    key bytes  = str: UTF-8; bytes: themselves; int: eight bytes, little-endian, signed
    tuple      = each part hashed with the hash of the part before as its seed; nested tuples as if written flat

This is `pmod(xxhash64(key), max_parallelism)` in Spark for string, binary and bigint columns. Cast an `int` column to
bigint first: Spark hashes it in four bytes.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, cast

import numpy as np
from xxhash import xxh64_intdigest

from statebackend._codec.change_sets.changes import GROUP, KeyGroups
from statebackend._codec.xxh64 import Hashes, hash_integers
from statebackend.errors import KeyGroupError, KeyTypeError
from statebackend.ids import Key, KeyGroupRange, all_key_groups

SEED: Final = 42
KEY_DEPTH_MAX: Final = 16
"""Tuples within tuples. A key nested deeper could be logged, but not read back."""
INT_LEAST: Final = -(1 << 63)
INT_GREATEST: Final = (1 << 63) - 1
"""The ints that can be keys lie between these."""
SIGN: Final = 1 << 63
WRAP: Final = 1 << 64
"""A hash of at least `SIGN`, less `WRAP`, is the same 64 bits with a sign."""


def key_group(key: Key, max_parallelism: int) -> int:
    """The key's group, 0 to `max_parallelism - 1`. Raises `KeyTypeError` for a value that cannot be a key."""
    # Most keys are plain text: they skip the calls that tell the other types apart.
    is_plain = type(key) is str and key.isascii()
    digest = xxh64_intdigest(key.encode(), SEED) if is_plain else key_hash(key, SEED)  # type: ignore[union-attr]
    return (digest - WRAP if digest >= SIGN else digest) % max_parallelism


class OwnedKeys:
    """Finds the groups of an owner's keys, and refuses other owners' keys."""

    __slots__ = ("_owned", "_owns_all", "int_greatest", "int_least", "key_groups", "max_parallelism")

    def __init__(self, key_groups: KeyGroupRange, max_parallelism: int) -> None:
        self.key_groups: Final = key_groups
        self.max_parallelism: Final = max_parallelism
        self._owns_all = key_groups == all_key_groups(max_parallelism)
        self._owned = frozenset[int]() if self._owns_all else frozenset(key_groups)  # not asked of the owner of all
        # An int between these needs no further check: the owner of all key groups owns each that can be a key. Any
        # other owner has to compute its group, so for that one there is none.
        self.int_least: Final = INT_LEAST if self._owns_all else 1
        self.int_greatest: Final = INT_GREATEST if self._owns_all else 0

    def group_of(self, key: Key) -> int:
        """The key's group. Raises `KeyTypeError` for what cannot be a key, `KeyGroupError` for another owner's key."""
        group = key_group(key, self.max_parallelism)
        if not self._owns_all and group not in self._owned:
            raise KeyGroupError(
                "the key belongs to another owner", key=key, key_group=group, owned=str(self.key_groups)
            )
        return group

    def groups_of(self, keys: Sequence[Key]) -> list[int]:
        """The groups of many keys, as `group_of` gives them one by one."""
        if len(set(map(type, keys))) == 1:  # or True would be placed as 1 is
            return cast("list[int]", self.placed(keys).tolist())
        return list(map(self.group_of, keys))

    def placed(self, keys: Sequence[Key]) -> KeyGroups:
        """The groups of many values, each of which was proved to be a key.

        Raises `KeyGroupError` for another owner's key.
        """
        hashes = _hashes_in_bulk(keys)
        if hashes is not None:
            groups = groups_of_hashes(hashes, self.max_parallelism)
            if self._owns_all or self._are_owned(groups):
                return groups
        return np.array(list(map(self.group_of, keys)), dtype=GROUP)  # raises for the one that is wrong

    def check(self, key: Key) -> None:
        """Raise what `group_of` would. Computes the group only where it must."""
        if type(key) is int:
            if self.int_least <= key <= self.int_greatest:
                return
        elif self._owns_all and type(key) is str and key.isascii():
            return
        self.group_of(key)

    def check_many(self, keys: Sequence[Key]) -> None:
        """Raise what `groups_of` would. Computes the groups only where it must."""
        kinds = set(map(type, keys)) if self._owns_all else set[type]()
        if kinds == {int}:
            numbers = cast("Sequence[int]", keys)
            are_ours = min(numbers) >= INT_LEAST and max(numbers) <= INT_GREATEST
        else:
            are_ours = kinds == {str} and all(map(str.isascii, cast("Sequence[str]", keys)))
        if not are_ours:
            self.groups_of(keys)

    def _are_owned(self, groups: KeyGroups) -> bool:
        owned = self.key_groups
        return not len(groups) or bool(owned.first <= groups.min() and groups.max() <= owned.last)


def hashes_of(keys: Sequence[Key]) -> Hashes:
    """The hash of each key, which gives it its group. Raises `KeyTypeError` for a value that cannot be a key."""
    found = _hashes_in_bulk(keys) if len(set(map(type, keys))) == 1 else None
    return np.array([key_hash(key, SEED) for key in keys], np.uint64) if found is None else found


def groups_of_hashes(hashes: Hashes, max_parallelism: int) -> KeyGroups:
    """The key groups of keys with these hashes."""
    if max_parallelism & (max_parallelism - 1) == 0:  # a mask takes less than a division, and the sign does not matter
        return (hashes & np.uint64(max_parallelism - 1)).astype(GROUP)
    return (hashes.view(np.int64) % max_parallelism).astype(GROUP)


def _hashes_in_bulk(keys: Sequence[Key]) -> Hashes | None:
    """The hashes of keys that are all str, bytes or int; `None` for others, or if one of them cannot be a key."""
    kind = type(keys[0]) if keys else None
    try:
        if kind is int:
            # Not numpy's own conversion: among ints that would take the key "5" for 5.
            return hash_integers(
                np.frombuffer(array("q", cast("Sequence[int]", keys)), dtype=np.int64), np.uint64(SEED)
            )
        if kind is str:
            return _hashes_of_bytes(map(str.encode, cast("Sequence[str]", keys)), len(keys))
        if kind is bytes:
            return _hashes_of_bytes(cast("Sequence[bytes]", keys), len(keys))
    except (UnicodeEncodeError, OverflowError, TypeError):  # another type is among them
        pass
    return None


def _hashes_of_bytes(values: Iterable[bytes], count: int) -> Hashes:
    # By the library: numpy's way takes as long for 30,000 objects and five times as long for 100.
    return np.fromiter(map(xxh64_intdigest, values, repeat(SEED)), np.uint64, count)


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
