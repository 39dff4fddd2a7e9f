"""A process that commits one checkpoint and is killed on its way to the next.

    python -m tests.ownership.killed_child DEATH DIRECTORY

"before the commit": SIGKILL when the second segment is uploaded. "in a local write", "in a primary write": the kernel
kills it in the middle of a file, by SIGXFSZ, which Python would ignore.
"""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path

import statebackend as sb
from statebackend.objectstore import LocalStore, MemoryStore
from tests.ownership.disk import Disk, commit

FILE_BYTES_MAX = 10_000


class KilledWhenUploaded(sb.Observer):
    armed = False

    def segment_uploaded(
        self, segment: sb.abc.Segment, uploaded: sb.abc.UploadedSegment, *, attempt: int, seconds: float
    ) -> None:
        if self.armed:
            os.kill(os.getpid(), signal.SIGKILL)


def forbid_large_files() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


async def live(death: str, directory: Path) -> None:
    observer = KilledWhenUploaded()
    # What is to be written when it dies must be the only file that is: the other copy is in memory, or not made.
    store = MemoryStore() if death == "in a local write" else LocalStore(directory / "primary")
    roots = 0 if death == "in a primary write" else 1
    unhurried = {"upload__timeout_s": 0.0, "secondary_grace_s": 60.0}  # on a slow machine, too, there is one upload
    settings = Disk(directory, compression="none", **unhurried).settings(roots=roots)
    async with sb.open_backend(settings, store=store, observer=observer) as backend:
        await commit(backend, 1)
        if death == "before the commit":
            observer.armed = True
        else:
            forbid_large_files()
        for key in range(2000):
            backend.value_state("n", int)[key] = key
        await backend.checkpoint(2)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], Path(sys.argv[2])))
