"""The change feed says what every commit did: whoever applies it, commit by commit, has the state."""

from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend import errors
from statebackend._checkpoint.materialization.tiers import members
from statebackend._codec.cells import framed
from statebackend._codec.change_sets.changes import GROUP
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.state_change import Operation
from statebackend._reading.batches import BATCH_ROWS_MIN
from statebackend._reading.changed import OLD_VALUE, ChangedEntries
from statebackend._reading.feed import Stretch, open_changes, stretch, stretch_after
from statebackend._tables.heap import KINDS as TABLES
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.log.swept import HOUR_S, HandClock
from tests.reading.states import key_of
from tests.reading.test_read_state import WRITES, expected
from tests.rewrite.jobs import Write, opened, settings_of

KINDS = ("value", "list", "map", "timers", "columns")  # the others are stored as the first one


async def between(settings: sb.Settings, store: sb.ObjectStore | None, first: int, last: int | None = None) -> Stretch:
    """The commits from the checkpoint `first` on."""
    async with open_job_primary(settings, store) as primary:
        end = await primary.log.end()
        newest = (
            await primary.log.newest(end) if last is None else await primary.log.find(end, sb.ids.CheckpointId(last))
        )
        assert newest is not None
        return await stretch(primary, newest, is_before=lambda commit: commit.checkpoint_id < first)


async def feed_of(
    settings: sb.Settings, store: sb.ObjectStore | None, state: str, found: Stretch, **options: Any
) -> pa.Table:
    sequences = [commit.sequence for commit in found.commits]
    before = None if found.before is None else found.before.sequence
    opening = open_changes(settings, state, sequences=sequences, before=before, store=store, **options)
    async with opening as batches:
        return pa.Table.from_batches([batch async for batch in batches], batches.schema)


def apply(state: str, values: dict[Any, Any], rows: list[dict[str, Any]]) -> None:
    """One commit's changes, as a reader of the feed would."""
    for row in rows:
        key, value = key_of(row["key"]), row.get("value", {"sum": row.get("sum")})
        if row["change_type"] == "append":
            values[key] = [*values.get(key, ()), *value]
        elif row["change_type"] == "delete" and (state != "map" or value is None):
            values.pop(key, None)  # it may have come and gone within the commit
        elif state == "map":
            entries = values.setdefault(key, {})
            for entry_key, each in value:
                entries.pop(entry_key, None) if row["change_type"] == "delete" else entries.update({entry_key: each})
            if not entries:
                del values[key]
        else:
            values[key] = value


@given(batches=st.lists(st.tuples(WRITES, st.sampled_from(["", "base", "reopen"])), min_size=1, max_size=4))
@settings(max_examples=4)  # each opens the job some eight times: a third of a second
@run_virtual
async def test_the_feed_applied_is_the_state(batches: list[tuple[list[Write], str]]) -> None:
    """Also where bases take the place of change sets, where these are merged, and over lives of the job."""
    changed: dict[str, Any] = {"materialize_handles_max": 1} if any(how == "base" for _, how in batches) else {}
    settings = settings_of(4, materialize_fan_in=2, materialize_interval_s=0.0, **changed)
    store = MemoryStore()
    said: list[dict[str, Any]] = []
    for writes, how in batches:
        async with opened(settings, store) as (backend, states):
            for part in range(2):
                states.write(writes[part::2])
                await backend.checkpoint(len(said))
                said.append(expected(states))
                if how == "base":
                    await backend._base_writer.settled()
    found = await between(settings, store, 0)
    assert [commit.checkpoint_id for commit in found.commits] == list(range(len(said)))
    for state in KINDS:
        rows = (await feed_of(settings, store, state, found)).to_pylist()
        values: dict[Any, Any] = {}
        for checkpoint_id, each in enumerate(said):
            apply(state, values, [row for row in rows if row["checkpoint_id"] == checkpoint_id])
            assert values == each[state]


