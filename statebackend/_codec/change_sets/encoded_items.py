"""Many values as MessagePack has them within arrays, and arrays made of some of them, in any order.

The values are encoded where they are made or lie in memory, some thousands at a time. To put them into another order
then takes a few calls of numpy on their bytes, where to gather the objects would miss the processor's cache with each.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import Integers, Strings, gathered, starts_of

_encode: Final = msgspec.msgpack.Encoder().encode


class _Heads(NamedTuple):
    """The bytes of an item beside its content: `sizes[i]` for a content shorter than `ends[i]`, the last for others."""

    ends: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


_BINARY: Final = _Heads(np.array([1 << 8, 1 << 16]), np.array([2, 3, 5]))
_HEADS: Final[Mapping[type, _Heads]] = {
    str: _Heads(np.array([1 << 5, 1 << 8, 1 << 16]), np.array([1, 2, 3, 5])),
    bytes: _BINARY,
    bytearray: _BINARY,
}
_INTEGERS: Final = _Heads(
    np.array([-(1 << 31), -(1 << 15), -(1 << 7), -(1 << 5), 1 << 7, 1 << 8, 1 << 16, 1 << 32]),
    np.array([9, 5, 3, 2, 1, 2, 3, 5, 9]),
)


class EncodedItems:
    """Values that are all str, all bytes or bytearray, or all ints of 64 bits, encoded."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lengths: list[Integers] = []
        self._items: Strings | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all items so far."""
        return len(self._data)

    def append(self, values: Sequence[Any]) -> bool:
        """Add values; false, and nothing added, if there are others than the class can have among them."""
        lengths = _item_lengths(values)
        if lengths is None:
            return False
        self._data += memoryview(_encode(values))[len(_array_head(len(values))) :]
        self._lengths.append(lengths)
        return True

    def end(self) -> None:
        """Nothing is added any more. Of a million values this takes some ten milliseconds."""
        lengths = np.concatenate(self._lengths)
        assert int(lengths.sum()) == len(self._data), "items of other lengths than MessagePack gives them"
        self._data += bytes(-len(self._data) % 8)  # `gathered` would copy all of it each time
        self._items = Strings(np.frombuffer(self._data, np.uint8), starts_of(lengths), lengths)

    def array(self, chosen: Integers) -> bytes:
        """The MessagePack array of the values at these places. Ends the adding, if `end` has not."""
        if self._items is None:
            self.end()
        items = self._items
        assert items is not None
        octets = gathered(items.data, items.starts[chosen], items.lengths[chosen])
        return _array_head(len(chosen)) + octets.tobytes()


def _item_lengths(values: Sequence[Any]) -> Integers | None:
    kinds = set(map(type, values))
    if len(kinds) > 1:
        return None
    for kind in kinds:
        if kind is int:
            try:
                numbers = np.frombuffer(array("q", values), np.int64)
            except OverflowError:
                return None
            return _INTEGERS.sizes[np.searchsorted(_INTEGERS.ends, numbers, side="right")]
        if (heads := _HEADS.get(kind)) is None:
            return None
        is_long = kind is str and not all(map(str.isascii, values))
        contents = np.fromiter(map(len, map(str.encode, values) if is_long else values), np.int64, len(values))
        return contents + heads.sizes[np.searchsorted(heads.ends, contents, side="right")]
    return np.zeros(0, np.int64)


def _array_head(count: int) -> bytes:
    if count < 1 << 4:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
