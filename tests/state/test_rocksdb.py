"""RocksDB alone: batches, files, its own threads, and a bound on memory."""

import itertools
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import TimeToLive
from statebackend._codec.cells import framed
from statebackend._codec.change_sets.changes import GROUP
from statebackend._codec.change_sets.keyed_changes import SET, KeyedChanges
from statebackend._codec.change_sets.state_change import Operation
from statebackend._state.declared import KeyedStates
from statebackend._tables.heap import ListTable, MapTable, ValueTable
from statebackend._tables.key_groups import OwnedKeys, key_group
from statebackend._tables.placed import WantedEntries
from statebackend._tables.snapshot import StatesSnapshot
from statebackend.errors import BackendClosedError, KeyGroupError, StoreUnavailableError
from statebackend.ids import Key, KeyGroupRange, all_key_groups
from tests.changes import drained, rows_of
from tests.state.rocks import (
    ALL_KEYS,
    PENDING_WRITES_MAX,
    open_store,
    rocks_tables,
    rocksdb,
    rocksdb_files,
    tables_in,
)
from tests.state.states import MAX_PARALLELISM, restored, stored

if TYPE_CHECKING:
    from statebackend._tables.rocksdb import RocksStore

FileSizes = rocksdb_files.FileSizes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Generator["RocksStore"]:
    with open_store(tmp_path / "db") as opened:
        yield opened


def states_in(store: "RocksStore", key_groups: KeyGroupRange | None = None) -> KeyedStates:
    keys = OwnedKeys(key_groups or all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM)
    return KeyedStates(
        key_groups or all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM, open_table=tables_in(store, keys)
    )


def run(program: str, *args: object) -> str:
    """The output of a script in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, args)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# --------------------------------------------------------------------------------------------------------- batches


def test_writes_wait_for_a_batch_and_no_longer(store: "RocksStore") -> None:
    """Of all states together; what waits is read like what was sent."""
    states = states_in(store)
    numbers, texts = states.value_state("numbers", int), states.value_state("texts", str)
    for number in range(10):
        numbers[number] = number
        texts[number] = str(number)
        assert store.waiting == (2 * number + 2) % PENDING_WRITES_MAX
        assert [numbers[key] for key in range(number + 1)] == list(range(number + 1))


def test_a_batch_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    """A few large entries are sent, however few they are; so is one that grows where it lies."""
    with open_store(tmp_path / "db", pending_writes_max=1000) as store:
        cells, rows, maps = (tables_in(store)(table, at) for at, table in enumerate((ValueTable, ListTable, MapTable)))
        assert isinstance(rows, ListTable)
        assert isinstance(maps, MapTable)
        for number in range(10):
            cells.entries[number] = bytes(1 << 20)
            assert store.waiting == (number + 1) % 4
        store.flush()
        for number in range(10):
            rows.extend("key", bytes(1 << 20))
            assert store.waiting == (number + 1) % 4
        store.flush()
        for number in range(10):
            maps.put("key", b"%d" % number, bytes((1 << 20) - 1))
            assert store.waiting == (number + 1) % 4
        assert len(rows.entries["key"]) == 10 << 20
        assert len(maps.entries["key"]) == 10


def test_a_removal_waits_like_a_write(store: "RocksStore") -> None:
    """And hides what lies in the files."""
    numbers = states_in(store).value_state("numbers", int)
    numbers.update({number: number for number in range(9)})
    del numbers[0]
    assert store.waiting == 1
    assert 0 not in numbers
    assert numbers.pop(1) == 1
    assert set(numbers) == set(range(2, 9))
    numbers[0] = 7
    assert numbers[0] == 7
    with pytest.raises(KeyError):
        del numbers[1]


def test_a_map_is_decoded_once_for_all_of_its_entries(store: "RocksStore", monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each batch, also beside another one. What is written then is read, and what is removed is not."""
    decoded: list[bytes] = []

    def counted(data: bytes) -> dict[bytes, bytes]:
        decoded.append(data)
        return decode(data)

    decode = rocks_tables._decode_map
    monkeypatch.setattr(rocks_tables, "_decode_map", counted)
    states = states_in(store)
    seen = states.map_state("seen", str, int)
    plain = {str(number): number for number in range(20)}
    seen["a"] = seen["b"] = plain
    store.flush()
    decoded.clear()
    one, other = seen["a"], seen["b"]
    assert dict(one) == dict(one.items()) == one == plain
    assert [each in other for each in one] == [True] * 20
    assert len(decoded) == 2
    one["0"] = 100
    store.flush()
    assert (one["0"], other["0"]) == (100, 0)
    del one["0"]
    store.flush()
    assert one.get("0") is None
    other.clear()
    store.flush()
    assert dict(other) == {}
    assert len(decoded) == 6, "nothing is remembered of a batch that was sent"
    one["0"] = 1
    log = drained(states)
    one["0"] = 2
    store.flush()
    assert one["0"] == 2
    states.replay(stored(log))
    assert one["0"] == 1


