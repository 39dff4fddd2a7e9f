"""What is not ours in a local root is neither followed nor deleted: links, directories of others, foreign names."""

from pathlib import Path

import pytest

import statebackend as sb
from statebackend._local.range_directories import remove_other_ranges
from statebackend.errors import LocalRootError
from statebackend.ids import Epoch
from tests.knobs import settings_with


def settings_of(tmp_path: Path) -> sb.Settings:
    return settings_with(
        job="fleet", primary=f"file://{tmp_path}/primary", local=(f"{tmp_path}/local",), inline_bytes_max=0
    )


async def commit(settings: sb.Settings, number: int) -> sb.CheckpointInfo:
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = number
        return await backend.checkpoint(number)


@pytest.mark.parametrize("linked", ["job_fleet", "job_fleet/taskowned", "job_fleet/taskowned/segments"])
async def test_a_link_below_a_root_is_refused_and_what_it_leads_to_stays(linked: str, tmp_path: Path) -> None:
    """Pruning went through it, and deleted what no commit of ours needs: everything."""
    foreign = tmp_path / "foreign"
    (foreign / "deeper").mkdir(parents=True)
    precious = [foreign / "precious", foreign / "deeper/precious", foreign / f"00000001-00000000-{'0' * 32}"]
    for path in precious:
        path.write_bytes(b"somebody's")
    link = tmp_path / "local" / linked
    link.parent.mkdir(parents=True, mode=0o700)
    link.symlink_to(foreign)
    for path in (tmp_path / "local/job_fleet", tmp_path / "local/job_fleet/taskowned"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    with pytest.raises(LocalRootError, match="no link") as caught:
        await commit(settings_of(tmp_path), 1)
    assert caught.value.facts["directory"] == str(link)
    assert all(path.read_bytes() == b"somebody's" for path in precious)


async def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """They could put a link there at any time."""
    await commit(settings_of(tmp_path), 1)
    (tmp_path / "local/job_fleet").chmod(0o770)
    with pytest.raises(LocalRootError, match="writable for no other user"):
        await commit(settings_of(tmp_path), 2)


async def test_a_root_may_be_a_link_itself(tmp_path: Path) -> None:
    """It is the user's to choose; what we make below it is ours."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "local").symlink_to(tmp_path / "disk")
    assert (await commit(settings_of(tmp_path), 1)).local


async def test_only_names_of_ours_are_pruned_and_swept(tmp_path: Path) -> None:
    """A user's notes in the directory are no copies; a copy that nobody needs goes."""
    settings = settings_of(tmp_path)
    await commit(settings, 1)
    segments = tmp_path / "local/job_fleet/taskowned/segments"
    notes = [segments / "notes.txt", segments.parent / "notes.txt", segments / "0001", segments / ".hidden.tmp"]
    for path in notes:
        path.write_bytes(b"somebody's")
    left = segments / ("00000001-00000099-" + "0" * 32)
    left.write_bytes(b"left")
    await commit(settings, 2)
    assert not left.exists()
    left.write_bytes(b"left")
    report = await sb.sweep(settings, dry_run=False)
    assert not left.exists()
    assert all(path.read_bytes() == b"somebody's" for path in notes)
    foreign = {Path(each.key).name for each in report.local if each.verdict is sb.reports.SweepReason.FOREIGN}
    assert foreign == {"notes.txt", "0001"}


def test_only_directories_of_ranges_are_cleared(tmp_path: Path) -> None:
    """No link, and no other name, however it begins."""
    foreign, job = tmp_path / "foreign", tmp_path / "tables" / "job_fleet"
    for path in (foreign / "files", job / "kg_0_3" / "files", job / "kg_other" / "files"):
        path.mkdir(parents=True, mode=0o700)
        (path / "precious").write_bytes(b"")
    for path in (tmp_path / "tables", job, job / "kg_0_3", job / "kg_other"):
        path.chmod(0o700)
    (job / "kg_4_7").symlink_to(foreign)
    assert remove_other_ranges(tmp_path / "tables", "fleet", (), Epoch(1)) == 1
    assert (foreign / "files/precious").exists()
    assert (job / "kg_other/files/precious").exists()
    assert not (job / "kg_0_3/files").exists()
