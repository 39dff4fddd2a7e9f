"""A seed is the first state of a job: every row in its place, or an error that names the first one that is wrong."""

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statebackend as sb
from statebackend._reading.feed import open_changes
from statebackend._upkeep.seeding import sorted_runs
from statebackend.errors import FencedError, InputError, KeyTypeError, ValueEncodeError
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.aggregates import Mean
from tests.rewrite.jobs import assert_placed, newest_commit, objects_of, settings_of

SETTINGS = settings_of(16)
FLEET = pa.schema({"n": pa.int64(), "name": pa.string(), "at": pa.timestamp("us", "UTC")})


class Customer(msgspec.Struct, frozen=True):
    orders: int = 0
    amount: float = 0.0


class States:
    """Every kind of keyed state, declared."""

    def __init__(self, backend: Any) -> None:
        self.value = backend.value_state("value", Customer)
        self.list = backend.list_state("list", str)
        self.map = backend.map_state("map", str, int)
        self.total = backend.reducing_state("total", int, operator.add)
        self.mean = backend.aggregating_state("mean", Mean())
        self.timers = backend.timers("timers")
        self.fleet = backend.columnar_state("fleet", FLEET, key=pa.string())
        self.pairs = backend.columnar_state(
            "pairs", pa.schema({"n": pa.int64()}), key=pa.struct({"a": pa.string(), "b": pa.int64()})
        )

    def read(self) -> dict[str, Any]:
        return {
            "value": dict(self.value),
            "list": {key: list(found) for key, found in self.list.items()},
            "map": {key: dict(found) for key, found in self.map.items()},
            "total": dict(self.total),
            "mean": dict(self.mean),
            "timers": {key: self.timers.registered(key) for key in self.timers},
            "fleet": dict(self.fleet),
            "pairs": dict(self.pairs),
        }


async def read(store: sb.ObjectStore, settings: sb.Settings = SETTINGS) -> dict[str, Any]:
    async with sb.open_backend(settings, store=store, read_only=True) as backend:
        return States(backend).read()


async def seed(store: sb.ObjectStore, sources: dict[str, Any], **options: Any) -> sb.reports.SeedReport:
    return await sb.seed(options.pop("settings", SETTINGS), States, sources, store=store, **options)


def sources_of(count: int) -> dict[str, Any]:
    keys: list[sb.Key] = [f"key {number}" if number % 3 else number for number in range(count)]
    return {
        "value": {key: Customer(place, place / 2) for place, key in enumerate(keys)},
        "list": {key: ["a"] * (place % 4) for place, key in enumerate(keys)},
        "map": {key: {str(each): each for each in range(place % 3)} for place, key in enumerate(keys)},
        "total": dict.fromkeys(keys, 7),
        "mean": dict.fromkeys(keys, (2, 5)),
        "timers": {key: (float(place), 1.0) for place, key in enumerate(keys)},
        "fleet": {f"{place}": {"n": place, "name": None, "at": None} for place in range(count)},
        "pairs": {("x", place): {"n": place} for place in range(count)},
    }