def test_a_map_that_is_set_or_renewed_as_a_whole_is_written_once(
    store: "RocksStore", monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was encoded with each batch of its entries: a time that grew with the square of their number."""
    written: list[int] = []
    put = rocks_tables.RocksMaps.put

    def counted(self: Any, key: Key, entry: dict[bytes, bytes], size_bytes: int) -> None:
        written.append(len(entry))
        put(self, key, entry, size_bytes)

    monkeypatch.setattr(rocks_tables.RocksMaps, "put", counted)
    ttl = TimeToLive(10, lambda: 100.0, on_read=True)
    seen = states_in(store).map_state("seen", int, int, ttl=ttl)
    seen["a"] = dict.fromkeys(range(50), 1)
    assert seen.get_many(["a"]) == [dict.fromkeys(range(50), 1)]
    seen.update_many(["a"], [dict.fromkeys(range(60), 2)])
    assert written == [50, 50, 60]


def test_an_empty_cell_is_a_cell(store: "RocksStore") -> None:
    """A serializer of the user's own may have no bytes for a value; that is not the same as no value."""
    entries = tables_in(store)(ValueTable, 0).entries
    entries["key"] = b""
    store.flush()
    assert "key" in entries
    assert entries["key"] == entries.pop("key") == b""
    assert "key" not in entries


# ------------------------------------------------------------------------------------------------ copies and threads


def test_an_iteration_sees_what_was_there_when_it_began(store: "RocksStore") -> None:
    """A dictionary would raise here, and a list of all keys might not fit into memory."""
    numbers = states_in(store).value_state("numbers", int)
    numbers.update(dict.fromkeys(range(10), 0))
    keys = iter(numbers)
    first = next(keys)
    numbers.clear()
    numbers.update(dict.fromkeys(range(10, 20), 1))
    assert {first, *keys} == set(range(10))
    assert set(numbers) == set(range(10, 20))


def test_a_copy_is_read_in_another_thread_while_states_are_written(store: "RocksStore") -> None:
    """Several times at once, each with a place of its own; it holds what was there, and outlives the store."""
    states = states_in(store)
    numbers = states.value_state("numbers", int)
    numbers.update({number: number for number in range(300)})
    snapshot = states.snapshot()

    def read(groups: frozenset[int]) -> int:
        return sum(change.data == bytes([change.key % 128]) for change in rows_of(snapshot.changes(groups)))

    groups = [frozenset(range(first, 128, 4)) for first in range(4)]
    with ThreadPoolExecutor(4) as threads:
        counts = [threads.submit(read, part) for part in groups]
        for number in range(300):
            numbers[number] = -1
        found = [count.result() for count in counts]
    store.close()
    assert [read(part) for part in groups] == found
    assert sum(found) == 128 + 0  # 0 to 127 are a byte of their own, and larger ones take two or three


def test_a_copy_is_of_all_that_was_written_and_is_not_written_to(store: "RocksStore") -> None:
    """Writes that wait for a batch are in it."""
    table = tables_in(store)(ValueTable, 0)
    table.entries["key"] = b"one"
    copy = table.copy()
    table.entries["key"] = b"two"
    assert copy.entries["key"] == b"one"
    assert copy.entries.get("other") is None
    with pytest.raises(AssertionError):
        copy.entries["key"] = b"three"


def test_who_reads_a_copy_is_not_moved_by_another_who_does(store: "RocksStore") -> None:
    """Two iterations step by step, and a look at something else between the steps."""
    table = tables_in(store)(ValueTable, 0)
    table.entries.update({number: b"%d" % number for number in range(20)})
    copy = table.copy()
    seen: list[tuple[Any, Any]] = []
    for number, both in enumerate(zip(copy.entries, copy.entries, strict=True)):
        assert copy.entries[19 - number] == b"%d" % (19 - number)
        seen.append(both)
    assert {one for one, _ in seen} == {other for _, other in seen} == set(range(20))


class Unhashed(OwnedKeys):
    """Refuses to compute the group of a key."""

    def group_of(self, key: object) -> int:
        raise AssertionError(key)

    def groups_of(self, keys: object) -> list[int]:
        raise AssertionError(keys)


def test_a_replay_of_cells_hashes_no_key(store: "RocksStore") -> None:
    """Their groups are in the changes. What was cached or waited before is replaced, and the last change counts."""
    states, rows = states_in(store), tables_in(store)
    numbers = states.value_state("numbers", int)
    numbers.update({number: number for number in range(100)})
    changes = drained(states)
    for number in range(0, 100, 3):
        numbers[number] = -number
        del numbers[number + 1 if number < 99 else 0]
    changes += drained(states)
    waiting = rows(ValueTable, 7)
    waiting.entries.update(dict.fromkeys(range(100), b"old"))
    replayed = tables_in(store, Unhashed(all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM))(ValueTable, 7)
    for part in stored(changes):
        replayed.apply(part)
    store.cache.clear()
    assert {key: msgspec.msgpack.decode(cell) for key, cell in waiting.entries.items()} == dict(numbers)


def test_of_a_key_that_comes_again_in_a_replay_the_last_cell_stays(store: "RocksStore") -> None:
    """In one part, whose changes are written in order of key groups."""
    keys = [f"k{number}" for number in range(50)] * 4
    cells = [b"%d" % number for number in range(len(keys))]
    groups = np.array([key_group(key, MAX_PARALLELISM) for key in keys], GROUP)
    replayed = tables_in(store)(ValueTable, 7)
    replayed.apply(KeyedChanges(7, groups, SET * len(keys), keys, cells))
    assert dict(replayed.entries) == dict(zip(keys, cells, strict=True))


_LIST = st.tuples(st.sampled_from([Operation.SET, Operation.ADD, Operation.CLEAR]), st.binary(max_size=3))
_MAP = st.tuples(st.sampled_from([Operation.PUT, Operation.REMOVE, Operation.CLEAR]), st.sampled_from([b"a", b"b"]))


def _data_of(heap: type, operation: Operation, drawn: bytes, number: int) -> bytes:
    if operation is Operation.CLEAR:
        return b""
    if heap is ListTable:
        return framed(drawn) if drawn or operation is Operation.ADD else b""
    return framed(drawn) + framed(b"%d" % number) if operation is Operation.PUT else drawn


def test_a_replay_of_lists_and_maps_hashes_no_key(store: "RocksStore") -> None:
    """It leaves what a replay into dictionaries leaves, of however many parts, and whatever waits for a batch."""
    ids, unhashed = itertools.count(), Unhashed(all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM)

    @settings(max_examples=30)
    @given(st.sampled_from([(ListTable, _LIST), (MapTable, _MAP)]), st.data())
    def check(kind: tuple[Any, Any], data: st.DataObject) -> None:
        heap, operations = kind
        parts = data.draw(st.lists(st.lists(st.tuples(st.integers(0, 4), operations), min_size=1), max_size=3))
        on_heap, state_id, other_id = heap(), next(ids), next(ids)
        replayed, read = tables_in(store, unhashed)(heap, state_id), tables_in(store)(heap, state_id)
        waiting = tables_in(store)(ListTable, other_id)
        for part in parts:
            waiting.extend("waits", framed(b"x"))
            keys = [f"k{key}" for key, _ in part]
            rows = [_data_of(heap, *drawn, number) for number, (_, drawn) in enumerate(part)]
            groups = np.array([key_group(key, MAX_PARALLELISM) for key in keys], GROUP)
            for table in (on_heap, replayed):
                table.apply(KeyedChanges(state_id, groups, bytes(drawn[0] for _, drawn in part), keys, rows))
        assert dict(read.entries) == on_heap.entries
        assert waiting.entries.get("waits") == (framed(b"x") * len(parts) or None)

    check()


def test_a_map_in_the_files_loses_the_entry_that_is_removed(store: "RocksStore") -> None:
    """And the key with the last one."""
    table = tables_in(store)(MapTable, 0)
    assert isinstance(table, MapTable)
    table.put("key", b"a", b"1")
    table.put("key", b"b", b"2")
    for entry_key, left in ((b"a", {b"b": b"2"}), (b"none", {b"b": b"2"}), (b"b", None)):
        store.flush()
        table.remove("key", entry_key)
        store.flush()
        assert table.entries.get("key") == left


def test_keys_of_a_group_are_found_without_the_others(store: "RocksStore") -> None:
    """They lie together, each state by itself, whatever its keys are like."""
    mixed = [*range(200), *map(str, range(200)), *((number, "x") for number in range(200)), b"", b"\0", b"\xff" * 9]
    tables = [tables_in(store)(ValueTable, state_id) for state_id in (0, 1, 256)]
    for table in tables:
        table.entries.update(dict.fromkeys(mixed, b"cell"))
    for table in tables:
        placed = table.placed(WantedEntries(0, ALL_KEYS, range(MAX_PARALLELISM)))
        for group in range(MAX_PARALLELISM):
            found = rows_of(placed.changes(KeyGroupRange(group, group)))
            assert {change.key for change in found} == {
                key for key in mixed if key_group(key, MAX_PARALLELISM) == group
            }
            assert {change.key_group for change in found} <= {group}


def test_many_key_groups_are_read_by_few_searches(store: "RocksStore", monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them have no keys: a job may have 32,768, and most of them nothing."""
    searched = list[bytes]()
    seek = rocksdb_files.PointInTimeView._seek
    monkeypatch.setattr(
        rocksdb_files.PointInTimeView, "_seek", lambda view, raw: searched.append(raw) or seek(view, raw)
    )
    keys = OwnedKeys(all_key_groups(1 << 15), 1 << 15)
    table = rocks_tables.open_table(store, keys, ValueTable, 0)
    table.entries.update(dict.fromkeys(map(str, range(10)), b"cell"))
    changes = StatesSnapshot({0: table.copy()}, {}, keys).changes(frozenset(range(1 << 15)) - {7})
    assert {change.key for change in rows_of(changes)} == {*map(str, range(10))}
    assert len(searched) < 100


def test_an_owner_of_a_part_has_only_its_keys_there(tmp_path: Path) -> None:
    """Another owner's key is refused before anything is written."""
    lower = KeyGroupRange(0, 63)
    with open_store(tmp_path / "db") as store:
        numbers = states_in(store, lower).value_state("numbers", int)
        with pytest.raises(KeyGroupError):
            numbers[next(key for key in range(100) if key_group(key, MAX_PARALLELISM) > 63)] = 1
        assert store.waiting == 0


# ------------------------------------------------------------------------------------------ the end, and other trouble


def test_after_the_end_there_is_nothing_to_be_read(store: "RocksStore") -> None:
    """A state that somebody kept says that its backend is closed."""
    numbers = states_in(store).value_state("numbers", int)
    numbers.update({number: number for number in range(10)})
    store.close()
    with pytest.raises(BackendClosedError):
        numbers[1]
    with pytest.raises(BackendClosedError):
        list(numbers)
    with pytest.raises(BackendClosedError):
        numbers.update({number: number for number in range(PENDING_WRITES_MAX)})


FORKED = """
import os, sys
from pathlib import Path

from statebackend.errors import BackendClosedError
from tests.state.rocks import open_store
from tests.state.test_rocksdb import states_in

with open_store(Path(sys.argv[1])) as store:
    numbers = states_in(store).value_state("numbers", int)
    numbers.update({number: number for number in range(10)})
    child = os.fork()
    if child == 0:
        try:
            numbers[1]
        except BackendClosedError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    numbers[1] = 2
    print(sum(numbers.values()))
"""


def test_a_forked_process_is_told_and_harms_nothing(tmp_path: Path) -> None:
    """RocksDB's threads are not forked with it: a call there could wait for ever."""
    assert run(FORKED, tmp_path / "db") == "46\n"


# ---------------------------------------------------------------------------------------------- files for the next one


def test_what_was_written_out_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    """Also what waited for its batch. What was written after that is not promised."""
    with open_store(tmp_path / "db") as store:
        states_in(store).value_state("numbers", int)["written"] = 1
        store.write_out()
    with open_store(tmp_path / "db", reopen=True) as store:
        assert dict(states_in(store).value_state("numbers", int)) == {"written": 1}


def test_a_directory_is_opened_again_only_where_that_is_asked_for(tmp_path: Path) -> None:
    """Neither is something found where nothing should be, nor the other way round."""
    with open_store(tmp_path / "db"):
        pass
    with pytest.raises(StoreUnavailableError), open_store(tmp_path / "db"):
        pass
    with pytest.raises(StoreUnavailableError), open_store(tmp_path / "other", reopen=True):
        pass


def test_copied_files_are_a_database_of_that_moment(store: "RocksStore", tmp_path: Path) -> None:
    """Both go their own way. What never changes lies there once."""
    numbers = states_in(store).value_state("numbers", int)
    numbers.update({number: number for number in range(10)})
    store.copy_files(tmp_path / "copy").run()
    tables = list((tmp_path / "copy").glob("*.sst"))
    assert [path.stat().st_nlink for path in tables] == [2] * len(tables) != []
    numbers[0] = 100
    with open_store(tmp_path / "copy", reopen=True) as copy:
        copied = states_in(copy).value_state("numbers", int)
        copied[1] = 200
        assert (copied[0], copied[1]) == (0, 200)
    assert (numbers[0], numbers[1]) == (100, 1)


def test_writes_wait_while_files_are_copied(store: "RocksStore", tmp_path: Path) -> None:
    """In memory, where they are read and drained like others, and where the copy does not see them."""
    states = states_in(store)
    numbers = states.value_state("numbers", int)
    numbers.update({number: number for number in range(10)})
    copy = store.copy_files(tmp_path / "copy")
    assert store.waiting == 0
    numbers.put_many(range(5, 500), [-1] * 495)
    del numbers[0]
    assert store.waiting == 496
    assert numbers.get_many(range(12)) == [None, 1, 2, 3, 4, *[-1] * 7]
    assert dict(restored(states, drained(states)).value_state("numbers", int))[499] == -1
    copy.run()
    numbers[500] = -1
    assert store.waiting == 0, "one more write sends them all"
    with open_store(tmp_path / "copy", read_only=True) as copied:
        assert dict(states_in(copied).value_state("numbers", int)) == {number: number for number in range(10)}
    assert dict(numbers) == {number: number for number in range(1, 5)} | dict.fromkeys(range(5, 501), -1)


def test_what_needs_the_writes_makes_the_copy_itself(store: "RocksStore", tmp_path: Path) -> None:
    """A view, and writes that take too much memory: the thread for it may not have begun, and wait for this one."""
    numbers = states_in(store).value_state("numbers", int)
    numbers.update({number: number for number in range(10)})
    copy = store.copy_files(tmp_path / "by a view")
    numbers.put_many(range(10, 20), range(10, 20))
    assert not copy.ended
    assert sorted(numbers) == list(range(20))
    assert copy.ended
    copy.run()
    by_memory = store.copy_files(tmp_path / "by memory")
    texts, written = states_in(store).value_state("texts", str), 0
    while not by_memory.ended:
        texts[written] = "x" * 1000
        written += 1
    assert 800 < written * 1200 / 1024 < 1100, "an eighth of 8 MiB"
    for name, count in (("by a view", 10), ("by memory", 20)):
        with open_store(tmp_path / name, read_only=True) as copied:
            assert len(states_in(copied).value_state("numbers", int)) == count


def test_a_copy_that_fails_is_not_the_writers_error(store: "RocksStore", tmp_path: Path) -> None:
    """`run` raises its error, each time. One that is given up holds nothing back."""
    numbers = states_in(store).value_state("numbers", int)
    (tmp_path / "taken").mkdir()
    copy = store.copy_files(tmp_path / "taken")
    numbers.update({number: number for number in range(10)})
    assert sorted(numbers) == list(range(10))
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            copy.run()
    given_up = store.copy_files(tmp_path / "never")
    given_up.give_up()
    given_up.run()
    numbers.update(dict.fromkeys(range(PENDING_WRITES_MAX), -1))
    assert store.waiting == 0
    assert not (tmp_path / "never").exists()


def test_where_the_disk_is_full_the_copy_fails_and_not_the_call(tmp_path: Path) -> None:
    """The caller has committed by then."""
    store = FullStore(tmp_path / "db", memory_bytes=8 << 20, pending_writes_max=PENDING_WRITES_MAX)
    states_in(store).value_state("numbers", int)[1] = 1
    store.full = True
    with pytest.raises(StoreUnavailableError):
        store.copy_files(tmp_path / "copy").run()
    store.full = False
    store.copy_files(tmp_path / "again").run()
    store.close()
    with open_store(tmp_path / "again", read_only=True) as copied:
        assert dict(states_in(copied).value_state("numbers", int)) == {1: 1}


def test_adopted_files_are_in_the_place_of_nothing(store: "RocksStore", tmp_path: Path) -> None:
    """States that were there before find what is in them, and write to them."""
    numbers = states_in(store).value_state("numbers", int)
    with open_store(tmp_path / "other") as other:
        states_in(other).value_state("numbers", int)["key"] = 1
        other.copy_files(tmp_path / "copy").run()
    with pytest.raises(StoreUnavailableError):
        store.adopt(tmp_path / "other-than-that")
    assert dict(numbers) == {}
    assert numbers.get("key") is None
    store.adopt(tmp_path / "copy")
    assert dict(numbers) == {"key": 1}
    numbers["other"] = 2
    assert dict(numbers) == {"key": 1, "other": 2}


@pytest.mark.parametrize(
    ("whole_mib", "file_mib", "level_mib"), [(0, 1, 4), (300, 1, 8), (600, 1, 16), (2048, 4, 64), (40_000, 64, 1024)]
)
def test_files_and_levels_are_shares_of_the_whole(whole_mib: int, file_mib: int, level_mib: int) -> None:
    """Within bounds: a file is read into memory as a whole."""
    assert FileSizes.of(whole_mib << 20) == (file_mib << 20, level_mib << 20)


def test_what_is_only_read_stays_as_it_is(tmp_path: Path) -> None:
    """To the byte, names included."""
    with open_store(tmp_path / "db") as store:
        states_in(store).value_state("numbers", int)["key"] = 1
        store.copy_files(tmp_path / "copy").run()
    before = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    with open_store(tmp_path / "copy", read_only=True) as store:
        assert dict(states_in(store).value_state("numbers", int)) == {"key": 1}
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == before


FULL = """
import resource, signal, sys
from pathlib import Path

from statebackend.errors import StoreUnavailableError
from tests.state.rocks import open_store
from tests.state.test_rocksdb import states_in

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with open_store(Path(sys.argv[1]), memory_bytes=4 << 20) as store:
    cells = states_in(store).value_state("cells", bytes)
    try:
        for number in range(100_000):
            cells[number] = number.to_bytes(8, "little") * 128
    except StoreUnavailableError as error:
        print(error.facts["directory"])
"""


FULL_AT_THE_END = """
import resource, signal, sys
from pathlib import Path

from statebackend.errors import StoreUnavailableError
from tests.state.rocks import open_store
from tests.state.test_rocksdb import states_in

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open_store(Path(sys.argv[1])) as store:
    cells = states_in(store).value_state("cells", bytes)
    cells.update({number: number.to_bytes(8, "little") * 128 for number in range(1000)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        store.write_out()
    except StoreUnavailableError as error:
        print(error.facts["directory"])
"""


def test_a_full_disk_is_an_error_of_writing_out(tmp_path: Path) -> None:
    """It does not wait for ever for a file that cannot be written."""
    assert run(FULL_AT_THE_END, tmp_path / "db") == f"{tmp_path / 'db'}\n"


def test_a_full_disk_is_an_error_of_the_write(tmp_path: Path) -> None:
    """It names the directory. Every file over 100 kB fails, as on a disk without room."""
    assert run(FULL, tmp_path / "db") == f"{tmp_path / 'db'}\n"


class FullStore(rocksdb.RocksStore):
    """On a disk that is `full` for a while."""

    full = False

    def flush(self) -> None:
        if self.full:
            raise StoreUnavailableError("the disk of the tables failed")
        super().flush()


def test_what_a_full_disk_lets_in_is_logged_and_nothing_is_passed_over(tmp_path: Path) -> None:
    """However often somebody tries, in bulk too: it is refused each time, and what can be read is what is logged."""
    store = FullStore(tmp_path / "db", memory_bytes=8 << 20, pending_writes_max=PENDING_WRITES_MAX)
    states = states_in(store)
    numbers = states.value_state("numbers", int)
    store.full = True
    for first in (0, 10, 20):
        with pytest.raises(StoreUnavailableError):
            numbers.put_many(range(first, first + 10), range(10))
        with pytest.raises(StoreUnavailableError):
            numbers[100 + first] = first
    store.full = False
    numbers.put_many(range(20, 30), range(10))
    assert dict(zip(range(20, 30), range(10), strict=True)).items() <= dict(numbers).items()
    assert dict(restored(states, drained(states)).value_state("numbers", int)) == dict(numbers)
    store.close()


LARGE = """
import random, resource, sys
from pathlib import Path

from tests.state.rocks import open_store
from tests.state.test_rocksdb import states_in


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


chance = random.Random(1)
with open_store(Path(sys.argv[1]), memory_bytes=8 << 20, pending_writes_max=2048) as store:
    states = states_in(store)
    cells = states.value_state("cells", bytes)
    cells["warm"] = b"up"
    before = peak_bytes()
    for number in range(64_000):
        cells[number] = chance.randbytes(1000)
        if number % 1000 == 999:
            for _ in states.drain():
                pass
    keys = sum(1 for _ in cells)
    changes = sum(part.records for part in states.snapshot().changes(frozenset(range(128))))
    print(keys, changes, peak_bytes() - before)
"""


def test_state_is_larger_than_memory(tmp_path: Path) -> None:
    """64 MB written, iterated and gone through for a base, in less memory than that, and 8 MB of it RocksDB's own."""
    keys, changes, grown_bytes = map(int, run(LARGE, tmp_path / "db").split())
    assert (keys, changes) == (64_001, 64_001)
    assert grown_bytes < 48_000_000
