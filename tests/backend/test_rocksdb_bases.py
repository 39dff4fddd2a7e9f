"""RocksDB bases: RocksDB's own files behind the checkpoints, what is new among them, and the way back from them."""

import shutil
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

import statebackend as sb
from statebackend._codec.commit import encode_entry
from statebackend._log.names import entry_key
from statebackend._tables.files_copy import FilesCopy
from statebackend.errors import CorruptSegmentError, SettingsError
from statebackend.ids import RocksDBFile
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, run_virtual
from tests.backend.rocksdb_job import MAX_PARALLELISM, RocksDBJob, commit, contents, numbered

rocksdb = pytest.importorskip("statebackend._tables.rocksdb", reason="the extra rocksdb", exc_type=ImportError)

ALL = sb.owners.KeyGroupRange(0, MAX_PARALLELISM - 1)


@pytest.fixture
def job(tmp_path: Path) -> RocksDBJob:
    return RocksDBJob(tmp_path)


async def with_a_base(job: RocksDBJob) -> dict[str, int]:
    """A job whose newest commit has a RocksDB base and nothing else; and what is in it."""
    state = numbered(range(100), 1)
    async with job.open() as backend:
        await commit(backend, state)
        await commit(backend)
    return state


async def restored(job: RocksDBJob, **options: object) -> tuple[dict[sb.Key, int], sb.RestoreReport]:
    """What is there when the job is opened again, and how it came."""
    async with job.open(**options) as backend:  # type: ignore[arg-type]
        assert backend.restored is not None
        return contents(backend), backend.restored


# ------------------------------------------------------------------------------------------------------ written, shared


@run_virtual
async def test_a_base_is_the_files_of_rocksdb(job: RocksDBJob) -> None:
    """The commit after the one at which they were copied has them, in the place of all changes up to there."""
    async with job.open() as backend:
        await commit(backend, numbered(range(100), 1))
        first = job.commits()[-1].ranges[0]
        assert (len(first.changelog), first.rocksdb) == (1, ())
        await commit(backend)
        second = job.commits()[-1].ranges[0]
        assert (second.changelog, second.bases) == ((), ())
        base = job.newest_base()
        assert (base.owner, base.checkpoint_id, base.key_groups) == (ALL, job.commits()[-2].checkpoint_id, (ALL,))
        assert {file.name.rstrip("0123456789").strip("0123456789") for file in base.files} >= {
            "CURRENT",
            "MANIFEST-",
            ".sst",
        }
        assert {file.handle.key for file in base.files} <= job.objects
        assert len(job.scratch) == 1
        assert not list(job.scratch[0].glob("base-*"))
    assert not job.watcher.failed


@run_virtual
async def test_only_files_that_are_new_are_uploaded(job: RocksDBJob) -> None:
    """What never changes is pointed to again, under the handle by which it was uploaded."""
    async with job.open() as backend:
        await commit(backend, numbered(range(100), 1))
        await commit(backend, numbered(range(1), 2))
        first = job.newest_base()
        await commit(backend)
        second = job.newest_base()
    assert second.checkpoint_id > first.checkpoint_id
    before = {file.name: file.handle for file in first.files}
    for file in second.files:
        assert (file.handle == before.get(file.name)) == (file.never_changes and file.name in before)
    new = [file for file in second.files if file.handle not in before.values()]
    assert job.watcher.written[1] == (MAX_PARALLELISM, len(new))


