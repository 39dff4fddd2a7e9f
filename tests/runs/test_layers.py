"""Jobs whose changes go into layers over their bases: what commits list, and everybody who reads them."""

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.layers import layers
from statebackend._checkpoint.materialization.tiers import PAGES, REST, mark_of
from statebackend._codec.change_sets.paged_changes import is_paged
from statebackend._codec.commit import Commit, decode_entry
from statebackend._codec.segment import decode_segment
from statebackend._tables.key_groups import key_group
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.checkpoint.bases import Watcher
from tests.runs.test_jobs_over_runs import HALVES, Job, columns, rows_of, settings_of, table_of


class LayeredJob(Job):
    """A job whose bases are written once: a layer is due with each commit."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        super().__init__(directory, **{"materialize_changelog_ratio": 1000.0, "materialize_fan_in": 2, **changes})

    async def with_layers(self, count: int, keys: int = 3000) -> None:
        """A base, and so many layers over it: each is smaller than the one before, so none takes in another."""
        await self.with_a_base(keys)
        async with self.open() as backend:
            for number in range(count):
                some = [f"k{key}" for key in range(number, keys, [2, 12, 100][number])]
                self.write(backend, [*some, f"new {number}"], [f"k{number}"])
                await self.commit(backend)
            await self.commit(backend)

    async def newest(self) -> Any:
        """The state in the newest commit."""
        return (await commits_of(self.settings))[-1].ranges[0]


async def commits_of(settings: sb.Settings) -> list[Any]:
    """All commits, oldest first."""
    root = Path(settings.primary.removeprefix("file://")) / settings.job / "commits"
    found = [
        decode_entry(path.read_bytes(), f"commits/{path.name}", job=settings.job) for path in sorted(root.glob("[!.]*"))
    ]
    return [each for each in found if isinstance(each, Commit)]


@pytest.fixture
def job(tmp_path: Path) -> LayeredJob:
    return LayeredJob(tmp_path)


@run_virtual
async def test_what_changes_goes_into_a_layer(job: LayeredJob) -> None:
    """The base stays as it is; a layer has rows in pages, and the rest of its change sets beside them."""
    await job.with_layers(1)
    part = await job.newest()
    (place,) = layers(part.changelog)
    assert {mark_of(handle) for handle in part.changelog[slice(*place)]} == {PAGES, REST}
    for handle in part.changelog[slice(*place)]:
        path = job.directory / "primary" / "job" / handle.segment.key
        found = [each for _, changes in decode_segment(path.read_bytes(), path.name) for each in changes]
        assert {is_paged(each) for each in found} == {mark_of(handle) == PAGES}
    async with job.open() as backend:
        assert [each.count for each in table_of(backend)._runs.maps] == [3000, 1500]


@run_virtual
async def test_a_layer_is_told_of_with_the_key_groups_that_it_may_have_changes_of(
    job: LayeredJob, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that were changed since their base: of one key, and of the number that the job counts."""
    caplog.set_level("INFO", logger="statebackend")
    watcher = Watcher()
    every, few = job.settings.max_parallelism, {key_group(key, 12) for key in ("k0", "checkpoint")}
    async with sb.open_backend(job.settings, clock=VirtualClock(), observer=watcher) as backend:
        job.write(backend, [f"k{number}" for number in range(500)])
        await job.commit(backend)
        for _ in range(2):
            job.write(backend, ["k0"])
            await job.commit(backend)
    assert watcher.begun == [every, len(few), len(few)]
    assert [key_groups for key_groups, _ in watcher.written] == watcher.begun
    told = [record.message.partition(" segments")[0] for record in caplog.records if " written: " in record.message]
    assert told == [f"bases written: key_groups={every}", *[f"a layer written: key_groups={len(few)}"] * 2]


@run_virtual
async def test_a_job_that_opens_for_each_batch_has_layers_of_its_own(job: LayeredJob) -> None:
    """Each numbers its change sets alike: layers of several must not be taken for one, nor rows come back."""
    await job.with_a_base(3300)
    for number, end in enumerate((3000, 250, 9)):
        async with job.open() as backend:
            job.write(backend, [f"k{key}" for key in range(end)], [f"k{end + 20}"])
            await job.commit(backend)
            await job.commit(backend)
        assert len(layers((await job.newest()).changelog)) == number + 1
    async with job.open() as backend:
        job.check(backend)


@run_virtual
async def test_a_base_takes_in_layers_whose_rows_lie_far_apart(tmp_path: Path) -> None:
    """A layer names the span of its key groups, a base those that have changed: there may be some between."""
    job = LayeredJob(tmp_path, max_parallelism=500, materialize_changelog_ratio=3.0)
    await job.with_a_base(3)
    counts = list[int]()
    async with job.open() as backend:
        for number in range(12):
            job.write(backend, ["k0", "k1", "k2", f"new {number}"])
            await job.commit(backend)
            counts.append(len(layers((await job.newest()).changelog)))
    assert 0 in counts[counts.index(1) :]
    async with job.open():
        pass


