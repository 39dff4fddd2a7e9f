"""Change sets are merged behind the checkpoints: commits and restores stay short, no change is lost or comes twice."""

from typing import Any

import pytest

import statebackend as sb
from statebackend._checkpoint import restore
from statebackend._checkpoint.materialization.tiers import members
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests import invariants
from tests.checkpoint.bases import JOB, Job, checkpoint, settings_of
from tests.checkpoint.test_base_writer import contents


def counts(commit: Any) -> list[int]:
    """How many change sets each handle of a commit of one range stands for."""
    (part,) = commit.ranges
    return [members(each) for each in part.changelog]


@run_virtual
async def test_merged_change_sets_take_the_place_of_their_members_in_the_next_commit() -> None:
    """As soon as there are three of a tier; the state is the same, and each commit is whole."""
    job = Job(materialize_fan_in=3)
    async with job.open() as backend:
        for number in range(10):
            await checkpoint(backend, k=number, **{f"k{number}": number})
    commits = await job.commits()
    assert list(map(counts, commits)) == [
        [1], [1, 1], [1, 1, 1], [3, 1], [3, 1, 1], [3, 1, 1, 1], [3, 3, 1], [3, 3, 1, 1], [3, 3, 1, 1, 1], [3, 3, 3, 1],
    ]  # fmt: skip
    assert await contents(job) == {"k": 9} | {f"k{each}": each for each in range(10)}
    for number, commit in enumerate(commits):
        expected = {"k": number} | {f"k{each}": each for each in range(number + 1)}
        assert await contents(job, checkpoint_id=commit.checkpoint_id) == expected


@run_virtual
async def test_what_is_appended_to_a_list_is_there_once_and_in_order() -> None:
    """A change set applied twice, or before another, would show."""
    job = Job(materialize_fan_in=2)
    async with job.open() as backend:
        hops = backend.list_state("hops", int)
        for number in range(13):
            hops["a"].append(number)
            hops[f"b{number % 3}"].append(number)
            await checkpoint(backend)
    async with job.open() as backend:
        hops = backend.list_state("hops", int)
        assert list(hops["a"]) == list(range(13))
        assert [list(hops[f"b{each}"]) for each in range(3)] == [list(range(each, 13, 3)) for each in range(3)]


@run_virtual
async def test_bases_replace_merged_change_sets_and_their_trigger_counts_the_members() -> None:
    """What is appended while one is written stays."""
    job = Job(materialize_fan_in=2, materialize_handles_max=7)
    async with job.open() as backend:
        for number in range(9):
            await checkpoint(backend, **{f"k{number}": number})
    assert sum(counts((await job.commits())[6])) == 7
    (part,) = (await job.newest()).ranges
    assert len(part.bases) == 1
    assert await contents(job) == {f"k{each}": each for each in range(9)}


@run_virtual
async def test_without_a_fan_in_nothing_is_merged() -> None:
    """The switch."""
    job = Job(materialize_fan_in=0)
    async with job.open() as backend:
        for number in range(20):
            await checkpoint(backend, k=number)
    assert counts(await job.newest()) == [1] * 20


# --------------------------------------------------------------------------------------------------------- failures


@run_virtual
async def test_change_sets_that_cannot_be_merged_are_replaced_by_bases() -> None:
    """A damaged segment of the changelog does not stop the job: the state has what it held."""
    job = Job(materialize_fan_in=3, inline_bytes_max=0)
    async with job.open() as backend:
        await checkpoint(backend, a=1)
        (part,) = (await job.newest()).ranges
        key = f"{JOB}/{part.changelog[0].segment.key}"
        await job.store.put(key, (bytes(len(await job.store.get(key))),))
        await checkpoint(backend, b=2)
        await checkpoint(backend, c=3)
        await checkpoint(backend, d=4)
        await checkpoint(backend, e=5)
        await checkpoint(backend, f=6)
    (part,) = (await job.newest()).ranges
    assert len(part.bases) == 1
    assert await contents(job) == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}
    assert not job.watcher.failed


