"""Columns in numpy: items of one width, and many byte strings in one array, moved and compared all at once.

String `i` is `data[starts[i] : starts[i] + lengths[i]]`. numpy moves items of any width, at any place, at one to five
nanoseconds each, but only of one width per call. So a string of 8 to 15 bytes is moved as its first eight and its last
eight, which overlap, and likewise at each power of two: two calls per class of lengths, whatever the lengths are.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Octets = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Fixed(NamedTuple):
    """Values of one width. `valid`: which of them are not null; `None` if none is. The bytes of a null are zero."""

    values: npt.NDArray[Any]
    valid: Flags | None = None

    def taken(self, chosen: Any) -> "Fixed":
        """The values at these places."""
        return Fixed(self.values[chosen], None if self.valid is None else self.valid[chosen])

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.values.nbytes


class Strings(NamedTuple):
    """Byte strings of any lengths, anywhere in `data`. A null has the length zero."""

    data: Octets
    starts: Integers
    lengths: Integers
    valid: Flags | None = None

    def taken(self, chosen: Any) -> "Strings":
        """The strings at these places. They share `data`."""
        valid = None if self.valid is None else self.valid[chosen]
        return Strings(self.data, self.starts[chosen], self.lengths[chosen], valid)

    @property
    def nbytes(self) -> int:
        """Bytes of the strings."""
        return int(self.lengths.sum())


Column: TypeAlias = Fixed | Strings


def items_at(data: Octets, width: int) -> npt.NDArray[np.void]:
    """The `width` bytes at each place of `data`, as an array of items that overlap."""
    return np.ndarray((max(0, len(data) - width + 1),), np.dtype((np.void, width)), data, strides=(1,))


def starts_of(lengths: Integers) -> Integers:
    """Where each string begins if they lie one behind the other."""
    return np.cumsum(lengths) - lengths


def gathered(data: Octets, starts: Integers, lengths: Integers) -> Octets:
    """The strings one behind the other, in an array of their own."""
    out = np.empty(int(lengths.sum()), np.uint8)
    places = starts_of(lengths)
    for width, chosen in _classes(lengths):
        source, target = items_at(data, width), items_at(out, width)
        from_, to = starts[chosen], places[chosen]
        target[to] = source[from_]
        rest = lengths[chosen] - width
        if rest.any():
            target[to + rest] = source[from_ + rest]
    return out


def are_equal(data: Octets, starts: Integers, others: Octets, other_starts: Integers, lengths: Integers) -> Flags:
    """For each pair of strings of the same length, one in `data` and one in `others`: if they have the same bytes."""
    equal = np.ones(len(lengths), np.bool_)
    for width, chosen in _classes(lengths):
        one, other = items_at(data, width), items_at(others, width)
        at, other_at = starts[chosen], other_starts[chosen]
        same = _same_items(one[at], other[other_at], width)
        rest = lengths[chosen] - width
        if rest.any():
            same &= _same_items(one[at + rest], other[other_at + rest], width)
        equal[chosen] = same
    return equal


def _classes(lengths: Integers) -> Iterator[tuple[int, Any]]:
    """The widths 1, 2, 4, ... with the strings that have at least so many bytes, and less than twice as many."""
    longest = int(lengths.max(initial=0))
    shortest = int(lengths.min(initial=longest))
    if longest and longest.bit_length() == shortest.bit_length():
        yield 1 << (longest.bit_length() - 1), slice(None)
        return
    for bits in range(longest.bit_length()):
        width = 1 << bits
        chosen = np.flatnonzero((lengths >= width) & (lengths < 2 * width))
        if len(chosen):
            yield width, chosen


def _same_items(one: npt.NDArray[np.void], other: npt.NDArray[np.void], width: int) -> Flags:
    if width <= 8:
        word = np.dtype(f"<u{width}")
        return np.asarray(one.view(word) == other.view(word), np.bool_)
    return np.asarray((one.view("<u8") == other.view("<u8")).reshape(-1, width // 8).all(axis=1), np.bool_)
