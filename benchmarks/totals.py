"""The task of the contests: how often each key came, the sum of its amounts, and the latest time. Rows, and the answer.

A row is a key, an amount and a time. Keys are equally frequent, or as uneven as in most of what people do: by Zipf's
law, of which 50,000 rows have 27,000 distinct keys of 100,000 and 39,000 of 1,000,000 (uniform: 39,000 and 48,800).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BEGIN_US: Final = 1_700_000_000_000_000
ZIPF: Final = 0.75
TIME: Final = pa.timestamp("us", tz="UTC")
COLUMNS: Final = pa.schema({"n": pa.int64(), "sum": pa.int64(), "last": TIME})
TOTALS: Final = pa.schema([pa.field("key", pa.string()), *COLUMNS])


@dataclass(frozen=True)
class Traffic:
    """Tables of rows; one number gives the same table each time."""

    keys: int
    zipf: bool = False

    def rows(self, number: int, rows: int) -> Any:
        """A table of `rows` rows."""
        chance = np.random.default_rng((self.keys, number))
        if self.zipf:
            shares, order = _zipf(self.keys)
            return _table(order[np.searchsorted(shares, chance.random(rows))], number, chance)
        return _table(chance.integers(self.keys, size=rows), number, chance)

    def distinct(self, number: int, rows: int) -> Any:
        """A table of `rows` rows, no key twice."""
        chance = np.random.default_rng((self.keys, number))
        return _table(chance.choice(self.keys, rows, replace=False), number, chance)

    def of(self, numbers: Any, number: int) -> Any:
        """A table of a row for each of these keys. `number`: which table it is; -1 is older than all others."""
        return _table(numbers, number, np.random.default_rng((self.keys, number + 1, len(numbers))))

    def every_key(self) -> Any:
        """A table with each key once: older than all others."""
        return _table(np.arange(self.keys), -1, np.random.default_rng(self.keys))


def answer(tables: Sequence[Any]) -> Any:
    """The totals of all these rows, in order of keys."""
    found = pa.concat_tables(tables).group_by("key").aggregate([("amount", "count"), ("amount", "sum"), ("at", "max")])
    columns = [found[name] for name in ("key", "amount_count", "amount_sum", "at_max")]
    return pa.table(columns, TOTALS).sort_by("key").combine_chunks()


def check(contestant: str, found: Any, expected: Any) -> None:
    """A contestant that is fast and wrong has no figures: raises `AssertionError` unless its totals are the answer."""
    found = found.select(TOTALS.names).cast(TOTALS).sort_by("key").combine_chunks()
    assert found.num_rows == expected.num_rows, f"{contestant} has {found.num_rows} keys, not {expected.num_rows}"
    assert found.equals(expected), f"{contestant} has other totals than the reference"


class Total(msgspec.Struct, array_like=True, gc=False):
    """The totals of a key. `last` is in microseconds."""

    n: int = 0
    sum: int = 0
    last: int = 0


class ValueTotals:
    """A value state: Arrow groups the rows, and the state is read and written in bulk."""

    def __init__(self, states: Any) -> None:
        self._totals = states.value_state("totals", Total)

    def merge(self, table: Any) -> None:
        """Add the rows."""
        found = table.group_by("key").aggregate([("amount", "count"), ("amount", "sum"), ("at", "max")])
        self.add(found["key"], found["amount_count"], found["amount_sum"], pc.cast(found["at_max"], "int64"))

    def add(self, keys: Any, counts: Any, sums: Any, lasts_us: Any) -> None:
        """Add totals, no key twice: columns of Arrow."""
        names = keys.to_pylist()
        known: list[Any] = self._totals.get_many(names, Total())
        new = zip(known, counts.to_pylist(), sums.to_pylist(), lasts_us.to_pylist(), strict=True)
        self._totals.put_many(
            names, [Total(old.n + n, old.sum + sum_, max(old.last, last)) for old, n, sum_, last in new]
        )

    def first(self) -> Any:
        """The totals of one key."""
        return self._totals["key-0000000"]

    def table(self) -> Any:
        """All totals."""
        keys = list(self._totals)
        rows: list[Any] = self._totals.get_many(keys)
        columns = [[each.n for each in rows], [each.sum for each in rows], [each.last for each in rows]]
        return pa.table([pa.array(keys, pa.string()), *(pa.array(each, pa.int64()) for each in columns)], TOTALS.names)


class ColumnTotals:
    """A columnar state: the table goes in as it is."""

    def __init__(self, states: Any) -> None:
        self._totals = states.columnar_state("totals", COLUMNS, key=pa.string())

    def merge(self, table: Any) -> None:
        """Add the rows."""
        self._totals.merge(table, on="key", how={"n": "count", "sum": ("sum", "amount"), "last": ("max", "at")})

    def first(self) -> Any:
        """The totals of one key."""
        return self._totals["key-0000000"]

    def table(self) -> Any:
        """All totals."""
        return self._totals.to_arrow()

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._totals)


@functools.cache
def _zipf(keys: int) -> tuple[Any, Any]:
    """The shares of the keys from the most frequent one on, summed up, and which key is the how-manieth."""
    shares = np.cumsum(np.arange(1, keys + 1) ** -ZIPF)
    return shares / shares[-1], np.random.default_rng(keys).permutation(keys)


def _table(numbers: Any, number: int, chance: np.random.Generator) -> Any:
    rows, digits = len(numbers), pc.cast(pa.array(numbers), pa.string())
    begin_us = BEGIN_US + number * rows
    return pa.table(
        {
            "key": pc.binary_join_element_wise("key-", pc.utf8_lpad(digits, 7, "0"), ""),
            "amount": chance.integers(1000, size=rows),
            "at": pa.array(np.arange(begin_us, begin_us + rows), TIME),
        }
    )
