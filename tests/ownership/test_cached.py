"""The rows on the download cache: whose files are those that were only fetched."""

import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from tests.cache.caches import IDLE_S, files_below, open_setup
from tests.ownership.disk import Watch, settle
from tests.ownership.table import Fate, row

ROOT = Path(__file__).parents[2]

OWNER = """
import sys
from pathlib import Path

from statebackend.testing import run_virtual
from tests.cache.caches import open_setup


@run_virtual
async def main():
    async with open_setup(Path(sys.argv[1])) as setup:
        await setup.cache.get(await setup.stored("a", b"content"))
        print("here", flush=True)
        sys.stdin.read()


main()
"""


def owner_process(parent: Path) -> "subprocess.Popen[str]":
    """Another process with a cached file, by the time this returns."""
    child = subprocess.Popen([sys.executable, "-c", OWNER, str(parent)], cwd=ROOT, stdin=-1, stdout=-1, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    return child


@row("cached")
async def test_a_cached_file_goes_with_its_cache(tmp_path: Path) -> Fate:
    """Also the one that is in use."""
    async with AsyncExitStack() as users:
        async with open_setup(tmp_path) as setup:
            await users.enter_async_context(setup.cache.open(await setup.stored("a", b"content")))
            await setup.cache.get(await setup.stored("b", b"another"))
            watch = Watch(setup.files)
        return watch.fate()


@row("cached-idle")
async def test_a_cached_file_that_is_idle_goes(tmp_path: Path) -> Fate:
    """While the cache lives on."""
    async with open_setup(tmp_path) as setup:
        await setup.cache.get(await setup.stored("a", b"content"))
        watch = Watch(setup.files)
        await anyio.sleep(IDLE_S)
        await settle()
        return watch.fate()


@row("cached-in-use")
async def test_a_cached_file_in_use_stays(tmp_path: Path) -> Fate:
    """However many come after it."""
    async with open_setup(tmp_path, cache_bytes_max=7) as setup, setup.cache.open(await setup.stored("a", b"content")):
        watch = Watch(setup.files)
        for key in "bcd":
            await setup.cache.get(await setup.stored(key, b"another"))
        await settle()
        assert len(setup.files) == 1
        return watch.fate()


@row("cached-killed")
async def test_the_cached_files_of_a_killed_process_go_with_the_next_cache(tmp_path: Path) -> Fate:
    """Nobody can want them: which they were was known to that process only."""
    with owner_process(tmp_path) as child:
        child.kill()
    watch = Watch(files_below(tmp_path))
    async with open_setup(tmp_path):
        return watch.fate()


@row("cached-foreign")
async def test_the_cached_files_of_a_live_process_stay(tmp_path: Path) -> Fate:
    """It is using them."""
    with owner_process(tmp_path) as child:
        watch = Watch(files_below(tmp_path))
        async with open_setup(tmp_path):
            pass
        child.kill()
        return watch.fate()
