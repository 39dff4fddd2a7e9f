"""Keys in columns: one part for a plain key, several for a tuple. Hashed, compared and kept by row.

    hash of a key := xxh64(part, seed = hash of the part before, 42 for the first)

It is the hash that gives a key its key group, and its place in the index.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import (
    Column,
    Fixed,
    Flags,
    Integers,
    Octets,
    Strings,
    are_equal,
    gathered,
    starts_of,
)
from statebackend._codec.xxh64 import Hashes, hash_integers, hash_strings
from statebackend._columns.growable import COMPACTED_BYTES_MIN, copied_items, grown
from statebackend._tables.key_groups import SEED

Parts: TypeAlias = Sequence[Column]
PlainParts: TypeAlias = Sequence[int | bytes]
"""One key: text as its bytes."""
HashKeys: TypeAlias = Callable[[Parts], Hashes]

LENGTH_BITS: Final = 24
KEY_BYTES_MAX: Final = (1 << LENGTH_BITS) - 1
"""Bytes of the longest text or binary key: nearly 16 MiB."""


def hash_parts(parts: Parts) -> Hashes:
    """The hash of each key."""
    hashes: Hashes | np.uint64 = np.uint64(SEED)
    for part in parts:
        if isinstance(part, Fixed):
            hashes = hash_integers(part.values, hashes)
        else:
            hashes = hash_strings(part.data, part.starts, part.lengths, hashes)
    return cast("Hashes", hashes)


class HashedKeys(NamedTuple):
    """Keys with the hash of each."""

    parts: Parts
    hashes: Hashes

    def taken(self, chosen: Any) -> "HashedKeys":
        """The keys at these places."""
        return HashedKeys(taken(self.parts, chosen), self.hashes[chosen])


def count_of(parts: Parts) -> int:
    """The number of keys."""
    first = parts[0]
    return len(first.values) if isinstance(first, Fixed) else len(first.lengths)


def taken(parts: Parts, chosen: Any) -> Parts:
    """The keys at these places."""
    return [each.taken(chosen) for each in parts]


def plain_keys(parts: Parts) -> Iterator[tuple[int | bytes, ...]]:
    """The keys one by one, as tuples of integers and bytes."""
    return zip(*map(_plain, parts), strict=True)


def same_parts(ones: Parts, others: Parts) -> Flags:
    """For each pair of keys, if they are equal."""
    same: Flags = np.ones(count_of(ones), np.bool_)
    for one, other in zip(ones, others, strict=True):
        if isinstance(one, Fixed):
            assert isinstance(other, Fixed)
            same &= one.values == other.values
            continue
        assert isinstance(other, Strings)
        same &= one.lengths == other.lengths
        if same.all():
            same = are_equal(one.data, one.starts, other.data, other.starts, one.lengths)
        else:
            alike = np.flatnonzero(same)
            starts, other_starts, lengths = one.starts[alike], other.starts[alike], one.lengths[alike]
            same[alike] = are_equal(one.data, starts, other.data, other_starts, lengths)
    return same


def _plain(part: Column) -> Iterable[int | bytes]:
    if isinstance(part, Fixed):
        return cast("list[int]", part.values.tolist())
    raw, starts = part.data.tobytes(), part.starts.tolist()
    return [raw[start : start + length] for start, length in zip(starts, part.lengths.tolist(), strict=True)]


class IntegerKeys:
    """One part of the keys, 64-bit integers, by row."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def reserve(self, used: int, needed: int) -> None:
        """Make room for rows."""
        self._values = grown(self._values, used, needed)

    def read(self, rows: Any) -> Fixed:
        """This part of the keys of these rows."""
        return Fixed(self._values[rows])

    def item(self, row: int) -> int:
        """This part of the key of one row."""
        return self._values.item(row)

    def write(self, rows: Any, part: Column) -> None:
        """Set this part of the keys of these rows."""
        assert isinstance(part, Fixed)
        self._values[rows] = part.values

    def copy(self, rows: Integers | slice, *, shared: bool) -> Self:
        """These rows, one behind the other; those of a slice in the same memory if `shared`."""
        copied = type(self)()
        copied._values = self._values[rows] if shared else copied_items(self._values, rows)
        return copied


