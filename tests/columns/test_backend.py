"""A columnar state in a backend: restored, with bases and without, rescaled, evolved, looked at from outside."""

import datetime as dt
import operator
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import InputError, KeyGroupError, SettingsError, StateTypeError
from statebackend.owners import KeyGroupRange
from statebackend.settings import TableKind
from statebackend.testing.virtual_time import VirtualClock, run_virtual, settle
from tests.checkpoint.bases import Watcher

SCHEMA = pa.schema({"n": pa.int64(), "name": pa.string()})
HOW: Any = {"n": "count", "name": ("last", "name")}
KEY = pa.string()
TTL = sb.TimeToLive(10, lambda: 100.0)


@pytest.fixture
def settings(tmp_path: Path) -> sb.Settings:
    return sb.Settings(
        job="columns",
        primary=f"file://{tmp_path}/primary",
        local=(f"{tmp_path}/local",),
        table_dir=f"{tmp_path}/tables",
        max_parallelism=16,
        inline_bytes_max=0,
    )


def batch(first: int, count: int) -> pa.Table:
    keys = [f"k{number}" for number in range(first, first + count)]
    return pa.table({"k": keys, "name": [f"name of {key}" for key in keys]})


async def write(backend: sb.StateBackend, run: int, *, virtual: bool = False) -> dict[Any, Any]:
    """Merge three batches, each followed by a checkpoint, and return all rows."""
    fleet = backend.columnar_state("fleet", SCHEMA, key=KEY)
    for number in range(3):
        fleet.merge(batch(100 * run + 10 * number, 60), on="k", how=HOW)
        fleet.rows([f"k{100 * run + number}"]).drop()
        backend.value_state("runs", int)["run"] = run
        await backend.checkpoint(3 * run + number + 1)
        if virtual:
            await settle()
    return dict(fleet)


async def test_other_states_take_the_keys_of_columns_in_arrow(settings: sb.Settings) -> None:
    """Structs as well, which are tuples."""
    place = pa.struct([("carrier", pa.string()), ("flight", pa.int64())])
    async with sb.open_backend(settings) as backend:
        keys = backend.columnar_state("fleet", SCHEMA, key=place).rows([("UA", 1), ("AA", 2)]).keys
        idle, legs = backend.timers("idle"), backend.value_state("legs", int)
        hops, seen = backend.list_state("hops", str), backend.map_state("seen", str, int)
        total = backend.reducing_state("total", int, operator.add)
        idle.register_many(keys, [5, 6])
        assert list(idle.due(7)) == [(5, ("UA", 1)), (6, ("AA", 2))]
        legs.put_many(keys, [1, 2])
        assert legs.get_many(keys.take([1, 0])) == [2, 1]
        hops.append_many(pa.chunked_array([keys]), ["EWR", "IAH"])
        seen.put_many(keys, [{"EWR": 1}, {}])
        total.add_many(keys, [3, 4])
        assert [*hops] == [*legs] == [*total] == [("UA", 1), ("AA", 2)]
        assert (hops.get_many(keys), seen.get_many(keys), total.get_many(keys)) == (
            [["EWR"], ["IAH"]],
            [{"EWR": 1}, {}],
            [3, 4],
        )
        await backend.checkpoint(1)


@pytest.mark.parametrize("table", get_args(TableKind))
@pytest.mark.parametrize("handles", [0, 1], ids=["log", "bases"])
@run_virtual
async def test_a_job_is_restored(settings: sb.Settings, table: TableKind, handles: int) -> None:
    """From the log, and from bases; beside other states, on either table. Keys that were dropped stay so."""
    changed = {"materialize_handles_max": handles, "materialize_retry_delay_s": 0.0} if handles else {}
    settings = msgspec.structs.replace(settings, table=table, **changed)
    watcher = Watcher()
    expected: dict[Any, Any] = {}
    for run in range(3):
        async with sb.open_backend(settings, clock=VirtualClock(), observer=watcher) as backend:
            assert dict(backend.columnar_state("fleet", SCHEMA, key=KEY)) == expected
            assert dict(backend.value_state("runs", int)) == ({"run": run - 1} if run else {})
            expected = await write(backend, run, virtual=True)
            assert len(expected) == 77 * (run + 1)
    assert (bool(watcher.written), watcher.failed) == (bool(handles), [])
    other = msgspec.structs.replace(settings, table=next(each for each in get_args(TableKind) if each != table))
    async with sb.open_backend(other, clock=VirtualClock()) as backend:
        assert dict(backend.columnar_state("fleet", SCHEMA, key=KEY)) == expected


