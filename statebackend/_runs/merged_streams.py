"""Rows of several layers, each a stream in order of key group and hash, as one: of a key only the newest row.

newer      . B . . e . . |         both streams are cut at the same orders, again and again, so that
older      a b . d . . . | g       only some pages of each are in memory
merged     a B . d e
"""

from collections.abc import Iterator, Sequence

import numpy as np

from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges, orders_of, places_in_order
from statebackend._codec.columns import Column, Flags, Integers, joined, packed
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.keys import same_parts, taken
from statebackend._columns.table_schema import TableSchema, stored_columns

Stream = Iterator[tuple[PagedChanges, int]]
"""Rows in order, and the least order that the next ones can have."""


def merged(older: Stream, newer: Stream, schema: TableSchema, *, end: int) -> Stream:
    """The rows of both. `end`: beyond the order of every row."""
    both = old, new = _Cut(older, end), _Cut(newer, end)
    until = -1
    while until < end:
        for each in both:
            if each.beyond == until:
                each.advance()
        until = min(old.beyond, new.beyond)
        ones, others = old.take(until, schema), new.take(until, schema)
        found = ones if others is None else others if ones is None else laid_over(ones, others, schema)
        del ones, others  # while the rows are used, memory is for the next pages
        if found is not None:
            yield found, until


class _Cut:
    """A stream from which rows are taken up to any order, as far as it was read."""

    def __init__(self, stream: Stream, end: int) -> None:
        self._stream = stream
        self._end = end
        self._held: list[tuple[PagedChanges, Integers]] = []  # with their orders
        self.beyond = -1
        """Rows of lower orders were read."""

    def advance(self) -> None:
        """Read some more rows."""
        changes, self.beyond = next(self._stream, (None, self._end))
        if changes is not None:
            self._held.append((changes, orders_of(hashes_of(changes), changes.groups)))

    def take(self, until: int, schema: TableSchema) -> PagedChanges | None:
        """The rows of lower orders."""
        found: list[PagedChanges] = []
        kept: list[tuple[PagedChanges, Integers]] = []
        for changes, orders in self._held:
            cut = int(np.searchsorted(orders, until))
            if cut:
                found.append(changes.between(0, cut) if cut < changes.records else changes)
            if cut < changes.records:
                kept.append((changes.between(cut, changes.records), orders[cut:]))
        self._held = kept
        return _in_one(found, schema) if found else None


def _in_one(pieces: Sequence[PagedChanges], schema: TableSchema) -> PagedChanges:
    """All of the rows, one behind the other, as the schema has them."""
    keys = zip(*(each.keys for each in pieces), strict=True)
    columns = [stored_columns(each, schema) for each in pieces]
    return PagedChanges(
        pieces[0].state_id,
        pieces[0].groups if len(pieces) == 1 else np.concatenate([each.groups for each in pieces]),
        [Typed(each[0].type, joined([one.column for one in each])) for each in keys],
        {each.name: Typed(each.type, joined([one[each.name] for one in columns])) for each in schema.columns},
        hashes=hashes_of(pieces[0]) if len(pieces) == 1 else np.concatenate([hashes_of(each) for each in pieces]),
    )


def laid_over(older: PagedChanges, newer: PagedChanges, schema: TableSchema) -> PagedChanges | None:
    """The newer rows, and the older ones of other keys, in order, as the schema has them; `None` if there are none.

    Both are in order.
    """
    if not newer.records:
        return _in_one([older], schema) if older.records else None
    hashes: Hashes = np.concatenate([hashes_of(older), hashes_of(newer)])
    groups = np.concatenate([older.groups, newer.groups])
    places = places_in_order(orders_of(hashes, groups), hashes)
    is_hidden = _which_are_hidden(older, newer, places, hashes[places])
    if (hidden := int(np.count_nonzero(is_hidden))) == older.records:
        return _in_one([newer], schema)
    if hidden:
        places = places[~is_hidden]
    ones, twos = stored_columns(older, schema), stored_columns(newer, schema)
    return PagedChanges(
        newer.state_id,
        groups[places],
        [Typed(a.type, _laid(a.column, b.column, places)) for a, b in zip(older.keys, newer.keys, strict=True)],
        {each.name: Typed(each.type, _laid(ones[each.name], twos[each.name], places)) for each in schema.columns},
        hashes=hashes[places],
    )


def _laid(older: Column, newer: Column, places: Integers) -> Column:
    """The values at these places in both, one behind the other: they share no memory with pages."""
    return packed(joined([older, newer]).taken(places))


def _which_are_hidden(older: PagedChanges, newer: PagedChanges, places: Integers, hashes: Hashes) -> Flags:
    """Of rows in order, at these places in both: which are older ones of a key that a newer one has."""
    is_hidden: Flags = np.zeros(len(places), np.bool_)
    alike = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not len(alike):
        return is_hidden
    ones, others = places[alike], places[alike + 1] - older.records
    if ones.max() >= older.records or others.min() < 0:  # several keys of one hash on one side
        is_older = places < older.records
        is_hidden[is_older] = _which_are_in(older, newer)[places[is_older]]
    else:
        same = same_parts(taken(older.key_parts, ones), taken(newer.key_parts, others))
        is_hidden[alike[same]] = True
    return is_hidden


def _which_are_in(rows: PagedChanges, others: PagedChanges) -> Flags:
    """For each of the rows, if its key is among the others'."""
    hashes, theirs = hashes_of(rows), hashes_of(others)
    by_hash = np.argsort(theirs, kind="stable")
    theirs = theirs[by_hash]
    at = np.searchsorted(theirs, hashes)
    found: Flags = np.zeros(rows.records, np.bool_)
    pending = np.arange(rows.records)
    while len(pending):
        pending = pending[at[pending] < len(theirs)]
        pending = pending[theirs[at[pending]] == hashes[pending]]
        if not len(pending):
            break
        same = same_parts(taken(rows.key_parts, pending), taken(others.key_parts, by_hash[at[pending]]))
        found[pending[same]] = True
        pending = pending[~same]  # another key with the same hash
        at[pending] += 1
    return found


def hashes_of(changes: PagedChanges) -> Hashes:
    """The hashes of the keys, which rows in pages always have."""
    assert changes.hashes is not None, "rows in pages have hashes"
    return changes.hashes
