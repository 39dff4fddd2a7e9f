"""Temporary files of writers that were killed in the middle of a write: by the kernel, which no code can refuse."""

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._local.job_directories import lock_root
from statebackend.objectstore import LocalStore

LIMIT_BYTES = 10_000

WRITER = f"""
import resource
import signal
import sys
from pathlib import Path

import anyio

from statebackend.objectstore import LocalStore


async def main():
    store = LocalStore(Path(sys.argv[1]))
    await store.put("segments/whole", [b"x" * {LIMIT_BYTES}])
    await store.put("segments/deeper/whole", [b"x"])
    await store.put(sys.argv[2], [b"x" * ({LIMIT_BYTES} + 1)])
    print("not killed")


resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, {LIMIT_BYTES}))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
anyio.run(main)
"""


def write_until_killed(root: Path, key: str) -> Path:
    """Have a writer killed in the middle of the object `key`; what it left."""
    result = subprocess.run([sys.executable, "-c", WRITER, str(root), key], capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (-signal.SIGXFSZ, b"")
    (leftover,) = root.rglob(".*.tmp")
    assert leftover.stat().st_size == LIMIT_BYTES
    return leftover


@pytest.mark.parametrize("key", ["top", "segments/torn", "segments/deeper/torn"])
async def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path, key: str) -> None:
    """Wherever it was writing. Whole objects stay, and so does what merely looks similar."""
    write_until_killed(tmp_path, key)
    similar = [tmp_path / "segments/not-hidden.tmp", tmp_path / ".hidden"]
    for path in similar:
        path.write_bytes(b"")
    (tmp_path / ".directory.tmp").mkdir()
    store = LocalStore(tmp_path)
    assert await store.remove_leftovers() == 1
    assert await store.remove_leftovers() == 0
    assert [info.key async for info in store.list("segments/")] == [
        "segments/deeper/whole",
        "segments/not-hidden.tmp",
        "segments/whole",
    ]
    assert all(path.exists() for path in similar)
    assert (tmp_path / ".directory.tmp").is_dir()


async def test_a_store_without_a_directory_has_no_leftovers(tmp_path: Path) -> None:
    """Nothing was ever written: nothing is made, and that is no error."""
    assert await LocalStore(tmp_path / "none").remove_leftovers() == 0
    assert not (tmp_path / "none").exists()


async def test_what_is_no_directory_has_no_leftovers_either(tmp_path: Path) -> None:
    """Clearing up is best effort: the next write names what is in the way."""
    (tmp_path / "file").write_bytes(b"somebody's")
    assert await LocalStore(tmp_path / "file").remove_leftovers() == 0
    assert (tmp_path / "file").read_bytes() == b"somebody's"


def settings(directory: Path) -> sb.Settings:
    return sb.Settings(
        job="job", primary=f"file://{directory}/primary", local=(f"{directory}/local",), inline_bytes_max=0
    )


async def test_the_owner_of_a_root_removes_them_before_anything_else(tmp_path: Path) -> None:
    """With them goes what they would have taken of the root's budget."""
    leftover = write_until_killed(tmp_path / "local/job_job/taskowned", "segments/torn")
    async with sb.open_backend(settings(tmp_path)) as backend:
        assert not leftover.exists()
        assert backend.restored is None


async def test_a_backend_that_was_refused_the_root_does_not(tmp_path: Path) -> None:
    """Somebody lives there, and may be writing that very file."""
    leftover = write_until_killed(tmp_path / "local/job_job/taskowned", "segments/torn")
    with closing(lock_root(tmp_path / "local", "job")):
        async with sb.open_backend(settings(tmp_path)):
            pass
    assert leftover.exists()
