"""An erased key is in no object that is left, and nothing of the job brings it back."""

from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._log.names import erasure_of
from statebackend._reading.feed import own_change_sets
from statebackend._upkeep.offline import key_search
from statebackend.abc import Capability
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    FencedError,
    InputError,
    KeyTypeError,
    RewindError,
)
from statebackend.ids import all_key_groups
from statebackend.objectstore import MemoryStore
from statebackend.spark.replay import rollback_to
from statebackend.testing import run_virtual
from tests.erase.persons import ADA, BOB, BOTH, CARRIED, ERASED, JOB, SETTINGS, Job, without, writes
from tests.rewrite.jobs import newest_commit, objects_of, opened, settings_of, work


@pytest.mark.parametrize("settings", [SETTINGS, CARRIED], ids=["in segments", "in commits"])
@pytest.mark.parametrize("place", ["with_changes", "with_bases"])
@run_virtual
async def test_every_kind_of_state_loses_the_key_and_nothing_else(place: str, settings: sb.Settings) -> None:
    """The stream goes on with the batch after the one it had; after a sweep no byte names the key."""
    job = Job(settings)
    before = await getattr(job, place)()
    mark = (await newest_commit(job.store)).summary.newest_mark
    report = await job.erase()
    assert report.changes > 0
    assert report.keys == 2
    assert await job.read() == without(before)
    commit = await newest_commit(job.store)
    assert (commit.source, commit.summary.newest_mark) == (None, mark)
    held = await job.names_stored()
    assert sorted(holder.key for holder in report.holders) == sorted(held)
    assert not (await sb.verify_erased(job.settings, ERASED, store=job.store)).is_proved
    await job.sweep_later()
    assert await job.names_stored() == []
    proof = await sb.verify_erased(job.settings, ERASED, store=job.store)
    assert (proof.is_proved, proof.holders) == (True, ())
    assert await job.read() == without(before)


