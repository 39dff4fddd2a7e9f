"""The files of RocksDB bases: which are shared, whose the others are, and the directories of their local copies."""

from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._codec.commit import Commit, decode_entry
from statebackend._tables.key_groups import key_group
from statebackend.errors import OutcomeUnknownError
from statebackend.testing import Fail, Hold
from statebackend.testing.virtual_time import VirtualClock
from tests.ownership.disk import JOB, Disk, Watch, settle
from tests.ownership.table import Fate, row
from tests.ownership.test_sweep import age, sweep

pytest.importorskip("rocksdict", reason="the extra rocksdb")

SEGMENTS = "*/segments/*"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Every change travels in its commit, so that segments are files of bases and nothing else."""
    native: dict[str, Any] = {"table": "rocksdb", "table_memory_bytes": 4 << 20, "table_dir": f"{tmp_path}/tables"}
    at_once = {"materialize_handles_max": 1, "materialize_interval_s": 0, "upload__timeout_s": 0}
    return Disk(tmp_path, inline_bytes_max=1 << 20, upload__attempts_max=1, **native, **at_once)


async def commit(backend: sb.StateBackend, checkpoint_id: int, value: int = 0) -> None:
    """A change, committed, and the base that follows from it."""
    backend.value_state("n", int)[checkpoint_id] = value
    await backend.checkpoint(checkpoint_id)
    await settle()


def newest(disk: Disk) -> Commit:
    entry = decode_entry(max(disk.commits).read_bytes(), "newest", job=JOB)
    assert isinstance(entry, Commit)
    return entry


def objects_of(disk: Disk) -> dict[str, Path]:
    """The files of the base in the newest commit, by their names: their objects in the primary."""
    ((base,),) = (part.rocksdb for part in newest(disk).ranges)
    return {file.name: disk.directory / "primary" / JOB / file.handle.key for file in base.files}


def copies_of(disk: Disk, checkpoint_id: int) -> set[Path]:
    """What lies in the local directory of a base."""
    found = set(disk.directory.glob(f"local*/job_{JOB}/op_state_*/chk_{checkpoint_id}/*"))
    assert found
    return found


@row("rocksdb-failed")
async def test_files_go_when_another_one_of_their_base_cannot_be_uploaded(disk: Disk) -> Fate:
    """The first two are stored when the third fails."""
    hold = Hold(operation="put", key=SEGMENTS, nth=3)
    disk.primary.plan += [hold, Fail(operation="put", key=SEGMENTS, nth=3)]
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.segments)
        assert len(disk.segments) == 2
        hold.release()
        await settle()
        return watch.fate()


@row("rocksdb-left")
async def test_files_go_when_the_backend_is_left_before_the_others_are_uploaded(disk: Disk) -> Fate:
    """The first two are stored, the third is on its way."""
    disk.primary.plan.append(Hold(operation="put", key=SEGMENTS, nth=3))
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.segments)
    return watch.fate()


@row("rocksdb-unclaimed")
async def test_files_go_when_the_backend_is_left_before_a_commit_takes_them(disk: Disk) -> Fate:
    """In the primary, and the directory with their copies."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.segments | copies_of(disk, 1))
    return watch.fate()


@row("rocksdb-shared-left")
async def test_what_the_newest_commit_has_stays_when_a_base_that_shares_it_is_left(disk: Disk) -> Fate:
    """The base is unclaimed, as above; only what is new in it goes."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await commit(backend, 2)
        watch = Watch({*objects_of(disk).values(), *copies_of(disk, 1)})
        assert len(disk.segments) > len(objects_of(disk))
    assert disk.segments == set(objects_of(disk).values())
    return watch.fate()


@row("rocksdb-unknown")
async def test_files_stay_when_the_commit_of_their_base_gets_no_answer(disk: Disk) -> Fate:
    """The commit was made, as the next open finds out, and all that it needs is on this host."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.segments | copies_of(disk, 1))
        disk.primary.plan += [Fail(operation="put_if_absent", moment="after"), Fail(operation="get")]
        with pytest.raises(OutcomeUnknownError):
            await backend.checkpoint(2)
    disk.primary.plan.clear()
    report = await disk.reopen()
    assert report is not None
    assert (report.checkpoint_id, report.files_primary) == (2, 0)
    return watch.fate()


