"""Scratch directories: gone with their context, or else with the next process that comes after the dead one."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

import statebackend as sb
from statebackend._local.scratch import open_scratch, scratch_parent
from statebackend.errors import LocalRootError
from tests.at_work import plenty
from tests.cache.caches import directories_in, names_in, settings_of

OWNER = """
import sys
from pathlib import Path

import anyio

from statebackend._local.scratch import open_scratch
from statebackend._threads import FileThreads


async def main():
    async with open_scratch(Path(sys.argv[1]), FileThreads(1)) as directory:
        (directory / "deeper").mkdir()
        (directory / "deeper" / "file").write_bytes(b"of no use to others")
        print(directory, flush=True)
        sys.stdin.read()


anyio.run(main)
"""


@contextmanager
def owner_process(parent: Path) -> Generator[tuple["subprocess.Popen[str]", Path]]:
    """Another process with a scratch directory, and a file in it."""
    child = subprocess.Popen([sys.executable, "-c", OWNER, str(parent)], stdin=-1, stdout=-1, text=True)
    with child:
        assert child.stdout is not None
        try:
            yield child, Path(child.stdout.readline().strip())
        finally:
            child.kill()


async def test_it_is_ours_alone_and_gone_with_the_context(tmp_path: Path) -> None:
    """Mode 0700 whatever the umask, and a fresh one each time."""
    former = os.umask(0)
    try:
        async with (
            open_scratch(tmp_path / "new" / "parent", plenty()) as one,
            open_scratch(tmp_path / "new" / "parent", plenty()) as two,
        ):
            assert one != two
            assert {path.stat().st_mode & 0o777 for path in (one, one.parent, two)} == {0o700}
            (one / "file").write_bytes(b"")
    finally:
        os.umask(former)
    assert names_in(tmp_path / "new" / "parent") == ["lock"]


async def test_those_of_dead_processes_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    """However they died: the kernel releases the lock.

    Row: section 30, cache: stale files in the cache directory at start.
    """
    with owner_process(tmp_path) as (dead, left), owner_process(tmp_path) as (_, used):
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert (left / "deeper" / "file").exists()
        async with open_scratch(tmp_path, plenty()) as own:
            assert directories_in(tmp_path) == sorted((used, own))
            assert (used / "deeper" / "file").exists()


async def test_what_was_killed_while_it_removed_or_made_one_is_removed_too(tmp_path: Path) -> None:
    """Then there is no lock in it."""
    parent = tmp_path / "parent"
    half = parent / "scratch-0123456789abcdef"
    for directory in (parent, half, half / "deeper"):
        directory.mkdir(mode=0o700)
    async with open_scratch(parent, plenty()) as own:
        assert directories_in(parent) == [own]


async def test_nothing_outside_is_followed_or_touched(tmp_path: Path) -> None:
    """A link to a directory is no directory of ours, and neither is a file."""
    outside, parent = tmp_path / "outside", tmp_path / "parent"
    for directory in (outside, parent):
        directory.mkdir(mode=0o700)
    (outside / "precious").write_bytes(b"")
    link, file = "scratch-0000000000000000", "scratch-1111111111111111"
    (parent / link).symlink_to(outside)
    (parent / file).write_bytes(b"")
    async with open_scratch(parent, plenty()):
        pass
    assert names_in(outside) == ["precious"]
    assert names_in(parent) == ["lock", link, file]


async def test_what_others_have_there_stays(tmp_path: Path) -> None:
    """A user's directories, and the primary among them: only names of ours are removed."""
    precious = [tmp_path / name / "precious" for name in ("photos", "0123456789abcdef", "scratch-", "scratch-2026")]
    for file in precious:
        file.parent.mkdir()
        file.write_bytes(b"")
    shared = settings_of(primary=f"file://{tmp_path}/primary", cache_dir=str(tmp_path))
    async with sb.open_backend(shared) as backend:
        await backend.checkpoint(1)
    async with sb.owners.open_download_cache(shared) as cache, sb.open_backend(shared, cache=cache) as backend:
        assert backend.newest is not None
    assert all(file.exists() for file in precious)


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
async def test_a_directory_that_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    """Anybody may have made it below the temporary directory, and would have us read his files."""
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(mode)
    with pytest.raises(LocalRootError) as caught:
        async with open_scratch(parent, plenty()):
            pass
    assert caught.value.facts["directory"] == str(parent)
    assert list(parent.iterdir()) == []


async def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """It could be turned to somewhere else while we work."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalRootError):
        async with open_scratch(tmp_path / "link", plenty()):
            pass


@pytest.mark.parametrize("name", ["file", "file/below", "null\0byte"])
async def test_where_none_can_be_made_the_error_says_so(name: str, tmp_path: Path) -> None:
    """With the directory and the reason."""
    (tmp_path / "file").write_bytes(b"somebody's")
    with pytest.raises(LocalRootError) as caught:
        async with open_scratch(tmp_path / name, plenty()):
            pass
    assert caught.value.facts["directory"] == str(tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"somebody's"


async def test_a_cancelled_call_leaves_no_directory(tmp_path: Path) -> None:
    """Cancelled while it waits for its turn: the process with the lock removes the files of the dead just then."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with open_scratch(tmp_path, plenty()):
            pytest.fail("it was cancelled")
    assert directories_in(tmp_path) == []


def test_it_lies_where_the_settings_say(tmp_path: Path) -> None:
    """The directory that is named; else the disk that is there for local copies; else the temporary directory."""
    assert scratch_parent("/named", ("/first", "/second")) == Path("/named")
    assert scratch_parent("", ("/first", "/second")) == Path("/first/scratch")
    assert scratch_parent("", ()).name == f"statebackend-{os.geteuid()}"


async def test_it_is_no_local_copy_of_any_job(tmp_path: Path) -> None:
    """In a local root it lies beside the jobs' directories, and their pruning leaves it alone."""
    settings = settings_of(local=(str(tmp_path),), primary=f"file://{tmp_path}/primary")
    async with open_scratch(scratch_parent("", settings.local), plenty()) as directory:
        (directory / "file").write_bytes(b"")
        async with sb.open_backend(settings) as backend:
            await backend.checkpoint(1)
        assert (directory / "file").exists()
