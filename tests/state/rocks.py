"""States whose tables lie in RocksDB."""

import importlib
import itertools
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import OpenTable
from statebackend.ids import all_key_groups
from statebackend.settings import MiB
from tests.state import states

if TYPE_CHECKING:
    from statebackend._tables.rocksdb import RocksStore

rocksdb = pytest.importorskip("statebackend._tables.rocksdb", reason="the extra rocksdb", exc_type=ImportError)
rocksdb_files = importlib.import_module("statebackend._tables.rocksdb_files")
rocks_tables = importlib.import_module("statebackend._tables.rocksdb_tables")

PENDING_WRITES_MAX = 3
"""So that the little that a test writes reaches the files."""
ROW_BYTES_MAX = 1500
"""Some six rows, so that a test reads from the files too."""


ALL_KEYS = OwnedKeys(all_key_groups(states.MAX_PARALLELISM), states.MAX_PARALLELISM)


@contextmanager
def open_store(
    directory: Path,
    *,
    memory_bytes: int = 8 * MiB,
    pending_writes_max: int = PENDING_WRITES_MAX,
    row_bytes_max: int | None = None,
    reopen: bool = False,
    read_only: bool = False,
) -> Generator["RocksStore"]:
    """A store of its own, closed afterwards."""
    store = rocksdb.RocksStore(
        directory,
        memory_bytes=memory_bytes,
        pending_writes_max=pending_writes_max,
        row_bytes_max=row_bytes_max,
        reopen=reopen,
        read_only=read_only,
    )
    try:
        yield store
    finally:
        store.close()


def tables_in(store: "RocksStore", keys: OwnedKeys = ALL_KEYS) -> OpenTable:
    """Tables of that owner."""
    return partial(rocks_tables.open_table, store, keys)


@contextmanager
def on_rocksdb() -> Generator[None]:
    """Every state that `tests.state.states` makes lies in one store, under an id of its own."""
    ids, on_heap = itertools.count(), states.open_table
    with (
        tempfile.TemporaryDirectory() as directory,
        open_store(Path(directory, "db"), row_bytes_max=ROW_BYTES_MAX) as store,
    ):
        open_table = tables_in(store)
        states.open_table = lambda heap, _: open_table(heap, next(ids))
        try:
            yield
        finally:
            states.open_table = on_heap
