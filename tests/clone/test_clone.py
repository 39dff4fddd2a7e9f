"""A clone is a job of its own, with the state of another one's checkpoint."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import statebackend as sb
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptSegmentError,
    FencedError,
    InputError,
    MissingObjectError,
    SavepointNotFoundError,
)
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.testing import FaultyStore, run_virtual
from tests import invariants
from tests.erase.persons import ADA, BOB, BOTH, ERASED, without, writes
from tests.rewrite.jobs import JOB, newest_commit, objects_of, opened, settings_of, work

SETTINGS = settings_of(16, **BOTH)
CARRIED = settings_of(16, compression="none", checkpoints_retained=3)
COPY = "copy"


def named(settings: sb.Settings, job: str = COPY) -> sb.Settings:
    return msgspec.structs.replace(settings, job=job)


async def read(store: sb.ObjectStore, settings: sb.Settings = SETTINGS, job: str = COPY, **options: Any) -> Any:
    async with opened(named(settings, job), store, read_only=True, **options) as (_, states):
        return states.read()


async def with_bases(settings: sb.Settings, store: sb.ObjectStore) -> dict[str, Any]:
    """Bases, and a commit of changes behind them."""
    await work(msgspec.structs.replace(settings, max_parallelism=8), store, writes(1, ADA, BOB), writes(2, BOB))
    await sb.rewrite(settings, store=store)
    return await work(settings, store, writes(3, ADA, BOB))


async def clone(settings: sb.Settings, store: sb.ObjectStore, **options: Any) -> sb.reports.CloneReport:
    """Clone the job within one store."""
    options = {"store": store, "from_store": store} | options
    return await sb.clone(named(settings, options.pop("job", COPY)), from_=settings, **options)


@pytest.mark.parametrize("settings", [SETTINGS, CARRIED], ids=["in segments", "in commits"])
@pytest.mark.parametrize("is_in_one_store", [True, False])
@run_virtual
async def test_every_kind_of_state_is_in_the_clone(settings: sb.Settings, *, is_in_one_store: bool) -> None:
    """With the id, the batch and the clock of the source, which is as it was; and both go on alone."""
    store = MemoryStore()
    before = await with_bases(settings, store)
    objects = await objects_of(store)
    (source,) = invariants.commits_of(invariants.read_log(objects, JOB))[-1:]
    target = store if is_in_one_store else FaultyStore(MemoryStore())
    report = await sb.clone(named(settings), from_=settings, store=target, from_store=store)
    assert await objects_of(store) == objects
    assert await read(target, settings) == before
    log = [info.key async for info in target.list(f"{COPY}/commits/")]
    assert log == [f"{COPY}/commits/000000000000", f"{COPY}/commits/000000000001"]
    async with opened(named(settings), target) as (backend, states):
        assert backend.epoch == 2
        assert (await anext(backend.history())).mark_of("query") == source.summary.mark_of("query")
        states.write(writes(4, ADA))
        states.offsets.append(4)
        info = await backend.checkpoint(backend.next_checkpoint_id)
        assert info.checkpoint_id == source.checkpoint_id + 1
        after = states.read()
    assert await read(target, settings) == after != before
    assert await read(store, settings, JOB) == before
    assert (report.checkpoint_id, report.states) == (source.checkpoint_id, tuple(each.name for each in source.states))
    assert report.max_parallelism == 16
    assert (report.copied > 0) == is_in_one_store


async def test_files_are_linked_and_rocksdb_is_cloned(tmp_path: Path) -> None:
    """An object is never changed, so two jobs can share a file; and the clone's own files are its own."""
    settings = settings_of(16, table="rocksdb", table_dir=str(tmp_path / "t"), materialize_interval_s=0.001, **BOTH)
    store = LocalStore(tmp_path / "primary")
    async with opened(settings, store) as (backend, states):
        for number in range(20):
            states.write(writes(number, ADA, BOB))
            await backend.checkpoint(backend.next_checkpoint_id)
        before = states.read()
    report = await clone(settings, store)
    assert report.copied > 0
    assert {path.stat().st_nlink for path in (tmp_path / "primary" / COPY / "segments").iterdir()} >= {2}
    assert await read(store, settings) == before
    await sb.sweep(named(settings), store=store, dry_run=False, min_age_s=0.0)
    async with opened(named(settings), store) as (backend, states):
        states.write(writes(99, BOB))
        await backend.checkpoint(backend.next_checkpoint_id)
    assert await read(store, settings, JOB) == before
    part = await clone(settings, store, job="part", states=["value", "columns"])
    assert part.states == ("value", "columns")
    found = await read(store, settings, "part")
    assert (found["value"], found["columns"]) == (before["value"], before["columns"])
    assert not found["list"]


