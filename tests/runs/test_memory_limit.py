"""`state_memory_bytes`: columns stay whole in memory as long as they fit, and move to runs by themselves."""

import random
import shutil
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.layers import layers
from statebackend._checkpoint.run_files import WHOLE_SHARE
from statebackend._codec.change_sets.paged_changes import is_paged
from statebackend._codec.change_sets.parts import encode_parts
from statebackend._codec.segment import decode_segment
from statebackend._ranges.range_owners import open_range_owners
from statebackend._tables.key_groups import key_group
from statebackend.errors import SettingsError, StoreAccessError
from statebackend.objectstore import LocalStore
from statebackend.settings import KiB, MiB
from statebackend.testing import Fail, FaultyStore, Hold, run_virtual
from tests.ranges.parts import open_run
from tests.runs.test_jobs_over_runs import SCHEMA, Job, settings_of, table_of
from tests.runs.test_layers import commits_of
from tests.runs.test_ranges_over_runs import (
    Batch,
    check,
    check_lookup,
    commit,
    keys_of,
    table_in,
)

LIMIT = 64 * KiB


class LimitedJob(Job):
    """A job with a memory for some hundreds of rows. `materialize_handles_max`: bases are not due by it."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        changes = {"table": "heap", "state_memory_bytes": LIMIT, "materialize_handles_max": 0, **changes}
        super().__init__(directory, **changes)

    async def grow(self, backend: sb.StateBackend, begin: int, end: int) -> None:
        self.write(backend, [f"k{number}" for number in range(begin, end)])
        await self.commit(backend)


@pytest.fixture
def job(tmp_path: Path) -> LimitedJob:
    return LimitedJob(tmp_path)


def is_whole(backend: Any) -> bool:
    return bool(table_of(backend).memory.is_whole)


@run_virtual
async def test_what_fits_is_written_and_read_as_without_a_limit(tmp_path: Path) -> None:
    """The bases are the same bytes, but for names; nothing is in pages, and nothing is looked up."""
    found: list[list[bytes]] = []
    for limit in (0, MiB):
        directory = tmp_path / str(limit)
        job = LimitedJob(directory, state_memory_bytes=limit, materialize_handles_max=1)
        for _ in range(2):
            async with job.open() as backend:
                for end in (300, 100, 20):
                    job.write(backend, [f"k{number}" for number in range(end)], [f"k{end + 1}"])
                    await job.commit(backend)
                assert not limit or is_whole(backend)
        assert job.segments("primary") == []
        files = [path for path in (directory / "primary").rglob("segments/*") if path.is_file()]
        found.append(sorted(map(content_of, files)))
    assert found[0] == found[1]


def content_of(path: Path) -> bytes:
    """The changes in a segment."""
    changes = [each for _, found in decode_segment(path.read_bytes(), path.name) for each in found]
    assert not any(map(is_paged, changes))
    return bytes(encode_parts(changes))


@run_virtual
async def test_what_outgrows_its_memory_moves_to_runs_and_rows_leave(job: LimitedJob) -> None:
    """While the job runs, with every key group in pages, whichever had changed; then changes go into layers."""
    async with job.open() as backend:
        memory = table_of(backend).memory
        number = 0
        while is_whole(backend):
            assert memory.used() <= LIMIT // 2
            await job.grow(backend, number, number + 50)
            number += 50
        for _ in range(30):
            await job.grow(backend, number, number + 50)
            number += 50
            assert memory.used() <= 3 * LIMIT // 2
            job.check(backend)
        assert len(table_of(backend)._rows) < number // 2
        assert table_of(backend).runs.count > number // 2
    assert job.segments("primary")
    async with job.open() as backend:
        assert not is_whole(backend)
        assert len(table_of(backend)._rows) < number // 2


@run_virtual
async def test_all_columnar_states_count_together(job: LimitedJob) -> None:
    """Of two that would fit, each alone, the larger part leaves."""
    async with sb.open_backend(job.settings) as backend:
        states = [backend.columnar_state(name, SCHEMA, key=pa.string()) for name in ("rows", "others")]
        rows = pa.table({"k": [f"k{number}" for number in range(300)], "x": [1] * 300, "y": ["a"] * 300})
        for checkpoint_id in range(4):
            for state in states:
                state.merge(rows, on="k", how={"n": ("sum", "x"), "name": ("last", "y")})
            await backend.checkpoint(checkpoint_id)
            await backend._base_writer.settled()
            one, other = (state._rows.table for state in states)
            assert one.memory is other.memory
            assert one.memory_used() < (LIMIT // 2 if one.memory.is_whole else LIMIT)
        assert not one.memory.is_whole
        assert [len(state) for state in states] == [300, 300]
        assert {state["k7"]["n"] for state in states} == {4}


@run_virtual
async def test_a_checkpoint_waits_for_runs_when_the_memory_is_full(tmp_path: Path) -> None:
    """A stream that is faster than its bases does not outrun them. Before that it does not wait."""
    job = LimitedJob(tmp_path, inline_bytes_max=MiB)  # what is put are bases
    (tmp_path / "primary").mkdir()
    store, hold = FaultyStore(LocalStore(tmp_path / "primary")), Hold(operation="put", key="*/segments/*")
    store.plan.append(hold)
    async with sb.open_backend(job.settings, store=store) as backend:
        for number in range(0, 700, 100):
            job.write(backend, [f"k{key}" for key in range(number, number + 100)])
            job.checkpoint_id += 1
            await backend.checkpoint(job.checkpoint_id)
        await hold.reached.wait()
        assert not is_whole(backend)
        job.write(backend, [f"k{key}" for key in range(700, 2000)])
        assert table_of(backend).memory.is_full
        with anyio.move_on_after(5.0) as waiting:
            await backend.checkpoint(job.checkpoint_id + 1)
        assert waiting.cancelled_caught
        hold.release()
        await backend.checkpoint(job.checkpoint_id + 1)
        assert len(table_of(backend).runs.parts)


@run_virtual
async def test_key_groups_that_had_not_changed_move_too(job: LimitedJob) -> None:
    """They are in an older base, which is not looked up: their rows leave the memory with all others."""
    async with job.open(materialize_handles_max=1) as backend:
        await job.grow(backend, 0, 100)
        await job.commit(backend)
    async with job.open() as backend:
        job.write(backend, [key for key in keys_of(9000, begin=100) if key_group(key, 12) == 3])
        while is_whole(backend):
            await job.commit(backend)
        for _ in range(3):
            await job.commit(backend)
        assert len(table_of(backend)._rows) < len(job.model)
        job.check(backend)
    async with job.open():
        pass


@run_virtual
async def test_a_move_that_fails_is_tried_again(tmp_path: Path) -> None:
    """Until then all stays in memory, and nothing is lost: neither by the failure nor by a restart."""
    job = LimitedJob(tmp_path, materialize_retry_delay_s=0.0, materialize_changelog_ratio=1000.0)
    (tmp_path / "primary").mkdir()
    store = FaultyStore(LocalStore(tmp_path / "primary"))
    async with sb.open_backend(settings_of(job.settings, materialize_handles_max=1), store=store) as backend:
        await job.grow(backend, 0, 100)
        await job.commit(backend)
    assert (await commits_of(job.settings))[-1].ranges[0].bases
    async with sb.open_backend(job.settings, store=store) as backend:
        job.write(backend, [f"k{number}" for number in range(600) if number != 3], ["k3"])
        job.checkpoint_id += 1
        await backend.checkpoint(job.checkpoint_id)
        store.plan.append(Fail(operation="put", key="*/segments/*", error=StoreAccessError("full")))
        await backend._base_writer.settled()
        assert backend._base_writer.failures == 1
        store.plan.clear()
        job.write(backend, [], ["k4"])
        job.write(backend, ["k5"], ["k6"])
        await job.commit(backend)
        await job.commit(backend)
        job.check(backend)
    async with job.open() as backend:
        assert not is_whole(backend)


@run_virtual
async def test_a_state_that_has_shrunk_is_taken_back_into_memory(tmp_path: Path) -> None:
    """At an opening, with its layers, and only if it is so much smaller that it does not leave again at once."""
    job = LimitedJob(tmp_path, materialize_handles_max=1, materialize_changelog_ratio=1000.0)
    async with job.open() as backend:
        for number in range(0, 1000, 100):
            await job.grow(backend, number, number + 100)
        await job.commit(backend)
    assert job.segments("primary")
    async with job.open() as backend:
        assert not is_whole(backend)
        job.write(backend, [], [f"k{number}" for number in range(20, 1000)])
        for _ in range(4):
            await job.commit(backend)
    assert layers((await commits_of(job.settings))[-1].ranges[0].changelog)
    bigger = settings_of(job.settings, state_memory_bytes=64 * WHOLE_SHARE * LIMIT)
    async with sb.open_backend(bigger) as backend:
        job.check(backend)
        assert is_whole(backend)
        await job.grow(backend, 0, 30)
        assert is_whole(backend)
    async with sb.open_backend(settings_of(job.settings, state_memory_bytes=0)) as backend:
        job.check(backend)


@run_virtual
async def test_a_limit_that_cannot_hold_where_pages_begin_is_refused(tmp_path: Path) -> None:
    """By a sentence that says how much it takes; and settings that no state fits into."""
    job = LimitedJob(tmp_path)
    async with job.open() as backend:
        for number in range(0, 9000, 1500):
            await job.grow(backend, number, number + 1500)
        await job.commit(backend)
    small = settings_of(job.settings, state_memory_bytes=4 * KiB)
    with pytest.raises(SettingsError, match="raise it") as raised:
        async with sb.open_backend(small):
            pass
    async with sb.open_backend(settings_of(small, state_memory_bytes=raised.value.facts["at_least"])) as backend:
        job.check(backend)
    for wrong in ({"state_memory_bytes": 1}, {"table": "runs"}, {"table": "rocksdb"}):
        with pytest.raises(SettingsError):
            settings_of(job.settings, **wrong)


@run_virtual
async def test_ranges_move_by_themselves(tmp_path: Path) -> None:
    """Each has the memory for itself; the next attempt goes on over runs, in this process or another."""
    job, model = LimitedJob(tmp_path), dict[str, tuple[int, str]]()
    settings = settings_of(job.settings, max_parallelism=12)
    async with open_run(settings, 2) as run, open_range_owners() as one, open_range_owners() as other:
        whole: list[bool] = []
        for number in range(14):
            owners = other if number % 5 == 4 else one
            await commit(run, owners, Batch(number, keys_of(100 * number + 150, 100 * number), [f"k{number}"]), model)
            async with owners.attempt(run.tasks()[0]) as attempt:
                memory = table_in(attempt.backend).memory
                whole.append(memory.is_whole)
                assert whole[-1] or attempt.found in ("process", "host")
                check_lookup(attempt.backend)
        assert whole == sorted(whole, reverse=True)
        assert set(whole) == {True, False}
        assert memory.used() <= LIMIT
    await check(settings_of(settings, state_memory_bytes=0), model)


@pytest.mark.parametrize("seed", range(4))
def test_lives_with_a_limit(tmp_path: Path, seed: int) -> None:
    """Any writes and drops, limits that change from run to run, no limit, other tables, restarts without copies."""
    live_with_a_limit(tmp_path, seed)


@run_virtual
async def live_with_a_limit(directory: Path, seed: int) -> None:
    """What is drawn with that seed."""
    rng = random.Random(seed)
    job = LimitedJob(directory, materialize_handles_max=rng.choice([0, 1, 3]))
    for _ in range(8):
        chosen: dict[str, Any] = rng.choice(
            [
                *({"state_memory_bytes": rng.choice([4 * KiB, 16 * KiB, LIMIT, MiB, 0])} for _ in range(4)),
                {"state_memory_bytes": 0, "table": "runs"},
            ]
        )
        async with job.open(**chosen) as backend:
            for _ in range(rng.randrange(1, 8)):
                keys = [f"k{rng.randrange(900)}" for _ in range(rng.choice([0, 20, 300]))]
                job.write(backend, keys, list({f"k{rng.randrange(900)}" for _ in range(rng.choice([0, 20, 400]))}))
                if rng.random() < 0.8:
                    await job.commit(backend)
                job.check(backend)
            await job.commit(backend)
            job.check(backend)
        if rng.random() < 0.2:
            shutil.rmtree(directory / "local")
