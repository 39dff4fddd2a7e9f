"""The content of a new base: the rows of the runs before it, and over them those of the overlay, in order.

runs       a b . d . f      streamed, some pages at a time
overlay    . B c . . .      sorted; replaces what the runs have of a key
gone       . . . d . .
merged     a B c . . f
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, PART_RECORDS_MAX, Changes
from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges, orders_of
from statebackend._codec.columns import Column, Fixed, Flags, Integers, Strings, gathered, starts_of
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.growable import FixedColumn, StringColumn
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.table_schema import TableSchema, stored_columns
from statebackend._runs.page_map import PageMap
from statebackend._tables.placed import Placed, WantedEntries
from statebackend.ids import KeyGroupRange, ranges_of

_BITS = 32


class MergedRuns(Placed):
    """The wanted rows of a table over runs, of which these are copies."""

    def __init__(
        self,
        schema: TableSchema,
        rows: KeyRows,
        columns: Mapping[str, FixedColumn | StringColumn],
        wanted: WantedEntries,
        *,
        gone: KeyRows,
        runs: PageMap,
    ) -> None:
        self._schema = schema
        self._rows = rows
        self._columns = columns
        self._gone = gone
        self._runs = runs
        self._wanted = wanted
        wanted.pause()
        live = rows.live()
        hashes = rows.hashes(live)
        groups = rows.groups_of(hashes)
        wanted.pause()
        chosen = np.flatnonzero(wanted.which()[groups])
        chosen = chosen[np.lexsort((hashes[chosen], groups[chosen]))]
        wanted.pause()
        self._live = live[chosen]
        self._orders = orders_of(hashes[chosen], groups[chosen])
        left = gone.hashes(gone.live())
        over = [self._orders, np.sort(orders_of(left, gone.groups_of(left)))]
        self._over: Integers = np.concatenate(over)
        self._over.sort(kind="stable")

    def changes(self, span: KeyGroupRange) -> Iterator[Changes]:
        for groups in ranges_of(group for group in self._wanted.groups if group in span):
            at, end = np.searchsorted(self._orders, (groups.first << _BITS, (groups.last + 1) << _BITS)).tolist()
            for run, beyond in self._runs.stream(groups):
                until = min(end, int(np.searchsorted(self._orders, beyond)))
                yield from self._merged(run, self._live[at:until])
                at = until
                self._wanted.pause()
            for start in range(at, end, PART_RECORDS_MAX):
                yield from self._overlay(self._live[start : min(end, start + PART_RECORDS_MAX)]).cut(PART_BYTES_MAX)

    def _overlay(self, rows: Integers) -> PagedChanges:
        hashes = self._rows.hashes(rows)
        keys = zip(self._schema.keys, self._rows.keys(rows), strict=True)
        return PagedChanges(
            self._wanted.state_id,
            self._rows.groups_of(hashes),
            [Typed(each.type, part) for each, part in keys],
            {each.name: Typed(each.type, self._columns[each.name].read(rows)) for each in self._schema.columns},
            hashes=hashes,
        )

    def _merged(self, run: PagedChanges, rows: Integers) -> Iterator[PagedChanges]:
        left = np.flatnonzero(~self._is_over(run))
        over = self._overlay(rows)
        if len(left):
            run = run.taken(left)
            columns = stored_columns(run, self._schema)
            over = PagedChanges(
                self._wanted.state_id,
                np.concatenate([run.groups, over.groups]),
                [Typed(one.type, joined(one.column, two.column)) for one, two in zip(run.keys, over.keys, strict=True)],
                {name: Typed(two.type, joined(columns[name], two.column)) for name, two in over.columns.items()},
                hashes=np.concatenate([hashes_of(run), hashes_of(over)]),
            )
        if over.records:
            yield from over.cut(PART_BYTES_MAX)

    def _is_over(self, run: PagedChanges) -> Flags:
        """For each row of a run, if the overlay has its key, or it is gone."""
        hashes = hashes_of(run)
        orders = orders_of(hashes, run.groups)
        places = np.searchsorted(self._over, orders)
        perhaps = np.flatnonzero(self._over.take(places, mode="clip") == orders) if len(self._over) else places[:0]
        is_over: Flags = np.zeros(len(orders), np.bool_)
        if len(perhaps):
            keys = [each.taken(perhaps) for each in run.key_parts]
            is_over[perhaps] = self._rows.find(keys, hashes[perhaps]) >= 0
            is_over[perhaps] |= self._gone.find(keys, hashes[perhaps]) >= 0
        return is_over


def hashes_of(changes: PagedChanges) -> Hashes:
    """The hashes of the keys, which rows in pages always have."""
    assert changes.hashes is not None, "rows in pages have hashes"
    return changes.hashes


def joined(one: Column, two: Column) -> Column:
    """The values of two columns, one behind the other."""
    valid = None
    if one.valid is not None or two.valid is not None:
        valid = np.concatenate([_valid(one), _valid(two)])
    if isinstance(one, Fixed):
        assert isinstance(two, Fixed)
        values: npt.NDArray[np.generic] = np.concatenate([one.values, two.values])
        return Fixed(values, valid)
    assert isinstance(two, Strings)
    lengths = np.concatenate([one.lengths, two.lengths])
    octets = [gathered(each.data, each.starts, each.lengths) for each in (one, two)]
    return Strings(np.concatenate(octets), starts_of(lengths), lengths, valid)


def _valid(column: Column) -> Flags:
    count = len(column.values) if isinstance(column, Fixed) else len(column.lengths)
    return np.ones(count, np.bool_) if column.valid is None else column.valid
