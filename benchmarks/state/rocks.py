"""State in RocksDB, beside rocksdict with the same options, keys and batches: the table alone, and all of the state.

Envelope. Bare, a write is a put into a batch and a 2048th of sending it, 2 µs; a read is a get, 3 µs. The table adds a
dictionary in which writes wait, the key's group (a hash of 0.15 µs in bulk) and its bytes: 0.7 of bare. A state also
encodes each value and proves that it comes back, 0.6 µs, and notes what was touched, 0.3 µs, which bare does not do at
all: half of bare when writing, 0.6 when reading. In bulk most of that is cheaper: 0.6.
"""

import random
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
from rocksdict import Rdict, WriteBatch

from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.state.parts import keys, seconds
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.value_state import ValueState
from statebackend._tables.heap import ValueTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.rocksdb import RocksStore
from statebackend._tables.rocksdb_files import BATCH_WRITES_MAX, _options, _without_log
from statebackend._tables.rocksdb_tables import open_table
from statebackend.ids import all_key_groups
from statebackend.settings import MiB

KEYS = 100_000
VALUE = bytes(range(62))  # 64 bytes in MessagePack
MEMORY_BYTES = 128 * MiB
OWNED = OwnedKeys(all_key_groups(128), 128)
ROUNDS = 7

Measured = tuple[float, float]
"""Seconds for writing, and for reading."""


def run(report: Report) -> None:
    """Speed over that of bare rocksdict, of writing and of reading."""
    shuffled = list(keys(KEYS))
    random.Random(17).shuffle(shuffled)
    contestants: Mapping[str, Callable[[Path, Sequence[str]], Measured]] = {
        "bare": _bare,
        "table": _table,
        "state": _state,
        "state in bulk": _state_in_bulk,
    }
    reads: dict[str, list[float]] = {name: [] for name in contestants}

    def measure(name: str) -> float:
        with tempfile.TemporaryDirectory(prefix="statebackend-bench-") as folder:
            writing, reading = contestants[name](Path(folder, "db"), shuffled)
        reads[name].append(reading)
        return writing

    writes = report.contest(
        "writing to RocksDB", "s", {name: partial(measure, name) for name in contestants}, rounds=ROUNDS
    )
    read = {name: Sample(figures) for name, figures in reads.items()}
    for name, expected in (("table", 0.6), ("state", 0.5), ("state in bulk", 0.6)):
        for what, found in (("writing", writes), ("reading", read)):
            speed = ratio(found["bare"], found[name])
            report.add(
                Line(
                    f"RocksDB, {name}: speed of {what} {KEYS:,} keys over bare rocksdict",
                    f"at least {expected:g}x",
                    speed.median,
                    "x",
                    expected,
                    at_least=True,
                    detail=f"seconds: ours {found[name]}, bare {found['bare']}; ratio {speed}",
                )
            )


def _bare(directory: Path, each: Sequence[str]) -> Measured:
    db = Rdict(str(directory), _options(MEMORY_BYTES, reopen=False))
    db.set_write_options(_without_log())
    raw = [bytes(6) + msgspec.msgpack.encode(key) for key in each]

    def write() -> None:
        for first in range(0, len(raw), BATCH_WRITES_MAX):
            batch = WriteBatch(raw_mode=True)
            for key in raw[first : first + BATCH_WRITES_MAX]:
                batch.put(key, VALUE)
            db.write(batch)

    measured = seconds(write), seconds(lambda: [db.get(key) for key in raw])
    db.close()
    return measured


def _table(directory: Path, each: Sequence[str]) -> Measured:
    with _opened(directory) as store:
        entries = cast("ValueTable", open_table(store, OWNED, ValueTable, 0)).entries

        def write() -> None:
            for key in each:
                entries[key] = VALUE
            store.flush()

        return seconds(write), seconds(lambda: [entries.get(key) for key in each])


def _state(directory: Path, each: Sequence[str]) -> Measured:
    with _opened(directory) as store:
        values = _value_state(store)

        def write() -> None:
            for key in each:
                values[key] = VALUE
            store.flush()

        return seconds(write), seconds(lambda: [values[key] for key in each])


def _state_in_bulk(directory: Path, each: Sequence[str]) -> Measured:
    with _opened(directory) as store:
        values = _value_state(store)

        def write() -> None:
            values.put_many(each, [VALUE] * len(each))
            store.flush()

        return seconds(write), seconds(lambda: values.get_many(each))


@contextmanager
def _opened(directory: Path) -> Generator[RocksStore]:
    store = RocksStore(directory, memory_bytes=MEMORY_BYTES)
    try:
        yield store
    finally:
        store.close()


def _value_state(store: RocksStore) -> ValueState[bytes]:
    states = KeyedStates(OWNED.key_groups, 128, open_table=partial(open_table, store, OWNED))
    return states.value_state("values", bytes)
