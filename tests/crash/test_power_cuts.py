"""After a power cut an acknowledged checkpoint is there, and nothing torn is taken for whole: `nox -s crash`, in short.

And the disk that this is shown on: what it keeps, and what it may forget.
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import statebackend as sb
from statebackend.errors import DataError
from statebackend.objectstore import LocalStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle
from tests.crash.cuts import OLD_S, CutPower, job_in, make_old
from tests.crash.disk import Directory, File, Forgets, Outcome, Recorder, lay_down, outcomes
from tests.faults.file_calls import watched


@pytest.mark.parametrize(("table", "steps"), [("heap", 5), ("rocksdb", 2), ("runs", 2)])
def test_an_acknowledged_checkpoint_is_there_after_a_power_cut(table: str, steps: int) -> None:
    """Two lives, cut at steps and with outcomes that the seed draws; the second begins on what the first has left."""
    count = CutPower(1, table, steps=steps).run(2)
    assert count.disks > 2 * steps
    assert count.syncs > 50


def test_local_copies_may_lose_whatever_they_have() -> None:
    """On a local disk that syncs nothing: the primary is complete without it, and torn copies are found out."""
    CutPower(3, "heap", steps=4).run(1, lambda _, path: path.startswith("/local"))


@run_virtual
async def test_what_was_dropped_and_swept_does_not_come_back_in_part(tmp_path: Path) -> None:
    """A dropped savepoint was listed again after a cut, and what it had kept was gone."""
    root = tmp_path / "disk"
    root.mkdir()
    job = job_in(root, "heap")
    async with job.open(store=job.well) as backend:
        for batch in range(1, 5):
            await job.commit(backend, output=sb.Output(b"s", 1, (job.rows(batch),)))
            await settle()
            await job.publish(backend)
            if batch == 1:
                await backend.savepoint("first")
            if batch == 3:
                make_old(root / "primary")
    recorder = Recorder(root)
    with watched(root, recorder):
        await sb.drop_savepoint(job.settings, "first", store=job.well)
        await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=job.well)
    assert len(list(recorder.replay())) > 10
    for number, left in enumerate(outcomes(recorder.tree, chance=Random(1), most=30)):
        (place := tmp_path / str(number)).mkdir()
        lay_down(left, place, age_s=OLD_S)
        assert not await sb.savepoints(job.settings, store=LocalStore(place / "primary"))


BROKEN: dict[str, Forgets] = {
    "content": lambda node, path: isinstance(node, File) and path.startswith("/primary"),
    "names of commits": lambda node, path: path == "/primary/faulty/commits",
    "names of segments": lambda node, path: path == "/primary/faulty/segments",
    "directories that are made": lambda node, path: isinstance(node, Directory) and path in ("", "/primary"),
}
"""Syncs that the primary could leave out."""


@pytest.mark.parametrize("rule", BROKEN)
def test_no_sync_of_the_primary_can_be_left_out(rule: str) -> None:
    """Without it some cut loses what was acknowledged, or leaves what is torn under a name."""
    with pytest.raises((AssertionError, DataError)):
        CutPower(0, "heap").run(1, BROKEN[rule])


# ----------------------------------------------------------------------------------------------------------- the disk


def left_by(root: Path, work: Callable[[Path], None]) -> list[Outcome]:
    """Everything that a cut after `work` may leave, each once."""
    recorder = Recorder(root)
    with watched(root, recorder):
        work(root)
    for _ in recorder.replay():
        pass
    found = list(outcomes(recorder.tree, chance=Random(1), most=1000))
    return [dict(each) for each in {frozenset(each.items()) for each in found}]


def write(path: Path, content: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_what_is_synced_stays(tmp_path: Path) -> None:
    """The content by the file, the name by its directory."""

    def work(root: Path) -> None:
        write(root / "a", b"new!", sync=True)
        sync(root)

    assert left_by(tmp_path, work) == [{"": None, "a": b"new!"}]


def test_a_file_that_is_not_synced_may_be_torn(tmp_path: Path) -> None:
    """Old, new, half, zeros; or all of it without the name."""

    def work(root: Path) -> None:
        write(root / "a", b"new!", sync=False)
        sync(root)

    assert {each["a"] for each in left_by(tmp_path, work)} == {b"", b"ne", b"new!", b"\0\0\0\0"}


def test_a_name_that_is_not_synced_may_be_gone_and_a_removed_one_may_come_back(tmp_path: Path) -> None:
    """Each change by itself: the later one may have happened without the earlier one."""
    lay_down({"old": b"1"}, tmp_path)

    def work(root: Path) -> None:
        write(root / "a", b"x", sync=True)
        (root / "old").unlink()

    names = {tuple(sorted(each)) for each in left_by(tmp_path, work)}
    assert names == {("",), ("", "a"), ("", "old"), ("", "a", "old")}


def test_a_rename_has_happened_or_not(tmp_path: Path) -> None:
    """Never a half: but it may have happened although the making of its source has not."""
    lay_down({"a": b"old"}, tmp_path)

    def work(root: Path) -> None:
        write(root / "tmp", b"new", sync=True)
        (root / "tmp").replace(root / "a")

    found = [tuple(sorted(each.items(), key=str)) for each in left_by(tmp_path, work)]
    assert {dict(each)["a"] for each in found} == {b"old", b"new"}
    assert {"tmp" in dict(each) for each in found if dict(each)["a"] == b"new"} == {False}


def test_a_directory_that_is_not_synced_in_its_own_takes_all_with_it(tmp_path: Path) -> None:
    """However well what lies in it was synced."""

    def work(root: Path) -> None:
        (root / "d").mkdir()
        write(root / "d" / "a", b"x", sync=True)
        sync(root / "d")

    assert {tuple(sorted(each)) for each in left_by(tmp_path, work)} == {("",), ("", "d", "d/a")}


def test_a_link_is_a_second_name_of_the_same_content(tmp_path: Path) -> None:
    """Which is synced by either of them."""

    def work(root: Path) -> None:
        write(root / "a", b"x", sync=False)
        os.link(root / "a", root / "b")
        descriptor = os.open(root / "b", os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    for each in left_by(tmp_path, work):
        assert {content for content in each.values() if content is not None} <= {b"x"}