@run_virtual
async def test_what_was_read_of_a_base_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frames that have the keys are kept, and the others are fetched; without room it is read as a whole."""
    monkeypatch.setattr(key_search, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr("statebackend._checkpoint.materialization.bases.FRAME_BYTES_MIN", 1)
    monkeypatch.setattr("statebackend._tables.snapshot.TOGETHER_BYTES", 1)
    read: list[int] = []
    for room in (0, key_search.KEPT_BYTES_MAX):
        monkeypatch.setattr(key_search, "KEPT_BYTES_MAX", room)
        job = Job()
        before = await job.with_bases()
        report = await job.erase()
        assert await job.read() == without(before)
        await job.sweep_later()
        assert await job.names_stored() == []
        read.append(report.bytes_read)
    assert read[1] < read[0]


@run_virtual
async def test_output_that_is_still_to_be_published_keeps_no_erased_key() -> None:
    """The commit that has the key carries output besides. It is published as ever, and that commit is swept."""
    job = Job(CARRIED)
    await job.with_changes()
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock) as backend:
        backend.value_state("value", int)[ADA] = 4
        source = sb.SourceMark("query", 1)
        await backend.checkpoint(backend.next_checkpoint_id, source=source, output=sb.Output(b"", 1, (b"rows",)))
    report = await job.erase()
    assert report.outputs_pending == 1
    await job.sweep_later()
    assert await job.names_stored() == []
    assert (await sb.verify_erased(job.settings, ERASED, store=job.store)).is_proved
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock) as backend:
        taken = await backend.take_output()
        assert taken is not None
        assert list(map(bytes, taken[1])) == [b"rows"]


@run_virtual
async def test_a_sweep_that_comes_too_early_keeps_no_key_for_later() -> None:
    """It leaves the commits of the last hour, and the mark that says what they have; both go together afterwards."""
    job = Job()
    await job.with_changes()
    await job.erase()
    await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=job.store, clock=job.clock)
    assert await job.names_stored() != []
    await job.sweep_later()
    assert await job.names_stored() == []
    await job.sweep_later()
    assert not [info.key async for info in job.store.list("") if erasure_of(info.key)]


@run_virtual
async def test_a_job_that_was_erased_and_swept_verifies() -> None:
    """Older commits stay for the change sets that they carry, with gaps between them: they are not retained."""
    job = Job(CARRIED)
    await work(job.settings, job.store, writes(1, BOB), writes(2, ADA), writes(3, BOB), writes(4, BOB))
    await job.erase()
    await job.sweep_later()
    report = await sb.verify(job.settings, store=job.store)
    assert (report.damages, report.checkpoints) == ((), ((await newest_commit(job.store)).checkpoint_id,))


@run_virtual
async def test_a_holder_can_be_swept_from_the_time_that_is_told() -> None:
    """Not a second sooner, where the job goes on writing; and it tells so of each."""
    job = Job()
    await job.with_changes()
    report = await job.erase()
    (sweepable_s,) = {holder.sweepable_from_s for holder in report.holders}
    assert sweepable_s is not None
    for at_s, is_gone in ((sweepable_s - 1, False), (sweepable_s + 1, True)):
        job.clock.now_s = at_s
        await work(job.settings, job.store, writes(9, BOB))  # by which the store tells the time
        await sb.sweep(job.settings, dry_run=False, store=job.store, clock=job.clock)
        assert (await job.names_stored() == []) == is_gone


@run_virtual
async def test_only_the_states_that_are_named_lose_the_key() -> None:
    """The others keep it."""
    job = Job()
    before = await job.with_changes()
    await job.erase(states=["value"])
    after = await job.read()
    assert after["value"] == without(before)["value"] != before["value"]
    assert {**after, "value": None} == {**before, "value": None}


async def until_bases_are_in_rocksdb(job: Job) -> dict[str, Any]:
    """Bases are written behind the checkpoints, so it takes as many as it takes. The state then."""
    async with opened(job.settings, job.store) as (backend, states):
        for number in range(1000):
            states.write(writes(number, BOB))
            await backend.checkpoint(backend.next_checkpoint_id)
            if any(part.rocksdb for part in (await newest_commit(job.store)).ranges):
                return states.read()
    raise AssertionError("no bases after a thousand checkpoints")


async def test_keys_in_rocksdb_are_erased_too(tmp_path: Path) -> None:
    """A RocksDB file cannot be written again alone: the range becomes bases of entries."""
    settings = settings_of(16, table="rocksdb", table_dir=str(tmp_path), materialize_interval_s=0.001, **BOTH)
    job = Job(settings)
    await job.with_changes()
    before = await until_bases_are_in_rocksdb(job)
    await job.erase()
    assert await job.read() == without(before)
    await job.sweep_later()
    assert (await sb.verify_erased(settings, ERASED, store=job.store)).is_proved
    await until_bases_are_in_rocksdb(job)  # it goes on
    await job.sweep_later()
    assert (await sb.verify_erased(settings, ERASED, store=job.store)).is_proved


async def test_a_job_of_several_owners_loses_the_key() -> None:
    """Its ranges, and their operator state, stay as they are."""
    store, settings = MemoryStore(), settings_of(12, **BOTH)
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
    await sb.erase(settings, [7], store=store)
    commit = await newest_commit(store)
    assert [(part.key_groups, part.operator) for part in commit.ranges] == [
        (part.key_groups, part.operator) for part in before.ranges
    ]
    async with sb.open_backend(settings, store=store, read_only=True) as backend:
        assert dict(backend.value_state("n", int)) == {key: -key for key in range(99) if key != 7}


@run_virtual
async def test_nothing_older_can_be_opened() -> None:
    """Not by its id, nor by a moment, nor as a savepoint made of it, nor by a rollback of the sink."""
    job = Job()
    await job.with_changes()
    job.clock.now_s += 60
    await job.erase()
    for options in ({"checkpoint_id": 1}, {"at": job.clock.now_s - 1}):
        with pytest.raises(CheckpointNotFoundError):
            await job.read(**options)
        with pytest.raises(CheckpointNotFoundError):
            async with sb.read_rows(job.settings, store=job.store, **options):
                pass
    with pytest.raises(CheckpointNotFoundError):
        await sb.savepoint(job.settings, "old", checkpoint_id=1, store=job.store)
    async with opened(job.settings, job.store) as (backend, _):
        with pytest.raises(RewindError, match="commits by hand"):
            await rollback_to(backend.history(), sb.SourceMark("query", 6))


@run_virtual
async def test_a_damaged_erasure_is_not_passed_over() -> None:
    """Also where the settings allow to go on from an older commit."""
    job = Job(settings_of(16, fall_back_to_older=True, **BOTH))
    await job.with_changes()
    await job.erase()
    commit = await newest_commit(job.store)
    key = f"{JOB}/commits/{commit.sequence:012}"
    body = bytearray(await job.store.get(key))
    body[40] ^= 1
    await job.store.put(key, (bytes(body),))
    with pytest.raises(CorruptCommitError):
        await job.read()


@run_virtual
async def test_savepoints_with_the_key_are_refused_or_dropped() -> None:
    """One that does not have it stays, and can be opened."""
    job = Job()
    await work(job.settings, job.store, writes(1, BOB))
    await sb.savepoint(job.settings, "without-her", store=job.store)
    clean = await job.read()
    await work(job.settings, job.store, writes(2, ADA, BOB))
    await sb.savepoint(job.settings, "with-her", store=job.store)
    objects = await objects_of(job.store)
    with pytest.raises(InputError, match="savepoints have the keys") as caught:
        await job.erase()
    assert caught.value.facts["savepoints"] == ["with-her"]
    assert await objects_of(job.store) == objects
    assert (await job.erase(savepoints="drop")).savepoints_dropped == ("with-her",)
    assert [each.name for each in await sb.savepoints(job.settings, store=job.store)] == ["without-her"]
    assert await job.read(savepoint="without-her") == clean
    await job.sweep_later()
    assert await job.names_stored() == []


@run_virtual
async def test_a_key_that_only_older_checkpoints_have_is_erased() -> None:
    """The state does not have it any more, but a rollback would bring it back. A second call has nothing to do."""
    job = Job()
    await work(job.settings, job.store, [("value", ADA, 1), ("list", ADA, 2)], writes(2, BOB))
    async with opened(job.settings, job.store) as (backend, states):
        states.write([("dropped", ADA, 0)])
        await backend.checkpoint(backend.next_checkpoint_id)
    assert (await job.erase()).checkpoint_id is not None
    assert (await job.erase()).checkpoint_id is None
    await job.sweep_later()
    assert await job.names_stored() == []
    with pytest.raises(InputError, match="nothing of the job has these keys"):
        await job.erase()


@run_virtual
async def test_a_dry_run_writes_nothing_and_tells_the_same() -> None:
    """Nobody is fenced."""
    job = Job()
    await job.with_changes()
    before = await objects_of(job.store)
    dry = await job.erase(dry_run=True)
    assert await objects_of(job.store) == before
    done = await job.erase()
    assert (dry.changes, dry.rewritten, dry.checkpoint_id) == (done.changes, done.rewritten, None)


@run_virtual
async def test_a_running_stream_is_fenced() -> None:
    """Its next checkpoint fails, so it cannot commit the key again from its memory."""
    job = Job()
    await job.with_changes()
    async with opened(job.settings, job.store) as (backend, states):
        await job.erase()
        states.write(writes(5, BOB))
        with pytest.raises(FencedError):
            await backend.checkpoint(backend.next_checkpoint_id)


@pytest.mark.parametrize("place", ["with_changes", "with_old_changes"])
@run_virtual
async def test_the_feed_says_nothing_of_an_erasure(place: str) -> None:
    """The change sets that took the place of others are not the commit's own."""
    job = Job()
    await getattr(job, place)()
    before = await newest_commit(job.store)
    await job.erase()
    assert own_change_sets(await newest_commit(job.store), before, all_key_groups(16)) == ()


