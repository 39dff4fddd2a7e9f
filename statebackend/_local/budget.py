"""How many bytes lie in one local root, and whether there is room for more. Pure.

An object counts from the moment its writing begins until its deletion has succeeded. In between it may be there or
not: a write that failed may have left it, and so may a deletion that failed.
"""

from collections.abc import Collection, Mapping
from typing import Final

from statebackend.errors import StoreUnavailableError


class ByteBudget:
    """The account of one local root. `bytes_max` is its limit, 0 for none.

    Sizes are those of the objects, not of the blocks they occupy. While an object is being replaced both lie there, and
    the larger one counts. With a limit nothing may be written before `found` has said what lies there already.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: Final = bytes_max
        self.held_bytes = 0
        self.apart_bytes = 0
        """Of what lies here and is somebody else's to count: RocksDB bases. It takes room, too."""
        self.counted = False
        self._sizes: dict[str, int] = {}

    @property
    def keys(self) -> Collection[str]:
        """The keys of what lies here, or may."""
        return self._sizes.keys()

    def found(self, sizes: Mapping[str, int]) -> None:
        """This is what lies there before the first write. More than `bytes_max` is legal, and stays."""
        self._sizes = dict(sizes)
        self.held_bytes = sum(sizes.values())
        self.counted = True

    def begin(self, key: str, size_bytes: int) -> None:
        """An object is about to be written. Raises `StoreUnavailableError`, and counts nothing, if there is no room."""
        growth = max(0, size_bytes - self._sizes.get(key, 0))
        if self.bytes_max and not self.counted:
            raise StoreUnavailableError("the local root could not be listed: its budget is unknown", key=key)
        if self.bytes_max and growth and self.held_bytes + self.apart_bytes + growth > self.bytes_max:
            raise StoreUnavailableError(
                "the local root's budget is spent",
                key=key,
                size_bytes=size_bytes,
                held_bytes=self.held_bytes + self.apart_bytes,
                local_bytes_max=self.bytes_max,
            )
        self._set(key, self._sizes.get(key, 0) + growth)

    def stored(self, key: str, size_bytes: int) -> None:
        """The object lies there, whole, and whatever lay there before is gone."""
        self._set(key, size_bytes)

    def deleted(self, key: str) -> None:
        """Nothing lies at `key` any more."""
        self.held_bytes -= self._sizes.pop(key, 0)

    def check_invariants(self) -> None:
        """The sum is that of its parts, and no part is negative."""
        assert self.held_bytes == sum(self._sizes.values()), "bytes miscounted"
        assert all(size >= 0 for size in self._sizes.values()), "an object of negative size"

    def _set(self, key: str, size_bytes: int) -> None:
        self.held_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes
