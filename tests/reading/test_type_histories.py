"""What an old value reads as is decided by what was written and by the program that reads it: by no base, no timer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend import errors
from statebackend._reading.changed import OLD_VALUE
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.knobs import replaced
from tests.reading.states import table_of, values_of
from tests.reading.test_feed import between, feed_of
from tests.reading.type_histories import KEYS, KINDS, RUNS, SETTINGS, Run, States, live, opened, owner_of, seen


async def check(settings: sb.Settings, store: sb.ObjectStore, runs: Sequence[Run]) -> None:
    """Live through a history, and read from outside what it has left, and all that each commit has changed."""
    told: list[Mapping[str, Any]] = []
    program = await live(settings, store, runs, told.append)
    commits = await between(settings, store, 0)
    ids = [commit.checkpoint_id for commit in commits.commits]
    migrate = dict.fromkeys(KINDS, program.upcasts)
    found = [(each.state, each.key) async for each in sb.diff(settings, ids[0], ids[-1], migrate=migrate, store=store)]
    for kind in KINDS:
        views = [{key: seen(value, program.shown) for key, value in each[kind].items()} for each in told]
        table = await table_of(settings, kind, store=store, migrate=program.upcasts)
        assert values_of(table) == views[-1]
        assert {key for state, key in found if state == kind} == {
            key for key, value in views[-1].items() if value != views[0].get(key)
        }
        table = await feed_of(settings, store, kind, commits, old_values=True, migrate=program.upcasts)
        assert changes_of(table, ids) == [
            (number, key, view_before.get(key), added_to(view_before.get(key), views[number][key], stored, value))
            for number, each in enumerate(told)
            for before, view_before in [(told[number - 1][kind], views[number - 1]) if number else ({}, {})]
            for key, value in sorted(each[kind].items())
            if (stored := before.get(key)) is not value
        ]


def changes_of(table: pa.Table, ids: Sequence[int]) -> list[tuple[int, str, Any, Any]]:
    """The rows of a feed with old values: the place of the commit, the key, its value before, and what was written."""
    is_map = pa.types.is_map(table.schema.field("value").type)

    def plain(value: Any) -> Any:
        return dict(value) if is_map and value is not None else value

    rows = [(ids.index(row["checkpoint_id"]), row["key"], row[OLD_VALUE], row["value"]) for row in table.to_pylist()]
    return sorted((number, key, plain(old), plain(new)) for number, key, old, new in rows)


def added_to(old: Any, new: Any, stored: Any, now_stored: Any) -> Any:
    """What of a new value was written: the elements that a list has got, the entries of a map, or all of it."""
    if isinstance(new, list):
        return new[len(old or ()) :]
    if isinstance(now_stored, dict):
        return {entry: new[entry] for entry, each in now_stored.items() if (stored or {}).get(entry) is not each}
    return new


def returned(*, has_base: bool) -> list[Run]:
    """A field goes with an upcast, and comes back: is it what it was, or its default?"""
    return [
        Run(("a", "b"), "", False, ("k0",), False, 1),
        Run(("a",), "twice", False, (), has_base, 1),
        Run(("a", "b"), "", False, (), False, 1),
    ]


@given(runs=RUNS)
@settings(max_examples=12)
@example(runs=returned(has_base=False))
@example(runs=returned(has_base=True))
@run_virtual
async def test_a_value_reads_as_what_was_written_whatever_became_of_it_since(runs: list[Run]) -> None:
    """Fields go and come back, types get wider, upcasts are added; with bases or without, by one owner or by two."""
    await check(SETTINGS, MemoryStore(), runs)


@given(runs=RUNS)
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(runs=returned(has_base=True))
def test_nor_does_it_matter_that_the_table_is_files(tmp_path_factory: pytest.TempPathFactory, runs: list[Run]) -> None:
    """Whose bases are these files."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    directory = tmp_path_factory.mktemp("history")
    in_files = replaced(SETTINGS, table="rocksdb", table_dir=f"{directory}/tables", table_memory_bytes=4 << 20)

    @run_virtual
    async def run() -> None:
        await check(in_files, MemoryStore(), runs)

    run()


@run_virtual
async def test_values_that_were_written_once_more_need_no_upcasts() -> None:
    """A base does not bring them forward, so that this is no question of time: a write does."""
    store, runs = (
        MemoryStore(),
        [Run(("a",), "", False, ("k0",), True, 1), Run(("a", "b"), "twice", False, (), True, 1)],
    )
    program = await live(SETTINGS, store, runs, lambda _: None)
    for kind in ("value", "list", "map"):
        with pytest.raises(errors.ValueDecodeError, match="migrate"):
            await table_of(SETTINGS, kind, store=store)
    async with opened(SETTINGS, store, has_base=False, owners=1) as ((backend,), commit):
        states = States(backend, program)
        for state in (states.value, states.list, states.map):
            state.put_many(list(state), list(state.values()))
        await commit()
        expected = {"a": 0, "b": -201}
    for kind, value in (("value", expected), ("list", [expected]), ("map", {"of 0": expected})):
        assert values_of(await table_of(SETTINGS, kind, store=store)) == {"k0": value}


class ColumnsRun(NamedTuple):
    """One run of a job with columns: if it adds one, drops the oldest or widens them all; what it writes, and how."""

    adds: bool
    drops: bool
    is_wide: bool
    writes: Sequence[str]
    has_base: bool
    owners: int


COLUMNS_RUNS = st.lists(
    st.builds(
        ColumnsRun,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.lists(st.sampled_from(KEYS), max_size=2, unique=True),
        st.booleans(),
        st.sampled_from([1, 1, 2]),
    ),
    min_size=2,
    max_size=5,
)


@given(runs=COLUMNS_RUNS)
@settings(max_examples=20)
@run_virtual
async def test_a_row_of_columns_reads_as_what_was_written_too(runs: list[ColumnsRun]) -> None:
    """A column that was added has its default in rows of before, which never changes; one that was dropped is gone."""
    store, rows = MemoryStore(), dict[str, dict[str, int]]()
    defaults: dict[str, int | None] = {"first": None}
    is_wide = False
    for number, run in enumerate(runs):
        if run.adds and number:
            defaults[f"since {number}"] = None if number % 2 else number
        if run.drops and len(defaults) > 1:
            del defaults[next(iter(defaults))]
        is_wide = is_wide or run.is_wide
        schema = pa.schema([(name, pa.int64() if is_wide else pa.int32()) for name in defaults])
        async with opened(SETTINGS, store, has_base=run.has_base, owners=run.owners) as (backends, commit):
            states = [each.columnar_state("columns", schema, key=pa.string(), defaults=defaults) for each in backends]
            for place, key in enumerate(run.writes):
                rows[key] = dict.fromkeys(defaults, 100 * number + place)
                states[owner_of(key, backends)][key] = rows[key]
            await commit()
            await commit()
            expected = {key: {name: row.get(name, defaults[name]) for name in defaults} for key, row in rows.items()}
            assert {key: row for each in states for key, row in each.items()} == expected
        table = await table_of(SETTINGS, "columns", store=store)
        assert {row["key"]: {name: row[name] for name in defaults} for row in table.to_pylist()} == expected
