"""Reads the entries in the files of a RocksDB base. Imports RocksDB, which is an extra, only when one is opened."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statebackend._tables.heap import KINDS
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.snapshot import StatesSnapshot
from statebackend.errors import SettingsError, needs_extra
from statebackend.ids import KeyGroupRange, StateDescriptor
from statebackend.settings import MiB

MEMORY_BYTES: Final = 8 * MiB


@contextmanager
def open_entries(
    directory: Path, states: Sequence[StateDescriptor], key_groups: KeyGroupRange, *, max_parallelism: int
) -> Generator[StatesSnapshot]:
    """The entries of these states in the files below `directory`, which the owner of `key_groups` wrote.

    The files stay unchanged. Blocks on the disk. Raises `StoreUnavailableError` where the files cannot be read,
    `SettingsError` where rocksdict is missing.
    """
    try:
        from statebackend._tables.rocksdb import RocksStore  # noqa: PLC0415  # an extra
        from statebackend._tables.rocksdb_tables import open_table  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise SettingsError(needs_extra("a base of this job is made of RocksDB's files: it", "rocksdb")) from error
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
