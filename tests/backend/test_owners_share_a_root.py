"""Owners of parts on one host share its local roots: each has copies, and none removes what another one needs."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import statebackend as sb
from statebackend.ids import KeyGroupRange
from statebackend.objectstore import MemoryStore
from tests.knobs import settings_with

PARTS = [KeyGroupRange(0, 3), KeyGroupRange(4, 7), KeyGroupRange(8, 11)]


def settings_of(tmp_path: Path, **changed: object) -> sb.Settings:
    return settings_with(
        **{
            "job": "fleet",
            "primary": f"file://{tmp_path}/primary",
            "local": (f"{tmp_path}/local",),
            "max_parallelism": 12,
            "secondary_grace_s": 60.0,
            **changed,
        }
    )


def copies(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "local/job_fleet/taskowned/segments").iterdir()}


async def work(settings: sb.Settings, numbers: range, tmp_path: Path) -> list[list[bool]]:
    """Three owners at once; for each checkpoint, whether each of them has it all on this host."""
    found: list[list[bool]] = []
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(sb.owners.open_coordinator(settings))
        owners = [await stack.enter_async_context(sb.open_backend(settings, key_groups=part)) for part in PARTS]
        for number in numbers:
            for owner in owners:
                state = owner.value_state("n", int)
                for key in (key for key in range(60) if sb.owners.key_group(key, 12) in owner.key_groups):
                    assert state.get(key, 0) == (number - 1 if number > 1 else 0)
                    state[key] = number
            snapshots = [await owner.snapshot(number) for owner in owners]
            found.append([snapshot.local for snapshot in snapshots])
            await coordinator.commit(number, snapshots)
            for owner in owners:
                await owner.notify_complete(number)
    return found


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
async def test_every_owner_has_local_copies_and_finds_them_again(table: str, tmp_path: Path) -> None:
    """Only the first one had any."""
    settings = settings_of(tmp_path, table=table)
    assert await work(settings, range(1, 4), tmp_path) == [[True] * 3] * 3
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(sb.owners.open_coordinator(settings))
        for part in PARTS:
            owner = await stack.enter_async_context(sb.open_backend(settings, key_groups=part))
            assert owner.restored is not None
            assert (owner.restored.files_primary, owner.restored.fallbacks) == (0, ())


async def test_an_owner_that_opens_leaves_what_others_are_about_to_commit(tmp_path: Path) -> None:
    """No commit points into it yet. What an older epoch left goes."""
    settings = settings_of(tmp_path)
    await work(settings, range(1, 3), tmp_path)
    left = tmp_path / "local/job_fleet/taskowned/segments" / ("00000001-00000099-" + "0" * 32)
    left.write_bytes(b"left")
    async with (
        sb.owners.open_coordinator(settings) as coordinator,
        sb.open_backend(settings, key_groups=PARTS[0]) as first,
    ):
        assert not left.exists()
        first.value_state("n", int)[0] = 3
        state = first.value_state("n", int)
        for key in (key for key in range(60) if sb.owners.key_group(key, 12) in first.key_groups):
            state[key] = 3
        snapshot = await first.snapshot(3)
        before = copies(tmp_path)
        async with (
            sb.open_backend(settings, key_groups=PARTS[1]) as second,
            sb.open_backend(settings, key_groups=PARTS[2]) as third,
        ):
            assert before <= copies(tmp_path)
            snapshots = [snapshot, await second.snapshot(3), await third.snapshot(3)]
            await coordinator.commit(3, snapshots)
            for owner in (first, second, third):
                await owner.notify_complete(3)
        assert before <= copies(tmp_path)


async def test_owners_share_stores_that_stand_for_the_roots(tmp_path: Path) -> None:
    """Each took them for its own: an owner that opened removed what another one was about to commit."""
    settings, store = settings_of(tmp_path, local=()), MemoryStore()
    await work(settings, range(1, 3), tmp_path)
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(sb.owners.open_coordinator(settings))
        snapshots: list[sb.owners.SnapshotResult] = []
        for part in PARTS:
            opening = sb.open_backend(settings, key_groups=part, local_stores=[store])
            owner = await stack.enter_async_context(opening)
            owner.value_state("n", int).update(dict.fromkeys(owner.value_state("n", int), 3))
            snapshots.append(await owner.snapshot(3))
        assert [snapshot.local for snapshot in snapshots] == [True] * 3
        committed = (await coordinator.commit(3, snapshots)).commit
    uploaded = {name for name in committed.segments() if name.startswith("segments/00000002-")}
    assert len(uploaded) == 3
    assert uploaded <= {info.key async for info in store.list("")}


async def test_a_backend_of_the_whole_job_only_reads_beside_owners(tmp_path: Path) -> None:
    """And owners only read beside it: the lock is shared among owners alone."""
    settings = settings_of(tmp_path, inline_bytes_max=0)
    async with sb.open_backend(settings) as whole:
        whole.value_state("n", int)[1] = 1
        assert (await whole.checkpoint(1)).local
        async with sb.open_backend(settings, key_groups=PARTS[0]) as owner:
            assert not (await owner.snapshot(2)).local
    async with sb.open_backend(settings, key_groups=PARTS[0]), sb.open_backend(settings) as whole:
        whole.value_state("n", int)[1] = 2
        assert not (await whole.checkpoint(2)).local
