"""The local copies of RocksDB bases: what is placed, kept, confirmed, aborted and pruned, and what a budget allows."""

import os
from pathlib import Path
from zlib import crc32

import pytest

from statebackend._changelog.changelog_reader import verify
from statebackend._local.rocksdb_copies import RocksDBCopies, copied_bases
from statebackend._local.segments import LocalSegments
from statebackend.errors import CorruptSegmentError, ObjectNotFoundError, StoreUnavailableError
from statebackend.ids import CheckpointId, Handle, KeyGroupRange, RocksDBBase, RocksDBFile
from statebackend.objectstore import MemoryStore
from tests.at_work import plenty

OWNER = KeyGroupRange(0, 63)
CONTENT = {"000008.sst": b"table " * 100, "CURRENT": b"MANIFEST-000005\n"}


def copies_in(path: Path, *, roots: int = 1, **options: object) -> RocksDBCopies:
    places = [path / f"root{number}" for number in range(roots)]
    return RocksDBCopies(places, "fleet", plenty(*places), **({"writable": True, "timeout_s": 60.0} | options))  # type: ignore[arg-type]


def base(number: int, owner: KeyGroupRange = OWNER) -> RocksDBBase:
    """The base of checkpoint `number`. All share one file that never changes."""
    files = tuple(
        RocksDBFile(name, Handle(name if name.endswith(".sst") else f"{name} {number}", 0, len(data), crc32(data)))
        for name, data in CONTENT.items()
    )
    return RocksDBBase(owner, CheckpointId(number), (owner,), files)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The files that RocksDB has."""
    directory = tmp_path / "rocksdb"
    directory.mkdir()
    for name, data in CONTENT.items():
        (directory / name).write_bytes(data)
    return directory


def on_disk(path: Path) -> list[str]:
    return sorted(f"{found.parents[2].name}/{found.name}" for found in path.glob("root*/job_fleet/op_*/chk_*"))


async def test_what_is_kept_is_placed_again(tmp_path: Path, files: Path) -> None:
    """A file that never changes takes room once, and stays when RocksDB removes its own."""
    copies = copies_in(tmp_path)
    await copies.store(base(1), files)
    kept = tmp_path / "root0/job_fleet/op_state_kg_0_63/chk_1"
    assert (kept / "000008.sst").samefile(files / "000008.sst")
    assert not (kept / "CURRENT").samefile(files / "CURRENT")
    (files / "000008.sst").unlink()
    target = tmp_path / "target"
    target.mkdir()
    for file in base(1).files:
        await copies.place(base(1), file, target / file.name, verify)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == CONTENT
    assert (target / "000008.sst").samefile(kept / "000008.sst")
    assert not (target / "CURRENT").samefile(kept / "CURRENT")


async def test_a_copy_that_differs_is_not_placed(tmp_path: Path, files: Path) -> None:
    """Nor is one that is missing, or of which nothing is known."""
    copies = copies_in(tmp_path)
    await copies.store(base(1), files)
    table, current = base(1).files
    path = tmp_path / "root0/job_fleet/op_state_kg_0_63/chk_1" / table.name
    path.unlink()
    path.write_bytes(CONTENT[table.name][:-1] + b"?")
    with pytest.raises(CorruptSegmentError):
        await copies.place(base(1), table, tmp_path / "target", verify)
    (path.parent / current.name).unlink()
    with pytest.raises(ObjectNotFoundError):
        await copies.place(base(1), current, tmp_path / "target", verify)
    with pytest.raises(ObjectNotFoundError):
        await copies.place(base(2), table, tmp_path / "target", verify)
    assert not (tmp_path / "target").exists()


async def test_confirming_a_base_removes_those_before_it(tmp_path: Path, files: Path) -> None:
    """In whichever root they lie; those of other owners stay."""
    copies = copies_in(tmp_path, roots=2)
    other = KeyGroupRange(64, 127)
    for each in (base(1), base(2), base(3), base(1, other)):
        await copies.store(each, files)
    await copies.confirm(base(2))
    assert on_disk(tmp_path) == ["root0/chk_2", "root1/chk_1", "root1/chk_3"]
    await copies.abort(base(3))
    assert on_disk(tmp_path) == ["root0/chk_2", "root1/chk_1"]


async def test_pruning_keeps_what_is_needed_and_whole(tmp_path: Path, files: Path) -> None:
    """By the objects of which they are copies, of all owners; a later process finds them."""
    copies = copies_in(tmp_path)
    for each in (base(1), base(2), base(3), base(4, KeyGroupRange(64, 127))):
        await copies.store(each, files)
    (tmp_path / "root0/job_fleet/op_state_kg_0_63/chk_3/snapshot").unlink()
    (tmp_path / "root0/job_fleet/op_other_kg_0_63/chk_9").mkdir(parents=True)
    later = copies_in(tmp_path)
    await later.prune([base(1), base(3)])
    assert on_disk(tmp_path) == ["root0/chk_1", "root0/chk_9"]


async def test_a_base_that_comes_late_is_not_kept(tmp_path: Path, files: Path) -> None:
    """And it is told: who relies on it would not find it."""
    copies = copies_in(tmp_path)
    await copies.store(base(2), files)
    with pytest.raises(StoreUnavailableError):
        await copies.store(base(1), files)
    assert on_disk(tmp_path) == ["root0/chk_2"]


async def test_a_base_that_cannot_be_kept_leaves_nothing(tmp_path: Path, files: Path) -> None:
    """A file is missing, or the disk does not take it."""
    copies = copies_in(tmp_path)
    (files / "CURRENT").unlink()
    with pytest.raises(StoreUnavailableError):
        await copies.store(base(1), files)
    assert on_disk(tmp_path) == []


async def test_bases_and_segments_share_the_budget_of_a_root(tmp_path: Path, files: Path) -> None:
    """A file that two directories link to counts once."""
    segments = LocalSegments([MemoryStore()], bytes_max=10_000)
    await segments.take_stock()
    copies = copies_in(tmp_path, bytes_max=10_000, segments=segments)
    await copies.store(base(1), files)
    await copies.store(base(2), files)
    found = [path.stat() for path in tmp_path.glob("root0/job_fleet/op_*/chk_*/*")]  # noqa: ASYNC240  # a test
    room_bytes = 10_000 - sum({each.st_ino: each.st_size for each in found}.values())
    assert room_bytes > 10_000 - 2 * base(1).size_bytes - 1_000
    with pytest.raises(StoreUnavailableError, match="full"):
        await segments.put("segments/a", [bytes(room_bytes + 1)])
    await segments.put("segments/a", [bytes(room_bytes)])
    with pytest.raises(StoreUnavailableError, match="full"):
        await copies.store(base(3), files)
    await copies.confirm(base(2))
    await segments.put("segments/b", [b"x"])


async def test_what_lies_in_a_root_is_told(tmp_path: Path, files: Path) -> None:
    """For a sweep: which objects it is of, and what was never complete. One that is gone by now is not told of."""
    copies = copies_in(tmp_path)
    await copies.store(base(1), files)
    await copies.store(base(2), files)
    (tmp_path / "root0/job_fleet/op_state_kg_0_63/chk_0").symlink_to(tmp_path / "gone")
    (tmp_path / "root0/job_fleet/op_state_kg_0_63/chk_2/snapshot").write_bytes(b"torn")
    first, second = copied_bases(tmp_path / "root0", "fleet")
    assert (first.path.name, first.keys) == ("chk_1", {file.handle.key for file in base(1).files})
    assert first.size_bytes > base(1).size_bytes
    assert (second.path.name, second.keys) == ("chk_2", set())


async def test_a_root_that_hangs_is_left_alone(tmp_path: Path, files: Path) -> None:
    """The first call gives up; the next ones do not even try, whatever they want there. Others are as they were."""
    copies = copies_in(tmp_path, roots=2, timeout_s=0.05)
    other = copies_in(tmp_path, roots=2)
    await other.store(base(1), files)
    await other.store(base(2), files)
    hanging = tmp_path / "root1/job_fleet/op_state_kg_0_63/chk_1/000008.sst"
    hanging.unlink()
    os.mkfifo(hanging)  # to read it is to wait for somebody who writes
    table = base(1).files[0]
    with pytest.raises(StoreUnavailableError, match="slow"):
        await copies.place(base(1), table, tmp_path / "target", verify)
    with hanging.open("wb"):  # the thread that was left behind ends
        pass
    hanging.unlink()
    hanging.write_bytes(CONTENT[table.name])
    with pytest.raises(StoreUnavailableError, match="slow"):
        await copies.place(base(1), table, tmp_path / "target", verify)
    with pytest.raises(StoreUnavailableError, match="slow"):
        await copies.store(base(3), files)
    assert await other.read(base(2), table) == CONTENT[table.name]


async def test_a_root_that_hangs_costs_nothing_in_the_others(tmp_path: Path, files: Path) -> None:
    """It is not even looked into when something is kept, confirmed, aborted or pruned elsewhere."""
    before = copies_in(tmp_path, roots=2)
    for each in (base(1), base(2)):
        await before.store(each, files)
    torn = tmp_path / "root1/job_fleet/op_state_kg_0_63/chk_7"
    torn.mkdir()
    copies = copies_in(tmp_path, roots=2, hanging={1})
    await copies.prune([base(2)])
    for each in (base(4), base(6)):
        await copies.store(each, files)
    await copies.confirm(base(4))
    await copies.abort(base(6))
    with pytest.raises(StoreUnavailableError, match="slow"):
        await copies.store(base(9), files)
    assert on_disk(tmp_path) == ["root0/chk_4", "root1/chk_1", "root1/chk_7"]
    assert await copies.read(base(4), base(4).files[0]) == CONTENT["000008.sst"]


async def test_what_lies_in_another_root_than_it_would_now_is_pruned(tmp_path: Path, files: Path) -> None:
    """The number of roots was changed: nobody looks there any more, though what it holds is needed."""
    await copies_in(tmp_path).store(base(1), files)
    copies = copies_in(tmp_path, roots=2)
    await copies.prune([base(1)])
    assert on_disk(tmp_path) == []


async def test_a_flipped_bit_in_the_record_of_a_base_costs_the_record_and_not_the_base(
    tmp_path: Path, files: Path
) -> None:
    """The commit knows the files, and each is checked when it is read. The record is written anew."""
    copies = copies_in(tmp_path)
    for each in (base(1), base(2)):
        await copies.store(each, files)
    record = tmp_path / "root0/job_fleet/op_state_kg_0_63/chk_1/snapshot"
    good = record.read_bytes()
    for place in range(len(good)):
        record.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        await copies_in(tmp_path).prune([base(1), base(2)])
        assert record.read_bytes() == good
    assert on_disk(tmp_path) == ["root0/chk_1", "root0/chk_2"]
    assert (record.parent / "000008.sst").read_bytes() == CONTENT["000008.sst"]
    record.write_bytes(good[:-1])
    await copies_in(tmp_path).prune([base(2)])
    assert on_disk(tmp_path) == ["root0/chk_2"]


async def test_bases_of_owners_beside_us_are_not_pruned(tmp_path: Path, files: Path) -> None:
    """They may be about to be committed, and our commit does not know them."""
    copies, other = copies_in(tmp_path), KeyGroupRange(64, 127)
    for each in (base(1), base(2), base(3, other)):
        await copies.store(each, files)
    await copies_in(tmp_path).prune([base(2)], among=OWNER)
    assert on_disk(tmp_path) == ["root0/chk_2", "root0/chk_3"]


@pytest.mark.parametrize("linked", ["op_state_kg_0_63", "op_state_kg_0_63/chk_1"])
async def test_links_are_neither_pruned_nor_followed(linked: str, tmp_path: Path, files: Path) -> None:
    """A directory that is a link has somebody else's files."""
    foreign = tmp_path / "foreign"
    await copies_in(foreign).store(base(1), files)
    path, target = tmp_path / "root0/job_fleet" / linked, foreign / "root0/job_fleet" / linked
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    await copies_in(tmp_path).prune([])
    assert on_disk(foreign) == ["root0/chk_1"]
    assert copied_bases(tmp_path / "root0", "fleet") == []
