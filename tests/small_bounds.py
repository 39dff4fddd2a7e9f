"""Bounds of the library, made so small that the states of tests pass them.

What is cut, streamed, spilled or merged from thousands of rows or a megabyte on is done for three rows here: a state of
ten keys is treated as one of a million is.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from random import Random
from typing import Final
from unittest import mock

BOUNDS: Final[Mapping[str, Mapping[str, int]]] = {
    "_changelog.segment_upload": {"INLINE_ENCODE_BYTES_MAX": 64},
    "_checkpoint.materialization.bases": {
        "FRAME_BYTES_MIN": 128,
        "FRAME_BYTES_MAX": 512,
        "SEGMENT_BYTES_MAX": 2048,
        "ALONE_BYTES_MIN": 1024,
        "SMALL_BYTES": 512,
        "SMALL_BASES_MAX": 2,
    },
    "_checkpoint.materialization.base_writer": {"OPENED_AT_ONCE": 1},
    "_checkpoint.materialization.tiers": {"FULL_BYTES": 512},
    "_checkpoint.fetch": {"FETCHED_BYTES_MAX": 512},
    "_checkpoint.restore": {"GROUP_FILES_MAX": 2, "GROUP_BYTES_MAX": 256},
    "_codec.change_sets.changes": {"PART_RECORDS_MAX": 3, "PART_BYTES_MAX": 256},
    "_codec.columns": {"COMPARED_AT_ONCE": 2},
    "_codec.xxh64": {"LONG_BYTES": 32},
    "_columns.growable": {"ROWS_MIN": 2, "COMPACTED_BYTES_MIN": 16},
    "_columns.index": {"FEW": 1, "PLACED_AT_ONCE": 2},
    "_columns.key_rows": {"ADDED_AT_ONCE": 2},
    "_following.columns": {"ROWS_AT_ONCE": 2},
    "_following.followed_state": {"FREED_AT_ONCE": 2},
    "_following.log_steps": {"ENTRIES_MAX": 2},
    "_following.tables": {"IN_MEMORY_AT_ONCE": 2, "IN_FILES_AT_ONCE": 2},
    "_log.coordinator": {"RECENT_MAX": 2, "RECENT_BYTES_MAX": 512},
    "_log.log_reader": {"DECODE_ON_LOOP_BYTES_MAX": 64},
    "_log.outbox": {"ENCODE_ON_LOOP_BYTES_MAX": 64},
    "_log.sweeping.sweep_requests": {"BATCH_MAX": 2},
    "_mirroring.planning": {"COMMITS_MAX": 2, "CHANGES_MAX": 3},
    "_mirroring.spool": {"HELD_BYTES_MAX": 128},
    "_mirroring.targets.parquet": {"FILE_ROWS_MAX": 3, "ENCODED_AT_ONCE": 2},
    "_processing.grouping": {"SLAB_ROWS": 3},
    "_processing.runner": {"SLAB_ROWS_ON_LOOP": 2},
    "_reading.batches": {
        "FETCHED_BYTES_MAX": 512,
        "BATCH_ROWS_MIN": 2,
        "HOP_BYTES": 128,
        "STRETCH_BYTES": 128,
    },
    "_reading.rows.merged_rows": {"ROWS_AT_ONCE": 2},
    "_runs.in_page": {"NEAR": 2},
    "_runs.page_map": {"READ_BYTES_MAX": 8192, "STREAMED_BYTES_MAX": 1},
    "_runs.far_pages": {"GAP_BYTES_MAX": 64, "RANGE_BYTES_MAX": 8192},
    "_state.columnar.expiring_rows": {"READ_AT_ONCE": 2},
    "_state.columnar.rows_ahead": {"AHEAD_MAX": 2},
    "_state.kinds.every_kind": {"DRAINED_AT_ONCE": 2},
    "_state.values": {"SMALL_ROW_BYTES_MAX": 4, "ENCODED_AT_ONCE": 2},
    "_state.time.timers": {"_STALE_MAX": 2},
    "_tables.heap": {"CHUNK_BYTES": 32},
    "_tables.placed": {"PLACED_AT_ONCE": 2, "REBUILT_AT_ONCE": 2, "GATHERED_AT_ONCE": 2, "COPIED_BYTES_MAX": 4},
    "_tables.rocks_mapping": {"WRITTEN_AT_ONCE": 2, "READ_AT_ONCE": 2, "REPLAYED_AT_ONCE": 2, "COUNTED_BYTES": 64},
    "_tables.rocksdb": {"PENDING_BYTES_MAX": 64},
    "_tables.rocksdb_entries": {"MEMORY_BYTES": 256},
    "_tables.rocksdb_files": {"BATCH_WRITES_MAX": 2},
    "_tables.snapshot": {"TOGETHER_BYTES": 64},
    "_upkeep.offline.key_search": {"WHOLE_BYTES_MAX": 64},
    "_upkeep.offline.keys_found": {"SUPERSEDED_BYTES": 512},
    "_upkeep.offline.transformed_state": {"KEYS_AT_ONCE": 2},
    "_upkeep.seeding.arrow_sources": {"ROWS_AT_ONCE": 2},
    "_upkeep.seeding.runs": {"BINS_MAX": 2},
    "_upkeep.seeding.sorted_runs": {"RUN_BYTES": 512, "RUN_ROWS": 3, "WINDOW_BYTES": 64},
    "_upkeep.seeding.sources": {"PAIRS_AT_ONCE": 2},
    "spark.executors.batch_job": {"BASE_BYTES_MAX": 512},
    "spark.output": {"PART_BYTES_MAX": 256},
    "spark.reading.positions": {"PARTITION_BYTES": 512, "FEED_PARTITION_BYTES": 512},
}
"""By module of `statebackend`, what each bound is when it is small."""


@contextmanager
def small_bounds(number: int | None, share: float = 0.5) -> Generator[None]:
    """In this context some bounds are small, that share of them, drawn by this number; none of them for `None`."""
    if number is None:
        yield
        return
    chance = Random(f"bounds {number}")
    with ExitStack() as stack:
        homes = {module: import_module(f"statebackend.{module}") for module in BOUNDS}
        own = [each for path, each in sys.modules.items() if path.startswith("statebackend")]
        for module, bounds in BOUNDS.items():
            for name, small in bounds.items():
                if chance.random() >= share:
                    continue
                usual = getattr(homes[module], name)
                for each in own:
                    if each.__dict__.get(name) is usual:
                        stack.enter_context(mock.patch.object(each, name, small))
        yield
