"""The rows that RocksDB tables cache: bounded, always what was written last, and there for the next drain."""

import gc
import itertools
import weakref
from collections.abc import Generator, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._state.declared import KeyedStates
from statebackend._tables.heap import ListTable, MapTable, ValueTable
from statebackend._tables.row_cache import ROW_BYTES, RowCache
from statebackend.ids import all_key_groups
from statebackend.settings import MiB
from tests.changes import drained
from tests.state.rocks import open_store, rocksdb, tables_in
from tests.state.states import MAX_PARALLELISM, restored

if TYPE_CHECKING:
    from statebackend._tables.rocksdb import RocksStore


class CountingStore(rocksdb.RocksStore):
    """Counts the keys that are looked up in RocksDB."""

    looked_up = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        read: Any = self.get

        def get(key: bytes) -> bytes | None:
            self.looked_up += 1
            return cast("bytes | None", read(key))

        self.get = get

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        wanted = list(keys)
        self.looked_up += len(wanted)
        return cast("list[bytes | None]", super().get_many(wanted))  # pyright: ignore[reportUnknownMemberType]


@pytest.fixture
def counting(tmp_path: Path) -> Generator[Any]:
    store = CountingStore(tmp_path / "db", memory_bytes=8 * MiB, pending_writes_max=100, row_bytes_max=400 * ROW_BYTES)
    yield store
    store.close()


def states_in(store: "RocksStore") -> KeyedStates:
    return KeyedStates(all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM, open_table=tables_in(store))


def test_a_drain_reads_nothing_back(counting: Any) -> None:
    """Neither what was written in bulk nor one by one, nor what was removed; however many batches were sent since."""
    states = states_in(counting)
    numbers = states.value_state("numbers", int)
    numbers.put_many(range(100), range(100))
    for number in range(50):
        numbers[number] = -number
    del numbers[7]
    looked_up = counting.looked_up
    changes = drained(states)
    assert counting.looked_up == looked_up
    assert dict(restored(states, changes).value_state("numbers", int)) == dict(numbers)


def test_more_than_fits_is_read_back(counting: Any) -> None:
    """What was written last is still there, and reading the rest does not push it out."""
    states = states_in(counting)
    numbers = states.value_state("numbers", int)
    numbers.put_many(range(5000), range(5000))
    del numbers[0]
    looked_up = counting.looked_up
    changes = drained(states)
    assert 4500 < counting.looked_up - looked_up < 5000
    assert counting.cache.size_bytes < (400 + 2 * 100) * (ROW_BYTES + 20), "and at most a batch in either generation"
    assert dict(restored(states, changes).value_state("numbers", int)) == {number: number for number in range(1, 5000)}
    looked_up = counting.looked_up
    assert numbers.get_many(range(4950, 5000)) == list(range(4950, 5000))
    assert counting.looked_up == looked_up


def test_what_was_read_is_not_looked_up_again(counting: Any) -> None:
    """Nor that there is nothing, one by one or in bulk. A list in the cache is the list that an append extends."""
    states = states_in(counting)
    numbers, texts = states.value_state("numbers", int), states.list_state("texts", str)
    numbers.put_many(range(10), range(10))
    texts["key"] = ["a"]
    counting.flush()
    counting.cache.clear()
    for _ in range(2):
        assert numbers.get_many(range(5, 15)) == [*range(5, 10), *[None] * 5]
        assert [numbers.get(number) for number in (*range(5), 20)] == [*range(5), None]
        assert list(texts["key"]) == ["a"]
    assert counting.looked_up == 10 + 6 + 1
    texts["key"].append("b")
    counting.flush()
    assert list(texts["key"]) == ["a", "b"]
    counting.cache.clear()
    assert list(texts["key"]) == ["a", "b"]


def test_a_row_that_is_used_stays(counting: Any) -> None:
    """While a thousand others come and go."""
    numbers = states_in(counting).value_state("numbers", int)
    numbers.put_many(range(1000), range(1000))
    counting.flush()
    counting.cache.clear()
    for number in range(1, 1000):
        assert (numbers[0], numbers[number]) == (0, number)
    assert counting.looked_up == 1000


SIZES = st.lists(st.integers(0, 3000), max_size=60)


@given(SIZES, SIZES)
def test_the_cache_is_bounded(one: list[int], other: list[int]) -> None:
    """For all tables together: two generations of half the size each, and the row that began a new one."""
    cache = RowCache(10_000)
    tables = cache.rows(), cache.rows()
    for number, size_bytes in enumerate([size for both in zip(one, other, strict=False) for size in both]):
        rows = tables[number % 2]
        rows.young[number] = bytes(size_bytes)
        rows.count(size_bytes)
        held = [row for each in tables for row in (*each.young.values(), *each.old.values())]
        assert sum(len(row or b"") + ROW_BYTES for row in held) == cache.size_bytes <= 10_000 + 3000 + ROW_BYTES


def test_rows_of_a_table_that_is_gone_are_not_kept() -> None:
    """A store may have had any number of tables: an owner's restores and copies leave nothing to go through again."""
    cache = RowCache(10_000)
    rows = [cache.rows() for _ in range(3)]
    gone = [weakref.ref(each) for each in rows[:2]]
    del rows[:2]
    gc.collect()
    assert [each() for each in gone] == [None, None]
    rows[0].young["a"] = b"1"
    rows[0].count(6000)
    assert (rows[0].young, rows[0].old) == ({}, {"a": b"1"}), "those of the others grow old as ever"


_ids = itertools.count()

KEYS = st.sampled_from([*range(8), *"abcd", ("a", 1)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "remove", "extend", "put"]), KEYS, st.integers(0, 100)),
        st.tuples(st.sampled_from(["flush", "age", "many"]), KEYS, st.just(0)),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def small() -> Generator["RocksStore"]:
    with TemporaryDirectory() as directory, open_store(Path(directory, "db"), row_bytes_max=1500) as store:
        yield store


@given(steps=STEPS)
def test_whatever_is_cached_is_what_was_written_last(small: "RocksStore", steps: list[tuple[str, Any, int]]) -> None:
    """Beside dictionaries, with room for a few rows; and the files have the same once everything is sent."""
    heap = {table: table() for table in (ValueTable, ListTable, MapTable)}
    rocks = {table: tables_in(small)(table, next(_ids)) for table in heap}
    both = [(rocks[table], table_on_heap) for table, table_on_heap in heap.items()]
    keys = sorted({key for _, key, _ in steps}, key=repr)
    for step, key, number in steps:
        for tables in (heap, rocks):
            _take(step, key, b"%d" % number, tables)
        if step == "flush":
            small.flush()
        elif step == "age":
            small.cache.took(1000)
        elif step == "many":
            wanted = [*keys, key]
            assert [one.find_many(wanted) for one, _ in both] == [other.find_many(wanted) for _, other in both]
        assert [one.entries.get(key) for one, _ in both] == [other.entries.get(key) for _, other in both]
    small.flush()
    small.cache.clear()
    assert [dict(one.entries) for one, _ in both] == [other.entries for _, other in both]


def _take(step: str, key: Any, data: bytes, tables: dict[Any, Any]) -> None:
    if step == "set":
        tables[ValueTable].entries[key] = data
        tables[ListTable].replace(key, data)
    elif step == "remove":
        for table in tables.values():
            table.entries.pop(key, None)
    elif step == "extend":
        tables[ListTable].extend(key, data)
    elif step == "put":
        tables[MapTable].put(key, data[:1], data)
