"""A directory that is handed out complete, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from statebackend._local.snapshot_directory import SnapshotDirectory
from statebackend.errors import StoreUnavailableError


def filled(path: Path, **options: bool) -> SnapshotDirectory:
    """An ongoing one with a file and a directory in it."""
    directory = SnapshotDirectory(path / "one" / "two", **options)
    directory.make()
    (directory.path / "sub").mkdir()
    (directory.path / "sub" / "file").write_bytes(b"x")
    (directory.path / "file").write_bytes(b"y")
    return directory


def test_making_the_object_makes_nothing(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.mkdirs. Both levels come with `make`, for this user only."""
    directory = SnapshotDirectory(tmp_path / "one" / "two")
    assert not directory.exists()
    assert list(tmp_path.iterdir()) == []
    directory.make()
    directory.make()
    assert directory.exists()
    assert {path.stat().st_mode & 0o777 for path in (directory.path, directory.path.parent)} == {0o700}


def test_exists_follows_the_disk(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.exists. Whoever makes or removes it."""
    directory = SnapshotDirectory(tmp_path / "one")
    seen = [directory.exists()]
    directory.path.mkdir()
    seen.append(directory.exists())
    directory.path.rmdir()
    seen.append(directory.exists())
    assert seen == [False, True, False]


def test_names_are_those_on_the_disk(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.listStatus."""
    directory = filled(tmp_path)
    assert directory.names() == sorted(each.name for each in directory.path.iterdir()) == ["file", "sub"]


def test_what_is_complete_stays_and_is_handed_out(tmp_path: Path) -> None:
    """Rows: SnapshotDirectoryTest.completeSnapshotAndGetHandle (complete), .deleteIfNotCompeltedSnapshot (completed):
    SnapshotDirectoryTest.deleteIfNotCompeltedSnapshot (completed). Its owner can delete what it was given.
    """
    directory = filled(tmp_path)
    path = directory.complete()
    assert path == directory.complete() == directory.path
    directory.clean_up()
    assert directory.names() == ["file", "sub"]
    assert directory.state == "completed"


def test_what_was_cleaned_up_is_never_handed_out(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.completeSnapshotAndGetHandle (after cleanup). An I/O error."""
    directory = filled(tmp_path)
    directory.clean_up()
    with pytest.raises(StoreUnavailableError) as caught:
        directory.complete()
    assert isinstance(caught.value, OSError)


def test_what_is_ongoing_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.deleteIfNotCompeltedSnapshot (ongoing). Again is fine, and so is one never made."""
    directory = filled(tmp_path)
    directory.clean_up()
    directory.clean_up()
    assert not directory.exists()
    SnapshotDirectory(tmp_path / "never").clean_up()


def test_it_is_complete_when_it_was_completed_only(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.isSnapshotOngoing."""
    completed, cleaned_up = filled(tmp_path / "a"), filled(tmp_path / "b")
    assert completed.state == cleaned_up.state == "ongoing"
    completed.complete()
    cleaned_up.clean_up()
    assert (completed.state, cleaned_up.state) == ("completed", "deleted")


def test_a_temporary_one_is_never_handed_out(tmp_path: Path) -> None:
    """Row: SnapshotDirectoryTest.temporary. It goes, completed or not."""
    directory = filled(tmp_path, temporary=True)
    assert directory.complete() is None
    directory.clean_up()
    assert not directory.exists()


def test_one_that_cannot_be_made_durable_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published after durable: the error comes, and cleaning up still removes it."""

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "made to fail by a test")

    directory = filled(tmp_path)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="made to fail"):
        directory.complete()
    directory.clean_up()
    assert not directory.exists()
