"""Columns in numpy: items of one width, and many byte strings in one array, moved and compared all at once.

String `i` is `data[starts[i] : starts[i] + lengths[i]]`. numpy moves items of any width, at any place, at one to five
nanoseconds each, but only of one width per call. So strings of different lengths are moved as their first eight bytes
and their last eight, which overlap, if they have 8 to 15, and likewise at each power of two: two calls for each.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Octets = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


COMPARED_AT_ONCE: Final = 128
"""Strings of more bytes are compared one by one."""
WORDS_BYTES_MAX: Final = 256
"""Bytes of an array for each string moved, up to which a copy of it in words, if it needs one, pays."""
SPREAD_MAX: Final = 8
"""Bytes of an array for each byte of strings in it, up to which it is copied rather than the strings moved together."""


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
C = TypeVar("C", bound=Fixed | Strings)


def items_at(data: Octets, width: int) -> npt.NDArray[np.void]:
    """The `width` bytes at each place of `data`, as an array of items that overlap."""
    return np.ndarray((max(0, len(data) - width + 1),), np.dtype((np.void, width)), data, strides=(1,))


def starts_of(lengths: Integers) -> Integers:
    """Where each string begins if they lie one behind the other."""
    return np.cumsum(lengths) - lengths


def words_of(data: Octets) -> npt.NDArray[np.uint64]:
    """The bytes in words of eight, the last one filled up with zeros: a copy, unless all are full."""
    if len(data) % 8 or not data.flags.c_contiguous or data.__array_interface__["data"][0] % 8:
        padded = np.zeros(len(data) // 8 * 8 + 8, np.uint8)
        padded[: len(data)] = data
        data = padded
    return data.view("<u8")


def word_at(words: npt.NDArray[np.uint64], starts: Integers) -> npt.NDArray[np.uint64]:
    """The eight bytes from each of these places on; those behind the end are anything.

    Two words are read and shifted, since numpy reads what is aligned in less than half the time.
    """
    first = starts >> 3
    shift = ((starts & 7) << 3).view(np.uint64)
    found = words.take(first, mode="clip") >> shift
    first += 1
    found |= words.take(first, mode="clip") << (np.uint64(64) - shift)  # a shift by 64 gives zero
    return found


def gathered(data: Octets, starts: Integers, lengths: Integers) -> Octets:
    """The strings one behind the other, in an array of their own."""
    total = int(lengths.sum())
    if not total:
        return np.empty(0, np.uint8)
    ends = starts + lengths
    if (ends[:-1] == starts[1:]).all():
        return data[int(starts[0]) : int(starts[0]) + total].copy()  # as after decoding
    if total == len(lengths) * (width := int(lengths[0])) and (lengths == width).all():
        return items_at(data, width)[starts].view(np.uint8)
    out = np.empty(total, np.uint8)
    places = starts_of(lengths)
    words = words_of(data) if len(data) <= WORDS_BYTES_MAX * len(lengths) else None
    for width, chosen in _classes(lengths):
        from_, to = starts[chosen], places[chosen]
        target = items_at(out, width)
        target[to] = _items(data, words, from_, width)
        rest = lengths[chosen] - width
        if rest.any():
            target[to + rest] = _items(data, words, from_ + rest, width)
    return out


def packed(column: C) -> C:
    """The same column; strings lie in an array of their own, one behind the other."""
    if isinstance(column, Strings):
        octets = gathered(column.data, column.starts, column.lengths)
        return column._replace(data=octets, starts=starts_of(column.lengths))
    return column


def joined(columns: Sequence[Column]) -> Column:
    """The values of columns of one type, one behind the other."""
    if len(columns) == 1:
        return columns[0]
    valid = None
    if any(each.valid is not None for each in columns):
        valid = np.concatenate([_valid(each) for each in columns])
    if isinstance(columns[0], Fixed):
        values: npt.NDArray[Any] = np.concatenate([each.values for each in columns if isinstance(each, Fixed)])
        return Fixed(values, valid)
    strings = [_dense(each) for each in columns if isinstance(each, Strings)]
    begins = starts_of(np.array([len(each.data) for each in strings]))
    starts = np.concatenate([each.starts + begin for each, begin in zip(strings, begins.tolist(), strict=True)])
    data: Octets = np.concatenate([each.data for each in strings])
    return Strings(data, starts, np.concatenate([each.lengths for each in strings]), valid)


def are_equal(data: Octets, starts: Integers, others: Octets, other_starts: Integers, lengths: Integers) -> Flags:
    """For each pair of strings of the same length, one in `data` and one in `others`: if they have the same bytes."""
    shortest, longest = int(lengths.min(initial=COMPARED_AT_ONCE)), int(lengths.max(initial=0))
    if shortest == longest <= COMPARED_AT_ONCE:
        return _same_items(data, starts, others, other_starts, longest)
    equal: Flags = np.ones(len(lengths), np.bool_)
    for width in np.flatnonzero(
        np.bincount(np.minimum(lengths, COMPARED_AT_ONCE + 1))[: COMPARED_AT_ONCE + 1]
    ).tolist():
        chosen = np.flatnonzero(lengths == width)
        equal[chosen] = _same_items(data, starts[chosen], others, other_starts[chosen], width)
    for number in np.flatnonzero(lengths > COMPARED_AT_ONCE).tolist():
        start, other_start, length = int(starts[number]), int(other_starts[number]), int(lengths[number])
        equal[number] = np.array_equal(data[start : start + length], others[other_start : other_start + length])
    return equal


def _same_items(data: Octets, starts: Integers, others: Octets, other_starts: Integers, width: int) -> Flags:
    """As `are_equal`, of strings that all have `width` bytes."""
    if not width:
        return np.ones(len(starts), np.bool_)
    same: Flags = items_at(data, width)[starts] == items_at(others, width)[other_starts]
    return same


def _items(data: Octets, words: npt.NDArray[np.uint64] | None, starts: Integers, width: int) -> npt.NDArray[np.void]:
    if width > 8 or words is None:
        return items_at(data, width)[starts]
    return word_at(words, starts).astype(f"<u{width}").view(f"V{width}")


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


def _valid(column: Column) -> Flags:
    count = len(column.values) if isinstance(column, Fixed) else len(column.lengths)
    return np.ones(count, np.bool_) if column.valid is None else column.valid


def _dense(strings: Strings) -> Strings:
    """The strings, in an array that they fill well enough for it to be copied."""
    return strings if len(strings.data) <= SPREAD_MAX * strings.nbytes else packed(strings)