@pytest.mark.parametrize(
    ("values", "columns", "bases"), [(False, True, [0, 0, 1]), (True, True, [0, 1, 1]), (True, False, [0, 1, 1])]
)
@run_virtual
async def test_bases_of_columns_alone_are_no_sooner_due_on_rocksdb(
    settings: sb.Settings, values: bool, columns: bool, bases: list[int]
) -> None:
    """A RocksDB base is due after half as many changes, since only new files are written of it; entries are not."""
    settings = msgspec.structs.replace(settings, table="rocksdb", materialize_changelog_changes_min=100)
    watcher, written = Watcher(), list[int]()
    async with sb.open_backend(settings, clock=VirtualClock(), observer=watcher) as backend:
        for checkpoint_id in (1, 2, 3):
            if columns:
                fleet = backend.columnar_state("fleet", SCHEMA, key=KEY)
                fleet.merge(batch(100 * checkpoint_id, 1 if values else 40), on="k", how=HOW)
            if values:
                backend.value_state("runs", int).update({f"{checkpoint_id} {number}": 1 for number in range(40)})
            await backend.checkpoint(checkpoint_id)
            await settle()
            written.append(len(watcher.written))
    assert written == bases


async def test_a_state_that_is_not_declared_stays(settings: sb.Settings) -> None:
    async with sb.open_backend(settings) as backend:
        expected = await write(backend, 0)
    async with sb.open_backend(settings) as backend:
        backend.value_state("runs", int)["run"] = 7
        await backend.checkpoint(10)
    async with sb.open_backend(settings) as backend:
        assert dict(backend.columnar_state("fleet", SCHEMA, key=KEY)) == expected


async def test_owners_of_a_part_have_together_what_one_had(settings: sb.Settings) -> None:
    """In whatever ranges; each refuses the keys of the others."""
    async with sb.open_backend(settings) as backend:
        expected = await write(backend, 0)
    parts = [KeyGroupRange(0, 4), KeyGroupRange(5, 12), KeyGroupRange(13, 15)]
    found: list[dict[Any, Any]] = []
    for part in parts:
        async with sb.open_backend(settings, key_groups=part, owners=parts, read_only=True) as backend:
            fleet = backend.columnar_state("fleet", SCHEMA, key=KEY)
            found.append(dict(fleet))
            with pytest.raises(KeyGroupError):
                fleet.merge(batch(0, 50), on="k", how=HOW)
            assert dict(fleet) == found[-1]
    assert {key: row for each in found for key, row in each.items()} == expected
    assert sum(map(len, found)) == len(expected)


@pytest.mark.parametrize("is_committed", [True, False], ids=["after a checkpoint", "before the next one"])
async def test_rows_of_before_a_rescale_are_refused(settings: sb.Settings, is_committed: bool) -> None:
    """What they would write is in the log of nobody: the new owners have the keys as they were committed."""
    async with sb.open_backend(settings) as backend:
        fleet = backend.columnar_state("fleet", SCHEMA, key=KEY)
        fleet["a"] = {"n": 1, "name": "x"}
        rows = fleet.rows(["a", "b"])
        await backend.checkpoint(1)
        if not is_committed:
            rows = fleet.rows(["a", "b"])
            rows.gather()
    parts = [KeyGroupRange(0, 4), KeyGroupRange(5, 15)]
    found: dict[Any, Any] = {}
    for part in parts:
        async with sb.open_backend(settings, key_groups=part, owners=parts, read_only=True) as backend:
            now = backend.columnar_state("fleet", SCHEMA, key=KEY)
            for use in (rows.gather, rows.drop, lambda: rows.scatter({"n": [2, 2]})):
                with pytest.raises(InputError, match="ask for them again"):
                    use()
            found |= dict(now)
    assert found == dict(fleet) == {"a": {"n": 1, "name": "x"}}