@pytest.mark.parametrize("place", ["with_changes", "with_old_changes", "with_bases"])
@run_virtual
async def test_a_follower_loses_the_key_and_counts_nothing_twice(place: str) -> None:
    """It reads the state anew, since the change sets that took the place of others are not new ones."""
    job = Job()
    before = await getattr(job, place)()
    async with sb.follow(job.settings, store=job.store, every_s=0.01) as follower:
        lists, values = follower.list_state("list", int), follower.value_state("value", int)
        assert {key: list(found) for key, found in lists.items()} == before["list"]
        report = await job.erase()
        assert report.checkpoint_id is not None
        await follower.wait_for(checkpoint_id=report.checkpoint_id)
        assert {key: list(found) for key, found in lists.items()} == without(before)["list"]
        assert dict(values) == without(before)["value"]


WRONG: dict[str, tuple[Any, dict[str, Any], type[InputError], str]] = {
    "no key": ([], {}, InputError, "at least one key"),
    "one key, not a list": (ADA, {}, InputError, "a list of keys"),
    "no key of ours": ([1.5], {}, KeyTypeError, "key"),
    "never was": (["Nobody"], {}, InputError, "nothing of the job has these keys"),
    "a name for a list": ([ADA], {"states": "value"}, InputError, "in a list"),
    "no states": ([ADA], {"states": []}, InputError, "in a list"),
    "unknown state": ([ADA], {"states": ["nothing"]}, InputError, "no state of that name"),
    "unknown choice": ([ADA], {"savepoints": "keep"}, InputError, "'refuse' or 'drop'"),
}


@pytest.mark.parametrize("name", WRONG)
@run_virtual
async def test_a_wrong_call_is_told_and_changes_nothing(name: str) -> None:
    """Each by its own sentence."""
    keys, options, error, said = WRONG[name]
    job = Job()
    await job.with_changes()
    before = await objects_of(job.store)
    with pytest.raises(error, match=said):
        await sb.erase(job.settings, keys, store=job.store, **options)
    assert await objects_of(job.store) == before


class Listless(MemoryStore):
    """Cannot list."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities - {Capability.LIST}


@run_virtual
async def test_a_store_that_cannot_list_is_refused() -> None:
    """Nothing else finds what holds the key."""
    with pytest.raises(InputError, match="list its objects"):
        await sb.erase(SETTINGS, [ADA], store=Listless())


async def test_a_local_copy_that_is_left_is_no_proof(tmp_path: Path) -> None:
    """The sweep of this host's roots removes it, and then there is one."""
    settings = settings_of(16, local=(str(tmp_path / "local"),), **BOTH)
    job = Job(settings)
    await job.with_changes()
    await job.erase()
    job.clock.now_s += 90_000.0
    await sb.sweep(settings_of(16, **BOTH), dry_run=False, store=job.store, clock=job.clock)
    found = await sb.verify_erased(settings, ERASED, store=job.store)
    assert found.holders
    assert all(holder.key.startswith(str(tmp_path)) for holder in found.holders)
    await sb.sweep(settings, dry_run=False, store=job.store, clock=job.clock)
    assert (await sb.verify_erased(settings, ERASED, store=job.store)).is_proved
