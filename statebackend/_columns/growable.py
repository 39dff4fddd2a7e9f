"""Columns that grow: one value per row, at any row, and room for more rows.

Memory is taken in large steps, but pages that were never written are not resident. What a copy shares is never written
again: arrays that change are copied, the bytes of strings are only appended to.
"""

from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import Column, Fixed, Flags, Integers, Octets, Strings, gathered, starts_of

Values: TypeAlias = npt.NDArray[Any]
GROWTH: Final = 2.0
ROWS_MIN: Final = 1024
COMPACTED_BYTES_MIN: Final = 1 << 16
"""Unused bytes of strings are not worth a compaction below this."""


def grown(array: Values, used: int, needed: int) -> Values:
    """The array with room for `needed` items, of which `used` are kept; the others are zero."""
    if needed <= len(array):
        return array
    room = max(needed, int(len(array) * GROWTH), ROWS_MIN) | 7
    larger = np.zeros(room + 1, array.dtype)
    larger[:used] = array[:used]
    return larger


def copied_items(array: Values, rows: Integers | slice) -> Values:
    """The items of these rows, in an array of its own."""
    found = array[rows]
    return found.copy() if isinstance(rows, slice) else found


class FixedColumn:
    """Values of one width by row. A row that was never written is null.

    As long as no row has a null, what is valid is neither read nor written: a batch reads memory once per column.
    """

    __slots__ = ("_full", "_valid", "_values")

    def __init__(self, item: npt.DTypeLike) -> None:
        self._values: Values = np.zeros(0, item)
        self._valid: Flags = np.zeros(0, np.bool_)
        self._full = 0  # no row below this one is null

    def reserve(self, used: int, needed: int) -> None:
        """Make room for rows."""
        self._values = grown(self._values, used, needed)
        self._valid = grown(self._valid, used, needed)

    def read(self, rows: Integers) -> Fixed:
        """The values of these rows."""
        values = self._values[rows]
        if rows.max(initial=-1) < self._full:
            return Fixed(values)
        valid = self._valid[rows]
        return Fixed(values, None if valid.all() else valid)

    def item(self, row: int) -> Any:
        """The value of one row, as Python has it; `None` for a null."""
        return self._values.item(row) if row < self._full or self._valid.item(row) else None

    def write(self, rows: Integers, column: Column) -> None:
        """Set the values of these rows; of rows given twice, the last value counts."""
        assert isinstance(column, Fixed)
        self._values[rows] = column.values
        if column.valid is not None and not column.valid.all():
            self._valid[rows] = column.valid
            self._full = min(self._full, int(rows[~column.valid].min()))
        elif rows.max(initial=-1) >= self._full:
            self._valid[rows] = True
            behind = self._valid[self._full :]
            self._full += len(behind) if behind.all() else int(behind.argmin())

    def forget(self, rows: Integers) -> None:
        """Make these rows null."""
        self._values[rows] = np.zeros(1, self._values.dtype)[0]
        self._valid[rows] = False
        self._full = min(self._full, int(rows.min(initial=self._full)))

    def copy(self, rows: Integers | slice) -> Self:
        """A copy of these rows, one behind the other."""
        copied = type(self)(self._values.dtype)
        copied._values, copied._valid = copied_items(self._values, rows), copied_items(self._valid, rows)
        copied._full = len(copied._valid) if copied._valid.all() else int(copied._valid.argmin())
        return copied

    def widened(self, used: int, item: npt.DTypeLike) -> "FixedColumn":
        """The same values in another type that holds all of them."""
        wider = FixedColumn(item)
        wider._values, wider._valid = self._values[:used].astype(item), self._valid[:used].copy()
        wider._full = self._full
        return wider

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self._values.dtype


class StringColumn:
    """Strings by row. New ones are appended to a heap of bytes, which is compacted when most of it is unused."""

    __slots__ = ("_end", "_heap", "_lengths", "_starts", "_unused", "_valid")

    def __init__(self) -> None:
        self._heap: Octets = np.zeros(0, np.uint8)
        self._end = 0
        self._unused = 0
        self._starts: Integers = np.zeros(0, np.int64)
        self._lengths: npt.NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._valid: Flags = np.zeros(0, np.bool_)

    def reserve(self, used: int, needed: int) -> None:
        """Make room for rows."""
        self._starts = grown(self._starts, used, needed)
        self._lengths = grown(self._lengths, used, needed)
        self._valid = grown(self._valid, used, needed)

    def read(self, rows: Any) -> Strings:
        """The strings of these rows, or of a slice of rows. They share the heap, which does not change."""
        valid = self._valid[rows]
        lengths = self._lengths[rows].astype(np.int64)
        return Strings(self._heap, self._starts[rows], lengths, None if valid.all() else valid)

    def octets(self, row: int) -> bytes | None:
        """The string of one row; `None` for a null."""
        if not self._valid.item(row):
            return None
        start = self._starts.item(row)
        return self._heap[start : start + self._lengths.item(row)].tobytes()

    def text(self, row: int) -> str | None:
        """The same, decoded."""
        found = self.octets(row)
        return None if found is None else found.decode()

    def write(self, rows: Any, column: Column) -> None:
        """Set the strings of these rows; of rows given twice, the last string counts."""
        assert isinstance(column, Strings)
        self._unused += int(self._lengths[rows].sum())
        total = int(column.lengths.sum())
        self._heap = grown(self._heap, self._end, self._end + total)
        self._heap[self._end : self._end + total] = gathered(column.data, column.starts, column.lengths)
        self._starts[rows] = starts_of(column.lengths) + self._end
        self._lengths[rows] = column.lengths
        self._valid[rows] = True if column.valid is None else column.valid
        self._end += total

    def forget(self, rows: Integers) -> None:
        """Make these rows null."""
        self._unused += int(self._lengths[rows].sum())
        self._lengths[rows] = 0
        self._valid[rows] = False

    def tidy(self, live: Integers) -> None:
        """Compact the heap. `live`: the rows whose strings are kept."""
        lengths = self._lengths[live].astype(np.int64)
        heap = gathered(self._heap, self._starts[live], lengths)
        self._starts, self._lengths = np.zeros_like(self._starts), np.zeros_like(self._lengths)
        self._starts[live], self._lengths[live] = starts_of(lengths), lengths
        self._heap, self._end, self._unused = heap, len(heap), 0

    @property
    def is_wasteful(self) -> bool:
        """True if a compaction is worth its while."""
        return self._unused > COMPACTED_BYTES_MIN and 2 * self._unused > self._end

    @property
    def used_bytes(self) -> int:
        """Bytes of the strings there are."""
        return self._end - self._unused

    def copy(self, rows: Integers | slice) -> Self:
        """A copy of these rows, one behind the other, which shares the heap."""
        copied = type(self)()
        copied._heap, copied._end, copied._unused = self._heap, self._end, self._unused
        copied._starts, copied._lengths = copied_items(self._starts, rows), copied_items(self._lengths, rows)
        copied._valid = copied_items(self._valid, rows)
        return copied