class StringKeys:
    """One part of the keys, text or bytes, by row. Their bytes are only appended.

    A row has one number, so that a lookup reads one place: where the key begins, and its length in the lowest bits.
    """

    __slots__ = ("_end", "_heap", "_spans", "_unused")

    def __init__(self) -> None:
        self._heap: Octets = np.zeros(0, np.uint8)
        self._end = 0
        self._unused = 0  # bytes of keys that were replaced
        self._spans: Integers = np.zeros(0, np.int64)

    def reserve(self, used: int, needed: int) -> None:
        """Make room for rows."""
        self._spans = grown(self._spans, used, needed)

    def read(self, rows: Any) -> Strings:
        """This part of the keys of these rows. The bytes are shared, and do not change."""
        spans = self._spans[rows]
        return Strings(self._heap, spans >> LENGTH_BITS, spans & KEY_BYTES_MAX)

    def item(self, row: int) -> bytes:
        """This part of the key of one row."""
        span = self._spans.item(row)
        start = span >> LENGTH_BITS
        return self._heap[start : start + (span & KEY_BYTES_MAX)].tobytes()

    def write(self, rows: Any, part: Column) -> None:
        """Set this part of the keys of these rows."""
        assert isinstance(part, Strings)
        self._unused += int((self._spans[rows] & KEY_BYTES_MAX).sum())
        total = int(part.lengths.sum())
        self._heap = grown(self._heap, self._end, self._end + total)
        self._heap[self._end : self._end + total] = gathered(part.data, part.starts, part.lengths)
        self._spans[rows] = (starts_of(part.lengths) + self._end) << LENGTH_BITS | part.lengths
        self._end += total

    def copy(self, rows: Integers | slice, *, shared: bool) -> Self:
        """These rows, one behind the other; those of a slice in the same memory if `shared`. Their bytes always are."""
        copied = type(self)()
        copied._heap, copied._end, copied._unused = self._heap, self._end, self._unused
        copied._spans = self._spans[rows] if shared else copied_items(self._spans, rows)
        return copied

    @property
    def used_bytes(self) -> int:
        """Bytes of the keys there are."""
        return self._end - self._unused

    @property
    def is_wasteful(self) -> bool:
        """True if a compaction is worth its while."""
        return self._unused > COMPACTED_BYTES_MIN and 2 * self._unused > self._end

    def tidy(self, live: Integers) -> None:
        """Compact the heap, in arrays of its own. `live`: the rows whose keys are kept."""
        kept = self.read(live)
        heap = gathered(kept.data, kept.starts, kept.lengths)
        self._spans = np.zeros_like(self._spans)
        self._spans[live] = starts_of(kept.lengths) << LENGTH_BITS | kept.lengths
        self._heap, self._end, self._unused = heap, len(heap), 0


class KeyColumns:
    """The keys by row, in a column for each part."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[IntegerKeys | StringKeys]) -> None:
        self._parts: Final = parts

    def reserve(self, used: int, needed: int) -> None:
        """Make room for rows."""
        for part in self._parts:
            part.reserve(used, needed)

    def read(self, rows: Any) -> Parts:
        """The keys of these rows."""
        return [part.read(rows) for part in self._parts]

    def is_at(self, row: int, key: PlainParts) -> bool:
        """True if this is the key of the row."""
        for part, each in zip(self._parts, key, strict=True):  # noqa: SIM110  # `all` takes twice as long
            if part.item(row) != each:
                return False
        return True

    def write(self, rows: Any, keys: Parts) -> None:
        """Set the keys of these rows."""
        for part, column in zip(self._parts, keys, strict=True):
            part.write(rows, column)

    def copy(self, rows: Integers | slice, *, shared: bool) -> "KeyColumns":
        """These rows; those of a slice in the same memory if `shared`: then these keys must not be written again."""
        return KeyColumns([part.copy(rows, shared=shared) for part in self._parts])

    def used_bytes(self, used: int) -> int:
        """Bytes of the keys of so many rows."""
        return sum(8 * used + (part.used_bytes if isinstance(part, StringKeys) else 0) for part in self._parts)

    @property
    def is_wasteful(self) -> bool:
        """True if a compaction is worth its while."""
        return any(isinstance(part, StringKeys) and part.is_wasteful for part in self._parts)

    def tidy(self, live: Integers) -> None:
        """Compact the bytes of the keys. `live`: the rows whose keys are kept."""
        for part in self._parts:
            if isinstance(part, StringKeys):
                part.tidy(live)