@row("rocksdb-shared-swept")
async def test_a_file_that_a_newer_base_shares_is_not_swept(disk: Disk) -> Fate:
    """The commit that uploaded it is gone; a retained one points to it."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await commit(backend, 2)
        first = set(objects_of(disk).values())
        age(disk)
        backend.value_state("other", str)["other"] = "key"
        await backend.checkpoint(3)
        await settle()
        await backend.checkpoint(4)
        await settle()
        watch = Watch(first & set(objects_of(disk).values()))
        age(disk)
    report = await sweep(disk)
    assert report.deleted
    await disk.reopen()
    return watch.fate()


@row("rocksdb-superseded")
async def test_a_file_that_only_bases_of_old_commits_have_is_swept(disk: Disk) -> Fate:
    """RocksDB has merged it with others, or changed it, since."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await commit(backend, 2)
        first = set(objects_of(disk).values())
        age(disk)
        await commit(backend, 3)
        await commit(backend, 4)
        watch = Watch(first - set(objects_of(disk).values()))
        age(disk)
    await sweep(disk)
    return watch.fate()


@row("rocksdb-copy-replaced")
async def test_the_directory_of_a_base_goes_when_another_one_is_committed(disk: Disk) -> Fate:
    """Behind that commit; until then it is what a restart reads."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await commit(backend, 2)
        watch = Watch(copies_of(disk, 1))
        assert copies_of(disk, 2)
        await commit(backend, 3)
        return watch.fate()


@row("rocksdb-copy-incomplete")
async def test_a_directory_that_was_never_complete_is_pruned_at_the_next_open(disk: Disk) -> Fate:
    """Its process was killed while it took in the files."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await backend.checkpoint(2)
    (copy,) = {path.parent for path in copies_of(disk, 1)}
    torn = copy.with_name("chk_7")
    torn.mkdir()
    (torn / "000008.sst").write_bytes(b"as far as it came")
    watch = Watch([torn / "000008.sst"])
    await disk.reopen()
    return watch.fate()


@row("rocksdb-copy-uncommitted")
async def test_the_directory_of_a_base_that_no_commit_took_is_pruned_at_the_next_open(disk: Disk) -> Fate:
    """Its process was killed before the next commit: it is complete, and of no use."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await commit(backend, 2)
        (copy,) = {path.parent for path in copies_of(disk, 2)}
        content = {path.name: path.read_bytes() for path in copy.iterdir()}
    copy.mkdir(exist_ok=True)
    for name, data in content.items():
        (copy / name).write_bytes(data)
    watch = Watch(copies_of(disk, 2))
    await disk.reopen()
    return watch.fate()


HALVES = (sb.owners.KeyGroupRange(0, 63), sb.owners.KeyGroupRange(64, 127))


@row("rocksdb-copy-former")
async def test_the_directory_of_a_former_owner_is_pruned_when_no_commit_has_its_base(disk: Disk) -> Fate:
    """Its key groups have other owners now, who have written their own."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await commit(backend, 2)
    watch = Watch(copies_of(disk, 1))
    async with (
        sb.owners.open_coordinator(disk.settings(), store=disk.primary, clock=VirtualClock()) as coordinator,
        disk.backend(key_groups=HALVES[0]) as first,
        disk.backend(key_groups=HALVES[1]) as second,
    ):
        for each in (first, second):
            each.value_state("n", int).update({key: 1 for key in range(99) if key_group(key, 128) in each.key_groups})
        for checkpoint_id in (3, 4):
            assert watch.fate() == "stays"
            await coordinator.commit(checkpoint_id, [await each.snapshot(checkpoint_id) for each in (first, second)])
            for each in (first, second):
                await each.notify_complete(checkpoint_id)
            await settle()
    assert [base.owner for part in newest(disk).ranges for base in part.rocksdb] == [*HALVES]
    await disk.reopen()
    return watch.fate()


@row("rocksdb-copy-swept")
async def test_the_directory_of_a_base_of_which_nothing_is_kept_is_swept(disk: Disk) -> Fate:
    """On this host, while nobody has the lock of its root."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        await commit(backend, 2)
    (copy,) = {path.parent for path in copies_of(disk, 1)}
    left = copy.with_name("chk_7")
    copy.rename(left)
    (left / "snapshot").write_bytes(b"torn")
    watch = Watch(copies_of(disk, 7))
    await sweep(disk)
    return watch.fate()