async def test_columns_are_added_dropped_and_widened(settings: sb.Settings) -> None:
    """What was written with the first schema is read with the second; and rows written before have the default."""
    first = pa.schema({"n": pa.int32(), "gone": pa.string(), "at": pa.timestamp("us")})
    async with sb.open_backend(settings) as backend:
        fleet = backend.columnar_state("fleet", first, key=KEY)
        fleet["a"] = {"n": 1, "gone": "x", "at": dt.datetime(2026, 1, 1)}  # noqa: DTZ001
        await backend.checkpoint(1)
    second = pa.schema({"new": pa.string(), "n": pa.int64(), "at": pa.timestamp("us"), "empty": pa.float64()})
    for checkpoint_id in (2, 3):
        async with sb.open_backend(settings) as backend:
            fleet = backend.columnar_state("fleet", second, key=KEY, defaults={"new": "default"})
            assert fleet["a"] == {"new": "default", "n": 1, "at": dt.datetime(2026, 1, 1), "empty": None}  # noqa: DTZ001
            fleet["b"] = {"n": 2**40}
            await backend.checkpoint(checkpoint_id)
    async with sb.open_backend(settings) as backend:
        for wrong in (first, second.append(pa.field("gone", pa.string())), pa.schema({"at": pa.timestamp("ms")})):
            with pytest.raises(StateTypeError):
                backend.columnar_state("fleet", wrong, key=KEY)
        with pytest.raises(StateTypeError):
            backend.columnar_state("fleet", second, key=pa.int64(), defaults={"new": "default"})
        with pytest.raises(StateTypeError):
            backend.value_state("fleet", int)
        fleet = backend.columnar_state("fleet", second, key=KEY, defaults={"new": "default"})
        assert (fleet["a"]["new"], fleet["b"]["new"]) == ("default", None)
        assert fleet is backend.columnar_state("fleet", second, key=KEY, defaults={"new": "default"})


async def test_a_time_to_live_comes_and_goes(settings: sb.Settings) -> None:
    """Rows written without one never expire, until they are written again; what has expired shows when it has gone."""
    now = 100.0
    ttl = sb.TimeToLive(10, lambda: now)
    async with sb.open_backend(settings) as backend:
        fleet = backend.columnar_state("fleet", SCHEMA, key=KEY)
        fleet["before"], fleet["both"] = {"n": 1}, {"n": 1}
        await backend.checkpoint(1)
    async with sb.open_backend(settings) as backend:
        fleet = backend.columnar_state("fleet", SCHEMA, key=KEY, ttl=ttl)
        fleet["with"], fleet["both"] = {"n": 2}, {"n": 2}
        now = 110.0
        assert list(fleet) == ["before"]
        assert fleet.schema == SCHEMA
        now = 109.0
        await backend.checkpoint(2)
    async with sb.open_backend(settings) as backend:
        fleet = backend.columnar_state("fleet", SCHEMA, key=KEY)
        now = 200.0
        assert sorted(fleet) == ["before", "both", "with"]
        fleet["with"] = {"n": 3}
        await backend.checkpoint(3)
    async with sb.open_backend(settings) as backend:
        fleet = backend.columnar_state("fleet", SCHEMA, key=KEY, ttl=ttl)
        assert sorted(fleet) == ["before", "with"]


