"""A process that may take only so much memory, cached pages of files included: by a cgroup, where this machine has one.

/proc/self/cgroup     4:memory:/here              version 1: a group below it, memory.limit_in_bytes
0::/here                    version 2: a group below it, memory.max
"""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

GROUPS: Final = Path("/sys/fs/cgroup")


@contextmanager
def limited(size_bytes: int) -> Generator[Path | None]:
    """A file into which a process writes 0 to be limited from then on; `None` where that cannot be."""
    for above, limit in _places():
        group = above / f"size-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(size_bytes), encoding="ascii")
                yield group / "cgroup.procs"
            finally:
                group.rmdir()
            return
    yield None


def forget_files(folder: Path) -> None:
    """Have the system read these files from the disk when they are next read."""
    for path in folder.rglob("*"):
        if path.is_file():
            number = os.open(path, os.O_RDONLY)
            os.fdatasync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)


def _places() -> Generator[tuple[Path, str]]:
    """Where a group of this process's may be made, and the file of its limit."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                yield GROUPS / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
            elif not controllers:
                yield GROUPS / path.lstrip("/"), "memory.max"