@pytest.mark.parametrize("settings", [SETTINGS, CARRIED], ids=["in segments", "in commits"])
@run_virtual
async def test_a_part_of_the_states_and_a_sample_of_the_keys(settings: sb.Settings) -> None:
    """The same keys in all states, and a second clone has the same."""
    store = MemoryStore()
    persons = [f"person {number}" for number in range(200)]
    before = await work(settings, store, writes(1, *persons[:150]), writes(2, *persons[50:]))
    report = await clone(settings, store, states=["value", "list", "offsets"], keys=0.25)
    assert report.states == ("value", "list", "offsets")
    found = await read(store, settings)
    kept = set(found["value"])
    assert 25 < len(kept) < 80
    assert found["value"] == {key: before["value"][key] for key in kept}
    assert found["list"] == {key: before["list"][key] for key in kept}
    assert found["offsets"] == before["offsets"]
    assert not found["map"]
    assert not found["columns"]
    await clone(settings, store, job="second", keys=0.25)
    assert set((await read(store, settings, "second"))["value"]) == kept


@run_virtual
async def test_an_older_checkpoint_and_a_savepoint_can_be_cloned() -> None:
    """Each by its name; the savepoint stays."""
    store = MemoryStore()
    first = await work(SETTINGS, store, writes(1, ADA))
    await sb.savepoint(SETTINGS, "first", store=store)
    await work(SETTINGS, store, writes(2, BOB))
    await clone(SETTINGS, store, savepoint="first")
    await clone(SETTINGS, store, job="by-id", checkpoint_id=0)
    assert await read(store) == await read(store, job="by-id") == first
    assert [each.name for each in await sb.savepoints(SETTINGS, store=store)] == ["first"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "itself": ({"job": JOB}, "onto itself"),
    "a name for a list": ({"states": "value"}, "in a list"),
    "no states": ({"states": []}, "in a list"),
    "unknown state": ({"states": ["nothing"]}, "no state of that name"),
    "share of nothing": ({"keys": 0.0}, "share of the keys"),
    "more than all": ({"keys": 50}, "share of the keys"),
    "unknown choice": ({"outputs": "drop"}, "'take' or 'leave'"),
    "two checkpoints": ({"checkpoint_id": 1, "savepoint": "a"}, "not both"),
}


@pytest.mark.parametrize("name", WRONG)
@run_virtual
async def test_a_wrong_call_is_told_and_makes_no_job(name: str) -> None:
    """Nor does it leave anything in the source."""
    options, said = WRONG[name]
    store = MemoryStore()
    await work(SETTINGS, store, writes(1, ADA))
    before = await objects_of(store)
    with pytest.raises(InputError, match=said):
        await clone(SETTINGS, store, **options)
    assert await objects_of(store) == before
    assert [info.key async for info in store.list("") if not info.key.startswith(f"{JOB}/")] == []


@run_virtual
async def test_a_job_that_exists_is_left_alone() -> None:
    """Also one that was only opened, and the source of a clone, and a clone that has gone on."""
    store = MemoryStore()
    await work(SETTINGS, store, writes(1, ADA))
    async with sb.open_backend(named(SETTINGS), store=store):
        pass
    with pytest.raises(InputError, match="the job exists"):
        await clone(SETTINGS, store)
    await clone(SETTINGS, store, job="second")
    await clone(SETTINGS, store, job="second")  # nothing has changed: it is there already
    await work(SETTINGS, store, writes(2, ADA))
    with pytest.raises(InputError, match="the job exists"):
        await clone(SETTINGS, store, job="second")
    await work(named(SETTINGS, "second"), store, writes(2, ADA))
    with pytest.raises(InputError, match="the job exists"):
        await clone(SETTINGS, store, job="second")
    assert [each.name for each in await sb.savepoints(SETTINGS, store=store)] == []


