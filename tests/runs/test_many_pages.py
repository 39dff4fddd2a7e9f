"""Bases of more pages than are streamed together: what is merged stays in order, and no row is lost between them."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from statebackend._codec.change_sets.paged_changes import orders_of
from statebackend._columns.table_schema import table_schema
from statebackend._runs.page_map import STREAMED_PAGES, in_order
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys, key_group
from statebackend._tables.placed import WantedEntries
from statebackend.ids import all_key_groups
from tests.runs.flushing import flush

OWNED = OwnedKeys(all_key_groups(4), 4)
SCHEMA = table_schema(pa.schema({"text": pa.string()}), pa.string())
KEYS = [f"key {number}" for number in range(1000)]
LONG = "x" * 3000  # a page has one row


def texts_in(table: RunTable) -> Iterator[tuple[str, str]]:
    """All rows, as a scan has them."""
    for rows in table.pieces():
        texts = table.gather(rows)["text"].to_pylist()
        yield from zip(table.keys(rows).to_pylist(), texts, strict=True)


def assert_in_order(changes: Iterable[Any]) -> None:
    """No change set has a row that belongs before one of those that came earlier."""
    orders = [orders_of(each.hashes, each.groups) for each in changes]
    assert len(orders) > 4
    for one, two in pairwise(orders):
        assert one.max() <= two.min()


@pytest.mark.parametrize("groups_by_base", [[[0, 1, 2, 3]] * 3, [[0, 1, 2, 3], [1, 3], [0, 3]]], ids=["all", "some"])
def test_bases_of_many_pages_are_merged_in_order(tmp_path: Path, groups_by_base: list[list[int]]) -> None:
    """Over several bases, with keys set, replaced and dropped between each and the next."""
    table, chance, model = RunTable(SCHEMA, OWNED, memory_bytes=1), Random(7), dict[str, str]()
    for number, groups in enumerate(groups_by_base):
        own = [key for key in KEYS if key_group(key, 4) in groups]  # a base is of all groups that have changed
        set_now = chance.sample(own, 150 if number else 700)
        texts = {key: f"{number} {key} {LONG}" for key in set_now}
        rows, _ = table.find_or_add(pa.array(texts))
        table.scatter(rows, pa.RecordBatch.from_pydict({"text": list(texts.values())}))
        model |= texts
        dropped = chance.sample(sorted(model.keys() & own), 60)
        table.drop(table.find(pa.array(dropped)))
        for key in dropped:
            del model[key]
        list(table.drain(0))
        flush(table, OWNED, tmp_path, groups, segment_bytes_max=1 << 30)
        list(table.drain(0))
        by_file: dict[str, list] = {}
        for placed in table._runs.parts:
            by_file.setdefault(placed.part.key, []).append(placed.part)
        assert all(in_order(parts) for parts in by_file.values()), "a base that nobody can look up in"
        assert number or max(part.head.pages for part in table._runs.maps[0]._parts) > STREAMED_PAGES
        placed_again = table.copy().placed(WantedEntries(0, OWNED, list(OWNED.key_groups)))
        assert_in_order(placed_again.changes(OWNED.key_groups))
        found = list(texts_in(table))
        assert len(found) == len(dict(found)) == table.num_rows == len(model)
        assert dict(found) == model