@pytest.fixture(params=["in memory", "in many runs"])
def runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows in memory, or sorted in runs of some rows in a file."""
    if request.param == "in many runs":
        monkeypatch.setattr(sorted_runs, "RUN_ROWS", 7)
        monkeypatch.setattr("statebackend._upkeep.seeding.sources.PAIRS_AT_ONCE", 3)
        monkeypatch.setattr("statebackend._upkeep.seeding.arrow_sources.ROWS_AT_ONCE", 3)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("max_parallelism", [1, 16, 300])
@run_virtual
async def test_every_kind_of_state_is_seeded(max_parallelism: int) -> None:
    """As one commit of bases, each key in its group; a backend goes on from there."""
    store, settings, sources = MemoryStore(), settings_of(max_parallelism), sources_of(60)
    report = await seed(store, sources, settings=settings)
    found = await read(store, settings)
    assert found == {
        "value": sources["value"],
        "list": {key: each for key, each in sources["list"].items() if each},
        "map": {key: each for key, each in sources["map"].items() if each},
        "total": sources["total"],
        "mean": dict.fromkeys(sources["mean"], 0.4),
        "timers": {key: tuple(sorted({*each})) for key, each in sources["timers"].items()},
        "fleet": sources["fleet"],
        "pairs": sources["pairs"],
    }
    assert report.keys == {name: len(each) for name, each in found.items()}
    assert report.rows == dict.fromkeys(sources, 60)
    assert (report.checkpoint_id, report.segments) == (0, 1)
    commit = await newest_commit(store)
    assert (commit.ranges[0].changelog, commit.source, commit.parent) == ((), None, None)
    await assert_placed(store, max_parallelism)
    async with sb.open_backend(settings_of(max_parallelism, table="rocksdb"), store=store, read_only=True) as backend:
        assert States(backend).read() == found
    async with sb.open_backend(settings, store=store) as backend:
        states = States(backend)
        states.total.add("new", 1)
        states.fleet["0"] = {"n": -1}
        await backend.checkpoint(1)
    after = await read(store, settings)
    assert after["total"] == {**found["total"], "new": 1}
    assert after["fleet"] == {**found["fleet"], "0": {"n": -1, "name": None, "at": None}}


@pytest.mark.usefixtures("runs")
@run_virtual
async def test_what_was_read_of_a_state_seeds_another() -> None:
    """Each kind, in the columns of `read_batches`: there and back, nothing is lost."""
    one, other = MemoryStore(), MemoryStore()
    await seed(one, sources_of(60))
    tables: dict[str, pa.Table] = {}
    for name in sources_of(1):
        if name in ("fleet", "pairs"):
            async with sb.read_batches(SETTINGS, name, store=one) as batches:
                tables[name] = pa.Table.from_batches([each async for each in batches], batches.schema)
            continue
        text = {key: each for key, each in sources_of(60)[name].items() if isinstance(key, str)}
        single = MemoryStore()
        await seed(single, {name: text})
        async with sb.read_batches(SETTINGS, name, store=single) as batches:
            tables[name] = pa.Table.from_batches([each async for each in batches], batches.schema)
    await seed(other, tables)
    expected = await read(one)
    for name in expected.keys() - {"fleet", "pairs"}:
        expected[name] = {key: each for key, each in expected[name].items() if isinstance(key, str)}
    assert await read(other) == expected


@pytest.mark.usefixtures("runs")
@run_virtual
async def test_columns_of_a_table_are_the_fields_of_a_value(tmp_path: Path) -> None:
    """From a table, a reader, and a directory of Parquet; with the key columns that are named."""
    table = pa.table({"who": [f"{n}" for n in range(20)], "orders": range(20), "amount": [n / 2 for n in range(20)]})
    fleet = pa.table(
        {
            "who": table["who"],
            "n": pa.array(range(20), pa.int32()),
            "name": pa.array(["x", None] * 10, pa.large_string()),
            "at": pa.nulls(20, pa.timestamp("s", "UTC")),
        }
    )
    pq.write_table(table.slice(0, 11), tmp_path / "a.parquet")
    pq.write_table(table.slice(11), tmp_path / "b.parquet")
    for source in (table, table.to_reader(max_chunksize=6), tmp_path, str(tmp_path)):
        store = MemoryStore()
        await seed(store, {"value": source, "fleet": fleet}, key="who")
        found = await read(store)
        assert found["value"] == {f"{n}": Customer(n, n / 2) for n in range(20)}
        assert found["fleet"]["3"] == {"n": 3, "name": None, "at": None}
    store = MemoryStore()
    keyed = pa.table({"a": ["x", "x"], "b": [1, 2], "n": [3, 4]})
    await seed(store, {"pairs": keyed, "value": table}, key={"pairs": ["a", "b"], "value": "who"})
    assert (await read(store))["pairs"] == {("x", 1): {"n": 3}, ("x", 2): {"n": 4}}


def _table(**columns: Any) -> pa.Table:
    return pa.table(columns)


WRONG: list[tuple[dict[str, Any], type[InputError], dict[str, Any]]] = [
    ({"value": [("a", Customer()), ("b", 3)]}, ValueEncodeError, {"state": "value", "row": 1}),
    ({"value": [("a", Customer()), (1.5, Customer())]}, KeyTypeError, {"state": "value", "row": 1}),
    ({"value": [("a", Customer()), (True, Customer())]}, KeyTypeError, {"row": 1}),
    ({"value": [("a", Customer()), ("b",)]}, InputError, {"row": 1}),
    ({"value": {"a": {"orders": 1, "amounts": 2.0}}}, ValueEncodeError, {"row": 0}),
    ({"list": {"a": ["x"], "b": [1]}}, ValueEncodeError, {"row": 1}),
    ({"list": {"a": "text"}}, InputError, {"row": 0}),
    ({"map": {"a": {1: 1}}}, ValueEncodeError, {"row": 0}),
    ({"timers": {"a": float("nan")}}, InputError, {"row": 0}),
    ({"fleet": {"a": {"n": 1}}}, InputError, {"row": 0, "missing": ["at", "name"]}),
    ({"fleet": {"a": {"n": 1.5, "name": "", "at": None}}}, ValueEncodeError, {"row": 0, "column": "n"}),
    ({"fleet": {7: {"n": 1, "name": "", "at": None}}}, KeyTypeError, {"row": 0}),
    ({"value": _table(key=["a", None], orders=[1, 2], amount=[0.0, 0.0])}, KeyTypeError, {"row": 1, "column": "key"}),
    ({"value": _table(key=["a", "b"], orders=[1, None], amount=[0.0, 0.0])}, ValueEncodeError, {"row": 1}),
    ({"value": _table(orders=[1])}, InputError, {"column": "key"}),
    ({"pairs": _table(key=[{"a": "x", "b": 1}, {"a": None, "b": 1}], n=[1, 2])}, KeyTypeError, {"row": 1}),
    ({"pairs": _table(key=[{"a": "x", "b": 1}], m=[1])}, InputError, {"missing": ["n"], "unknown": ["m"]}),
    ({"pairs": _table(key=[{"a": "x", "b": 1}], n=[1.5])}, InputError, {"column": "n", "type": "double"}),
    ({"value": b"bytes"}, InputError, {}),
    ({"value": 7}, InputError, {}),
    ({"other": {}}, InputError, {"state": "other"}),
    ({"value": "/nowhere/file.parquet"}, InputError, {"path": "/nowhere/file.parquet"}),
    ({"value": [("a", Customer()), ("b", Customer()), ("a", Customer(1))]}, InputError, {"key": "'a'"}),
    ({"list": [("a", ["x"]), ("b", []), ("a", ["x"])]}, InputError, {"key": "'a'"}),
    ({"pairs": _table(key=[{"a": "x", "b": 1}] * 2, n=[1, 2])}, InputError, {"key": "('x', 1)"}),
]


@pytest.mark.parametrize(("sources", "error", "facts"), WRONG)
@run_virtual
async def test_the_first_wrong_row_is_named_and_nothing_is_written(
    sources: dict[str, Any], error: type[InputError], facts: dict[str, Any]
) -> None:
    """Nor claimed."""
    store = MemoryStore()
    with pytest.raises(error) as caught:
        await seed(store, sources)
    assert {name: caught.value.facts.get(name) for name in facts} == facts
    assert await objects_of(store) == {}


def failing(rows: int) -> Iterator[tuple[str, Customer]]:
    for number in range(rows):
        yield f"{number}", Customer(number)
    raise LookupError("the source is gone")


@pytest.mark.usefixtures("runs")
@run_virtual
async def test_a_source_that_fails_half_way_leaves_nothing() -> None:
    """Its own error is raised, and that of Arrow as ours, with the number of rows that were read."""
    store = MemoryStore()
    with pytest.raises(LookupError, match="the source is gone"):
        await seed(store, {"value": failing(30)})

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"key": ["a"], "value": [1]})
        raise OSError("cut off")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"key": pa.string(), "value": pa.int64()}), batches())
    with pytest.raises(InputError, match="cannot be read further") as caught:
        await seed(store, {"total": reader})
    assert caught.value.facts["rows_read"] == 1
    assert await objects_of(store) == {}


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(("duplicates", "expected"), [("first", 0), ("last", 59)])
@run_virtual
async def test_of_a_key_that_comes_twice_the_chosen_row_counts(duplicates: str, expected: int) -> None:
    """In each kind, also where the rows lie in different runs."""
    store = MemoryStore()
    sources = {
        "value": [("a", Customer(number)) for number in range(60)] + [("b", Customer())],
        "list": [("a", [str(number)] * (1 + number % 3)) for number in range(60)],
        "map": [("a", {str(number): number, "x": 0}) for number in range(60)],
        "fleet": pa.table({"key": ["a", "b"] * 30, "n": range(60), "name": [""] * 60, "at": pa.nulls(60)}),
    }
    report = await seed(store, sources, duplicates=duplicates)
    found = await read(store)
    assert found["value"] == {"a": Customer(expected), "b": Customer()}
    assert found["list"] == {"a": [str(expected)] * (1 + expected % 3)}
    assert found["map"] == {"a": {str(expected): expected, "x": 0}}
    assert {key: row["n"] for key, row in found["fleet"].items()} == (
        {"a": 0, "b": 1} if duplicates == "first" else {"a": 58, "b": 59}
    )
    assert report.keys == {"value": 2, "list": 1, "map": 1, "fleet": 2}
    with pytest.raises(InputError, match="a key comes twice"):
        await seed(MemoryStore(), sources)


@pytest.mark.parametrize("rows", [1, 60])
@run_virtual
async def test_keys_of_equal_hashes_are_two_keys(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash only tells which keys to compare."""
    monkeypatch.setattr(sorted_runs, "RUN_ROWS", rows)
    monkeypatch.setattr("statebackend._upkeep.seeding.sources.PAIRS_AT_ONCE", 1)
    monkeypatch.setattr("statebackend._upkeep.seeding.sorted_runs.may_repeat", lambda _: True)
    monkeypatch.setattr("statebackend._upkeep.seeding.duplicates._in_question", lambda hashes: hashes >= 0)
    store, sources = MemoryStore(), sources_of(20)
    await seed(store, sources)
    assert (await read(store))["value"] == sources["value"]