@run_virtual
async def test_a_base_that_leaves_rows_of_a_layer_out_is_not_written(job: LayeredJob) -> None:
    """They would be lost with it. Rows are counted: of the span that a layer names, some key groups have none."""
    await job.with_layers(2)
    async with job.open() as backend:
        table, groups = table_of(backend), frozenset(range(12))
        expected = Counter[int]()
        for layer in table._runs.maps[1:]:
            for rows, _ in layer.stream(layer.all_groups):
                expected.update(rows.groups.tolist())
        assert expected.keys() == groups
        for some in (frozenset[int](), groups, *(groups - {group} for group in groups)):
            left = sum(count for group, count in expected.items() if group not in some)
            assert table.runs.num_rows_outside(some) == left
        writer = backend._base_writer
        await writer.settled()
        uploaded = [*writer._uploaded]
        with pytest.raises(AssertionError, match="would be lost"):
            await writer._write_entries(writer._states.snapshot(), groups - {3}, 1)
        assert writer._uploaded == uploaded
    async with job.open():
        pass


@run_virtual
async def test_nothing_of_a_layer_is_in_memory_after_a_restart(job: LayeredJob) -> None:
    """With local copies and without."""
    await job.with_layers(3)
    for primary_only in (False, True):
        if primary_only:
            shutil.rmtree(job.directory / "local")
        async with sb.open_backend(job.settings, read_only=True) as backend:
            assert backend.restored is not None
            assert (backend.restored.files_primary > 0) == primary_only
            table = table_of(backend)
            assert len(table._rows) == 0
            assert len(table._runs.maps) == 4
            job.check(backend)


@pytest.mark.parametrize("seed", range(4))
@run_virtual
async def test_lives_with_layers(tmp_path: Path, seed: int) -> None:
    """Any writes and drops, layers and bases behind any commit, rows that leave the memory, restarts, other tables."""
    rng = random.Random(seed)
    job = LayeredJob(
        tmp_path, materialize_handles_max=rng.choice([1, 3]), materialize_changelog_ratio=rng.choice([0.5, 3.0, 9.0])
    )
    for life in range(7):
        async with job.open(table="heap" if life == 4 else "runs") as backend:
            if life in (2, 5):
                table_of(backend).memory.bytes_max = 1
            for _ in range(rng.randrange(3, 12)):
                keys = [f"k{rng.randrange(900)}" for _ in range(rng.choice([1, 10, 300]))]
                job.write(backend, keys, list({f"k{rng.randrange(900)}" for _ in range(rng.choice([0, 1, 40]))}))
                if rng.random() < 0.8:
                    await job.commit(backend)
            await job.commit(backend)
            job.check(backend)
        if life == 1:
            shutil.rmtree(tmp_path / "local")
        assert rows_of(sb.read_state(job.settings, "rows").read_all()) == job.model


def test_everybody_reads_layers(job: LayeredJob) -> None:
    """From outside: the state, some keys of it, what changed, what verifies, a mirror of the feed."""
    run_virtual(job.with_layers)(3)

    async def compare() -> None:
        assert (await sb.verify(job.settings)).damages == ()
        found = {each.key async for each in sb.diff(job.settings, 3, job.checkpoint_id) if each.state == "rows"}
        assert {"new 1", "new 2"} <= found
        assert "new 0" not in found

    assert rows_of(sb.read_state(job.settings, "rows").read_all()) == job.model
    some = rows_of(sb.read_state(job.settings, "rows", keys=["k1", "k2", "k7", "new 1"]).read_all())
    assert some == {key: job.model[key] for key in ("k7", "new 1")}
    run_virtual(compare)()


@run_virtual
async def test_halves_of_a_job_take_their_part_of_layers(job: LayeredJob) -> None:
    """Of pages that have rows of both, and of drops."""
    await job.with_layers(3)
    found: dict[str, Any] = {}
    for half in HALVES:
        async with sb.open_backend(job.settings, key_groups=half) as owner:
            rows = rows_of(columns(owner).to_arrow())
            assert len(columns(owner)) == len(rows)
            assert not found.keys() & rows.keys()
            found |= rows
    assert found == job.model


@run_virtual
async def test_keys_are_erased_from_layers(job: LayeredJob) -> None:
    """What is left of a layer is applied like any change set."""
    await job.with_layers(3)
    await sb.erase(job.settings, ["k6", "new 1"])
    for key in ("k6", "new 1"):
        del job.model[key]
    job.checkpoint_id += 1
    async with job.open() as backend:
        job.write(backend, ["k8"])
        await job.commit(backend)
        await job.commit(backend)
    async with job.open():
        pass


@run_virtual
async def test_a_rewrite_and_a_clone_of_layers(job: LayeredJob) -> None:
    """To other key groups, in whose order the rows do not lie; and elsewhere."""
    await job.with_layers(2)
    await job.rewritten(max_parallelism=40)
    copy = settings_of(job.settings, job="copy", local=(f"{job.directory}/other",))
    await sb.clone(copy, from_=job.settings)
    job.settings = copy
    async with job.open():
        pass


@run_virtual
async def test_a_damaged_layer_is_taken_from_the_primary(job: LayeredJob) -> None:
    """A bad head at the opening, a bad page in the middle of a batch."""
    await job.with_layers(1)
    part = await job.newest()
    for handle in part.changelog:
        (path,) = (job.directory / "local").rglob(handle.segment.key)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    async with job.open():
        pass
