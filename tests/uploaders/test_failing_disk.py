"""A local disk that really fails: full, read-only, out of inodes or descriptors, changed behind our back.

No fault is injected here: the kernel says no. A failing fsync and a failing close, which no real disk gives on request,
are in `test_duplicating.py`, where each system call fails in turn.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import anyio
import pytest

import statebackend as sb
from statebackend._local.segments import LocalSegments
from statebackend.abc import Segment, UploadedSegment
from statebackend.errors import StoreUnavailableError
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.uploaders import DuplicatingUploader
from tests.uploaders.failing_disk import LARGE, MOUNTS, SMALL, TROUBLES

ROOT = Path(__file__).parents[2]
NAMESPACE = ("unshare", "--mount", "--map-root-user")


@cache
def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        command = [*NAMESPACE, "mount", "-t", "tmpfs", "none", directory]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def directory() -> Generator[Path]:
    """One that anybody may reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        local = Path(path) / "local"
        local.mkdir(mode=0o700)
        yield local


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_disk_that_fails_costs_the_local_copy_and_nothing_else(trouble: str, directory: Path) -> None:
    """The upload succeeds; its copy is dropped with a reason and leaves not a byte; a mended disk gets copies again."""
    if trouble in MOUNTS and not can_mount():
        pytest.skip(f"a disk cannot really be {trouble} here: no mounts in a namespace of one's own (unshare)")
    command = [*(NAMESPACE if trouble in MOUNTS else ()), sys.executable, "-m", "tests.uploaders.failing_disk"]
    result = subprocess.run(
        [*command, trouble, str(directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["local"] == [True, False, True]
    assert seen["files"] == {"segments/before": len(SMALL), "segments/after": len(SMALL)}
    assert seen["primary"] == {
        "segments/before": len(SMALL),
        "segments/during": len(LARGE),
        "segments/after": len(SMALL),
    }
    ((name, reason),) = seen["dropped"]
    assert name == "during"
    assert "Error" in reason


def segment(name: str) -> Segment:
    return Segment(name, (SMALL,), len(SMALL), zlib.crc32(SMALL), ("log",))


class Bench:
    """An uploader to memory, and to the real directory `local`."""

    def __init__(self, local: Path, *, bytes_max: int = 0) -> None:
        self.primary = MemoryStore()
        self.segments = LocalSegments([LocalStore(local)], bytes_max=bytes_max)
        self.dropped: list[str] = []

    @asynccontextmanager
    async def uploader(self) -> AsyncGenerator[DuplicatingUploader]:
        await self.segments.take_stock()
        async with anyio.create_task_group() as tasks:
            yield DuplicatingUploader(
                self.primary,
                self.segments,
                secondary_grace_s=60.0,
                dropped=lambda name, _: self.dropped.append(name),
                tasks=tasks,
            )


def has_local(uploaded: list[UploadedSegment]) -> list[bool]:
    return [each.local is not None for each in uploaded]


async def test_a_directory_that_is_removed_under_it_is_made_again(tmp_path: Path) -> None:
    """Somebody cleans up by hand: the copies are gone, and the next one is there."""
    bench = Bench(tmp_path / "local")
    async with bench.uploader() as uploader:
        uploaded = [await uploader.upload(segment("before"))]
        shutil.rmtree(tmp_path / "local")
        uploaded += [await uploader.upload(segment("after"))]
    assert has_local(uploaded) == [True, True]
    assert [info.key async for info in bench.segments.list("")] == ["segments/after"]


@pytest.mark.parametrize("replaced", ["local", "local/segments"])
async def test_a_directory_that_became_a_file_costs_the_local_copy(tmp_path: Path, replaced: str) -> None:
    """What lies there is left alone; once it is a directory again, copies are made."""
    bench, path = Bench(tmp_path / "local"), tmp_path / replaced
    async with bench.uploader() as uploader:
        uploaded = [await uploader.upload(segment("before"))]
        shutil.rmtree(path)
        path.write_bytes(b"somebody's")
        uploaded += [await uploader.upload(segment("during"))]
        assert path.read_bytes() == b"somebody's"
        path.unlink()
        uploaded += [await uploader.upload(segment("after"))]
    assert has_local(uploaded) == [True, False, True]
    assert bench.dropped == ["during"]
    assert len([info async for info in bench.primary.list("")]) == 3


async def test_a_budget_that_is_spent_costs_the_local_copy(tmp_path: Path) -> None:
    """Two of three fit; discarding one makes room for a fourth."""
    bench = Bench(tmp_path / "local", bytes_max=2 * len(SMALL))
    async with bench.uploader() as uploader:
        uploaded = [await uploader.upload(segment(name)) for name in ("one", "two", "three")]
        await uploader.discard(uploaded[0])
        await anyio.wait_all_tasks_blocked()
    async with bench.uploader() as uploader:
        uploaded += [await uploader.upload(segment("four"))]
    assert has_local(uploaded) == [True, True, False, True]
    assert bench.dropped == ["three"]
    assert bench.segments.held_bytes == [2 * len(SMALL)]
    with pytest.raises(StoreUnavailableError):
        await bench.segments.put("five", [b"x"])


class Dropped(sb.Observer):
    def __init__(self) -> None:
        self.names: list[str] = []

    def local_copy_dropped(self, name: str, reason: str) -> None:
        self.names.append(name)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., sb.Settings]:
    def made(**changes: int) -> sb.Settings:
        return sb.Settings(
            inline_bytes_max=0,
            job="fleet",
            primary=f"file://{tmp_path}/primary",
            local=(f"{tmp_path}/local",),
            persist_delay_s=0.0,
            secondary_grace_s=60.0,
            **changes,
        )

    return made


async def commit(backend: sb.StateBackend, checkpoint_id: int) -> sb.CheckpointInfo:
    backend.value_state("n", int)[checkpoint_id] = checkpoint_id
    return await backend.checkpoint(checkpoint_id)


async def test_a_job_goes_on_without_its_local_disk_and_counts_what_it_lacks(
    settings: Callable[..., sb.Settings], tmp_path: Path
) -> None:
    """From the first checkpoint to the restore, which repairs nothing where it cannot, and everything where it can."""
    observer, segments = Dropped(), tmp_path / "local/job_fleet/taskowned/segments"
    async with sb.open_backend(settings(), observer=observer) as backend:
        assert (await commit(backend, 1)).local
        shutil.rmtree(segments)
        segments.write_bytes(b"somebody's")
        assert [(await commit(backend, number)).local for number in (2, 3)] == [False, False]
    assert len(observer.names) == 2
    async with sb.open_backend(settings()) as backend:
        assert dict(backend.value_state("n", int)) == {1: 1, 2: 2, 3: 3}
        assert backend.restored is not None
        assert [fallback.repaired for fallback in backend.restored.fallbacks] == [False] * 3
    segments.unlink(missing_ok=True)
    async with sb.open_backend(settings()) as backend:
        assert backend.restored is not None
        assert [fallback.repaired for fallback in backend.restored.fallbacks] == [True] * 3


async def test_a_repair_keeps_to_the_budget(settings: Callable[..., sb.Settings], tmp_path: Path) -> None:
    """The local disk was lost, and its successor is smaller: what fits is repaired, the rest comes from the primary."""
    async with sb.open_backend(settings()) as backend:
        for number in range(6):
            await commit(backend, number)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "primary/fleet/segments").iterdir())
    shutil.rmtree(tmp_path / "local")
    observer, limited = Dropped(), settings(local_bytes_max=sum(sizes[-3:]))
    async with sb.open_backend(limited, observer=observer) as backend:
        assert dict(backend.value_state("n", int)) == {number: number for number in range(6)}
        assert backend.restored is not None
        assert [fallback.repaired for fallback in backend.restored.fallbacks].count(True) == 3
        assert not (await commit(backend, 6)).local
    assert len(observer.names) == 2  # its segment, and its commit
    copies = list((tmp_path / "local/job_fleet/taskowned/segments").iterdir())
    assert len(copies) == 3
    assert sum(path.stat().st_size for path in copies) <= limited.local_bytes_max
