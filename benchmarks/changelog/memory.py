"""Peak memory while changes come faster than a slow store takes them.

Envelope. Writers wait for room, so no more than `in_flight_bytes_max` is under way, and what is being encoded
comes on top of it: the limit and 64 MiB should do. Measured twice, in a process of its own each time: what is alive, as
Python's allocators count it, and the growth of the largest resident size, which also holds what the C allocator has
not given back.
"""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import anyio

from benchmarks.changelog.parts import LateStore, columns_of, open_log, sets_of, settings
from benchmarks.contest import Line, Report
from statebackend.abc import Body
from statebackend.ids import CheckpointId, SequenceNumber
from statebackend.objectstore import MemoryStore
from statebackend.settings import KiB, MiB, UploadSettings
from statebackend.uploaders import PrimaryUploader

IN_FLIGHT_BYTES = 64 * MiB
TOTAL_BYTES = 512 * MiB
VALUE_BYTES = 4 * KiB


class _Forgetful(LateStore):
    """Takes its time and stores nothing."""

    async def put(self, key: str, body: Body) -> None:
        await anyio.sleep(self._latency_s)


def run(report: Report) -> None:
    """The peak over the limit, at three speeds of the store."""
    for latency_s in (0.0, 0.05, 0.5):
        for kind in ("live", "resident"):
            command = [sys.executable, "-m", __name__, kind, str(latency_s)]
            peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            report.add(
                Line(
                    f"{kind} memory over the limit of {IN_FLIGHT_BYTES // MiB} MiB, a put takes {latency_s:g} s",
                    "at most 64 MiB",
                    (peak - IN_FLIGHT_BYTES) / MiB,
                    "MiB",
                    64.0,
                    detail=f"{TOTAL_BYTES // MiB} MiB written, peak {peak / MiB:.0f} MiB in all",
                )
            )


async def _write_fast(latency_s: float) -> None:
    job = settings(
        in_flight_bytes_max=IN_FLIGHT_BYTES,
        preemptive_persist_threshold_bytes=4 * MiB,
        upload=UploadSettings(timeout_s=0.0),
        compression="none",
    )
    async with open_log(job, lambda tasks: PrimaryUploader(_Forgetful(MemoryStore(), latency_s))) as open_writer:
        writer = open_writer("log")
        for number in range(TOTAL_BYTES // VALUE_BYTES):
            writer.append(sets_of(columns_of([(0, number.to_bytes(8, "big"), bytes(VALUE_BYTES))])))
            if number % 256 == 0:
                await writer.room()
        writer.confirm(SequenceNumber(0), writer.next_sequence_number(), CheckpointId(1))


def _resident_peak_bytes() -> int:
    """The largest resident size so far. Not `ru_maxrss`: that begins with the size of the process that forked us."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * KiB


def main(kind: str, latency_s: float) -> int:
    """Bytes at the peak."""
    if kind == "live":
        tracemalloc.start()
        anyio.run(_write_fast, latency_s)
        return tracemalloc.get_traced_memory()[1]
    before = _resident_peak_bytes()
    anyio.run(_write_fast, latency_s)
    return _resident_peak_bytes() - before


if __name__ == "__main__":
    print(main(sys.argv[1], float(sys.argv[2])))
