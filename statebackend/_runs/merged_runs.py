"""The content of a new base or layer: the rows of the layers that it takes in, and over them those of the overlay.

layers     a b . d . f      streamed, some pages at a time; none for a layer that takes in no other
overlay    . B c . . .      those that changed, sorted; they replace what the layers have of a key
gone       . . . d . .
merged     a B c . . f      in order
"""

from collections.abc import Iterator, Mapping

import numpy as np

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, PART_RECORDS_MAX, Changes
from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges, orders_of, places_in_order
from statebackend._codec.columns import Flags, Integers
from statebackend._columns.growable import FixedColumn, StringColumn
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.table_schema import TableSchema
from statebackend._runs.layers import Layers
from statebackend._runs.merged_streams import hashes_of, laid_over
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
        runs: Layers,
        first: int = 0,
    ) -> None:
        """`rows`: those that the runs do not have as they are. `first`: the first layer to take in."""
        self._schema = schema
        self._rows = rows
        self._columns = columns
        self._gone = gone
        self._runs = runs
        self._first = first
        self._wanted = wanted
        wanted.pause()
        live = rows.live()
        hashes = rows.hashes(live)
        groups = rows.groups_of(hashes)
        wanted.pause()
        if not (is_wanted := wanted.which()[groups]).all():
            live, hashes, groups = live[is_wanted], hashes[is_wanted], groups[is_wanted]
        orders = orders_of(hashes, groups)
        places = places_in_order(orders, hashes, kind="quicksort")
        wanted.pause()
        self._live, self._orders = live[places], orders[places]
        left = gone.hashes(gone.live())
        self._gone_orders: Integers = np.sort(orders_of(left, gone.groups_of(left)))

    def changes(self, span: KeyGroupRange) -> Iterator[Changes]:
        for groups in ranges_of(self._wanted.within(span)):
            at, end = np.searchsorted(self._orders, (groups.first << _BITS, (groups.last + 1) << _BITS)).tolist()
            for run, beyond in self._runs.stream(groups, self._schema, first=self._first):
                until = min(end, int(np.searchsorted(self._orders, beyond)))
                yield from self._merged(run, beyond, self._live[at:until])
                del run
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

    def _merged(self, run: PagedChanges, beyond: int, rows: Integers) -> Iterator[PagedChanges]:
        """The rows of a run, below `beyond` or at it, with these of the overlay, below it, laid over them."""
        is_over = self._is_over(run, beyond)
        older = run.taken(np.flatnonzero(~is_over)) if is_over.any() else run
        found = laid_over(older, self._overlay(rows), self._schema)
        if found is not None:
            yield from found.cut(PART_BYTES_MAX)

    def _is_over(self, run: PagedChanges, beyond: int) -> Flags:
        """For each row of a run, if it is gone; at `beyond`, as the overlay's come later, also if that has its key."""
        hashes = hashes_of(run)
        orders = orders_of(hashes, run.groups)
        is_over: Flags = np.zeros(len(orders), np.bool_)
        if len(self._gone_orders):
            places = np.searchsorted(self._gone_orders, orders)
            perhaps = np.flatnonzero(self._gone_orders.take(places, mode="clip") == orders)
            if len(perhaps):
                keys = [each.taken(perhaps) for each in run.key_parts]
                is_over[perhaps] = self._gone.find(keys, hashes[perhaps]) >= 0
        last = np.flatnonzero(orders >= beyond)
        if len(last):
            is_over[last] |= self._rows.find([each.taken(last) for each in run.key_parts], hashes[last]) >= 0
        return is_over
