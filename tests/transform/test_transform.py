"""A state that is transformed has what the function returned, in every kind, and nothing else is changed."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statebackend as sb
from statebackend._reading.feed import open_changes
from statebackend.errors import FencedError, InputError, KeyTypeError, RewindError, StateTypeError
from statebackend.objectstore import MemoryStore
from statebackend.spark.replay import rollback_to
from statebackend.testing import run_virtual
from tests.rewrite.jobs import SAMPLE, assert_placed, newest_commit, objects_of, opened, read, settings_of, work

SETTINGS = settings_of(16)
F = Callable[[Any, Any], Any]
KINDS = ("value", "list", "map", "total", "mean", "timers", "recent", "columns")


def renamed(key: sb.Key, value: Any) -> Iterator[tuple[sb.Key, Any]]:
    """Another key, of the same type."""
    yield moved(key), value


def moved(key: sb.Key) -> sb.Key:
    if isinstance(key, tuple):
        return (*key[:-1], "moved")
    return key + 1000 if isinstance(key, int) else key + b"-moved" if isinstance(key, bytes) else f"{key} moved"


@pytest.mark.parametrize("table", ["heap", "rocksdb", "runs"])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_gets_other_keys(kind: str, table: str, tmp_path: Path) -> None:
    """Each key lies in its new group, the other states are as they were, and the stream goes on."""
    settings = settings_of(16, table=table, table_dir=str(tmp_path))
    store = MemoryStore()
    before = await work(settings, store)
    report = await sb.transform(settings, kind, renamed, store=store)
    after = await read(settings, store)
    assert after[kind] == {moved(key): value for key, value in before[kind].items()} != before[kind]
    assert {**after, kind: None} == {**before, kind: None}
    assert (report.keys_read, report.keys) == (report.keys[kind], {kind: report.keys_read})
    assert (report.unchanged, report.dropped, report.collisions) == (0, 0, 0)
    await assert_placed(store, 16)
    commit = await newest_commit(store)
    assert (commit.checkpoint_id, commit.source) == (report.checkpoint_id, None)
    mark = commit.summary.newest_mark
    assert mark is not None
    assert mark.batch_id == 7
    async with opened(settings, store) as (backend, states):
        states.write(SAMPLE)
        await backend.checkpoint(backend.next_checkpoint_id)


@pytest.mark.parametrize("kind", KINDS)
@run_virtual
async def test_every_kind_is_split_and_loses_keys(kind: str) -> None:
    """Into a state that is made, of the same type; a dry run counts the same and writes nothing."""
    store = MemoryStore()
    before = await work(SETTINGS, store)

    def split(key: sb.Key, value: Any) -> Any:
        if "key" in repr(key):
            return None
        return [(f"{kind} of b", key, value)] if "b" in repr(key) else [(key, value)]

    objects = await objects_of(store)
    new_states = [f"{kind} of b"]
    dry = await sb.transform(SETTINGS, kind, split, new_states=new_states, store=store, dry_run=True)
    assert await objects_of(store) == objects
    done = await sb.transform(SETTINGS, kind, split, new_states=new_states, store=store)
    assert (dry.keys, dry.unchanged, dry.dropped) == (done.keys, done.unchanged, done.dropped)
    after = await read(SETTINGS, store)
    assert after[kind] == {key: v for key, v in before[kind].items() if "key" not in repr(key) and "b" not in repr(key)}
    assert {**after, kind: None} == {**before, kind: None}
    other = {row.key for row in await rows_of(store, f"{kind} of b")}
    assert len(other) == done.keys[f"{kind} of b"] == len([key for key in before[kind] if "b" in repr(key)]) > 0
    assert done.unchanged == len(after[kind])
    commit = await newest_commit(store)
    assert len({each.state_id for each in commit.states}) == len(commit.states)


async def rows_of(store: sb.ObjectStore, state: str) -> list[Any]:
    async with sb.read_rows(SETTINGS, store=store, states=[state]) as rows:
        return [msgspec.structs.replace(row, key=str(row.key)) for row in rows]


@run_virtual
async def test_values_are_changed_with_their_type() -> None:
    """Each kind by the type of one value, element or entry."""
    store = MemoryStore()
    before = await work(SETTINGS, store)
    more: dict[str, F] = {
        "value": lambda key, value: [(key, value + 1)],
        "list": lambda key, value: [(key, [*value, 9])],
        "map": lambda key, value: [(key, {entry: each + 1 for entry, each in value.items()})],
        "total": lambda key, value: [(key, value + 1)],
    }
    for kind, function in more.items():
        await sb.transform(SETTINGS, kind, function, type=int, store=store)
    after = await read(SETTINGS, store)
    assert after["value"] == {key: value + 1 for key, value in before["value"].items()}
    assert after["list"] == {key: [*value, 9] for key, value in before["list"].items()}
    assert after["map"] == {key: {e: v + 1 for e, v in value.items()} for key, value in before["map"].items()}
    assert after["total"] == {key: value + 1 for key, value in before["total"].items()}


class Place(msgspec.Struct, frozen=True):
    """An entry key that is stored as a map, which no dict of Python can have as its key."""

    city: str
    gates: tuple[int, ...] = ()


@run_virtual
async def test_a_map_keeps_entries_under_keys_of_any_type() -> None:
    """A struct, and a number that is not itself; where a dict of Python would have one entry for two, it is refused."""
    store = MemoryStore()
    places, odd = {Place("EWR", (1, 2)): 1, Place("IAH"): 2}, {math.nan: 1, 2.5: 2}
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.map_state("places", Place, int)["a"] = places
        backend.map_state("odd", float, int)["a"] = odd
        backend.map_state("zeros", float, int)["a"] = {0.0: 1}
        backend.map_state("zeros", float, int)["a"][-0.0] = 2
        await backend.checkpoint(0)
    for state, gone in (("places", (("city", "EWR"), ("gates", (1, 2)))), ("odd", 2.5)):

        def dropped(_: sb.Key, value: dict[Any, int], gone: object = gone) -> list[tuple[str, dict[Any, int]]]:
            return [("b", {each: value[each] for each in value if each != gone})]

        await sb.transform(SETTINGS, state, dropped, store=store)
    with pytest.raises(InputError, match=r"such as 0\.0 and -0\.0"):
        await sb.transform(SETTINGS, "zeros", renamed, store=store)
    async with sb.open_backend(SETTINGS, store=store) as backend:
        assert dict(backend.map_state("places", Place, int)["b"]) == {Place("IAH"): 2}
        ((entry, value),) = backend.map_state("odd", float, int)["b"].items()
        assert (math.isnan(entry), value) == (True, 1)


@run_virtual
async def test_columns_and_timers_are_changed_without_a_type() -> None:
    """Their schema says what fits."""
    store = MemoryStore()
    before = await work(SETTINGS, store)
    await sb.transform(SETTINGS, "columns", lambda key, row: [(key, {"sum": row["sum"] * 2})], store=store)
    await sb.transform(SETTINGS, "timers", lambda key, times: [(key, [at + 5 for at in times])], store=store)
    after = await read(SETTINGS, store)
    assert after["columns"] == {key: {"sum": row["sum"] * 2} for key, row in before["columns"].items()}
    assert after["timers"] == {key: tuple(at + 5 for at in times) for key, times in before["timers"].items()}


@run_virtual
async def test_what_is_moved_keeps_its_time_of_writing() -> None:
    """It expires when it would have: only what is new gets another time, the latest of the key."""
    store = MemoryStore()
    async with opened(SETTINGS, store) as (backend, states):
        states.write([("recent", "old", -1), ("recent", "new", 1)])
        await backend.checkpoint(0)
    await sb.transform(SETTINGS, "recent", renamed, store=store)
    await sb.transform(SETTINGS, "recent", lambda key, value: [(key, value + 5)], type=int, store=store)
    assert (await read(SETTINGS, store))["recent"] == {"new moved": 6}


async def in_vain(key: sb.Key, value: Any) -> Any:
    """A function that would have to be awaited."""
    return [(key, value)]


async def each_in_vain(key: sb.Key, value: Any) -> Any:
    """As its like, with `yield`."""
    yield key, value


WRONG: dict[str, tuple[str, F, dict[str, Any], type[Exception], str]] = {
    "two keys become one": ("value", lambda _, value: [("one", value)], {}, InputError, "two keys cannot become one"),
    "one key twice": ("list", lambda key, value: [(key, value)] * 2, {}, InputError, "two keys cannot become one"),
    "two rows become one": ("columns", lambda _, row: [("one", row)], {}, InputError, "two keys cannot become one"),
    "into another that has it": (
        "value",
        lambda key, v: [("recent", key, v)],
        {},
        InputError,
        "two keys cannot become",
    ),
    "into another type": ("value", lambda key, value: [("list", key, value)], {}, InputError, "of different types"),
    "no key": ("value", lambda key, value: [(1.5, value)], {}, KeyTypeError, "key"),
    "three in a row": ("value", lambda key, value: [(key, value, 1)], {}, InputError, "returns pairs|stands in new_st"),
    "an unnamed state": (
        "columns",
        lambda key, row: [("archive", key, row)],
        {"new_states": "archived"},
        InputError,
        "stands in new_states",
    ),
    "a new state that is there": ("value", renamed, {"new_states": ["list"]}, InputError, "has this state already"),
    "a new state without keys": ("value", renamed, {"new_states": ["offsets"]}, InputError, "has this state already"),
    "a new state of no name": ("value", renamed, {"new_states": ["a", ""]}, InputError, "printable characters"),
    "no pair": ("value", lambda key, value: [key], {}, InputError, "returns pairs"),
    "changed without type": ("value", lambda key, value: [(key, value + 1)], {}, InputError, "give its `type`"),
    "true is not one": ("value", lambda key, value: [(key, True)], {}, InputError, "give its `type`"),
    "more elements": ("list", lambda key, value: [(key, [*value, 7])], {}, InputError, "give its `type`"),
    "a new entry": ("map", lambda key, value: [(key, {99: 1})], {"type": int}, InputError, "not added"),
    "another type": ("value", lambda key, value: [(key, value)], {"type": str}, StateTypeError, "another type"),
    "unknown column": ("columns", lambda key, row: [(key, {"n": 1})], {}, InputError, "columns of the state"),
    "async": ("value", in_vain, {}, InputError, "the function is async"),
    "an async generator": ("value", each_in_vain, {}, InputError, "the function is async"),
    "it fails": ("value", lambda key, value: [(key, value["a"])], {}, InputError, "the function failed"),
    "unknown state": ("nothing", renamed, {}, InputError, "no state of that name"),
    "no keys": ("offsets", renamed, {}, InputError, "no state of that name"),
}


@pytest.mark.parametrize("name", WRONG)
@run_virtual
async def test_a_wrong_call_is_told_and_changes_nothing(name: str) -> None:
    """Nor does it claim the job: a stream that runs is not fenced."""
    state, function, options, error, said = WRONG[name]
    store = MemoryStore()
    await work(SETTINGS, store)
    before = await objects_of(store)
    with pytest.raises(error, match=said):
        await sb.transform(SETTINGS, state, function, store=store, **options)
    assert await objects_of(store) == before


@run_virtual
async def test_a_dry_run_counts_collisions() -> None:
    """With one of them as an example."""
    store = MemoryStore()
    before = await work(SETTINGS, store)
    report = await sb.transform(SETTINGS, "value", lambda _, value: [("one", value)], store=store, dry_run=True)
    assert (report.collisions, report.collision) == (len(before["value"]) - 1, ("value", "one"))


@run_virtual
async def test_it_is_a_barrier_and_fences_a_stream() -> None:
    """A rollback does not go behind it, and a stream that runs cannot commit the old keys again."""
    store = MemoryStore()
    async with opened(SETTINGS, store) as (backend, states):
        states.write(SAMPLE)
        for batch_id in (0, 1):
            await backend.checkpoint(batch_id, source=sb.SourceMark("query", batch_id))
        await sb.transform(SETTINGS, "value", renamed, store=store)
        with pytest.raises(FencedError):
            await backend.checkpoint(2)
    async with opened(SETTINGS, store) as (backend, _):
        with pytest.raises(RewindError, match="commits by hand"):
            await rollback_to(backend.history(), sb.SourceMark("query", 1))


@run_virtual
async def test_a_savepoint_is_transformed_and_stays() -> None:
    """The job goes on from what was made of it."""
    store = MemoryStore()
    first = await work(SETTINGS, store, SAMPLE)
    await sb.savepoint(SETTINGS, "first", store=store)
    await work(SETTINGS, store, [("value", "later", 1)])
    await sb.transform(SETTINGS, "value", renamed, savepoint="first", store=store)
    assert (await read(SETTINGS, store))["value"] == {moved(key): value for key, value in first["value"].items()}
    assert await read(SETTINGS, store, savepoint="first") == first


@run_virtual
async def test_the_owners_stay_as_they_were() -> None:
    """Their ranges, and their operator state."""
    store, settings = MemoryStore(), settings_of(12)
    parts = [sb.owners.KeyGroupRange(0, 4), sb.owners.KeyGroupRange(5, 11)]
    async with sb.owners.open_coordinator(settings, store=store) as coordinator:
        snapshots: list[sb.owners.SnapshotResult] = []
        for number, part in enumerate(parts):
            async with sb.open_backend(settings, store=store, key_groups=part, owners=parts) as owner:
                owner.value_state("n", int).update({k: -k for k in range(99) if sb.owners.key_group(k, 12) in part})
                owner.operator_state("split", int).append(number)
                snapshots.append(await owner.snapshot(0))
        await coordinator.commit(0, snapshots)
    before = await newest_commit(store)
    await sb.transform(settings_of(128), "n", lambda key, value: [(key + 1000, value)], store=store)
    commit = await newest_commit(store)
    assert [(part.key_groups, part.operator) for part in commit.ranges] == [
        (part.key_groups, part.operator) for part in before.ranges
    ]
    async with sb.open_backend(settings, store=store, read_only=True) as backend:
        assert dict(backend.value_state("n", int)) == {key + 1000: -key for key in range(99)}


@run_virtual
async def test_a_feed_of_a_state_that_was_transformed_stops_there() -> None:
    """Of those that the function wrote, too. Feeds of the others go on, and so does one that begins behind it."""
    store = MemoryStore()
    await work(SETTINGS, store)
    before = await newest_commit(store)
    await sb.transform(
        SETTINGS, "value", lambda key, value: [("archive", key, value)], new_states="archive", store=store
    )
    made = await newest_commit(store)
    assert made.transformed == ("archive", "value")
    async with opened(SETTINGS, store) as (backend, states):
        states.write(SAMPLE)
        await backend.checkpoint(backend.next_checkpoint_id)
    after = await newest_commit(store)
    assert after.transformed == ()
    for state in made.transformed:
        with pytest.raises(InputError, match="made the state as a whole") as caught:
            async with open_changes(
                SETTINGS, state, sequences=[made.sequence, after.sequence], before=before.sequence, store=store
            ):
                pass
        assert caught.value.facts["checkpoint_id"] == made.checkpoint_id
    for state, sequences, parent in (
        ("total", [made.sequence, after.sequence], before.sequence),
        ("value", [after.sequence], made.sequence),
    ):
        async with open_changes(
            SETTINGS, state, sequences=sequences, before=parent, store=store, key_as_json=True
        ) as changes:
            assert await changes.next() is not None


@run_virtual
async def test_a_follower_reads_the_state_anew() -> None:
    """It has the new keys, and none of the old ones."""
    store = MemoryStore()
    await work(SETTINGS, store)
    async with sb.follow(SETTINGS, store=store, every_s=0.01) as follower:
        values = follower.value_state("value", int)
        before = dict(values)
        report = await sb.transform(SETTINGS, "value", renamed, store=store)
        assert report.checkpoint_id is not None
        await follower.wait_for(checkpoint_id=report.checkpoint_id)
        assert dict(values) == {moved(key): value for key, value in before.items()}
