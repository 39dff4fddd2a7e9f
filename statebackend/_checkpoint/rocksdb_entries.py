"""The entries in files that a RocksDB has left, to be read and no more."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statebackend._state.declared import KINDS, StatesSnapshot
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.rocksdb import RocksStore
from statebackend._tables.rocksdb_tables import open_table
from statebackend.ids import KeyGroupRange, StateDescriptor
from statebackend.settings import MiB

MEMORY_BYTES: Final = 8 * MiB


@contextmanager
def open_entries(
    directory: Path, states: Sequence[StateDescriptor], key_groups: KeyGroupRange, *, max_parallelism: int
) -> Generator[StatesSnapshot]:
    """What the tables of these states held, for the owner of `key_groups`. Blocks on the disk.

    Raises `StoreUnavailableError` where the files cannot be read.
    """
    keys = OwnedKeys(key_groups, max_parallelism)
    store = RocksStore(directory, memory_bytes=MEMORY_BYTES, read_only=True)
    try:
        tables = {
            state.state_id: open_table(store, keys, KINDS[state.kind], state.state_id).copy()
            for state in states
            if state.kind in KINDS
        }
        yield StatesSnapshot(tables, {}, keys)
    finally:
        store.close()
