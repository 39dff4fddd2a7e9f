"""Keys that the runs may have, and that are there no more: what hides them until a base is without them."""

from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import numpy as np

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, PART_RECORDS_MAX
from statebackend._codec.change_sets.column_changes import ColumnChanges, Typed
from statebackend._codec.columns import Flags, Integers
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.growable import grown
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.keys import HashedKeys, Parts
from statebackend._columns.table_schema import TableSchema

UNKNOWN: Final = 0
IN_RUNS: Final = 1
IN_NO_RUN: Final = 2
AS_IN_RUNS: Final = -1
"""When a row changed, of one that was read from the runs; and when a key went that a restored layer drops."""


class GoneKeys:
    """Each key with when it went, and whether a run has it."""

    def __init__(self, rows: KeyRows, at: Integers | None = None) -> None:
        self.rows: Final = rows
        self.origins = np.zeros(0, np.uint8)
        self._at: Integers = np.zeros(0, np.int64) if at is None else at

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, parts: Parts, hashes: Hashes, origins: Any, epoch: int) -> None:
        """These keys are gone. `origins`: whether a run has them, for each or for all; a key that was gone keeps it."""
        if not len(hashes):
            return
        used = self.rows.used
        gone, is_new = self.rows.find_or_add(parts, hashes)
        self._at = grown(self._at, used, self.rows.used)
        self.origins = grown(self.origins, used, self.rows.used)
        self._at[gone] = epoch
        self.origins[gone[is_new]] = origins if isinstance(origins, int) else origins[is_new]

    def which(self, keys: HashedKeys) -> Flags:
        """For each of these keys, if it is gone."""
        return self.rows.find(*keys) >= 0 if len(self) else np.zeros(len(keys.hashes), np.bool_)

    def keys(self) -> HashedKeys:
        """All of them, in the order of `live` rows."""
        live = self.rows.live()
        return HashedKeys(self.rows.keys(live), self.rows.hashes(live))

    def forget(self, gone: Integers) -> None:
        """These are gone no more, or nobody has them any more."""
        if len(gone):
            self.rows.remove(gone)
            self.rows.release(gone)

    def forget_until(self, epoch: int) -> None:
        """Forget what went until then: a base is without it."""
        live = self.rows.live()
        self.forget(live[self._at[live] <= epoch])

    def forget_origins(self, *, since: int) -> None:
        """Of those that went after that epoch it is not known any more which ones a run has."""
        live = self.rows.live()
        self.origins[live[self._at[live] > since]] = UNKNOWN

    def are_dropped_below(self, is_back: Flags) -> None:
        """A layer has the drops of all of them, but for those keys that are back in it."""
        live = self.rows.live()
        self._at[live] = AS_IN_RUNS
        self.forget(live[is_back])

    def copy(self) -> Self:
        """The keys as they are now, for reading only."""
        return type(self)(self.rows.copy(), self._at.copy())

    def drops(self, state_id: int, schema: TableSchema, *, since: int | None) -> Iterator[ColumnChanges]:
        """The changes that drop them, or those that went after the epoch `since`."""
        gone = self.rows.live()
        if since is not None:
            gone = gone[self._at[gone] > since]
        for start in range(0, len(gone), PART_RECORDS_MAX):
            some = gone[start : start + PART_RECORDS_MAX]
            keys = zip(schema.keys, self.rows.keys(some), strict=True)
            groups = self.rows.groups_of(self.rows.hashes(some))
            typed = [Typed(each.type, part) for each, part in keys]
            yield from ColumnChanges(state_id, groups, typed, {}, drops=len(some)).cut(PART_BYTES_MAX)


def count_of(rows: KeyRows, origins: Any, origin: int) -> int:
    """The number of keys with this origin."""
    return int(np.count_nonzero((origins[: rows.used] == origin) & rows.live_flags()))


def settle_origins(rows: KeyRows, origins: Any, which: Callable[[HashedKeys], Flags]) -> None:
    """Look up those keys of which it is not known if a run has them, by `which`, and put it into their `origins`."""
    unknown = np.flatnonzero((origins[: rows.used] == UNKNOWN) & rows.live_flags())
    if len(unknown):
        there = which(HashedKeys(rows.keys(unknown), rows.hashes(unknown)))
        origins[unknown] = np.where(there, IN_RUNS, IN_NO_RUN)