@pytest.mark.parametrize(
    ("schema", "key", "options"),
    [
        (pa.schema({}), KEY, {}),
        ({"n": pa.int64()}, KEY, {}),
        (pa.schema([("n", pa.int64()), ("n", pa.int64())]), KEY, {}),
        (pa.schema({"n": pa.list_(pa.int64())}), KEY, {}),
        (pa.schema({"n": pa.decimal256(50, 2)}), KEY, {}),
        (pa.schema({"__written__": pa.float64()}), KEY, {}),
        (SCHEMA, pa.float64(), {}),
        (SCHEMA, pa.int32(), {}),
        (SCHEMA, str, {}),
        (SCHEMA, pa.struct([("a", pa.float64())]), {}),
        (SCHEMA, KEY, {"ttl": 10}),
        (SCHEMA, KEY, {"defaults": {"none": 1}}),
        (SCHEMA, KEY, {"defaults": {"n": "x"}}),
    ],
    ids=range(13),
)
async def test_a_schema_that_no_state_can_have_is_refused(
    settings: sb.Settings, schema: Any, key: Any, options: Any
) -> None:
    """Before anything is declared: the name is free."""
    async with sb.open_backend(settings) as backend:
        with pytest.raises(InputError):
            backend.columnar_state("fleet", schema, key=key, **options)
        assert len(backend.columnar_state("fleet", SCHEMA, key=KEY)) == 0


async def test_rows_are_read_from_outside(settings: sb.Settings) -> None:
    """As mappings of plain values, by key too; the hidden column is not shown."""
    schema = pa.schema({"day": pa.date32(), "price": pa.decimal128(6, 2), "raw": pa.binary(), "took": pa.duration("s")})
    async with sb.open_backend(settings) as backend:
        pairs = backend.columnar_state("pairs", schema, key=pa.struct([("c", pa.string()), ("d", pa.int64())]), ttl=TTL)
        took = dt.timedelta(seconds=90)
        pairs["x", 1] = {"day": dt.date(2026, 1, 2), "price": Decimal("1.50"), "raw": b"\0", "took": took}
        pairs["y", 2] = {}
        backend.columnar_state("fleet", SCHEMA, key=KEY).merge(batch(0, 3), on="k", how=HOW)
        backend.value_state("other", int)["k1"] = 1
        await backend.checkpoint(1)
    async with sb.read_rows(settings) as rows:
        found = {(row.state, str(row.key)): row for row in rows}
    assert len(found) == 6
    expected = {"day": "2026-01-02", "price": "1.50", "raw": {"base64": "AA=="}, "took": 90.0}
    assert found["pairs", "['x', 1]"].value == expected
    assert found["pairs", "['y', 2]"].value == dict.fromkeys(expected)
    assert found["pairs", "['x', 1]"].kind == "columnar"
    async with sb.read_rows(settings, states=["fleet"], key="k1") as rows:
        assert [(row.key, row.value) for row in rows] == [("k1", {"n": 1, "name": "name of k1"})]
    async with sb.read_rows(settings, states=["pairs"], key=("x", 1)) as rows:
        assert [row.value for row in rows] == [expected]


async def test_a_job_is_rewritten_with_other_key_groups(settings: sb.Settings) -> None:
    """Each key in its new group: owners of parts find what is theirs."""
    async with sb.open_backend(settings) as backend:
        expected = await write(backend, 0)
    smaller = msgspec.structs.replace(settings, max_parallelism=7)
    await sb.rewrite(smaller)
    found: dict[Any, Any] = {}
    parts = [KeyGroupRange(0, 2), KeyGroupRange(3, 6)]
    for part in parts:
        async with sb.open_backend(smaller, key_groups=part, owners=parts, read_only=True) as backend:
            found |= dict(backend.columnar_state("fleet", SCHEMA, key=KEY))
    assert found == expected
    assert (await sb.verify(smaller)).damages == ()


async def test_without_the_extra_it_says_what_to_install(
    settings: sb.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a state is declared, not when the library is imported."""
    for name in [name for name in sys.modules if name.startswith(("statebackend._columns", "statebackend._state.col"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    async with sb.open_backend(settings) as backend:
        with pytest.raises(SettingsError, match="columns"):
            backend.columnar_state("fleet", SCHEMA, key=KEY)
