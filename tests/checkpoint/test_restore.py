"""Local first, file by file, verified; the primary where that fails; repaired afterwards."""

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._state.key_groups import key_group
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from statebackend.testing import FaultyStore, Hold
from tests.backend.conftest import local_segments

CHECKPOINTS = 6


@pytest.fixture
async def written(tmp_path: Path) -> sb.Settings:
    """A job with six checkpoints of ten keys each, one segment per checkpoint."""
    settings = sb.Settings(
        job="fleet",
        primary=f"file://{tmp_path}/primary",
        local=(f"{tmp_path}/local",),
        persist_delay_s=0.0,
        inline_bytes_max=0,
    )
    async with sb.open_backend(settings) as backend:
        numbers = backend.value_state("n", int)
        for checkpoint in range(CHECKPOINTS):
            for key in range(10):
                numbers[key + 5 * checkpoint] = checkpoint
            await backend.checkpoint(checkpoint)
    return settings


def expected() -> dict[sb.Key, int]:
    """What six checkpoints of `written` add up to."""
    return {key + 5 * checkpoint: checkpoint for checkpoint in range(CHECKPOINTS) for key in range(10)}


async def restore(settings: sb.Settings) -> sb.RestoreReport:
    """Open the job and check that its state is right, wherever it came from."""
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("n", int)) == expected()
        assert backend.restored is not None
        return backend.restored


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def replace_with_another(path: Path) -> None:
    other = next(each for each in path.parent.iterdir() if each != path)
    path.write_bytes(other.read_bytes())


async def test_an_intact_local_copy_spares_the_primary(written: sb.Settings) -> None:
    """Every file is local; not one segment is asked of the primary."""
    report = await restore(written)
    assert (report.files_local, report.files_primary, report.fallbacks) == (CHECKPOINTS, 0, ())
    assert report.changes == 10 * CHECKPOINTS


async def test_without_a_local_copy_everything_comes_from_the_primary_and_is_local_the_next_time(
    written: sb.Settings, tmp_path: Path
) -> None:
    """A lost disk costs one restore from the primary, and is filled again by it."""
    for path in local_segments(tmp_path / "local"):
        path.unlink()
    report = await restore(written)
    assert (report.files_local, report.files_primary) == (0, CHECKPOINTS)
    assert [fallback.repaired for fallback in report.fallbacks] == [True] * CHECKPOINTS
    assert {fallback.reason for fallback in report.fallbacks} == {"missing"}
    assert (await restore(written)).files_local == CHECKPOINTS


