"""Peak memory of a restore, above what remains when it is done.

Envelope. Files are in memory whole while they wait for their turn, sixteen at most, here of 8 MiB each; beside them are
two unpacked frames and one block of changes. Of a state of `S` bytes the peak must be below `S` and 128 MiB over the
final footprint, which is what it comes to where all of it lies in sixteen files; here it should be 128 MiB. Measured
twice, in a process of its own each time: what is alive, as Python's allocators count it, and the largest resident size
over the one at the end.
"""

import gc
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import anyio

import statebackend as sb
from benchmarks.contest import Line, Report
from benchmarks.restore.parts import directory, settings_of, write_texts
from statebackend.settings import KiB, MiB

STATE_BYTES = 256 * MiB
TEXT_BYTES = KiB
KINDS = ("live", "resident")


def run(report: Report) -> None:
    """The peak over the final footprint."""
    with directory() as parent:
        anyio.run(partial(write_texts, _settings(parent), keys=STATE_BYTES // TEXT_BYTES, text_bytes=TEXT_BYTES))
        for kind in KINDS:
            command = [sys.executable, "-m", __name__, kind, str(parent)]
            over, final = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
            report.add(
                Line(
                    f"{kind} memory at the peak of restoring {STATE_BYTES // MiB} MiB, over the final footprint",
                    "at most 128 MiB",
                    over / MiB,
                    "MiB",
                    128.0,
                    detail=f"the final footprint is {final / MiB:.0f} MiB",
                )
            )


def _settings(parent: Path) -> sb.Settings:
    return settings_of(parent, compression="none")


async def _restore(settings: sb.Settings, kind: str) -> tuple[int, int]:
    """Bytes at the peak over those at the end, and those at the end."""
    async with sb.open_backend(settings, read_only=True) as backend:
        assert backend.restored is not None
        gc.collect()
        if kind == "live":
            final, peak = tracemalloc.get_traced_memory()
        else:
            final, peak = status_bytes("VmRSS"), status_bytes("VmHWM")
        return peak - final, final


def status_bytes(name: str) -> int:
    """A size of this process. Not `ru_maxrss`: that begins with the size of the process that forked us."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{name}:")[2].split()[0]) * KiB


if __name__ == "__main__":
    if sys.argv[1] == "live":
        tracemalloc.start()
    print(*anyio.run(_restore, _settings(Path(sys.argv[2])), sys.argv[1]))
