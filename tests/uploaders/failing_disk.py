"""A process whose local disk really fails while its primary is well; it prints what came of three uploads.

    python -m tests.uploaders.failing_disk TROUBLE DIRECTORY

"full", "no inodes" and "read-only" need a mount namespace of their own: `unshare --mount --map-root-user`.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from statebackend.abc import Segment
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.uploaders import DuplicatingUploader

KiB = 1024
SMALL, LARGE = b"s" * KiB, b"x" * (1024 * KiB)
NOBODY = 65_534


@contextmanager
def full(_: Path) -> Generator[None]:
    """The file system has 256 KiB, and the segment 1 MiB."""
    yield


@contextmanager
def no_inodes(local: Path) -> Generator[None]:
    """Not one file more fits into the file system."""
    taken: list[Path] = []
    try:
        while True:
            taken.append(local / f"taken-{len(taken)}")
            taken[-1].touch()
    except OSError:
        yield
    for path in taken:
        path.unlink(missing_ok=True)


@contextmanager
def read_only(local: Path) -> Generator[None]:
    """As the kernel leaves a file system when its disk reports errors."""
    subprocess.run(["mount", "-o", "remount,ro", local], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", local], check=True)


@contextmanager
def limited(limit: int, most: int) -> Generator[None]:
    """A limit of this process."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (most, hard))
    yield
    resource.setrlimit(limit, (soft, hard))


def too_large(_: Path) -> Any:
    """A file may not be larger than 64 KiB: the write fails in its middle."""
    return limited(resource.RLIMIT_FSIZE, 64 * KiB)


def no_descriptors(_: Path) -> Any:
    """Not one more file can be opened."""
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    return limited(resource.RLIMIT_NOFILE, lowest_free)


@contextmanager
def refused(local: Path) -> Generator[None]:
    """The directory may not be written, by somebody who has to ask: root steps down for good."""
    inner = local / "segments"
    if os.geteuid() == 0:
        for path in (local, inner, *inner.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    inner.chmod(0o500)
    yield
    inner.chmod(0o700)


TROUBLES: dict[str, Callable[[Path], Any]] = {
    "full": full,
    "no inodes": no_inodes,
    "read-only": read_only,
    "too large": too_large,
    "no descriptors": no_descriptors,
    "refused": refused,
}
MOUNTS = {"full": "size=256k", "no inodes": "nr_inodes=32", "read-only": "size=4m"}


def segment(name: str, body: bytes) -> Segment:
    return Segment(name, (body[:100], body[100:]), len(body), zlib.crc32(body), ("log",))


def files_below(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


async def upload_three(trouble: str, local: Path) -> dict[str, Any]:
    primary, dropped = MemoryStore(), []
    async with anyio.create_task_group() as tasks:
        uploader = DuplicatingUploader(
            primary,
            LocalStore(local),
            secondary_grace_s=60.0,
            dropped=lambda name, reason: dropped.append((name, reason)),
            tasks=tasks,
        )
        before = await uploader.upload(segment("before", SMALL))
        with TROUBLES[trouble](local):
            during = await uploader.upload(segment("during", LARGE))
            await anyio.wait_all_tasks_blocked()
        after = await uploader.upload(segment("after", SMALL))
    return {
        "local": [uploaded.local is not None for uploaded in (before, during, after)],
        "primary": {info.key: info.size_bytes async for info in primary.list("")},
        "dropped": dropped,
        "files": files_below(local),
    }


if __name__ == "__main__":
    trouble, directory = sys.argv[1], Path(sys.argv[2])
    if trouble in MOUNTS:
        subprocess.run(["mount", "-t", "tmpfs", "-o", MOUNTS[trouble], "none", directory], check=True)
    print(json.dumps(asyncio.run(upload_three(trouble, directory))))
