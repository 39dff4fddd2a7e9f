"""A directory of a range is handed from process to process, whole or not at all."""

from pathlib import Path

import msgspec
import pytest

from statebackend._local import range_directories
from statebackend._local.range_directories import (
    RangeDirectory,
    RangeManifest,
    open_range_directory,
    remove_other_ranges,
)
from statebackend.errors import LocalRootError
from statebackend.ids import Epoch, KeyGroupRange
from tests.at_work import plenty

MINE, OTHER = KeyGroupRange(0, 3), KeyGroupRange(4, 7)
MANIFEST = RangeManifest(primary="memory://x", max_parallelism=8, epoch=Epoch(3), content=b"what they are")


def kept_in(parent: Path) -> list[str]:
    return sorted(path.parent.name for path in parent.glob("job_fleet/*/files"))


async def test_who_comes_next_finds_what_was_marked(tmp_path: Path) -> None:
    """Once: from then on the files may be changed."""
    async with open_range_directory(tmp_path, "fleet", MINE, plenty()) as directory:
        assert directory is not None
        directory.put_manifest(MANIFEST)
    async with open_range_directory(tmp_path, "fleet", MINE, plenty()) as directory:
        assert directory is not None
        assert directory.take_manifest() == MANIFEST
        assert directory.take_manifest() is None


async def test_a_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    """Another range has another one, and so has another job."""
    async with (
        open_range_directory(tmp_path, "fleet", MINE, plenty()) as first,
        open_range_directory(tmp_path, "fleet", MINE, plenty()) as second,
        open_range_directory(tmp_path, "fleet", OTHER, plenty()) as third,
        open_range_directory(tmp_path, "other", MINE, plenty()) as fourth,
    ):
        assert second is None
        assert len({each.files for each in (first, third, fourth) if each is not None}) == 3


async def test_a_mark_is_believed_whole_or_not_at_all(tmp_path: Path) -> None:
    """Whichever byte of it is lost, or another one."""
    async with open_range_directory(tmp_path, "fleet", MINE, plenty()) as directory:
        assert directory is not None
        directory.put_manifest(MANIFEST)
        path = directory.files.parent / "mark"
        whole = path.read_bytes()
        for place in range(len(whole)):
            for spoilt in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
                path.write_bytes(spoilt)
                assert directory.take_manifest() is None


@pytest.mark.parametrize("release", [-1, 1])
async def test_files_of_another_layout_are_not_used(tmp_path: Path, release: int) -> None:
    """Of an earlier release or of a later one: whoever opened them would read something else."""
    async with open_range_directory(tmp_path, "fleet", MINE, plenty()) as directory:
        assert directory is not None
        directory.put_manifest(msgspec.structs.replace(MANIFEST, layout=MANIFEST.layout + release))
        assert directory.take_manifest() is None


async def test_nothing_is_kept_where_the_system_does_not_say_when_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_directories, "BOOT_ID", tmp_path / "there is none")
    async with open_range_directory(tmp_path, "fleet", MINE, plenty()) as directory:
        assert directory is None


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
async def test_a_place_that_others_may_write_is_neither_used_nor_cleared(mode: int, tmp_path: Path) -> None:
    """As for scratch directories: what lies there below the temporary directory may be anybody's, links among it."""
    parent = tmp_path / "parent"
    parent.mkdir()
    async with open_range_directory(parent, "fleet", OTHER, plenty()) as directory:
        assert directory is not None
        directory.files.mkdir()
    parent.chmod(mode)
    with pytest.raises(LocalRootError, match="ours"):
        async with open_range_directory(parent, "fleet", MINE, plenty()):
            pass
    assert remove_other_ranges(parent, "fleet", [], Epoch(9)) == 0
    assert kept_in(parent) == ["kg_4_7"]


async def test_other_ranges_are_removed_unless_somebody_works_there_or_came_later(tmp_path: Path) -> None:
    """Files without a manifest are useless to every process."""

    async def leave(key_groups: KeyGroupRange, epoch: int | None) -> None:
        async with open_range_directory(tmp_path, "fleet", key_groups, plenty()) as directory:
            assert directory is not None
            directory.files.mkdir()
            if epoch is not None:
                directory.put_manifest(RangeManifest("memory://x", 8, Epoch(epoch), b""))

    ranges = [KeyGroupRange(group, group) for group in range(4)]
    for key_groups, epoch in zip(ranges, (2, 3, None, 2), strict=True):
        await leave(key_groups, epoch)
    async with open_range_directory(tmp_path, "fleet", ranges[3], plenty()) as used:
        assert isinstance(used, RangeDirectory)
        assert remove_other_ranges(tmp_path, "fleet", [MINE], Epoch(3)) == 2
    assert kept_in(tmp_path) == ["kg_1_1", "kg_3_3"]
    assert remove_other_ranges(tmp_path / "nothing", "fleet", [MINE], Epoch(3)) == 0


async def test_what_is_left_of_a_range_beside_its_files_is_removed_too(tmp_path: Path) -> None:
    """Its process was killed while it brought all of the state from there to its place."""
    async with open_range_directory(tmp_path, "fleet", OTHER, plenty()) as directory:
        assert directory is not None
        directory.make_scratch()
    assert remove_other_ranges(tmp_path, "fleet", [MINE], Epoch(3)) == 1
    assert not directory.scratch.exists()
    assert remove_other_ranges(tmp_path, "fleet", [MINE], Epoch(3)) == 0


async def test_a_place_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalRootError):
        async with open_range_directory(tmp_path / "file", "fleet", MINE, plenty()):
            pass