@pytest.mark.parametrize("damage", [flip, cut, lengthen, replace_with_another])
async def test_one_bad_local_file_comes_from_the_primary_and_is_repaired(
    written: sb.Settings, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """That one file is read from the primary, the others locally; afterwards the bad file equals the primary's.

    Row: section 30, local: one of three log files missing locally.
    """
    bad = local_segments(tmp_path / "local")[2]
    damage(bad)
    report = await restore(written)
    assert (report.files_local, report.files_primary) == (CHECKPOINTS - 1, 1)
    (fallback,) = report.fallbacks
    assert (fallback.name, fallback.repaired) == (f"segments/{bad.name}", True)
    assert bad.read_bytes() == (tmp_path / "primary/fleet/segments" / bad.name).read_bytes()
    assert (await restore(written)).fallbacks == ()


async def test_a_lost_primary_segment_does_not_matter_while_the_local_copy_is_good(
    written: sb.Settings, tmp_path: Path
) -> None:
    """The local copy is believed after verification against the commit, not against the primary's object."""
    for path in (tmp_path / "primary/fleet/segments").iterdir():
        path.unlink()
    assert (await restore(written)).files_primary == 0


async def test_leftovers_of_killed_attempts_are_pruned_locally(written: sb.Settings, tmp_path: Path) -> None:
    """A local file that no commit reaches is gone after the next open; what is needed stays."""
    needed = set(local_segments(tmp_path / "local"))
    orphan = tmp_path / "local/job_fleet/taskowned/segments/0123456789abcdef"
    orphan.write_bytes(b"half of a segment")
    await restore(written)
    assert set(local_segments(tmp_path / "local")) == needed


async def test_fetching_is_bounded_and_applying_is_ordered() -> None:
    """With three fetches at a time a held first file stops the rest after two more, and the last value still wins."""
    store = MemoryStore()
    settings = sb.Settings(
        job="fleet", primary="memory://unused", persist_delay_s=0.0, restore_concurrency_max=3, inline_bytes_max=0
    )
    async with sb.open_backend(settings, store=store) as backend:
        for checkpoint in range(8):
            backend.value_state("n", int)["k"] = checkpoint
            await backend.checkpoint(checkpoint)
        assert backend.newest is not None
    gates = [Hold(operation="get", key="fleet/segments/*", nth=nth) for nth in range(1, 9)]
    held = FaultyStore(store, gates)

    async with anyio.create_task_group() as tasks:
        results: list[int] = []

        async def open_it() -> None:
            async with sb.open_backend(settings, store=held) as backend:
                results.append(backend.value_state("n", int)["k"])

        tasks.start_soon(open_it)
        await gates[2].reached.wait()
        await anyio.wait_all_tasks_blocked()
        assert [gate.reached.is_set() for gate in gates] == [True] * 3 + [False] * 5
        for gate in reversed(gates):
            gate.release()
    assert results == [7]


async def test_of_a_shared_segment_an_owner_of_few_key_groups_fetches_its_own_part_only() -> None:
    """Two change sets in one segment, one of them small and wanted: a ranged read of its frame, not of the file."""
    store = MemoryStore()
    settings = sb.Settings(
        job="fleet", primary="memory://unused", compression="none", preemptive_persist_threshold_bytes=4000
    )
    async with sb.open_backend(settings, store=store) as backend:
        texts = backend.value_state("n", str)
        small = next(key for key in range(1000) if key_group(key, 128) == 7)
        large = [key for key in range(1000) if key_group(key, 128) > 8][:100]
        for key in large:
            texts[key] = "x" * 100
        texts[small] = "y" * 100
        await backend.checkpoint(1)
    metered = CountingStore(store)
    async with sb.open_backend(settings, store=metered, key_groups=sb.KeyGroupRange(7, 8)) as backend:
        assert dict(backend.value_state("n", str)) == {small: "y" * 100}
        assert backend.restored is not None
        assert backend.restored.bytes_primary < 8000
    assert metered.requests["get_range"] > 0


async def test_a_local_copy_that_hangs_is_slow_and_the_primary_is_read(written: sb.Settings, tmp_path: Path) -> None:
    """Every file comes from the primary, each fallback says why, and nothing waits for the hanging one."""
    (first, *others) = local_segments(tmp_path / "local")
    first.unlink()
    os.mkfifo(first)  # nobody writes to it: opening it hangs as a dead disk does
    try:
        report = await restore(msgspec.structs.replace(written, local_read_timeout_s=0.2, close_timeout_s=0.05))
    finally:
        os.close(os.open(first, os.O_RDWR))  # the thread that was left behind goes on
    reasons = {fallback.name: fallback.reason for fallback in report.fallbacks}
    assert reasons.get(f"segments/{first.name}") == "slow"
    assert set(reasons.values()) == {"slow"}
    assert report.files_primary == len(reasons)
    assert report.files_local + report.files_primary == len(others) + 1


async def test_after_a_restore_from_the_primary_the_next_local_one_is_whole(
    written: sb.Settings, tmp_path: Path
) -> None:
    """Row: section 30, local: remote restore without rescaling, one checkpoint, failure before materialisation.

    Hazard 9: a local copy of only what came after the restore is readable, and would be a wrong state.
    """
    for path in local_segments(tmp_path / "local"):
        path.unlink()
    async with sb.open_backend(written) as backend:
        backend.value_state("n", int)[0] = 77
        assert (await backend.checkpoint(CHECKPOINTS)).local
    async with sb.open_backend(written) as backend:
        assert dict(backend.value_state("n", int)) == expected() | {0: 77}
        assert backend.restored is not None
        assert backend.restored.files_primary == 0