def big(number: int, size: int = 100_000) -> str:
    return f"{number:06d}" * (size // 6)


@run_virtual
async def test_a_process_shares_the_files_that_it_was_restored_from(job: RocksDBJob) -> None:
    """Its first base names what the last one of the process before has uploaded."""
    await with_a_base(job)
    before = {file.handle for file in job.newest_base().files if file.never_changes}
    async with job.open() as backend:
        backend.value_state("other", str)["key"] = "other"
        await commit(backend)
        await commit(backend)
        uploaded = job.watcher.written[-1][1]
    base = job.newest_base()
    kept = {file.handle for file in base.files} & before
    assert kept
    assert len(base.files) == uploaded + len(kept)


@run_virtual
async def test_a_name_alone_is_nothing_to_share_by(job: RocksDBJob) -> None:
    """Two lives that begin with the same files give the same names to different content (FLINK-29913)."""
    state = await with_a_base(job)
    fork = job.commits()[-1].checkpoint_id
    lives: list[int] = []
    for life in (10, 20):
        async with job.open(checkpoint_id=fork) as backend:
            await commit(backend, numbered(range(50), life))
            await commit(backend)
            lives.append(job.commits()[-1].checkpoint_id)
    first, second = (
        next(each for each in job.commits() if each.checkpoint_id == life).ranges[0].rocksdb[0] for life in lives
    )
    assert {file.name for file in first.files} & {file.name for file in second.files}
    for life, value in zip(lives, (10, 20), strict=True):
        found, _ = await restored(job, checkpoint_id=life, read_only=True)
        assert found == state | numbered(range(50), value)


@run_virtual
async def test_a_shared_file_that_is_gone_is_uploaded_again(job: RocksDBJob) -> None:
    """Somebody has deleted it. The next base is whole again; the commits before are not."""
    state = await with_a_base(job)
    (shared,) = {file.handle.key for file in job.newest_base().files if file.never_changes}
    async with job.open() as backend:
        (job.directory / "primary" / "fleet" / shared).unlink()
        backend.value_state("other", str)["key"] = "other"
        await commit(backend)
        await commit(backend)
    assert shared not in {file.handle.key for file in job.newest_base().files}
    shutil.rmtree(job.directory / "local0")
    assert (await restored(job))[0] == state


async def test_a_checkpoint_waits_for_no_copy_of_the_files(job: RocksDBJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a write, or a checkpoint after it. What is written meanwhile is not in the base, and is not lost."""
    let_go, run = threading.Event(), FilesCopy.run

    def held_back(copy: FilesCopy) -> None:
        let_go.wait()
        run(copy)

    async with job.open() as backend:
        with monkeypatch.context() as patched:
            patched.setattr(FilesCopy, "run", held_back)
            backend.value_state("n", int)["key"] = 1
            await backend.checkpoint(0)
            try:
                backend.value_state("n", int).put_many(range(2200), range(2200))
                await backend.checkpoint(1)
                assert [len(part.rocksdb) for commit in job.commits() for part in commit.ranges] == [0, 0]
            finally:
                let_go.set()
        await backend._base_writer.settled()
        backend.value_state("n", int)["key"] = 2
        await backend.checkpoint(2)
    (part,) = job.commits()[-1].ranges
    assert [base.checkpoint_id for base in part.rocksdb] == [0]
    async with job.open() as backend:
        assert backend.restored is not None
        assert backend.restored.changes == 2201, "all that was written since"
        assert dict(backend.value_state("n", int)) == {"key": 2} | {number: number for number in range(2200)}


# ---------------------------------------------------------------------------------------------------- this host's copy


@run_virtual
async def test_the_local_copy_is_a_directory_of_links(job: RocksDBJob) -> None:
    """What never changes lies on the disk once, while RocksDB has it too."""
    async with job.open() as backend:
        await commit(backend, numbered(range(100), 1))
        info = await commit(backend)
        assert info.local
        (copy,) = job.copies
        assert {path.name for path in copy.iterdir()} == {file.name for file in job.newest_base().files} | {"snapshot"}
        assert {path.stat().st_nlink for path in copy.glob("*.sst")} == {2}
        assert {path.stat().st_nlink for path in copy.iterdir() if path.suffix != ".sst"} == {1}


@run_virtual
async def test_a_restart_reads_nothing_from_the_primary(job: RocksDBJob) -> None:
    """The files are linked, RocksDB opens them, and not an entry is applied."""
    state = await with_a_base(job)
    found, report = await restored(job)
    assert found == state
    base = job.newest_base()
    assert (report.files_local, report.files_primary, report.changes) == (len(base.files), 0, 0)
    assert report.bytes_local == base.size_bytes
    assert report.fallbacks == ()


@run_virtual
async def test_what_was_committed_since_is_applied_to_the_files(job: RocksDBJob) -> None:
    """And what is removed since is not there, though the files have it."""
    state = await with_a_base(job)
    async with job.open(changes={"materialize_handles_max": 0, "materialize_changelog_ratio": 0}) as backend:
        del backend.value_state("n", int)["key 5"]
        await commit(backend, numbered(range(90, 110), 2))
    del state["key 5"]
    found, report = await restored(job)
    assert found == state | numbered(range(90, 110), 2)
    assert report.changes == 21


@run_virtual
async def test_the_newest_base_is_the_only_one_that_stays_on_the_host(job: RocksDBJob) -> None:
    """With the commit that has it: until then the last one is needed. They take the roots in turn."""
    job = RocksDBJob(job.directory, roots=3)
    async with job.open() as backend:
        await commit(backend, numbered(range(10), 1))
        for number in range(4):
            await commit(backend, numbered(range(10), number))
            # One is in the newest commit, and one will be in the next.
            committed, written = sorted(job.copies, key=lambda path: path.name)
            assert committed.name == f"chk_{job.newest_base().checkpoint_id}"
            assert committed.parents[2] != written.parents[2]
        await commit(backend)
        assert [path.name for path in job.copies] == [f"chk_{job.newest_base().checkpoint_id}"]
    found, report = await restored(job)
    assert found == numbered(range(10), 3)
    assert report.files_primary == 0


@run_virtual
async def test_a_lost_copy_comes_from_the_primary_and_is_repaired(job: RocksDBJob) -> None:
    """As a whole: the next restart reads it again."""
    state = await with_a_base(job)
    shutil.rmtree(job.copies[0])
    found, report = await restored(job)
    files = len(job.newest_base().files)
    assert found == state
    assert (report.files_local, report.files_primary) == (0, files)
    assert {(each.reason, each.repaired) for each in report.fallbacks} == {("missing", True)}
    found, report = await restored(job)
    assert found == state
    assert (report.files_local, report.files_primary) == (files, 0)


@run_virtual
async def test_a_damaged_file_comes_from_the_primary_and_the_others_do_not(job: RocksDBJob) -> None:
    """A bit in each file, and each is there for the next restart."""
    state = await with_a_base(job)
    files = job.newest_base().files
    for file in files:
        path = job.copies[0] / file.name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()  # perhaps a link
        path.write_bytes(content)
        found, report = await restored(job)
        assert found == state
        assert (report.files_local, report.files_primary) == (len(files) - 1, 1)
        assert [(each.name, each.repaired) for each in report.fallbacks] == [(file.handle.key, True)]
    assert (await restored(job))[1].files_primary == 0


@run_virtual
async def test_a_copy_that_lacks_a_file_is_not_taken_as_whole(job: RocksDBJob) -> None:
    """Each file alone; RocksDB would open without some of them, and have less in it."""
    state = await with_a_base(job)
    files = job.newest_base().files
    for file in files:
        (job.copies[0] / file.name).unlink()
        found, report = await restored(job)
        assert found == state
        assert [(each.name, each.reason) for each in report.fallbacks] == [(file.handle.key, "missing")]


@run_virtual
async def test_a_copy_that_was_never_complete_is_removed(job: RocksDBJob) -> None:
    """What its files are worth is seen file by file; then it is made anew."""
    state = await with_a_base(job)
    (job.copies[0] / "snapshot").unlink()
    stray = job.copies[0].with_name("chk_99")
    stray.mkdir()
    assert (await restored(job))[0] == state
    assert not stray.exists()
    assert (await restored(job))[0] == state


@run_virtual
async def test_without_a_local_root_all_comes_from_the_primary(tmp_path: Path) -> None:
    job = RocksDBJob(tmp_path, roots=0)
    state = await with_a_base(job)
    found, report = await restored(job)
    assert found == state
    assert (report.files_local, report.files_primary) == (0, len(job.newest_base().files))
    assert report.fallbacks == ()


@run_virtual
async def test_local_copies_without_a_place_for_a_base_are_not_called_complete(tmp_path: Path) -> None:
    """In stores of the user's own there are segments only: said by the restore, and by each checkpoint after it."""
    job = RocksDBJob(tmp_path, roots=0)
    local = MemoryStore()
    state = await with_a_base(job)
    async with job.open(local_stores=[local]) as backend:
        assert contents(backend) == state
        assert backend.restored is not None
        named = {file.handle.key for file in job.newest_base().files}
        assert {each.name for each in backend.restored.fallbacks if not each.repaired} >= named
        assert not (await backend.checkpoint(backend.next_checkpoint_id)).local


@run_virtual
async def test_a_base_goes_without_a_copy_where_the_disk_does_not_take_it(job: RocksDBJob) -> None:
    """The checkpoint knows that it is not local, and does not fail."""
    async with job.open() as backend:
        (job.directory / "local0" / "job_fleet" / f"op_state_kg_0_{MAX_PARALLELISM - 1}").write_bytes(b"in the way")
        await commit(backend, numbered(range(100), 1))
        info = await commit(backend)
        assert not info.local
    assert job.newest_base()
    assert job.watcher.dropped
    assert not job.watcher.failed
    found, report = await restored(job)
    assert found == numbered(range(100), 1)
    assert report.files_primary == len(job.newest_base().files)


@run_virtual
async def test_a_copy_that_exceeds_the_budget_is_not_made(tmp_path: Path) -> None:
    """The bytes of all local copies in a root count."""
    job = RocksDBJob(tmp_path, local_bytes_max=5_000)
    await with_a_base(job)
    assert job.newest_base().size_bytes > 5_000
    assert job.copies == []
    assert any("full" in reason for reason in job.watcher.dropped)


# ------------------------------------------------------------------------------------------- other owners, other tables

TWO = (sb.owners.KeyGroupRange(0, 4), sb.owners.KeyGroupRange(5, 11))
THREE = (sb.owners.KeyGroupRange(0, 2), sb.owners.KeyGroupRange(3, 7), sb.owners.KeyGroupRange(8, 11))


@pytest.mark.parametrize("table", ["rocksdb", "heap"])
@run_virtual
async def test_it_is_restored_by_whatever_owners_there_are(job: RocksDBJob, table: str) -> None:
    """1 -> 2 -> 3 -> 1, a commit by each: nobody's base is written anew, and each takes what is his."""
    state = await with_a_base(job)
    for number, parts in enumerate((TWO, THREE)):
        async with job.open_parts(*parts, changes={"table": table, "materialize_handles_max": 0}) as owners:
            assert owners.contents == state
            changed = numbered(range(number, 120, 7), 10 + number)
            await owners.checkpoint(changed)
            state |= changed
    found, report = await restored(job, changes={"table": table})
    assert found == state
    files = {file.handle.key for file in job.newest_of_all().files}
    assert files.isdisjoint(each.name for each in report.fallbacks)
    async with job.open(changes={"table": table}) as backend:
        await commit(backend, {"one": 1})
        await commit(backend)
    assert (await restored(job))[0] == state | {"one": 1}


@run_virtual
async def test_parts_of_a_base_that_come_together_are_whole_again(job: RocksDBJob) -> None:
    """Its files are read once, and taken over."""
    state = await with_a_base(job)
    async with job.open_parts(*TWO) as owners:
        await owners.checkpoint({})
    assert len(job.commits()[-1].ranges) == 2
    found, report = await restored(job)
    assert found == state
    assert (report.files_local, report.changes) == (len(job.newest_of_all().files), 0)


@run_virtual
async def test_the_table_may_change_between_two_runs(job: RocksDBJob) -> None:
    """From RocksDB to the heap and back. The heap's first bases take the place of the RocksDB one."""
    state = await with_a_base(job)
    async with job.open(changes={"table": "heap"}) as backend:
        assert contents(backend) == state
        await commit(backend, {"on the heap": 1})
        assert job.commits()[-1].ranges[0].rocksdb
        await commit(backend)
    part = job.commits()[-1].ranges[0]
    assert (part.rocksdb, part.changelog) == ((), ())
    async with job.open() as backend:
        assert contents(backend) == state | {"on the heap": 1}
        await commit(backend, {"in RocksDB": 2})
        await commit(backend)
    part = job.commits()[-1].ranges[0]
    assert (len(part.rocksdb), part.bases, part.changelog) == (1, (), ())
    assert (await restored(job, changes={"table": "heap"}))[0] == state | {"on the heap": 1, "in RocksDB": 2}


@run_virtual
async def test_bases_may_be_entries_in_rocksdb_too(tmp_path: Path) -> None:
    """As `rocksdb_bases` says, which may change between two runs."""
    job = RocksDBJob(tmp_path, rocksdb_bases=False)
    state = await with_a_base(job)
    part = job.commits()[-1].ranges[0]
    assert (part.rocksdb, len(part.bases)) == ((), 1)
    async with job.open(changes={"rocksdb_bases": True}) as backend:
        await commit(backend, {"native": 1})
        await commit(backend)
    assert job.newest_base()
    async with job.open() as backend:
        await commit(backend, {"entries": 2})
        await commit(backend)
    part = job.commits()[-1].ranges[0]
    assert (part.rocksdb, len(part.bases)) == ((), 1)
    assert (await restored(job))[0] == state | {"native": 1, "entries": 2}


@run_virtual
async def test_without_the_extra_it_is_a_wrong_setting(job: RocksDBJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when it is opened; nothing is lost."""
    state = await with_a_base(job)
    with monkeypatch.context() as without:
        for module in ("_tables.rocksdb", "_tables.rocksdb_files", "_tables.rocksdb_tables"):
            without.delitem(sys.modules, f"statebackend.{module}", raising=False)
        without.setitem(sys.modules, "rocksdict", None)
        with pytest.raises(SettingsError, match="rocksdb"):
            await restored(job, changes={"table": "heap"})
    assert (await restored(job, changes={"table": "heap"}))[0] == state


# ------------------------------------------------------------------------------------------------------------- failures


def two_of(job: RocksDBJob) -> tuple[RocksDBFile, RocksDBFile]:
    """A table and a manifest of the newest base: both their names are legal."""
    files = {file.name: file for file in job.newest_base().files}
    return next(files[name] for name in files if name.endswith(".sst")), next(
        files[name] for name in files if name.startswith("MANIFEST")
    )


def swap(one: Path, other: Path) -> None:
    """Give each file the other's name."""
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)


@run_virtual
async def test_files_under_each_other_s_name_are_not_believed(job: RocksDBJob) -> None:
    """In one copy the other one is read instead, and the local copy is mended. In both that is an error."""
    state = await with_a_base(job)
    one, other = two_of(job)
    (copy,) = job.copies
    primary = job.directory / "primary" / "fleet"
    swap(copy / one.name, copy / other.name)
    found, report = await restored(job)
    assert (found, len(report.fallbacks)) == (state, 2)
    swap(primary / one.handle.key, primary / other.handle.key)
    found, report = await restored(job)
    assert (found, report.fallbacks) == (state, ())
    shutil.rmtree(job.directory / "local0")
    with pytest.raises(CorruptSegmentError):
        await restored(job, read_only=True)
    swap(primary / one.handle.key, primary / other.handle.key)
    assert (await restored(job))[0] == state


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
@run_virtual
async def test_a_commit_with_two_names_swapped_is_an_error_that_says_so(job: RocksDBJob, table: str) -> None:
    """Each file is what its handle says. The disk is well, so nobody need look there, and nothing is lost."""
    state = await with_a_base(job)
    one, other = two_of(job)
    shutil.rmtree(job.directory / "local0")
    newest = job.commits()[-1]
    path = job.directory / "primary" / "fleet" / "commits" / f"{newest.sequence:012d}"
    before = path.read_bytes()
    names = {one.name: other.name, other.name: one.name}
    base = job.newest_base()
    files = tuple(RocksDBFile(names.get(file.name, file.name), file.handle) for file in base.files)
    (part,) = newest.ranges
    lying = replace(newest, ranges=(replace(part, rocksdb=(replace(base, files=files),)),))
    path.write_bytes(encode_entry(lying, entry_key(newest.sequence)).body)
    with pytest.raises(CorruptSegmentError, match="names"):
        await restored(job, read_only=True, changes={"table": table})
    path.write_bytes(before)
    assert (await restored(job, changes={"table": table}))[0] == state


@pytest.mark.parametrize("nth", [1, 3, 5])
@run_virtual
async def test_a_base_that_fails_leaves_nothing_behind(job: RocksDBJob, nth: int) -> None:
    """Whichever of its files is refused. The next one is written from the start, and is whole."""
    state = await with_a_base(job)
    async with job.open() as backend:
        base, before = job.newest_base(), job.objects
        job.primary.plan.append(Fail(operation="put", key="*/segments/*", nth=1 + nth))
        await commit(backend, {"new": 1})
        assert len(job.watcher.failed) == 1
        assert job.newest_base() == base
        assert len(job.objects - before) == 1  # the change itself
        assert len(job.copies) == 1
        assert not list(job.scratch[0].glob("base-*"))
        await commit(backend, {"newer": 2})
        await commit(backend)
    assert job.newest_base() != base
    assert (await restored(job))[0] == state | {"new": 1, "newer": 2}


# --------------------------------------------------------------------------------------------------------- from outside


@run_virtual
async def test_every_byte_is_verified_in_both_copies(job: RocksDBJob) -> None:
    """Each file of the newest commits, wherever its copy is. A copy that is missing is no damage."""
    await with_a_base(job)
    files = job.newest_base().files
    report = await sb.verify(job.settings)
    assert not report.damages
    assert report.objects["local"] >= len(files)
    local = job.copies[0] / files[0].name
    local.unlink()
    path = job.directory / "primary" / "fleet" / files[1].handle.key
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    copy = job.copies[0] / files[2].name
    content = copy.read_bytes()
    copy.unlink()
    copy.write_bytes(content + b"\0")
    damaged = await sb.verify(job.settings)
    assert {(each.key, each.copy) for each in damaged.damages} == {
        (files[1].handle.key, "primary"),
        (files[2].handle.key, "local"),
    }
    assert damaged.local_missing == report.local_missing + 1
    (repaired,) = await sb.repair(job.settings, dry_run=False)
    assert (repaired.key, repaired.path) == (files[1].handle.key, str(job.copies[0] / files[1].name))
    assert [each.copy for each in (await sb.verify(job.settings)).damages] == ["local"]


@run_virtual
async def test_a_copy_that_the_disk_does_not_give_is_damage(job: RocksDBJob) -> None:
    """And all else is verified."""
    await with_a_base(job)
    before = await sb.verify(job.settings)
    path = job.copies[0] / "CURRENT"
    path.unlink()
    path.mkdir()  # to read it fails
    report = await sb.verify(job.settings)
    (damage,) = report.damages
    assert (damage.copy, report.objects["local"]) == ("local", before.objects["local"] - 1)
    assert report.objects["primary"] == before.objects["primary"]


@run_virtual
async def test_a_commit_says_how_much_it_points_into(job: RocksDBJob) -> None:
    """For people, as for other bases."""
    await with_a_base(job)
    found = await sb.inspect(job.settings)
    base = job.newest_base()
    assert (found.log[-1].objects, found.log[-1].object_bytes) == (len(base.files), base.size_bytes)
