"""A table of columns that outgrows memory: runs in files, and over them the rows that changed or were used last.

Rows have numbers in the overlay alone. A look-up that misses there reads the pages of the keys and puts their rows into
the overlay, so that everything else works as on a table in memory.

    overlay    rows that the runs do not have as they are: they stay until a base has them
               rows as the runs have them: the least recently used leave at a drain, if memory is short
    gone       keys that a run may have, and that are there no more: until a base is without them
    a key is   in the overlay, else not there if it is gone, else in the newest layer of the runs that has it

No layer has a key that has gone since, and nothing newer than a layer forgets what is gone: only a base, which takes in
all layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.columns import Column, Flags, Integers
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.arrow import Array
from statebackend._columns.column_table import ColumnTable, key_columns
from statebackend._columns.growable import GROWTH, ROWS_MIN, FixedColumn, StringColumn, grown
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.keys import HashedKeys, HashKeys, Parts, hash_parts, taken
from statebackend._columns.table_schema import TableSchema, check_key_types, stored_columns
from statebackend._runs.found_rows import together
from statebackend._runs.gone_keys import AS_IN_RUNS, IN_NO_RUN, IN_RUNS, UNKNOWN, GoneKeys, count_of, settle_origins
from statebackend._runs.in_page import Scratch
from statebackend._runs.layers import Layers
from statebackend._runs.merged_runs import MergedRuns
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.page_map import PageMap, PlacedPart, TakesRuns
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import Placed, WantedEntries
from statebackend._tables.table import TableSize
from statebackend._threads import FOREGROUND
from statebackend.ids import KeyGroupRange
from statebackend.settings import KiB, MiB

ROW_BYTES: Final = 48
"""Of a row in the overlay, beside its columns and keys: hash, index, flags, when it changed and was used."""

PACKED_FROM: Final = 2
"""So many times the rows that there are, arrays may have places for: a change set of many rows leaves more of them."""

FILTER_BYTES_MIN: Final = 64 * KiB
"""A layer may take so many for filters of its pages, whatever the memory."""


class RunTable(ColumnTable, TakesRuns):
    """As `ColumnTable`. `memory`: what the overlay may take; while it is whole, all rows stay there.

    A look-up raises `CorruptSegmentError` for a damaged page and `StoreUnavailableError` where the disk fails, before
    anything is changed.
    """

    def __init__(
        self,
        schema: TableSchema,
        keys: OwnedKeys,
        *,
        hash_keys: HashKeys = hash_parts,
        memory: OverlayMemory | None = None,
    ) -> None:
        super().__init__(schema, keys, hash_keys=hash_keys)
        self.epoch = 0
        self.memory = OverlayMemory(128 * MiB) if memory is None else memory
        self.memory.add(self)
        self._runs = Layers()
        self._runs_epoch = AS_IN_RUNS  # what changed until then is in the runs
        self._changed_at: Integers = np.zeros(0, np.int64)
        self._used_at: Integers = np.zeros(0, np.int64)
        self._origins = np.zeros(0, np.uint8)
        self._origin = UNKNOWN  # of rows that are added
        self._gone = GoneKeys(KeyRows(key_columns(schema), keys, hash_keys, is_strewn=True))
        self.num_new: int | None = None
        self._scratch = Scratch()
        self._now = 0  # counts look-ups
        self._streams = 0  # iterations over all rows under way
        self._cursor = 0  # the key group that the window is at in the runs
        self._windowed: Layers | None = None  # what `_window_runs` goes over
        self._window_runs: Iterator[tuple[ColumnChanges, int]] = iter(())

    is_strewn = True  # what is read from pages comes in order

    @property
    def rows_leave(self) -> bool:
        return not self.memory.is_whole

    # ------------------------------------------------------------------------------------------------ keys and rows

    def find(self, keys: Array | HashedKeys) -> Integers:
        keys = keys if isinstance(keys, HashedKeys) else self.hashed(keys)
        rows = super().find(keys)
        if self.memory.is_whole:
            return rows
        missing = np.flatnonzero(rows < 0)
        if len(missing) and self._runs:
            self._load(keys, missing, rows)
        self._now += 1
        self._used_at[rows[rows >= 0]] = self._now
        return rows

    def find_or_add(self, keys: Array | HashedKeys) -> tuple[Integers, Flags]:
        keys = keys if isinstance(keys, HashedKeys) else self.hashed(keys)
        if self.memory.is_whole:
            return super().find_or_add(keys)
        rows = self.find(keys)  # now those in the runs are in the overlay
        is_new = rows < 0
        missing = np.flatnonzero(is_new)
        if len(missing):
            self._origin = IN_NO_RUN
            try:
                rows[missing], is_new[missing] = super().find_or_add(keys.taken(missing))
            finally:
                self._origin = UNKNOWN
        return rows, is_new

    def find_one(self, key: object) -> int | None:
        row = super().find_one(key)
        return row if row is None or row >= 0 or not self._runs else None  # `find` reads it from the runs

    def drop(self, rows: Integers) -> None:
        rows = np.unique(rows)
        self._check_rows(rows, len(rows))
        # A base that is being written of a copy may have the key, too.
        left = rows if self._is_copied else rows[self._origins[rows] != IN_NO_RUN]
        if self._is_copied or self._runs:
            self._gone.add(self._rows.keys(left), self._rows.hashes(left), self._origins[left], self.epoch)
        super().drop(rows)

    @property
    def num_rows(self) -> int:
        if not self._runs:
            return super().num_rows
        self._settle_origins()
        return len(self._rows) + len(self._runs) - self._count_of(IN_RUNS)

    def pieces(self) -> Iterator[Integers]:
        """The rows of the overlay, then those of the runs: each piece leaves it again when the next one is asked for.

        Unless it may be in use elsewhere: keys were looked up meanwhile, or another iteration is under way.
        """
        mine = self._rows.live()
        is_mine = np.zeros(self._rows.used, np.bool_)
        is_mine[mine] = True
        self._streams += 1
        try:
            yield mine
            for changes, _ in self._runs.stream(self._owned.key_groups, self._described):
                rows, loaded = self._pulled(changes, is_mine)
                looked_up = self._now
                yield rows
                if (self._now, self._streams) == (looked_up, 1):
                    self._evict(loaded[self._which_leave(loaded)])
        finally:
            self._streams -= 1

    def window(self, count: int) -> Integers:
        found = [super().window(count)]
        nobodys = np.zeros(0, np.bool_)
        while count > 0 and self._runs:
            if self._windowed is not self._runs:  # other runs: on from the same key group
                span = KeyGroupRange(max(self._cursor, self._owned.key_groups.first), self._owned.key_groups.last)
                self._windowed, self._window_runs = self._runs, self._runs.stream(span, self._described)
            changes, _ = next(self._window_runs, (None, 0))
            if changes is None:
                self._windowed, self._cursor = None, 0
                break
            self._cursor = int(changes.groups[-1])
            found.append(self._pulled(changes, nobodys)[0])
            count -= changes.records
        return np.unique(np.concatenate(found))

    # ------------------------------------------------------------------------------------- changes, memory, and bases

    def drain(self, state_id: int) -> Iterator[ColumnChanges]:
        drained = [*super().drain(state_id)]
        self._shrink()
        if self._rows.used > PACKED_FROM * (len(self._rows) + ROWS_MIN) and not self._streams:
            self._pack()
        return iter(drained)

    def apply(self, changes: Changes) -> None:
        super().apply(changes)
        if len(self._gone) and isinstance(changes, ColumnChanges) and changes.hashes is not None:
            gone = self._gone.rows.find(changes.key_parts, changes.hashes)  # such rows are added without a look
            self._gone.forget(np.unique(gone[gone >= 0]))

    def size(self) -> TableSize:
        if not self._runs:
            return super().size()
        own = super().size()
        is_known = not self._count_of(UNKNOWN) and self._runs.is_counted
        if is_known and not any(isinstance(each, StringColumn) for each in self._columns.values()):
            width = sum(each.dtype.itemsize for each in self._columns.values() if isinstance(each, FixedColumn))
            return TableSize(self.num_rows, self.num_rows * width)
        keys = self.num_rows if is_known else own.keys + self._runs.rows
        stored = sum(each.part.head.pages * each.part.head.page_bytes for each in self._runs.parts)
        return TableSize(keys, own.size_bytes + stored, self)

    @property
    def has_too_many_drops(self) -> bool:
        return len(self._gone) * ROW_BYTES + self._gone.rows.key_bytes > self.memory.bytes_max // 4

    @property
    def groups_in_no_run(self) -> frozenset[int]:
        live = self._rows.live()
        counts = np.bincount(self.groups(live[self._which_changed(live)]))  # quicker than sorting them
        return frozenset(np.flatnonzero(counts).tolist())

    @property
    def runs(self) -> Layers:
        return self._runs

    def attach(self, parts: Sequence[PlacedPart]) -> None:
        layer = self._map(parts)
        if len(self._gone):
            self._gone.are_dropped_below(layer.which(self._gone.keys()))
        self._runs = Layers([*self._runs.maps, layer])
        self.has_strays = bool(self.groups_in_no_run)

    def replace(self, parts: Sequence[PlacedPart], key_groups: frozenset[int], copied: TakesRuns) -> None:
        # Everything that had changed by then is in the base now, and what the layers had, too.
        kept = [left for each in self._runs.maps[:1] for part in each.parts if (left := part.without(key_groups))]
        self._look_up_in([self._map([*kept, *parts])], copied.epoch)
        self._gone.forget_until(self._runs_epoch)
        self._gone.forget_origins(since=self._runs_epoch)
        self.has_strays = False

    def put_layer(self, parts: Sequence[PlacedPart], layer: int, copied: TakesRuns) -> None:
        below = self._runs.maps[:layer]
        found = self._map(parts)
        takes_in_none = layer >= len(self._runs.maps)
        found.num_new = copied.num_new if takes_in_none else None
        self._gone.forget_origins(since=copied.epoch if takes_in_none else AS_IN_RUNS - 1)
        self._look_up_in([*below, *[self._map()] * (layer - len(below)), found], copied.epoch)

    def _look_up_in(self, maps: Sequence[PageMap], epoch: int) -> None:
        self._runs = Layers(maps)
        self._runs_epoch = max(self._runs_epoch, epoch)
        live = self._rows.live()
        self._origins[live] = np.where(self._which_changed(live), UNKNOWN, IN_RUNS)

    def copy(self) -> Self:
        used = self._rows.used
        changed = np.flatnonzero(self._rows.live_flags() & (self._changed_at[:used] > self._runs_epoch))
        copied = self._copy_of(None if self.memory.is_whole else changed)  # no memory for what the runs have
        copied._runs, copied._runs_epoch = self._runs, self._runs_epoch
        copied._gone = self._gone.copy()
        origins = self._origins[changed]
        copied.num_new = None if (origins == UNKNOWN).any() else int(np.count_nonzero(origins == IN_NO_RUN))
        copied.epoch = self.epoch
        copied.memory.is_whole = self.memory.is_whole
        self.epoch += not self.memory.is_whole  # of a copy of what is whole no runs are made
        return copied

    def placed(self, wanted: WantedEntries) -> Placed:
        """As for all tables; rows come in pages, but for those of a table that stays whole in memory."""
        return super().placed(wanted) if self.memory.is_whole else self.placed_over(wanted, 0)

    def placed_over(self, wanted: WantedEntries, layer: int) -> Placed:
        return MergedRuns(
            self._described,
            self._rows,
            self._columns,
            wanted,
            gone=self._gone.rows,
            runs=self._runs,
            first=layer,
        )

    def dropped(self, state_id: int, layer: int) -> Iterator[Changes]:
        # Of a layer that takes in no other, those below have the earlier drops.
        since = self._runs_epoch if layer >= len(self._runs.maps) else None
        return self._gone.drops(state_id, self._described, since=since)

    # -------------------------------------------------------------------------------------------------------- inside

    @property
    def _is_copied(self) -> bool:
        """True if runs may still be made of a copy."""
        return self.epoch - 1 > self._runs_epoch

    def _map(self, parts: Sequence[PlacedPart] = ()) -> PageMap:
        for each in parts:
            check_key_types([key.type for key in each.part.head.keys], self._described)
        return PageMap(
            parts,
            max_parallelism=self._owned.max_parallelism,
            scratch=self._scratch,
            filter_bytes_max=max(FILTER_BYTES_MIN, self.memory.bytes_max // 8),
        )

    def _which_changed(self, rows: Integers) -> Flags:
        """For each of these rows, if the runs do not have it as it is."""
        is_changed: Flags = self._changed_at[rows] > self._runs_epoch
        return is_changed

    def _load(self, keys: HashedKeys, missing: Integers, rows: Integers) -> None:
        """Put the rows of `missing` keys into the overlay, those that the runs have, and their numbers into `rows`."""
        if len(self._gone):
            missing = missing[~self._gone.which(keys.taken(missing))]
        wanted = keys.taken(missing)
        with FOREGROUND.under_way():
            for numbers, columns in together(self._runs.find(wanted), self._described):
                own, _ = super()._find_or_add(*wanted.taken(numbers))
                self._put(own, columns)
                rows[missing[numbers]] = own
        self._tidy()

    def _pulled(self, changes: ColumnChanges, is_left_out: Flags) -> tuple[Integers, Integers]:
        """The rows of keys of a run that the state has, in the overlay now; and those of them that were not before.

        Without those that have a row in the overlay for which `is_left_out`.
        """
        assert changes.hashes is not None
        keys = HashedKeys(changes.key_parts, changes.hashes)
        rows = self._rows.find(*keys)
        rows[self._gone.which(keys) & (rows < 0)] = -2
        missing = np.flatnonzero(rows == -1)
        some = changes.taken(missing)
        if len(missing):
            own, _ = super()._find_or_add(some.key_parts, changes.hashes[missing])
            self._put(own, stored_columns(some, self._described))
            rows[missing] = own
        there = rows[rows >= 0]
        known = there < len(is_left_out)
        is_wanted = np.ones(len(there), np.bool_)
        is_wanted[known] = ~is_left_out[there[known]]
        return there[is_wanted], rows[missing]

    def _put(self, rows: Integers, columns: Mapping[str, Column]) -> None:
        for name, column in columns.items():
            self._columns[name].write(rows, column)
        self._changed_at[rows] = AS_IN_RUNS
        self._origins[rows] = IN_RUNS

    def _find_or_add(self, parts: Parts, hashes: Hashes) -> tuple[Integers, Flags]:
        rows, is_new = super()._find_or_add(parts, hashes)
        if len(self._gone) and is_new.any():
            new = np.flatnonzero(is_new)
            gone = self._gone.rows.find(taken(parts, new), hashes[new])
            back = gone >= 0
            self._origins[rows[new[back]]] = self._gone.origins[gone[back]]
            self._gone.forget(np.unique(gone[back]))
        self._changed_at[rows] = self.epoch
        return rows, is_new

    def _reserve(self, added: Integers, used: int) -> None:
        super()._reserve(added, used)
        self._changed_at = grown(self._changed_at, used, self._rows.used)
        self._used_at = grown(self._used_at, used, self._rows.used)
        self._origins = grown(self._origins, used, self._rows.used)
        self._changed_at[added] = self.epoch
        self._used_at[added] = self._now
        self._origins[added] = self._origin

    def _touch(self, rows: Integers) -> None:
        self._changed_at[rows] = self.epoch
        super()._touch(rows)

    def _drop_keys(self, parts: Parts, hashes: Hashes) -> None:
        if len(hashes) and (self._is_copied or self._runs):
            self._gone.add(parts, hashes, UNKNOWN, self.epoch)
        super()._drop_keys(parts, hashes)

    def _settle_origins(self) -> None:
        """Look up in the runs those keys of which it is not known if a run has them."""
        settle_origins(self._rows, self._origins, self._runs.which)
        settle_origins(self._gone.rows, self._gone.origins, self._runs.which)

    def _count_of(self, origin: int) -> int:
        """The number of keys in the overlay, and of gone ones, with this origin."""
        return count_of(self._rows, self._origins, origin) + count_of(self._gone.rows, self._gone.origins, origin)

    def _which_leave(self, rows: Integers) -> Flags:
        """Flags of rows that are there, and as the runs have them."""
        leave: Flags = self._rows.which_live(rows) & ~self._which_changed(rows)
        return leave & ~self._is_touched[rows]

    def _evict(self, rows: Integers) -> None:
        if len(rows):
            self._remove(rows)
            self._rows.release(rows)
            self._tidy()

    def _shrink(self) -> None:
        size = self.memory.to_leave(self.memory_used()) if self._runs else 0
        if not size:
            return
        used = self._rows.used
        leave = self._rows.live_flags() & ~self._is_touched[:used] & (self._changed_at[:used] <= self._runs_epoch)
        rows = np.flatnonzero(leave)
        if count := min(len(rows), size // self._row_bytes() + 1):
            self._evict(rows[np.argpartition(self._used_at[rows], count - 1)[:count]])  # those used least recently

    def _pack(self) -> None:
        """Give the rows that are left other numbers, without the places of those that have left: once in a while.

        Between a drain and the next use nobody has a row's number: see `ColumnarRows`.
        """
        live = self._rows.live()
        self._rows = self._rows.packed(live)
        self._columns = {name: column.copy(live) for name, column in self._columns.items()}
        self._readers = None, (), ()  # they would keep the memory of the columns that were
        self._changed_at, self._used_at = self._changed_at[live], self._used_at[live]
        self._origins, self._is_touched = self._origins[live], self._is_touched[live]
        self._in_window = self._in_window[:0]
        self._tidy()

    def memory_used(self) -> int:
        return len(self._rows) * self._row_bytes()  # without what a batch takes for a while

    def memory_changed(self) -> int:
        is_changed = self._changed_at[: self._rows.used] > self._runs_epoch
        return int(np.count_nonzero(is_changed & self._rows.live_flags())) * self._row_bytes()

    def _row_bytes(self) -> int:
        count = max(1, self._rows.count)
        used = ROW_BYTES + (super().size().size_bytes + self._rows.key_bytes) // count
        return used if self.memory.is_whole else int(GROWTH * used)  # room for more rows is not resident at first
