"""Reads a large state from outside, in a process of its own: rows a second beside a bare decode, and its memory.

    python -m benchmarks.reading --keys 5000000 --kind columns

Expected: at least half the rate of decoding the same segments and throwing the result away, within 256 MiB.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

import statebackend as sb
from statebackend._codec.commit import Commit
from statebackend._codec.segment import decode_segment
from statebackend._upkeep.job_primary import open_job_primary

AT_ONCE = 250_000
SCHEMA = pa.schema({"n": pa.int64(), "miles": pa.int64(), "carrier": pa.string()})


class Leg(msgspec.Struct):
    """The value of a key."""

    n: int
    miles: int
    carrier: str


def settings_of(directory: str, **changes: float) -> sb.Settings:
    """The job."""
    return msgspec.structs.replace(sb.Settings(job="reading", primary=f"file://{directory}"), **changes)


async def make(directory: str, keys: int, kind: str) -> None:
    """Write the state, all of it in bases, but for one key in a hundred that changed since."""
    async with sb.open_backend(settings_of(directory)) as backend:
        for start in range(0, keys, AT_ONCE):
            put(backend, kind, np.arange(start, min(keys, start + AT_ONCE)))
            await backend.checkpoint(backend.next_checkpoint_id)
    settings = settings_of(directory, materialize_handles_max=1, materialize_interval_s=0.0)
    async with sb.open_backend(settings) as backend:  # bases are due at once
        await backend._base_writer.settled()  # noqa: SLF001  # no public way to wait for them
        await backend.checkpoint(backend.next_checkpoint_id)
    async with sb.open_backend(settings_of(directory)) as backend:
        put(backend, kind, np.arange(0, keys, 100))
        await backend.checkpoint(backend.next_checkpoint_id)


def put(backend: sb.StateBackend, kind: str, numbers: np.ndarray) -> None:
    """Write a row for each of these numbers."""
    names = [f"key {number}" for number in numbers.tolist()]
    if kind == "columns":
        state = backend.columnar_state("fleet", SCHEMA, key=pa.string())
        columns = [
            pa.array(numbers),
            pa.array(numbers * 7),
            pa.array([f"C{number % 50}" for number in numbers.tolist()]),
        ]
        state.rows(pa.array(names)).scatter(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    else:
        values = [Leg(number, number * 7, f"C{number % 50}") for number in numbers.tolist()]
        backend.value_state("fleet", Leg).put_many(names, values)


def read(directory: str) -> dict[str, float]:
    """Read all of it, and say what that took."""
    list(sb.read_state(settings_of(directory), "fleet", keys=["key 1"]))  # imports, and a look at the job
    before_mib = peak_mib()
    began_s, cpu_s, rows = time.perf_counter(), time.process_time(), 0
    for batch in sb.read_state(settings_of(directory), "fleet"):
        rows += batch.num_rows
    cpu_s, seconds = time.process_time() - cpu_s, time.perf_counter() - began_s
    return {"rows": rows, "s": seconds, "cpu_s": cpu_s, "before_mib": before_mib, "peak_mib": peak_mib()}


def peak_mib() -> float:
    """The most memory that this process had. Not by `getrusage`: that begins with what its parent had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def decode(directory: str) -> dict[str, float]:
    """Decode every segment of the newest commit, and its values if they are not columns, one after the other."""
    began_s, cpu_s, changes = time.perf_counter(), time.process_time(), 0
    decoder = msgspec.msgpack.Decoder(list[Leg])
    commit = asyncio.run(_newest(directory))
    for path in [Path(directory, "reading", key) for key in sorted(commit.segments()) if key.startswith("segments/")]:
        for _, parts in decode_segment(path.read_bytes(), path.name):
            for part in parts:
                changes += part.records
                data = getattr(part, "data", None)
                if data:
                    decoder.decode(b"\xdd" + len(data).to_bytes(4, "big") + b"".join(data))
    return {"changes": changes, "s": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s}


async def _newest(directory: str) -> Commit:
    settings = settings_of(directory)
    async with open_job_primary(settings, None) as primary:
        found, _ = await primary.find()
        return found


def main() -> None:
    """Make the state, and measure in fresh processes."""
    options = argparse.ArgumentParser()
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--kind", choices=("columns", "value"), default="columns")
    options.add_argument("--run", choices=("read", "decode"))
    options.add_argument("--directory")
    given = options.parse_args()
    if given.run is not None:
        print(json.dumps({"read": read, "decode": decode}[given.run](given.directory)))
        return
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(make(directory, given.keys, given.kind))
        for run in ("decode", "read", "decode", "read"):
            command = [sys.executable, "-m", "benchmarks.reading", "--run", run, "--directory", directory]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(run, done.stdout.strip())


if __name__ == "__main__":
    main()
