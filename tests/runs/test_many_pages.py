"""Bases of more pages than are streamed together: what is merged stays in order, and no row is lost between them."""

import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from statebackend._codec.change_sets.changes import PART_RECORDS_MAX
from statebackend._codec.change_sets.paged_changes import orders_of
from statebackend._columns.arrow import array_of
from statebackend._columns.table_schema import table_schema
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.page_map import STREAMED_BYTES_MAX, in_order
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys, key_group
from statebackend._tables.placed import WantedEntries
from statebackend.ids import KeyGroupRange, all_key_groups
from statebackend.settings import MiB
from tests.runs.flushing import bases_of, flush, parts_of, take_over

GROUPS = 4
OWNED = OwnedKeys(all_key_groups(GROUPS), GROUPS)
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
    table, chance, model = RunTable(SCHEMA, OWNED, memory=OverlayMemory(1)), Random(7), dict[str, str]()
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
        largest = max(part.head.pages * part.head.page_bytes for part in table._runs.maps[0]._parts)
        assert number or largest > STREAMED_BYTES_MAX
        placed_again = table.copy().placed(WantedEntries(0, OWNED, list(OWNED.key_groups)))
        assert_in_order(placed_again.changes(OWNED.key_groups))
        found = list(texts_in(table))
        assert len(found) == len(dict(found)) == table.num_rows == len(model)
        assert dict(found) == model


def test_no_key_is_lost_where_many_are_added_between_two_pieces_of_a_base(tmp_path: Path) -> None:
    """Those from the overlay, with the rows of a base that they lie between, are more than one part takes."""
    table = RunTable(table_schema(pa.schema({"n": pa.int64()}), pa.int64()), OWNED, memory=OverlayMemory(1))
    for begin, end in ((0, 40_000), (40_000, 40_000 + 3 * GROUPS * PART_RECORDS_MAX)):
        rows, _ = table.find_or_add(pa.array(range(begin, end)))
        table.scatter(rows, pa.RecordBatch.from_pydict({"n": range(begin, end)}))
        list(table.drain(0))
        flush(table, OWNED, tmp_path, segment_bytes_max=1 << 30)
        list(table.drain(0))

    assert in_order([each.part for each in table._runs.parts])
    assert (table.find(pa.array(range(end))) >= 0).all()


def test_a_dropped_key_is_drained_after_a_scan_that_takes_memory_back(tmp_path: Path) -> None:
    """What the scan brings in leaves again, and the heap of its long keys is compacted."""
    table = RunTable(table_schema(pa.schema({"n": pa.int64()}), pa.string()), OWNED, memory=OverlayMemory(1))
    keys = [f"key {number} {LONG}" for number in range(1000)]
    table.find_or_add(pa.array(keys))
    list(table.drain(0))
    flush(table, OWNED, tmp_path, segment_bytes_max=1 << 30)
    list(table.drain(0))

    table.drop(table.find(pa.array(keys[7:8])))
    for _ in range(2):
        assert sum(len(rows) for rows in table.pieces()) == len(keys) - 1
    (drop,) = table.drain(0)

    assert drop.drops == 1
    assert array_of(drop.key_parts[0], pa.string()).to_pylist() == keys[7:8]


def of_texts(directory: Path, length: int) -> RunTable:
    """A table over a base and a layer of all keys, each with a text of that length, and one that changed since."""
    table = RunTable(SCHEMA, OWNED, memory=OverlayMemory(1))
    for layer in range(2):
        rows, _ = table.find_or_add(pa.array(KEYS))
        table.scatter(rows, pa.RecordBatch.from_pydict({"text": [f"{layer}" * length] * len(KEYS)}))
        list(table.drain(0))
        copy, groups = table.copy(), list(OWNED.key_groups)
        files = bases_of(copy, OWNED, directory, groups, segment_bytes_max=1 << 30, layer=layer)
        if layer:
            table.put_layer(parts_of(files), layer, copy)
        else:
            take_over(table, copy, files, groups)
        list(table.drain(0))
    rows = table.find(pa.array(["key 7"]))
    table.scatter(rows, pa.RecordBatch.from_pydict({"text": ["new"]}))
    list(table.drain(0))
    return table


def test_a_stream_of_one_group_reads_the_pages_of_that_group(tmp_path: Path) -> None:
    """Whatever parts of others lie in its file: at most one page more, which the group before may end in."""
    (base, layer) = of_texts(tmp_path, 3000)._runs.maps
    for each in (base, layer):
        assert len({placed.part.key for placed in each.parts}) == 1
        for group in OWNED.key_groups:
            span = KeyGroupRange(group, group)
            rows = sum(changes.records for changes, _ in each.stream(span))
            pages = sum(len(piece.pages) for piece in each._pieces(span))
            assert rows <= pages <= rows + 1, "a page has one row here"


def test_merging_takes_memory_for_some_pages_alone(tmp_path: Path) -> None:
    """Not for the rows of a base and a layer, which are three times as large."""
    table = of_texts(tmp_path, 10_000)
    merged = table.copy().placed(WantedEntries(0, OWNED, list(OWNED.key_groups)))
    tracemalloc.start()
    try:
        rows = sum(changes.records for changes in merged.changes(OWNED.key_groups))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == len(KEYS)
    stored = sum(each.part.head.pages * each.part.head.page_bytes for each in table._runs.parts)
    assert stored > 30 * MiB
    assert most < 10 * STREAMED_BYTES_MAX, "five times what is streamed together of each"
