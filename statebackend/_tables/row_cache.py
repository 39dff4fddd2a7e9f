"""The entries of RocksDB tables that were used last, decoded, in memory.

    young    read or written lately
    old      the young ones of before: one that is used again becomes young

When the young rows of all tables take half of the memory, they become the old ones, and the old ones are forgotten. So
a hit is one dictionary lookup, with nothing to reorder, which would cost more than the hit saves. What was written
since the last drain is there when the drain looks for it, unless it takes more than half.
"""

from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import Any, Final, Generic, TypeVar, cast
from weakref import WeakSet

from statebackend.ids import Key

E = TypeVar("E")

ROW_BYTES: Final = 200
"""Memory of a row beside its key and entry: two Python objects, and its place in a dictionary that has room to grow."""


class RowCache:
    """The rows of all tables of one store, in at most `bytes_max`, give or take one batch of writes."""

    def __init__(self, bytes_max: int) -> None:
        self._young_bytes_max = bytes_max // 2
        self._young_bytes = self._old_bytes = 0
        self._tables: WeakSet[Rows[Any]] = WeakSet()  # or each of them would grow old for ever, one by one

    @property
    def size_bytes(self) -> int:
        """Counted bytes of the rows, young and old."""
        return self._young_bytes + self._old_bytes

    def rows(self) -> "Rows[Any]":
        """The rows of one more table."""
        rows = Rows[Any](self)
        self._tables.add(rows)
        return rows

    def took(self, size_bytes: int) -> None:
        """Young rows have come that take this much."""
        self._young_bytes += size_bytes
        if self._young_bytes > self._young_bytes_max:
            self._young_bytes, self._old_bytes = 0, self._young_bytes
            for rows in self._tables:
                rows.age()

    def clear(self) -> None:
        """Forget every row."""
        self._young_bytes = self._old_bytes = 0
        for rows in self._tables:
            rows.clear()


class Rows(Generic[E]):
    """The rows of one table: key to entry, `None` for a key that has none.

    A write must set `young[key]` at once, and be counted soon. So what is in `young` is true, and what is in `old` is
    true of a key that is not in `young`.
    """

    __slots__ = ("__weakref__", "_cache", "_counted", "old", "young")

    def __init__(self, cache: RowCache) -> None:
        self._cache = cache
        self._counted = 0
        self.young: dict[Key, E | None] = {}
        self.old: dict[Key, E | None] = {}

    def count(self, size_bytes: int) -> None:
        """Count the rows set in `young` since the last call. `size_bytes`: of their keys and entries."""
        new = len(self.young) - self._counted
        self._counted += new
        self._cache.took(size_bytes + new * ROW_BYTES)

    def use(self, key: Key, entry: E | None) -> None:
        """Make a row young that was read from `old`."""
        self.young[key] = entry
        self.count(getsizeof(key) + (0 if entry is None else len(entry)))  # type: ignore[arg-type]  # all entries have a length

    def use_many(self, keys: Sequence[Key], entries: Sequence[E | None]) -> None:
        """Make rows young that were read from `old` or from the files."""
        self.young.update(zip(keys, entries, strict=True))
        self.count(sum(map(getsizeof, keys)) + sum(map(len, filter(None, cast("Iterable[bytes]", entries)))))

    def age(self) -> None:
        """The young rows become the old ones, and the old ones are forgotten."""
        self.young, self.old = {}, self.young
        self._counted = 0

    def clear(self) -> None:
        """Forget every row of this table."""
        self.young, self.old = {}, {}
        self._counted = 0