@run_virtual
async def test_pending_output_is_taken_or_left() -> None:
    """Taken by default, as an opening of the source would publish it again: nothing is lost by a move."""
    for settings in (SETTINGS, CARRIED):
        store = MemoryStore()
        rows = sb.Output(b"schema", 2, (b"rows",))
        async with sb.open_backend(settings, store=store) as backend:
            backend.value_state("value", int)["a"] = 1
            await backend.checkpoint(0, source=sb.SourceMark("query", 0), output=rows)
        report = await clone(settings, store)
        assert report.outputs == 1
        await clone(settings, store, job="left", outputs="leave")
        async with sb.open_backend(named(settings), store=store) as backend:
            taken = await backend.take_output()
            assert taken is not None
            assert (taken[0].source.batch_id, taken[0].rows, [bytes(part) for part in taken[1]]) == (0, 2, [b"rows"])
        async with sb.open_backend(named(settings, "left"), store=store) as backend:
            assert await backend.take_output() is None


class Swept(MemoryStore):
    """Calls `then` before the object of a data file is copied or read."""

    then: Any = None

    async def copy_from(self, source: sb.ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        then, self.then = self.then, None
        if then is not None:
            await then()
        return await super().copy_from(source, source_key, key, size_bytes)


@run_virtual
async def test_a_source_that_goes_on_and_is_swept_meanwhile_is_cloned_as_it_was() -> None:
    """A savepoint keeps the checkpoint until the clone is made, and no longer."""
    store = Swept()
    before = await work(SETTINGS, store, writes(1, ADA), writes(2, BOB))

    async def then() -> None:
        await work(SETTINGS, store, *[writes(number, BOB) for number in range(10)])
        await sb.rewrite(settings_of(32, **BOTH), store=store)
        store.age(90_000.0)
        await work(settings_of(32, **BOTH), store, *[writes(number, BOB) for number in range(5)])
        store.age(90_000.0)
        swept = await sb.sweep(SETTINGS, store=store, dry_run=False, min_age_s=0.0)
        assert swept.deleted

    store.then = then
    await clone(SETTINGS, store)
    assert await read(store) == before
    assert await sb.savepoints(SETTINGS, store=store) == []


@run_virtual
async def test_a_key_that_is_erased_meanwhile_does_not_come_back() -> None:
    """The erasure finds the savepoint; if it drops that, the clone fails, and no job has the key."""
    store = Swept()
    await work(SETTINGS, store, writes(1, ADA), writes(2, BOB))

    async def then() -> None:
        with pytest.raises(InputError, match="savepoints have the keys"):
            await sb.erase(SETTINGS, ERASED, store=store)
        await sb.erase(SETTINGS, ERASED, store=store, savepoints="drop")

    store.then = then
    with pytest.raises(SavepointNotFoundError):
        await clone(SETTINGS, store)
    with pytest.raises(InputError, match="no checkpoint"):
        async with sb.read_rows(named(SETTINGS), store=store):
            pass
    await clone(SETTINGS, store)  # without her
    assert ADA not in (await read(store))["value"]
    with pytest.raises(CheckpointNotFoundError):
        await clone(SETTINGS, store, job="older", checkpoint_id=0)


@run_virtual
async def test_a_clone_that_is_opened_while_it_is_made_is_fenced() -> None:
    """It is the other's job then, and has no checkpoint."""
    store = Swept()
    await work(SETTINGS, store, writes(1, ADA))

    async def then() -> None:
        async with sb.open_backend(named(SETTINGS), store=store):
            pass

    store.then = then
    with pytest.raises(FencedError):
        await clone(SETTINGS, store)
    with pytest.raises(InputError, match="the job exists"):
        await clone(SETTINGS, store)
    assert await sb.savepoints(SETTINGS, store=store) == []


@run_virtual
async def test_damage_and_loss_are_not_cloned() -> None:
    """Where the bytes pass through here; a store copies them as they are, and `verify` tells."""
    store, target = MemoryStore(), FaultyStore(MemoryStore())
    await work(SETTINGS, store, writes(1, ADA))
    (key,) = [info.key async for info in store.list(f"{JOB}/segments/")]
    body = await store.get(key)
    await store.delete(key)
    for to in (store, target):
        with pytest.raises(MissingObjectError):
            await sb.clone(named(SETTINGS), from_=SETTINGS, store=to, from_store=store)
    await store.put(key, (body[:40] + bytes([body[40] ^ 1]) + body[41:],))
    with pytest.raises(CorruptSegmentError):
        await sb.clone(named(SETTINGS), from_=SETTINGS, store=target, from_store=store)
    await sb.clone(named(SETTINGS), from_=SETTINGS, store=store, from_store=store)
    assert (await sb.verify(named(SETTINGS), store=store)).damages


async def test_local_copies_of_the_source_are_not_believed(tmp_path: Path) -> None:
    """Not where both jobs have one name, one host and one directory: the primary is another one."""
    local = settings_of(16, local=(str(tmp_path / "local"),), **{**BOTH, "compression": "lz4"})
    store, target = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    before = await work(local, store, writes(1, ADA), writes(2, BOB))
    await sb.clone(local, from_=msgspec.structs.replace(local, primary="memory://a"), store=target, from_store=store)
    after = await work(local, store, writes(3, ADA))
    assert await read(target, local, JOB) == before != after
    async with opened(local, target) as (backend, states):
        states.write(writes(4, BOB))
        await backend.checkpoint(backend.next_checkpoint_id)
        gone_on = states.read()
    assert await read(store, local, JOB) == after
    assert await read(target, local, JOB) == gone_on


async def test_bases_whose_rows_lie_in_pages_are_cloned_and_erased_from(tmp_path: Path) -> None:
    """Columns over runs: whole, as a sample, and without a key."""
    paged = {"table": "runs", "table_dir": str(tmp_path), "materialize_interval_s": 0, "materialize_handles_max": 3}
    settings, store = settings_of(16, **paged, **BOTH), MemoryStore()
    async with opened(settings, store) as (backend, states):
        for number in range(1000):  # bases are written beside the checkpoints: until there is one
            states.write(writes(number, ADA, BOB))
            await backend.checkpoint(backend.next_checkpoint_id)
            if any(part.bases for part in (await newest_commit(store)).ranges):
                break
        else:
            pytest.fail("no base was written")
        before = states.read()
    await clone(settings, store)
    assert await read(store, settings) == before
    await clone(settings, store, job="sample", keys=0.5)
    found = (await read(store, settings, "sample"))["columns"]
    assert found.items() <= before["columns"].items()
    await sb.erase(named(settings), ERASED, store=store)
    assert await read(store, settings) == without(before)


OF_ITS_OWN = {"job", "sequence", "epoch", "parent", "stamp", "committed_at_s", "release", "ranges"}


@run_virtual
async def test_the_clones_commit_says_all_that_its_sources_says() -> None:
    """But for what is its own: a field that comes later, and is forgotten here, would be lost by a move."""
    store, start = MemoryStore(), {"orders": {"0": 1234}}

    def declare(states: Any) -> None:
        states.value_state("value", int, ttl=sb.TimeToLive(10))

    await sb.seed(SETTINGS, declare, {"value": {"a": 1}}, starts_from=start, clock_s=100.0, store=store)
    await clone(SETTINGS, store)
    source = await newest_commit(store)
    keys = [info.key async for info in store.list(f"{COPY}/")]
    objects = {key.removeprefix(f"{COPY}/"): await store.get(key) for key in keys}
    (made,) = invariants.commits_of(invariants.read_log(objects, COPY))
    for field in set(source.__struct_fields__) - OF_ITS_OWN:
        assert getattr(made, field) == getattr(source, field), field
    assert made.starts_from == start
