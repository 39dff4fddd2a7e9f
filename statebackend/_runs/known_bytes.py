"""The bytes of a segment that are known so far, as one of which only some ranges were fetched."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Final


class UnknownBytesError(Exception):
    """Bytes are wanted that are not known: `places` are offsets and lengths. Never leaves the opening of a run."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        super().__init__(places)
        self.places: Final = places


class KnownBytes:
    """Ranges of a segment of `size_bytes`, to read from. Others are refused."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes: Final = size_bytes
        self._ranges: list[tuple[int, bytes]] = []  # in order of their offsets

    def add(self, offset: int, data: bytes) -> None:
        """These bytes begin there."""
        insort(self._ranges, (offset, data))

    @property
    def whole(self) -> bytes | None:
        """The segment, if one range has all of it."""
        return next((data for _, data in self._ranges if len(data) == self.size_bytes), None)

    def has(self, offset: int, length: int) -> bool:
        """True if they can be read."""
        try:
            self.read(offset, length)
        except UnknownBytesError:
            return False
        return True

    def read(self, offset: int, length: int) -> bytes:
        """So many bytes from there on. Raises `UnknownBytesError` where no range has them all."""
        for begin, data in reversed(self._ranges[: bisect_right(self._ranges, offset, key=lambda each: each[0])]):
            if offset + length <= begin + len(data):
                return data[offset - begin : offset - begin + length]
        raise UnknownBytesError([(offset, length)])
