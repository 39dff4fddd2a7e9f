"""A seed of columns, against the least that it could be: hash, sort by key group, and write the same bytes compressed.

Envelope. A seed hashes each key and sorts each million rows by key group, writes them to a scratch file and reads them
again, group by group, looks for keys that come twice, encodes the columns and compresses them. By hand, each million
rows is hashed, sorted and written to an Arrow file, compressed by the same codec; nobody looks for keys that come
twice, or brings the rows of a group together. Both have their bytes on the disk at the end. The scratch file costs two
copies of all bytes, the search a sort of the hashes, both a small part of the hashing and the compression, so a seed
should take at most 1.5 times as long. In memory are a run of a million rows in a few forms, and a segment of 16 MiB: at
most 600 MiB, whatever the size of the state.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import numpy as np
import pyarrow as pa

import statebackend as sb
from benchmarks.contest import ROUNDS, Line, Report, ratio
from benchmarks.restore.memory import status_bytes
from statebackend._columns.arrow import column_of
from statebackend._columns.keys import hash_parts
from statebackend._tables.key_groups import groups_of_hashes
from statebackend.settings import MiB

KEYS = 10_000_000
AT_ONCE = 1 << 20
BATCH = 1 << 16
SCHEMA: Any = pa.schema({"n": pa.int64(), "amount": pa.float64(), "airport": pa.string(), "at": pa.timestamp("us")})


def run(report: Report, *, keys: int = KEYS, rounds: int = ROUNDS) -> None:
    """Both in processes of their own, in turns, from one Arrow file."""
    with TemporaryDirectory(prefix="seeding") as name:
        directory = Path(name)
        _write_rows(directory / "rows.arrow", keys)
        peaks: list[float] = []

        def alone(kind: str) -> float:
            command = [sys.executable, "-m", __name__, kind, str(directory)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds, peak, found = printed.split()
            assert int(found) == keys, f"{kind} has {found} keys of {keys}"
            if kind == "seed":
                peaks.append(float(peak))
            return float(seconds)

        contestants: dict[str, Callable[[], float]] = {kind: partial(alone, kind) for kind in ("seed", "by hand")}
        found = report.contest("a state of columns", "s", contestants, rounds=rounds, keys=keys)
        times = ratio(found["seed"], found["by hand"])
        report.add(
            Line(f"seed of {keys} keys, over by hand", "at most 1.5", times.median, "x", 1.5, detail=f"ratios {times}")
        )
        report.add(Line("peak memory of the seed", "at most 600 MiB", max(peaks) / MiB, "MiB", 600.0))


def _write_rows(path: Path, keys: int) -> None:
    random = np.random.default_rng(7)
    airports: Any = pa.array([f"A{number:03}" for number in range(400)])
    schema = pa.schema([("key", pa.string()), *SCHEMA])
    order = random.permutation(keys)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, keys, BATCH):
            some = order[start : start + BATCH]
            count = len(some)
            texts = pa.array([f"customer-{number:09}" for number in some.tolist()])
            values = [random.integers(0, 1000, count), random.random(count).round(2)]
            at = pa.array(random.integers(0, 10**15, count)).cast(SCHEMA.field("at").type)
            columns = [texts, *map(pa.array, values), airports.take(pa.array(random.integers(0, 400, count))), at]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _rows(path: Path) -> Any:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _declare(backend: Any) -> None:
    backend.columnar_state("state", SCHEMA, key=pa.string())


async def _seed(directory: Path) -> int:
    settings = sb.Settings(job="job", primary=f"file://{directory}/primary-{time.monotonic_ns()}")
    schema = pa.schema([("key", pa.string()), *SCHEMA])
    reader = pa.RecordBatchReader.from_batches(schema, _rows(directory / "rows.arrow"))
    return (await sb.seed(settings, _declare, {"state": reader})).keys["state"]


def _by_hand(directory: Path) -> int:
    parallelism = sb.Settings(job="job", primary="memory://unused").max_parallelism
    schema = pa.schema([("key", pa.string()), *SCHEMA])
    written, pending = 0, list[Any]()
    options = pa.ipc.IpcWriteOptions(compression="zstd")

    def flush(writer: Any) -> None:
        table: Any = pa.Table.from_batches(pending).combine_chunks()
        hashes = hash_parts([column_of(table["key"])])
        order = np.argsort(groups_of_hashes(hashes, parallelism), kind="stable")
        writer.write_table(table.take(pa.array(order)))
        pending.clear()

    with (
        pa.OSFile(str(directory / "by-hand.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, schema, options=options) as out,
    ):
        for batch in _rows(directory / "rows.arrow"):
            pending.append(batch)
            written += batch.num_rows
            if sum(each.num_rows for each in pending) >= AT_ONCE:
                flush(out)
        if pending:
            flush(out)
    with (directory / "by-hand.arrow").open("rb") as file:
        os.fsync(file.fileno())
    return written


if __name__ == "__main__":
    begun = time.perf_counter()
    keys_found = anyio.run(_seed, Path(sys.argv[2])) if sys.argv[1] == "seed" else _by_hand(Path(sys.argv[2]))
    print(time.perf_counter() - begun, status_bytes("VmHWM"), keys_found)
