"""The layers that the rows of one state lie in: its bases, and over them what was sorted since, the newest last.

    layer 2     .  B  .  .  e        a row counts if no newer layer has its key
    layer 1     .  b  c  .  .        keys that are gone, the table knows
    bases       a  b  .  d  .

Immutable: a copy of a table shares them.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from statebackend._codec.columns import Flags
from statebackend._columns.keys import HashedKeys
from statebackend._columns.table_schema import TableSchema
from statebackend._runs.merged_streams import Stream, hashes_of, merged
from statebackend._runs.page_map import FoundRows, PageMap, PlacedPart, in_order_of_pages
from statebackend.ids import KeyGroupRange

_BITS: Final = 32


class Layers:
    """Where each layer has its rows: `maps`, oldest first. One may have none."""

    def __init__(self, maps: Sequence[PageMap] = ()) -> None:
        self.maps: Final = tuple(maps)
        self.parts: Final[Sequence[PlacedPart]] = [part for each in maps for part in each.parts]

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __len__(self) -> int:
        return self.count

    @cached_property
    def count(self) -> int:
        """The number of keys that have a row in any layer. Each layer has to be looked through, once."""
        return sum(self._new_in(number) for number in range(len(self.maps)))

    @property
    def is_counted(self) -> bool:
        """True if `count` has not to look through anything."""
        return all(each.num_new is not None for each in self.maps[1:] if each.parts)

    @property
    def rows(self) -> int:
        """The number of rows: a key may have several."""
        return sum(each.count for each in self.maps)

    def num_rows_outside(self, key_groups: frozenset[int]) -> int:
        """How many rows the layers over the bases have of other key groups. Pages are read, and errors raised."""
        parts = [part.without(key_groups) for each in self.maps[1:] for part in each.parts]
        return sum(part.num_rows() for part in parts if part is not None)

    @property
    def num_pages(self) -> int:
        """The number of pages of all layers."""
        return sum(each.part.head.pages for each in self.parts)

    def find(self, keys: HashedKeys) -> Iterator[FoundRows]:
        """The newest rows of those keys that are there. Raises as `PageMap.find`."""
        maps = [each for each in reversed(self.maps) if each.parts]
        if not maps:
            return
        left = in_order_of_pages(keys, maps[0].max_parallelism)
        is_found = np.zeros(len(keys.hashes), np.bool_)
        for layer in maps:
            for found in layer.find(left):
                is_found[found.numbers] = True
                yield found
            if layer is not maps[-1]:
                left = left.taken(np.flatnonzero(~is_found[left.numbers]))

    def which(self, keys: HashedKeys) -> Flags:
        """For each key, if there is a row of it."""
        there = np.zeros(len(keys.hashes), np.bool_)
        for found in self.find(keys):
            there[found.numbers] = True
        return there

    def stream(self, span: KeyGroupRange, schema: TableSchema, *, first: int = 0) -> Stream:
        """The newest row of each key in these key groups, in order, some pages at a time; from the layer `first` on.

        With each piece the least order that the next ones can have, or one beyond the last.
        """
        found: Stream | None = None
        for layer in self.maps[first:]:
            if layer.parts:
                rows = layer.stream(span)
                found = rows if found is None else merged(found, rows, schema, end=(span.last + 1) << _BITS)
        return iter(()) if found is None else found

    def _new_in(self, number: int) -> int:
        """How many keys a layer has that none below it has."""
        layer, below = self.maps[number], Layers(self.maps[:number])
        if not below:
            return layer.count
        if layer.num_new is None:
            there = 0
            for rows, _ in layer.stream(layer.all_groups):
                there += int(np.count_nonzero(below.which(HashedKeys(rows.key_parts, hashes_of(rows)))))
            layer.num_new = layer.count - there
        return layer.num_new
