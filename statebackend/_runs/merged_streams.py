"""Rows of several layers, each a stream in order of key group and hash, as one: of a key only the newest row.

newer      . B . . e . . |         both streams are cut at the same orders, again and again, so that
older      a b . d . . . | g       only some pages of each are in memory
merged     a B . d e
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges, orders_of
from statebackend._codec.columns import Column, Fixed, Flags, Strings, gathered, starts_of
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
        found = ones if others is None else others if ones is None else _over(ones, others, schema)
        if found is not None:
            yield found, until


class _Cut:
    """A stream from which rows are taken up to any order, as far as it was read."""

    def __init__(self, stream: Stream, end: int) -> None:
        self._stream = stream
        self._end = end
        self._held: list[PagedChanges] = []
        self.beyond = -1
        """Rows of lower orders were read."""

    def advance(self) -> None:
        """Read some more rows."""
        changes, self.beyond = next(self._stream, (None, self._end))
        if changes is not None:
            self._held.append(changes)

    def take(self, until: int, schema: TableSchema) -> PagedChanges | None:
        """The rows of lower orders."""
        found: PagedChanges | None = None
        kept: list[PagedChanges] = []
        for each in self._held:
            cut = int(np.searchsorted(orders_of(hashes_of(each), each.groups), until))
            if cut:
                some = each.between(0, cut)
                found = some if found is None else behind(found, some, schema)
            if cut < each.records:
                kept.append(each.between(cut, each.records))
        self._held = kept
        return found


def _over(older: PagedChanges, newer: PagedChanges, schema: TableSchema) -> PagedChanges:
    """The newer rows, and the older ones of other keys, in order."""
    left = np.flatnonzero(~_which_are_in(older, newer))
    if not len(left):
        return newer
    found = behind(older.taken(left), newer, schema)
    return found.taken(np.lexsort((hashes_of(found), found.groups)))


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


def behind(one: PagedChanges, two: PagedChanges, schema: TableSchema) -> PagedChanges:
    """The rows of both, one behind the other, as the schema has them."""
    ones, twos = stored_columns(one, schema), stored_columns(two, schema)
    return PagedChanges(
        two.state_id,
        np.concatenate([one.groups, two.groups]),
        [Typed(a.type, _joined(a.column, b.column)) for a, b in zip(one.keys, two.keys, strict=True)],
        {each.name: Typed(each.type, _joined(ones[each.name], twos[each.name])) for each in schema.columns},
        hashes=np.concatenate([hashes_of(one), hashes_of(two)]),
    )


def hashes_of(changes: PagedChanges) -> Hashes:
    """The hashes of the keys, which rows in pages always have."""
    assert changes.hashes is not None, "rows in pages have hashes"
    return changes.hashes


def _joined(one: Column, two: Column) -> Column:
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