OPERATIONS: Final[Mapping[str, Sequence[tuple[Operation, bytes]]]] = {
    "map": [
        *((Operation.PUT, framed(each) + framed(each)) for each in (b"1", b"2")),
        *((Operation.REMOVE, each) for each in (b"1", b"2")),
        (Operation.CLEAR, b""),
    ],
    "list": [(Operation.SET, framed(b"1")), (Operation.ADD, framed(b"2")), (Operation.CLEAR, b"")],
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_commit_of_several_change_sets_says_what_they_come_to(kind: str) -> None:
    """Whatever a list or map went through in them: nothing of it is told as added and as gone."""
    for steps in chain.from_iterable(product(OPERATIONS[kind], repeat=count) for count in range(1, 5)):
        table, merge = TABLES[kind](), ChangedEntries(kind)
        for operation, data in (OPERATIONS[kind][0], OPERATIONS[kind][1]):
            table.apply(KeyedChanges(0, np.zeros(1, GROUP), bytes([operation]), ["k"], [data]))
        before = table.copy().entries.get("k")
        changes = [KeyedChanges(0, np.zeros(1, GROUP), bytes([operation]), ["k"], [data]) for operation, data in steps]
        for each in changes:
            table.apply(each)
        for each in reversed(changes):
            assert list(merge.newer(each)) == []
        told = {each.type: each.rows.entries[0] for each in merge.rest()}
        assert told_of(before, told) == table.entries.get("k"), steps
        if kind == "map":
            assert not {*(told.get("delete") or ())} & {*(told.get("update") or ())}, steps
        else:
            assert len(told) == 1, steps


def told_of(before: Any, told: Mapping[str, Any]) -> Any:
    """The entry of a key after these changes, as they come: what is gone first."""
    if isinstance(before, dict):
        gone = told.get("delete", {})
        kept = {} if gone is None else {key: cell for key, cell in before.items() if key not in gone}
        return {**kept, **told.get("update", {})} or None
    if "append" in told:
        return before + told["append"]
    return told.get("update")


@run_virtual
async def test_what_a_refused_checkpoint_undid_is_not_told() -> None:
    """The next commit has the changes of both: an entry, or a key, that was removed and put again is an update."""
    settings, store = settings_of(4), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.map["k"] = {1: 1, 2: 2}
        states.value["k"] = 1
        await backend.checkpoint(0, savepoint="taken")
        del states.map["k"][1], states.value["k"]
        with pytest.raises(errors.SavepointExistsError):
            await backend.checkpoint(1, savepoint="taken")
        states.map["k"][1], states.value["k"] = 7, 7
        await backend.checkpoint(1)
    found = await between(settings, store, 1)
    for state, value in (("map", [(1, 7)]), ("value", 7)):
        rows = (await feed_of(settings, store, state, found)).to_pylist()
        assert [(row["change_type"], row["value"]) for row in rows] == [("update", value)]


@run_virtual
async def test_old_values_are_those_before_the_commit() -> None:
    """From bases and changelog alike; null for a key that was not there. What came and went counts for nothing."""
    settings, store = settings_of(4, materialize_handles_max=1, materialize_interval_s=0.0), MemoryStore()
    async with opened(settings, store) as (backend, states):
        for number in range(3):
            states.write(
                [("value", "a", number), ("value", f"k{number}", number), ("columns", "a", 1), ("list", "a", 1)]
            )
            await backend.checkpoint(number)
            await backend._base_writer.settled()
        states.write([("dropped", "a", 0)])
        await backend.checkpoint(3)
    found = await between(settings, store, 1)
    values = (await feed_of(settings, store, "value", found, old_values=True)).to_pylist()
    seen = {(row["checkpoint_id"], row["key"]): (row[OLD_VALUE], row["value"]) for row in values}
    assert seen == {
        (1, "a"): (0, 1),
        (1, "k1"): (None, 1),
        (2, "a"): (1, 2),
        (2, "k2"): (None, 2),
        (3, "a"): (2, None),
    }
    rows = (await feed_of(settings, store, "columns", found, old_values=True)).to_pylist()
    assert [(row[OLD_VALUE], row["sum"]) for row in rows] == [({"sum": 1}, 2), ({"sum": 2}, 3), ({"sum": 3}, None)]
    lists = (await feed_of(settings, store, "list", found, old_values=True)).to_pylist()
    assert [(row["change_type"], row[OLD_VALUE]) for row in lists] == [
        ("append", [1]),
        ("append", [1, 1]),
        ("delete", [1, 1, 1]),
    ]


class Leg(msgspec.Struct):
    """As the first run declares it."""

    a: int
    m: int = 0


class LaterLeg(msgspec.Struct):
    """As the second one does: a field has gone, and another one come."""

    a: int
    z: int = 5


@pytest.mark.parametrize("kind", ["value", "list", "map"])
@run_virtual
async def test_old_values_of_an_earlier_type_are_shown_as_the_newest_reads_them(kind: str) -> None:
    """So a feed goes on over the commit in which a type has evolved, and an older commit of it looks as a newer one."""
    settings, store = settings_of(4), MemoryStore()
    for number, type_ in enumerate((Leg, Leg, LaterLeg)):
        async with sb.open_backend(settings, store=store) as backend:
            if kind == "value":
                backend.value_state("legs", type_)["k"] = type_(number)
            elif kind == "list":
                backend.list_state("legs", type_)["k"].append(type_(number))
            else:
                backend.map_state("legs", str, type_)["k"]["x"] = type_(number)
            await backend.checkpoint(number)
    rows = (await feed_of(settings, store, "legs", await between(settings, store, 1), old_values=True)).to_pylist()
    first, second, third = ({"a": number, "z": z} for number, z in ((0, None), (1, None), (2, 5)))
    assert [(row[OLD_VALUE], row["value"]) for row in rows] == {
        "value": [(first, second), (second, third)],
        "list": [([first], [second]), ([first, second], [third])],
        "map": [([("x", first)], [("x", second)]), ([("x", second)], [("x", third)])],
    }[kind]


@run_virtual
async def test_old_rows_have_the_columns_that_the_newest_schema_has() -> None:
    """Wider ones, and the defaults of those that were added."""
    settings, store = settings_of(4), MemoryStore()
    schemas = [pa.schema({"n": pa.int32(), "gone": pa.string()}), pa.schema({"n": pa.int64(), "more": pa.int64()})]
    for number, schema in enumerate(schemas):
        async with sb.open_backend(settings, store=store) as backend:
            defaults = {"more": 5} if number else None
            columns = backend.columnar_state("columns", schema, key=pa.string(), defaults=defaults)
            columns["k"] = {"n": number + 1}
            await backend.checkpoint(number)
    found = await feed_of(settings, store, "columns", await between(settings, store, 1), old_values=True)
    assert [(row[OLD_VALUE], row["n"], row["more"]) for row in found.to_pylist()] == [({"n": 1, "more": 5}, 2, None)]


@run_virtual
async def test_old_values_of_an_earlier_version_take_the_upcasts() -> None:
    """As they do for every reader; without them the error says so, and not that a column is missing."""
    settings, store = settings_of(4), MemoryStore()
    for number, (type_, upcasts) in enumerate(((int, []), (str, [str]))):
        async with sb.open_backend(settings, store=store) as backend:
            backend.value_state("n", type_, migrate=upcasts)["k"] = type_(number)
            await backend.checkpoint(number)
    for first, told in ((0, [(None, "0"), ("0", "1")]), (1, [("0", "1")])):
        commits = await between(settings, store, first)
        rows = (await feed_of(settings, store, "n", commits, old_values=True, migrate=str)).to_pylist()
        assert [(row[OLD_VALUE], row["value"]) for row in rows] == told
        with pytest.raises(errors.ValueDecodeError, match="migrate"):
            await feed_of(settings, store, "n", commits, old_values=True)


@run_virtual
async def test_a_feed_that_begins_before_what_is_kept_says_where_it_can_begin() -> None:
    """With the commit behind the oldest that a sweep has kept: what that one added, only its parent could tell."""
    clock = HandClock()
    settings, store = settings_of(4, checkpoints_retained=3), MemoryStore(clock=clock)
    async with opened(settings, store) as (backend, states):
        for number in range(6):
            clock.now_s += 2 * HOUR_S
            states.write([("value", "a", number)])
            await backend.checkpoint(10 + number, source=sb.SourceMark("query", number))
    await sb.sweep(settings, store=store, dry_run=False, min_age_s=0.0, clock=clock)
    with pytest.raises(errors.CheckpointNotFoundError) as raised:
        await between(settings, store, 12)
    assert raised.value.facts["first_checkpoint_id"] == 14
    assert raised.value.facts["first_batch_id"] == 4
    found = await between(settings, store, 14)
    assert [row["value"] for row in (await feed_of(settings, store, "value", found)).to_pylist()] == [4, 5]


@run_virtual
async def test_a_commit_swept_between_plan_and_read_is_an_error() -> None:
    """And not a feed that lacks something."""
    clock = HandClock()
    settings, store = settings_of(4, checkpoints_retained=1, inline_bytes_max=0), MemoryStore(clock=clock)
    async with opened(settings, store) as (backend, states):
        for number in range(3):
            clock.now_s += 2 * HOUR_S
            states.write([("value", "a", number)])
            await backend.checkpoint(number)
        found = await between(settings, store, 1)
        await sb.sweep(settings, store=store, dry_run=False, min_age_s=0.0, clock=clock)
        with pytest.raises(errors.CheckpointNotFoundError):
            await feed_of(settings, store, "value", found)


@run_virtual
async def test_a_stream_behind_which_the_job_went_back_is_an_error() -> None:
    """What it has read cannot be taken back. The error names the first commit that came since."""
    settings, store = settings_of(4), MemoryStore()
    async with opened(settings, store) as (backend, states):
        for number in range(3):
            states.write([("value", "a", number)])
            await backend.checkpoint(number)
    read_to = (await between(settings, store, 0)).commits[-1].sequence
    async with opened(settings, store, checkpoint_id=1) as (backend, states):
        await backend.checkpoint(3)
        await backend.checkpoint(4)
    async with open_job_primary(settings, store) as primary:
        newest = await primary.log.newest(await primary.log.end())
        assert newest is not None
        with pytest.raises(errors.RewindError) as raised:
            await stretch_after(primary, read_to, newest)
        assert raised.value.facts["first_checkpoint_id"] == 3
        left = await primary.log.find(await primary.log.end(), sb.ids.CheckpointId(1))
        assert raised.value.facts["sequence_read"] == read_to
        assert raised.value.facts["sequence_left"] == left.sequence
        assert (await stretch_after(primary, newest.sequence, newest)).commits == []


@run_virtual
async def test_operator_state_has_no_feed() -> None:
    """It is written whole with each commit."""
    settings, store = settings_of(4), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.offsets.append(1)
        await backend.checkpoint(0)
    with pytest.raises(errors.InputError, match="no change feed"):
        await feed_of(settings, store, "offsets", await between(settings, store, 0))
    with pytest.raises(errors.InputError, match="did you mean 'value'"):
        await feed_of(settings, store, "valeu", await between(settings, store, 0))


@run_virtual
async def test_what_is_merged_is_not_shown_again() -> None:
    """A merged change set stands for older ones, wherever it lies."""
    settings, store = settings_of(4, materialize_fan_in=2, materialize_interval_s=0.0), MemoryStore()
    async with opened(settings, store) as (backend, states):
        for number in range(6):
            states.write([("list", "a", number)])
            await backend.checkpoint(number)
            await backend._base_writer.settled()
    found = await between(settings, store, 0)
    newest = found.commits[-1].ranges[0].changelog
    assert any(members(handle) > 1 for handle in newest), "nothing was merged"
    rows = (await feed_of(settings, store, "list", found)).to_pylist()
    assert [(row["checkpoint_id"], row["change_type"], row["value"]) for row in rows] == [
        (number, "append", [number]) for number in range(6)
    ]


@run_virtual
async def test_each_row_says_its_commit_and_batch() -> None:
    """The ids differ, and a commit that no batch made has none."""
    settings, store = settings_of(4), MemoryStore()
    async with opened(settings, store) as (backend, states):
        for checkpoint_id, source in ((7, sb.SourceMark("query", 3)), (9, None), (12, sb.SourceMark("query", 4))):
            states.write([("value", "a", checkpoint_id)])
            await backend.checkpoint(checkpoint_id, source=source)
    for old_values in (False, True):
        rows = (
            await feed_of(settings, store, "value", await between(settings, store, 0), old_values=old_values)
        ).to_pylist()
        assert [(row["checkpoint_id"], row["batch_id"], row["value"]) for row in rows] == [
            (7, 3, 7),
            (9, None, 9),
            (12, 4, 12),
        ]


@run_virtual
async def test_a_rewrite_adds_no_change() -> None:
    """All keys lie in other key groups then. What comes after it is told as ever."""
    settings, store = settings_of(4), MemoryStore()
    async with opened(settings, store) as (backend, states):
        states.write([("value", f"k{number}", number) for number in range(9)])
        await backend.checkpoint(0)
    await sb.rewrite(settings_of(3), store=store)
    async with opened(settings_of(3), store) as (backend, states):
        states.write([("value", "k1", 100)])
        await backend.checkpoint(5)
    found = await between(settings_of(3), store, 1)
    assert [commit.max_parallelism for commit in found.commits] == [3, 3]
    rows = (await feed_of(settings_of(3), store, "value", found)).to_pylist()
    assert [(row["checkpoint_id"], row["key"], row["value"]) for row in rows] == [(5, "k1", 100)]


@run_virtual
async def test_old_values_are_those_of_all_rows_of_a_commit() -> None:
    """Also where it has more than one batch of rows: of some keys it has updates, of others they are gone."""
    settings, store = settings_of(4), MemoryStore()
    keys = [f"k{number}" for number in range(2 * BATCH_ROWS_MIN)]
    updated, gone = keys[::2], keys[1::2]
    async with opened(settings, store) as (backend, states):
        states.value.update({key: number for number, key in enumerate(keys)})
        await backend.checkpoint(0)
        states.value.update(dict.fromkeys(updated, -1))
        for key in gone:
            del states.value[key]
        await backend.checkpoint(1)
    rows = (await feed_of(settings, store, "value", await between(settings, store, 1), old_values=True)).to_pylist()
    found = {row["key"]: (row["change_type"], row[OLD_VALUE], row["value"]) for row in rows}
    assert found == {
        **{key: ("update", 2 * number, -1) for number, key in enumerate(updated)},
        **{key: ("delete", 2 * number + 1, None) for number, key in enumerate(gone)},
    }
    assert len(rows) == len(keys)
