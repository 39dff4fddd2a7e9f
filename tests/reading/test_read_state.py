"""What is read from outside is what the states have, whichever way it lies there, and nothing of it but once."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend import errors
from statebackend._changelog.changelog_reader import SegmentRead
from statebackend._checkpoint.fetch import frames_in
from statebackend._checkpoint.rocksdb_restore import RocksDBRestore
from statebackend._codec.change_sets.changes import GROUP, PART_BYTES_MAX, change_set
from statebackend._codec.change_sets.keyed_changes import SET, KeyedChanges
from statebackend._codec.segment import encode_segment
from statebackend._reading import batches as batches_module
from statebackend._reading import opened_state
from statebackend._reading.asked_of_state import ReadingStep
from statebackend._reading.rows.merged_rows import NewestCells
from statebackend._state.time.job_clock import NOT_BEGUN
from statebackend.ids import ChangeSetHandle, Handle, KeyGroupRange, RocksDBBase, SequenceNumber, StateDescriptor
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.backend.rocksdb_job import RocksDBJob
from tests.reading.states import key_of, table_of, values_of
from tests.rewrite.jobs import SAMPLE, States, Write, opened, settings_of

TTL = sb.TimeToLive(10.0, now=lambda: 1000.0)
KEYED = ("value", "list", "map", "total", "timers", "recent")


async def read(settings: sb.Settings, store: sb.ObjectStore, **options: Any) -> dict[str, Any]:
    """What `States.read` has, from outside."""
    found: dict[str, Any] = {}
    for name in KEYED:
        table = await table_of(settings, name, store=store, ttl=TTL if name == "recent" else None, **options)
        found[name] = values_of(table)
    columns = await table_of(settings, "columns", store=store, **options)
    found["columns"] = {row["key"]: {"sum": row["sum"]} for row in columns.to_pylist()}
    return found


def expected(states: States) -> dict[str, Any]:
    everything = states.read()
    everything["timers"] = {key: list(times) for key, times in everything["timers"].items()}
    everything["columns"] = {key: dict(row) for key, row in everything["columns"].items()}
    return {name: everything[name] for name in (*KEYED, "columns")}


WRITES = st.lists(
    st.tuples(
        st.sampled_from([*KEYED, "columns", "dropped"]),
        st.sampled_from(["a", "b", "c", "d", "e", "f"]),
        st.integers(-2, 3),
    ),
    max_size=12,
)


@given(batches=st.lists(st.tuples(WRITES, st.booleans()), min_size=1, max_size=4), in_steps=st.booleans())
@settings(max_examples=12)  # each opens the job eight times: a third of a second
@run_virtual
async def test_what_is_read_is_what_the_states_have(batches: list[tuple[list[Write], bool]], in_steps: bool) -> None:
    """In bases, in the changelog behind them or in both, in as many steps as the memory asks for, in small hops too."""
    settings, store = settings_of(4, materialize_handles_max=1, materialize_interval_s=0.0), MemoryStore()
    async with opened(settings, store) as (backend, states):
        for writes, in_base in batches:
            states.write(writes)
            await backend.checkpoint(backend.next_checkpoint_id)
            if in_base:
                await backend._base_writer.settled()
        with pytest.MonkeyPatch.context() as patch:
            if in_steps:
                patch.setattr(opened_state, "KEYS_BYTES_MAX", 1)
                patch.setattr(batches_module, "HOP_BYTES", 1)
                patch.setattr(batches_module, "STRETCH_BYTES", 1)
            assert await read(settings, store) == expected(states)


async def test_every_commit_is_read_as_it_was() -> None:
    """An older checkpoint and a savepoint, beside the open job: nothing of it is claimed or written."""
    settings, store = settings_of(16, checkpoints_retained=9), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.write([("value", "a", 1)])
        await backend.checkpoint(1, savepoint="first")
        states.write([("value", "a", 2), ("value", "b", 2)])
        await backend.checkpoint(2)
        before = [info async for info in store.list("")]
        for options, values in (
            ({}, {"a": 2, "b": 2}),
            ({"checkpoint_id": 1}, {"a": 1}),
            ({"savepoint": "first"}, {"a": 1}),
        ):
            assert values_of(await table_of(settings, "value", store=store, **options)) == values
        assert [info async for info in store.list("")] == before
        states.write([("value", "a", 3)])
        await backend.checkpoint(3)


async def test_a_range_or_some_keys_are_what_the_whole_has_of_them() -> None:
    """For each kind, and for keys of each type; all ranges together are the whole."""
    settings, store = settings_of(16, materialize_handles_max=1, materialize_interval_s=0.0), MemoryStore()
    more: list[Write] = [(kind, f"more {number}", number) for number in range(50) for kind in (*KEYED, "columns")]
    text = [each for each in [*SAMPLE, *more] if isinstance(each[1], str)]
    async with opened(settings, store) as (backend, states):
        states.write(text)
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        states.write([*text[:40], ("dropped", "b", 0)])
        await backend.checkpoint(2)
        await backend.checkpoint(3)
        whole = expected(states)
    parts = [await read(settings, store, key_groups=part) for part in ((0, 5), (6, 6), (7, 15))]
    for name, values in whole.items():
        assert {key: value for part in parts for key, value in part[name].items()} == values
        assert sum(len(part[name]) for part in parts) == len(values)
    keys = ["a", "b", "more 7", "nobody"]
    some = await read(settings, store, keys=[*keys, *map(repr, keys)])
    assert some == {
        name: {key: value for key, value in values.items() if key in {*keys, *map(repr, keys)}}
        for name, values in whole.items()
    }


async def test_keys_of_several_types_are_text_on_request() -> None:
    """In JSON, as the command line takes them. Otherwise there is no type for the column."""
    settings, store = settings_of(16), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.write([("value", key, 1) for key in ("a", 7, b"\xff", ("d", 1))])
        await backend.checkpoint(1)
    with pytest.raises(errors.KeyTypeError, match="key_as_json"):
        await table_of(settings, "value", store=store)
    table = await table_of(settings, "value", store=store, key_as_json=True)
    assert set(table["key"].to_pylist()) == {'"a"', "7", '["d",1]', '{"base64":"/w=="}'}
    table = await table_of(settings, "value", store=store, keys=[("d", 1)])
    assert table.schema.field("key").type == pa.struct([("_1", pa.string()), ("_2", pa.int64())])
    assert [key_of(key) for key in table["key"].to_pylist()] == [("d", 1)]


async def test_owners_and_their_successors_are_read_as_one(tmp_path: Path) -> None:
    """Ranges that were split bring back their own key groups only."""
    settings, store = settings_of(16), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.write([("value", f"key {number}", number) for number in range(40)])
        await backend.checkpoint(1)
    halves = (sb.owners.KeyGroupRange(0, 7), sb.owners.KeyGroupRange(8, 15))
    async with (
        sb.owners.open_coordinator(settings, store=store) as coordinator,
        sb.open_backend(settings, store=store, key_groups=halves[0], owners=halves) as one,
        sb.open_backend(settings, store=store, key_groups=halves[1], owners=halves) as other,
    ):
        for owner in (one, other):
            found = owner.value_state("value", int)
            for key in list(found):
                found[key] += 100
        await coordinator.commit(2, [await each.snapshot(2) for each in (one, other)])
    found = values_of(await table_of(settings, "value", store=store))
    assert found == {f"key {number}": number + 100 for number in range(40)}


@pytest.mark.parametrize("table", ["heap", "rocksdb", "runs"])
@pytest.mark.parametrize("is_changed", [False, True])
async def test_a_list_or_map_larger_than_a_part_is_read_whole(table: str, is_changed: bool, tmp_path: Path) -> None:
    """Of more than 1 MiB each, so that a base has them in pieces: one behind the other, with small ones between."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    job = RocksDBJob(tmp_path)
    pieces = [f"{number}" * (PART_BYTES_MAX // 3) for number in range(4)]
    expected = {f"k{number}": pieces if number % 3 else ["small"] for number in range(6)}
    async with job.open() if table == "rocksdb" else sb.open_backend(job.settings, store=job.primary) as backend:
        lists, maps = backend.list_state("lists", str), backend.map_state("maps", int, str)
        for key, values in expected.items():
            lists[key], maps[key] = values, dict(enumerate(values))
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        for key in expected if is_changed else ():
            lists[key].append("more")
            maps[key][-1] = "more"
            expected[key] = [*expected[key], "more"]
        lists["other"].append("other")
        await backend.checkpoint(2)
    found = {name: values_of(await table_of(job.settings, name, store=job.primary)) for name in ("lists", "maps")}
    assert found["lists"] == {**expected, "other": ["other"]}
    assert {key: sorted(entries.values()) for key, entries in found["maps"].items()} == {
        key: sorted(values) for key, values in expected.items()
    }


async def test_a_base_of_rocksdb_is_read_entry_by_entry(tmp_path: Path) -> None:
    """Beside it columns have files of their own, which need no RocksDB."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    job = RocksDBJob(tmp_path)
    schema = pa.schema({"n": pa.int64()})
    async with job.open() as backend:
        value, hops = backend.value_state("value", int), backend.list_state("hops", int)
        columns = backend.columnar_state("columns", schema, key=pa.string())
        for number in range(20):
            value[f"k{number}"] = number
            hops[f"k{number}"].append(number)
            columns[f"k{number}"] = {"n": number}
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        del value["k3"]
        hops["k4"].append(100)
        columns["k5"] = {"n": -5}
        await backend.checkpoint(2)
    assert job.newest_base().columns_bytes
    read = {name: await table_of(job.settings, name, store=job.primary) for name in ("value", "hops", "columns")}
    assert values_of(read["value"]) == {f"k{number}": number for number in range(20) if number != 3}
    assert values_of(read["hops"]) == {f"k{n}": [n, 100] if n == 4 else [n] for n in range(20)}
    rows = {row["key"]: row["n"] for row in read["columns"].to_pylist()}
    assert rows == {f"k{n}": -5 if n == 5 else n for n in range(20)}


async def test_a_base_of_rocksdb_is_fetched_once_however_many_steps_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step or in one for each key group, of two owners: a base is closed when no later step needs it."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    job = RocksDBJob(tmp_path)
    parts = (KeyGroupRange(0, 5), KeyGroupRange(6, 11))
    async with job.open_parts(*parts) as owners:
        for value in range(2):
            await owners.checkpoint({f"k{number}": value for number in range(40)})
            for owner in owners.owners:
                await owner._base_writer.settled()
        await owners.checkpoint({"k1": 7})
        expected = owners.contents
    fetched, opened = Counter[str](), set[int]()
    counted = RocksDBRestore._fetch_file

    def open_now() -> int:
        return len(list(tmp_path.glob("tables/scratch-*/opened")))

    async def count(restore: RocksDBRestore, base: RocksDBBase, *rest: Any) -> Any:
        opened.add(open_now())
        fetched[f"{base.owner} {rest[-1].name}"] += 1
        return await counted(restore, base, *rest)

    monkeypatch.setattr(RocksDBRestore, "_fetch_file", count)
    for held_bytes in (opened_state.KEYS_BYTES_MAX, 1):
        fetched.clear()
        monkeypatch.setattr(opened_state, "KEYS_BYTES_MAX", held_bytes)
        assert values_of(await table_of(job.settings, "n", store=job.primary)) == expected
        assert fetched.keys() == {f"{base.owner} {file.name}" for base in bases_of(job) for file in base.files}
        assert (set(fetched.values()), opened) == ({1}, {1})


def bases_of(job: RocksDBJob) -> list[RocksDBBase]:
    """The RocksDB bases of the newest commit."""
    return [base for part in job.commits()[-1].ranges for base in part.rocksdb]


class Old(msgspec.Struct):
    miles: int


class New(msgspec.Struct):
    miles: int
    carrier: str = "?"


async def test_values_of_an_earlier_version_need_the_upcasts() -> None:
    """What a record has gained since is null; what needs an upcast is not guessed."""
    settings, store = settings_of(16), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("grown", Old)["k"] = Old(1)
        backend.value_state("changed", int)["k"] = 1
        await backend.checkpoint(1)
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("grown", New)["l"] = New(2, "UA")
        backend.value_state("changed", str, migrate=str)["l"] = "two"
        await backend.checkpoint(2)
    assert values_of(await table_of(settings, "grown", store=store)) == {
        "k": {"miles": 1, "carrier": None},
        "l": {"miles": 2, "carrier": "UA"},
    }
    assert values_of(await table_of(settings, "grown", store=store, columns=["carrier"]))["l"] == {"carrier": "UA"}
    with pytest.raises(errors.ValueDecodeError, match="migrate"):
        await table_of(settings, "changed", store=store)
    assert values_of(await table_of(settings, "changed", store=store, migrate=str)) == {"k": "1", "l": "two"}


async def test_an_upcast_may_return_what_the_state_takes() -> None:
    """As where the state is opened: a decimal, or a record, though the columns have a text and a struct."""
    settings, store = settings_of(16), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("price", int)["k"] = backend.value_state("leg", int)["k"] = 1
        await backend.checkpoint(1)
    upcasts: dict[str, Any] = {"price": Decimal, "leg": New}
    async with sb.open_backend(settings, store=store) as backend:
        assert backend.value_state("price", Decimal, migrate=Decimal)["k"] == Decimal(1)
        assert backend.value_state("leg", New, migrate=New)["k"] == New(1)
        await backend.checkpoint(2)
    found = {name: await table_of(settings, name, store=store, migrate=upcast) for name, upcast in upcasts.items()}
    assert values_of(found["price"]) == {"k": "1"}
    assert values_of(found["leg"]) == {"k": {"miles": 1, "carrier": "?"}}


async def test_what_has_expired_is_left_out_on_request() -> None:
    """Elements and entries by themselves, and rows of columns. Without `ttl` everything that is stored is shown."""
    settings, store, now_s = settings_of(16), MemoryStore(), 0.0
    ttl = sb.TimeToLive(10.0, now=lambda: now_s)
    async with sb.open_backend(settings, store=store) as backend:
        hops, seen = backend.list_state("hops", str, ttl=ttl), backend.map_state("seen", str, int, ttl=ttl)
        rows = backend.columnar_state("rows", pa.schema({"n": pa.int64()}), key=pa.string(), ttl=ttl)
        hops["k"].append("old")
        hops["gone"].append("old")
        seen["k"]["old"] = 1
        rows["old"] = {"n": 1}
        now_s = 5.0
        hops["k"].append("new")
        seen["k"]["new"] = 2
        rows["new"] = {"n": 2}
        await backend.checkpoint(1)
    now_s = 10.0
    assert values_of(await table_of(settings, "hops", store=store, ttl=ttl)) == {"k": ["new"]}
    assert values_of(await table_of(settings, "hops", store=store)) == {"k": ["old", "new"], "gone": ["old"]}
    assert values_of(await table_of(settings, "seen", store=store, ttl=ttl)) == {"k": {"new": 2}}
    assert (await table_of(settings, "rows", store=store, ttl=ttl))["key"].to_pylist() == ["new"]
    table = await table_of(settings, "rows", store=store)
    assert (sorted(table["key"].to_pylist()), table.column_names) == (["new", "old"], ["key_group", "key", "n"])


async def test_time_is_that_of_the_commit() -> None:
    """Unless the time-to-live has its own."""
    settings, store, ttl = settings_of(16), MemoryStore(), sb.TimeToLive(10.0)
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.value_state("n", int, ttl=ttl)
        for checkpoint_id, now_s in enumerate((100.0, 109.0, 111.0)):
            backend.advance_clock(now_s)
            state[f"at {now_s:.0f}"] = 1
            await backend.checkpoint(checkpoint_id)
    found = values_of(await table_of(settings, "n", store=store, ttl=ttl))
    assert found.keys() == {"at 109", "at 111"}
    earlier = values_of(await table_of(settings, "n", store=store, ttl=ttl, checkpoint_id=1))
    assert earlier.keys() == {"at 100", "at 109"}


async def test_before_the_first_time_of_a_job_nothing_has_expired() -> None:
    """Its first batches may have had no row with a time. What another clock has written, that one has to expire."""
    settings, store, ttl = settings_of(16), MemoryStore(), sb.TimeToLive(10.0)
    schema = pa.schema({"n": pa.int64()})
    for checkpoint_id, own in ((1, ttl), (2, sb.TimeToLive(10.0, now=lambda: 50.0))):
        async with sb.open_backend(settings, store=store) as backend:
            backend.advance_clock(NOT_BEGUN)
            backend.value_state("value", int, ttl=own)["k"] = 1
            backend.list_state("list", int, ttl=own)["k"].append(1)
            backend.map_state("map", str, int, ttl=own).put("k", "a", 1)
            backend.columnar_state("columns", schema, key=pa.string(), ttl=own)["k"] = {"n": 1}
            await backend.checkpoint(checkpoint_id)
        for state in ("value", "list", "map", "columns"):
            if own is ttl:
                assert (await table_of(settings, state, store=store, ttl=ttl))["key"].to_pylist() == ["k"]
            else:
                with pytest.raises(errors.InputError, match="no clock"):
                    await table_of(settings, state, store=store, ttl=ttl)
            assert (await table_of(settings, state, store=store, ttl=own))["key"].to_pylist() == ["k"]


def test_every_library_of_arrow_takes_the_reader() -> None:
    """By its stream. Nothing is left running once it is read to its end, or given up in the middle."""
    settings, store = settings_of(16), MemoryStore()

    async def work() -> None:
        async with sb.open_backend(settings, store=store) as backend:
            backend.value_state("n", int).update({f"k{number}": number for number in range(40_000)})
            await backend.checkpoint(1)

    asyncio.run(work())
    found = sb.read_state(settings, "n", store=store)
    assert isinstance(found, pa.RecordBatchReader)
    assert pa.table(found).num_rows == 40_000
    found = sb.read_state(settings, "n", store=store)
    assert found.read_next_batch().num_rows < 40_000
    del found
    assert "statebackend-read" not in {thread.name for thread in threading.enumerate()}


WRONG: Sequence[tuple[str, dict[str, Any], type[errors.StateBackendError], str]] = [
    ("valeu", {}, errors.InputError, "did you mean 'value'"),
    ("columns", {"columns": ["sums"]}, errors.InputError, "did you mean 'sum'"),
    ("columns", {"columns": ["sum", "sum"]}, errors.InputError, "twice"),
    ("value", {"columns": ["sum"]}, errors.InputError, "no columns to choose"),
    ("value", {"key_groups": (3, 16)}, errors.InputError, "other key groups"),
    ("value", {"key_groups": (3, 2)}, errors.InputError, "first and the last"),
    ("value", {"keys": "a"}, errors.InputError, "sequence of keys"),
    ("value", {"keys": [1.5]}, errors.KeyTypeError, "key"),
    ("value", {"keys": [["a"]]}, errors.KeyTypeError, "another type"),
    ("value", {"keys": [{}]}, errors.KeyTypeError, "key"),
    ("columns", {"keys": [7]}, errors.KeyTypeError, "another type"),
    ("value", {"checkpoint_id": 9}, errors.CheckpointNotFoundError, "checkpoint id"),
    ("value", {"savepoint": "nothing"}, errors.SavepointNotFoundError, "nothing"),
    ("value", {"savepoint": "s", "checkpoint_id": 1}, errors.InputError, "not both"),
]


@pytest.mark.parametrize(("state", "options", "error", "said"), WRONG, ids=[str(each[:2]) for each in WRONG])
async def test_what_is_not_there_is_an_error_of_its_own(
    state: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    """The closest name is named."""
    settings, store = settings_of(16), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.write([("value", "a", 1), ("columns", "a", 1)])
        await backend.checkpoint(1)
    with pytest.raises(error, match=said):
        await table_of(settings, state, store=store, **options)


async def test_a_key_that_no_key_of_the_state_is_like_is_told() -> None:
    """A key that is just not there is no error."""
    settings, store = settings_of(1), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.write([("value", "7", 1), ("list", "7", 1)])
        await backend.checkpoint(1)
    for state in ("value", "list"):
        assert (await table_of(settings, state, store=store, keys=["8"])).num_rows == 0
        with pytest.raises(errors.KeyTypeError, match="another type"):
            await table_of(settings, state, store=store, keys=[7])


@pytest.mark.parametrize("asked", [{"keys": ["a"]}, {"keys": []}, {"key_groups": (0, 0)}, {"key_groups": (0, 127)}])
async def test_operator_state_is_read_whole_or_not_at_all(asked: dict[str, Any]) -> None:
    """It belongs to no key group: processes that share the work by key groups would each read all of it."""
    settings, store = settings_of(128), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        backend.operator_state("offsets", int).extend([1, 2])
        await backend.checkpoint(1)
    with pytest.raises(errors.InputError, match="ask for all of it"):
        await table_of(settings, "offsets", store=store, **asked)
    assert (await table_of(settings, "offsets", store=store))["value"].to_pylist() == [1, 2]


async def test_a_job_without_a_checkpoint_is_told() -> None:
    """Most likely its name is misspelt."""
    with pytest.raises(errors.InputError, match="no checkpoint"):
        await table_of(settings_of(1), "value", store=MemoryStore())


def test_within_a_change_set_the_last_part_counts() -> None:
    """As where a batch is drained several times before it is uploaded."""
    parts = [KeyedChanges(0, np.zeros(1, GROUP), SET, ["k"], [bytes([number])]) for number in (1, 2)]
    segment = encode_segment([change_set("log", SequenceNumber(0), parts)], "none")
    (entry,), data = segment.entries, b"".join(segment.chunks)
    handle = ChangeSetHandle(Handle("s", 0, len(data), 0), *msgspec.structs.astuple(entry))
    read = SegmentRead(handle.segment, (handle,))
    nothing: Any = None
    found = opened_state.StateReading(
        nothing,
        StateDescriptor(0, "n", "value", '"int"'),
        nothing,
        nothing,
        columns=None,
        fetcher=nothing,
        local=None,
        rocksdb=nothing,
        concurrency_max=1,
        threads=nothing,
        meter=nothing,
    )
    step = ReadingStep(nothing, (KeyGroupRange(0, 0),))
    (rows,) = found._newer(NewestCells(None), step, frames_in(read, data))
    assert rows.entries == [b"\x02"]