@run_virtual
async def test_a_job_that_has_a_state_is_not_seeded() -> None:
    """Nor one that was committed to while the rows were read; one that was only opened is."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        States(backend)
    await seed(store, {"value": {"a": Customer()}})
    before = await objects_of(store)
    with pytest.raises(InputError, match="has a state already"):
        await seed(store, {"value": {"b": Customer()}})
    assert await objects_of(store) == before  # not even a claim, which would fence its stream
    assert (await read(store))["value"] == {"a": Customer()}


@run_virtual
async def test_a_feed_begins_behind_the_seed() -> None:
    """Its rows are no changes: a feed that began with it would lack them without a word."""
    store = MemoryStore()
    await seed(store, {"total": {"a": 1}})
    async with sb.open_backend(SETTINGS, store=store) as backend:
        States(backend).total.add("b", 2)
        await backend.checkpoint(1)
    with pytest.raises(InputError, match="made the state as a whole"):
        async with open_changes(SETTINGS, "total", sequences=[1, 3], before=None, store=store):
            pass
    async with open_changes(SETTINGS, "total", sequences=[3], before=1, store=store) as batches:
        found = [row["key"] async for batch in batches for row in batch.to_pylist()]
    assert found == ["b"]


@run_virtual
async def test_a_backend_that_was_open_is_fenced() -> None:
    """The seed claims the job."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        await seed(store, {"value": {"a": Customer()}})
        with pytest.raises(FencedError):
            await backend.checkpoint(0)


