"""Counts the bytes in one local root and says whether there is room for more. Pure.

An object counts from the moment its writing begins until its deletion has succeeded: a write that failed may have left
it there, and so may a deletion that failed.
"""

from collections.abc import Collection, Mapping
from typing import Final

from statebackend.errors import StoreUnavailableError


class ByteBudget:
    """The bytes of one local root. `bytes_max` is the limit, 0 for none.

    Sizes are those of the objects, not of the disk blocks they occupy. While an object is being replaced, the larger of
    the two counts. With a limit, nothing may be written before `found` has said what is there already.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: Final = bytes_max
        self.held_bytes = 0
        self.apart_bytes = 0
        """Bytes of the RocksDB bases here. They take room too, but are counted elsewhere: see `rocksdb_copies`."""
        self.counted = False
        self._sizes: dict[str, int] = {}

    @property
    def keys(self) -> Collection[str]:
        """The keys of the objects that are here, or may be."""
        return self._sizes.keys()

    def found(self, sizes: Mapping[str, int]) -> None:
        """`sizes` is what the root holds before the first write. More than `bytes_max` is legal, and stays."""
        self._sizes = dict(sizes)
        self.held_bytes = sum(sizes.values())
        self.counted = True

    def begin(self, key: str, size_bytes: int) -> None:
        """An object is about to be written. If there is no room, raises `StoreUnavailableError` and counts nothing."""
        growth = max(0, size_bytes - self._sizes.get(key, 0))
        if self.bytes_max and not self.counted:
            raise StoreUnavailableError("the local root could not be listed, so its free room is unknown", key=key)
        if self.bytes_max and growth and self.held_bytes + self.apart_bytes + growth > self.bytes_max:
            raise StoreUnavailableError(
                "the local root is full",
                key=key,
                size_bytes=size_bytes,
                held_bytes=self.held_bytes + self.apart_bytes,
                local_bytes_max=self.bytes_max,
            )
        self._set(key, self._sizes.get(key, 0) + growth)

    def stored(self, key: str, size_bytes: int) -> None:
        """The object was written whole, and replaced any earlier one."""
        self._set(key, size_bytes)

    def deleted(self, key: str) -> None:
        """There is no object at `key` any more."""
        self.held_bytes -= self._sizes.pop(key, 0)

    def check_invariants(self) -> None:
        """Assert that the sum is that of its parts, and no part is negative."""
        assert self.held_bytes == sum(self._sizes.values()), "bytes miscounted"
        assert all(size >= 0 for size in self._sizes.values()), "an object of negative size"

    def _set(self, key: str, size_bytes: int) -> None:
        self.held_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes
