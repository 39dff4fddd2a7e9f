"""The memory that tables over runs may take, one of them or all together; and whether they are whole in it."""

from typing import Final, Protocol
from weakref import WeakSet

from statebackend._columns.growable import GROWTH


class TakesMemory(Protocol):
    """A table that has rows in memory."""

    def memory_used(self) -> int:
        """Bytes of its rows, with the room that arrays have for more, but for a whole table."""
        ...

    def memory_changed(self) -> int:
        """Bytes of those that are in no run as they are."""
        ...


class OverlayMemory:
    """`bytes_max`: for the rows of all tables that share it, as far as they are in the runs, too.

    While `is_whole`, all rows of the tables are in memory, and nobody looks up in runs. It ends when they take half of
    `bytes_max`: then a base is made of a copy of them, which takes as much again.
    """

    def __init__(self, bytes_max: int, *, is_whole: bool = False) -> None:
        self.bytes_max = bytes_max
        self.is_whole = is_whole
        self._tables: Final = WeakSet[TakesMemory]()

    def add(self, table: TakesMemory) -> None:
        """Count the rows of this table, too, as long as somebody has it."""
        self._tables.add(table)

    def used(self) -> int:
        """Bytes of the rows of all tables."""
        return sum(each.memory_used() for each in self._tables)

    @property
    def is_short(self) -> bool:
        """True if rows have to go into runs, so that they can leave."""
        enough, used = self.bytes_max // 2, self.used()
        return used > enough and (self.is_whole or sum(each.memory_changed() for each in self._tables) > enough)

    @property
    def is_full(self) -> bool:
        """True if the rows alone, without the room that arrays have for more, take all of it."""
        return self.used() > self.bytes_max * (1.0 if self.is_whole else GROWTH)

    def to_leave(self, own: int) -> int:
        """How many bytes should leave a table of `own` bytes, for all to be a quarter below what they may take."""
        used = self.used()
        if used <= self.bytes_max:
            return 0
        return (used - self.bytes_max + self.bytes_max // 4) * own // used