@run_virtual
async def test_a_dry_run_checks_all_and_writes_nothing() -> None:
    """It has the counts of the real one."""
    store = MemoryStore()
    report = await seed(store, sources_of(60), dry_run=True)
    assert (report.dry_run, report.checkpoint_id, report.segments) == (True, None, 0)
    assert report.keys["list"] == 45
    assert await objects_of(store) == {}
    with pytest.raises(InputError, match="a key comes twice"):
        await seed(store, {"total": [("a", 1), ("a", 2)]}, dry_run=True)


@pytest.mark.parametrize("form", ["generator", "reader"])
@run_virtual
async def test_a_source_that_was_read_before_seeds_nothing(form: str) -> None:
    """Otherwise a dry run would leave a job without its rows, which could not be seeded any more."""
    store = MemoryStore()
    table = pa.table({"key": ["a"], "orders": [1], "amount": [2.0]})
    source: Any = iter([("a", Customer(1, 2.0))]) if form == "generator" else table.to_reader()
    await seed(store, {"value": source}, dry_run=True)
    with pytest.raises(InputError, match="read before") as caught:
        await seed(store, {"value": source})
    assert caught.value.facts["state"] == "value"
    with pytest.raises(InputError, match="the rows of at least one state"):
        await seed(store, {})  # it would be a job without its rows, too
    for empty in ([], {}, table.slice(1)):
        await seed(MemoryStore(), {"value": empty})
    await seed(store, {"value": [("a", Customer(1, 2.0))]})
    assert (await read(store))["value"] == {"a": Customer(1, 2.0)}


@run_virtual
async def test_a_generator_that_was_begun_is_refused() -> None:
    """The rows that it has given already would be missing; what is left can be meant, and then is given as such."""
    store, rows = MemoryStore(), ((f"{number}", Customer(number)) for number in range(3))
    next(rows)
    with pytest.raises(InputError, match="in part"):
        await seed(store, {"value": rows})
    assert await objects_of(store) == {}
    await seed(store, {"value": (row for row in rows)})
    assert (await read(store))["value"].keys() == {"1", "2"}