@run_virtual
async def test_change_sets_too_large_to_be_merged_stay_and_those_behind_them_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large in memory, that is: stored they are small. No bases are written for it, and they are not read again."""
    monkeypatch.setattr(restore, "READ_BYTES_MAX", 30_000)
    job = Job(materialize_fan_in=3, inline_bytes_max=0)
    reads = FaultyStore(job.store)
    async with job.open(store=reads) as backend:
        texts = backend.value_state("texts", str)
        for number in range(3):
            texts[f"k{number}"] = f"{number}" * 20_000
            await checkpoint(backend)
        for number in range(7):
            await checkpoint(backend, **{f"k{number}": number})
        assert counts(await job.newest()) == [1, 1, 1, 3, 3, 1]
    large = {handle.segment.key for handle in (await job.newest()).ranges[0].changelog[:3]}
    assert sum(key.endswith(tuple(large)) for operation, key in reads.calls if operation.startswith("get")) <= 3
    assert not job.watcher.begun
    async with job.open() as backend:
        assert len(backend.value_state("texts", str)["k2"]) == 20_000
        assert dict(backend.value_state("n", int)) == {f"k{each}": each for each in range(7)}


@run_virtual
async def test_a_job_that_is_left_deletes_what_it_merged_for_no_commit() -> None:
    """It belongs to the base writer until a commit may hold it."""
    job = Job(materialize_fan_in=3)
    async with job.open() as backend:
        for number in range(3):
            await checkpoint(backend, k=number)
        assert len(await job.segments()) == 1 + sum(
            handle.segment.key.startswith("segments/") for handle in (await job.newest()).ranges[0].changelog
        )
    commits = await job.commits()
    invariants.assert_nothing_is_left_over(await job.segments(), commits)
    assert await contents(job) == {"k": 2}


@run_virtual
async def test_reading_members_makes_no_local_copies() -> None:
    """A copy that is not there may have found no room, and the next ones need what there is by now."""
    full = Fail(operation="put", key="segments/*", nth=2)
    job, local = Job(materialize_fan_in=3, inline_bytes_max=0), FaultyStore(MemoryStore(), [full])
    async with job.open(local_stores=[local], uploader=None) as backend:
        for number in range(10):
            await checkpoint(backend, **{f"k{number}": number})
        assert max(counts(await job.newest())) == 3
    writes = [key for operation, key in local.calls if operation == "put" and key.startswith("segments/")]
    assert len(writes) == len(set(writes)) == 14  # ten checkpoints, three merges, and one of these
    assert await contents(job) == {f"k{each}": each for each in range(10)}


# ---------------------------------------------------------------------------------------------------- in the long run


@run_virtual
async def test_a_commit_and_a_restore_stay_small_for_hundreds_of_checkpoints() -> None:
    """300 checkpoints of ten keys, default settings but for the interval: as the pure model counts, in real code."""
    settings = sb.Settings(job=JOB, primary="memory://unused")
    job = Job(
        max_parallelism=128,
        materialize_fan_in=settings.materialize_fan_in,
        materialize_handles_max=settings.materialize_handles_max,
        inline_bytes_max=64 * 1024,
    )
    async with job.open(uploader=None) as backend:
        for number in range(300):
            await checkpoint(backend, **{f"k{(number * 7 + each) % 1000}": number for each in range(10)})
    commits = await job.commits()
    sizes = [len(await job.store.get(f"{JOB}/commits/{commit.sequence:012d}")) for commit in commits]
    carried = [
        sum(each.length for each in commit.ranges[0].changelog if each.segment.key.endswith(f"{commit.sequence:012d}"))
        for commit in commits
    ]
    assert sum(sizes) / 300 - sum(carried) / 300 <= 2048
    assert max(len(commit.segments()) for commit in commits) <= 64


@run_virtual
async def test_only_commits_whose_changes_may_be_merged_stay_at_hand() -> None:
    """What bases have taken in took up to 32 MiB beside the state otherwise."""
    settings = settings_of(materialize_handles_max=3, inline_bytes_max=1 << 20)
    kept = list[int]()
    async with sb.open_backend(settings, store=MemoryStore(), clock=VirtualClock()) as backend:
        for number in range(12):
            await checkpoint(backend, k=number)
            await backend._base_writer.settled()
            at_hand, committed = backend._coordinator.recent, backend._coordinator.base
            assert committed is not None
            assert at_hand.keys() == {each.segment.key for each in committed.ranges[0].changelog}
            kept.append(len(at_hand))
    assert max(kept) == 3
