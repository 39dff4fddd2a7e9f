"""The rows of some key groups, group by group, as the changes that a base consists of."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from statebackend._codec.changes import PART_BYTES_MAX, PART_RECORDS_MAX, KeyGroups
from statebackend._codec.column_changes import ColumnChanges
from statebackend._tables.table import Placed
from statebackend.ids import KeyGroupRange


class PlacedRows(Placed):
    """Rows by key group, within it by place. `sorted_groups`: their groups; `changes_of`: those of rows from one on."""

    def __init__(self, sorted_groups: KeyGroups, changes_of: Callable[[int, int], Iterable[ColumnChanges]]) -> None:
        self._groups = sorted_groups
        self._changes_of = changes_of

    def changes(self, span: KeyGroupRange) -> Iterator[ColumnChanges]:
        start, end = np.searchsorted(self._groups, (span.first, span.last + 1)).tolist()
        for at in range(start, end, PART_RECORDS_MAX):
            for changes in self._changes_of(at, min(end, at + PART_RECORDS_MAX)):
                yield from changes.cut(PART_BYTES_MAX)