@run_virtual
async def test_time_to_live_counts_from_the_clock_of_the_seed() -> None:
    """Which the job then has. Without it a seed says what is missing."""

    def states(backend: Any) -> Any:
        ttl = sb.TimeToLive(10.0)
        columns = backend.columnar_state("columns", pa.schema({"n": pa.int64()}), key=pa.string(), ttl=ttl)
        return backend.value_state("value", int, ttl=ttl), columns

    sources = {"value": {"a": 1}, "columns": {"a": {"n": 1}}}
    for name, source in sources.items():
        with pytest.raises(InputError, match="a seed clock_s"):
            await sb.seed(SETTINGS, states, {name: source}, store=MemoryStore())
    store = MemoryStore()
    await sb.seed(SETTINGS, states, sources, clock_s=100.0, clock_kind="processing", store=store)
    async with sb.open_backend(SETTINGS, store=store) as backend:
        value, columns = states(backend)
        assert (backend.clock_s, dict(value), dict(columns)) == (100.0, {"a": 1}, {"a": {"n": 1}})
        backend.advance_clock(110.0, "processing")
        assert (dict(value), dict(columns)) == ({}, {})


class Processor(sb.spark.KeyedProcessor):
    """Declares a state, and counts what is open."""

    def __init__(self, opened: list[str]) -> None:
        self.opened = opened

    def open(self, context: Any) -> None:
        assert context.clock_s is None
        self.value = context.value_state("value", Customer)
        self.opened.append("open")

    async def close(self) -> None:
        self.opened.append("close")


@run_virtual
async def test_a_processor_declares_the_states() -> None:
    """A copy of it, which is closed again."""
    store, opened = MemoryStore(), list[str]()
    processor = Processor(opened)
    await sb.seed(SETTINGS, processor, {"value": {"a": Customer()}}, store=store)
    assert opened == ["open", "close"]
    assert not hasattr(processor, "value")
    assert (await read(store))["value"] == {"a": Customer()}
    for wrong in (7, Processor):
        with pytest.raises(InputError, match="a KeyedProcessor, or a function"):
            await sb.seed(SETTINGS, wrong, {"value": []}, store=MemoryStore())  # type: ignore[arg-type]


@run_virtual
async def test_progress_tells_of_rows_and_key_groups() -> None:
    """Both phases end at all of it; without a count of the rows the share of what was read is not known."""
    told: list[sb.reports.Progress] = []
    await seed(MemoryStore(), {"value": sources_of(60)["value"]}, tell=told.append)
    assert [each.share for each in told if each.phase == "reading"][-1] == 1.0
    assert [each.share for each in told if each.phase == "writing"][-1] == 1.0
    told.clear()
    await seed(MemoryStore(), {"value": iter(sources_of(60)["value"].items())}, tell=told.append)
    assert [round(each.share, 9) for each in told if each.phase == "reading"] == [0.0]


keys = st.one_of(
    st.text(max_size=3), st.integers(-9, 9), st.binary(max_size=2), st.tuples(st.text(max_size=1), st.integers(0, 1))
)


@hypothesis.settings(max_examples=30)
@given(
    rows=st.lists(st.tuples(keys, st.integers(0, 9))),
    run_rows=st.integers(1, 9),
    keeps=st.sampled_from(["first", "last"]),
)
def test_a_seed_is_what_a_dictionary_would_have(rows: list[Any], run_rows: int, keeps: str) -> None:
    """Whatever the keys, the runs, and the duplicates."""

    @run_virtual
    async def check() -> None:
        store = MemoryStore()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sorted_runs, "RUN_ROWS", run_rows)
            patch.setattr("statebackend._upkeep.seeding.sources.PAIRS_AT_ONCE", 2)
            await seed(store, {"total": iter(rows) if rows else []}, duplicates=keeps)
        assert (await read(store))["total"] == dict(rows if keeps == "last" else reversed(rows))

    check()


@run_virtual
async def test_a_clock_of_no_kind_is_refused_before_anything_is_claimed() -> None:
    """`clock="batch"` is the sink's word for it."""
    store = MemoryStore()
    with pytest.raises(InputError, match="one of these kinds"):
        await seed(store, {"value": {"a": Customer()}}, clock_s=1.0, clock_kind="batch")
    assert await objects_of(store) == {}
