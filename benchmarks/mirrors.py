"""Mirrors of a million keys, 50,000 changed in a batch, beside the same rows written by hand; and the batch beside one.

    python -m benchmarks mirrors                                some ten minutes
    python -m benchmarks mirrors --sizes keys=100000,changes=5000,rounds=2

The contestant by hand writes the same rows, which lie in its memory: also the columns that say of each change what it
was and of which batch, without which it could not be repeated, nor be an audit.

Envelope. A step reads 50,000 changes from the log, decodes them and lays them out, and makes ten small requests: some
15 ms. Parquet by hand takes as long for the same rows, so 1.3 of it leaves little room. In Postgres the COPY and the
upsert take a quarter of a second, so reading is a tenth: 1.2. In Delta one changed key rewrites one partition of P,
while MERGE rewrites the files that have the key, each as large as the writer made it, and looks for it in all: bytes
are compared, of a table with P = 16. A batch of 50,000 upserts beside a mirror in the same process shares its cores:
1.03.

Postgres and Delta are measured where their libraries and the server are. Each contestant works on a table of its own,
in turns.
"""

import asyncio
import datetime as dt
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import statebackend as sb
from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.jobs import directory
from benchmarks.servers import ServerError
from benchmarks.upserts.postgres import SETTINGS as SERVER
from benchmarks.upserts.postgres import open_server
from statebackend._mirroring.keeping_up import open_mirroring
from statebackend._mirroring.targets.delta import DeltaTarget
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups

SCHEMA: Final = pa.schema([("n", pa.int64()), ("sum", pa.float64()), ("last", pa.string())])
HOW: Final[Any] = {name: ("last", name) for name in SCHEMA.names}
PARTITIONS: Final = 16


def run(report: Report, keys: int = 1_000_000, changes: int = 50_000, rounds: int = 7) -> None:
    """All parts."""
    with directory() as root:
        asyncio.run(_run(report, root, keys, changes, rounds))


async def _run(report: Report, root: Path, keys: int, changes: int, rounds: int) -> None:
    settings = sb.Settings(job="mirrored", primary=f"file://{root}/state", checkpoints_retained=100)
    at: dict[str, float | str] = {"keys": keys, "changes": changes}
    job = _Job(settings, keys, changes)
    await job.fill()
    await _parquet(report, root, job, rounds, at)
    await _postgres(report, root, job, rounds, at)
    await _delta(report, root, job, at)
    await _beside(report, root, job, rounds * 30, at)


class _Job:
    """A job with a columnar state of `keys`, of which a batch changes `changes`."""

    def __init__(self, settings: sb.Settings, keys: int, changes: int) -> None:
        self.settings, self.keys, self.changes = settings, keys, changes
        self.checkpoint_id = 0

    async def fill(self) -> None:
        await self.batch(range(self.keys))

    def rows(self, numbers: Any) -> Any:
        """The rows of some keys, as this batch has them."""
        return pa.table(
            {
                "key": [f"key-{number:09}" for number in numbers],
                "n": pa.array([self.checkpoint_id] * len(numbers), pa.int64()),
                "sum": pa.array([float(number) for number in numbers], pa.float64()),
                "last": [f"flight {number} of today" for number in numbers],
            }
        )

    def told(self, rows: Any) -> Any:
        """The rows with the columns that a mirror adds to them."""
        count = len(rows)
        owned = OwnedKeys(all_key_groups(self.settings.max_parallelism), self.settings.max_parallelism)
        told = {
            "key_group": pa.array(owned.groups_of(rows.column("key").to_pylist()), pa.int32()),
            "checkpoint_id": pa.repeat(self.checkpoint_id, count),
            "batch_id": pa.repeat(self.checkpoint_id, count),
            "committed_at": pa.repeat(pa.scalar(dt.datetime.now(dt.UTC), pa.timestamp("us", "UTC")), count),
        }
        for name, values in told.items():
            rows = rows.append_column(name, values)
        return rows

    async def batch(self, numbers: Any = None) -> Any:
        """Commit one batch in an opening of its own; return its rows."""
        async with sb.open_backend(self.settings) as backend:
            return await self.batch_in(backend, numbers)

    async def batch_in(self, backend: sb.StateBackend, numbers: Any = None) -> Any:
        rows = self.next_rows(numbers)
        await self.commit(backend, rows)
        return rows

    def next_rows(self, numbers: Any = None) -> Any:
        """The rows of the next batch: of `numbers`, or of a share of all keys that each batch has another of."""
        self.checkpoint_id += 1
        step = max(1, self.keys // self.changes)
        return self.rows(range(self.checkpoint_id % step, self.keys, step) if numbers is None else numbers)

    async def commit(self, backend: sb.StateBackend, rows: Any) -> None:
        """A batch with its checkpoint."""
        backend.columnar_state("totals", SCHEMA, key=pa.string()).merge(rows, on="key", how=HOW)
        await backend.checkpoint(self.checkpoint_id, source=sb.SourceMark("query", self.checkpoint_id))


class _Timed:
    """A target's `write` that notes how long each call takes."""

    def __init__(self, target: Any) -> None:
        self.seconds: list[float] = []
        self._write = target.write
        target.write = self

    async def __call__(self, rows: Any) -> None:
        begun_s = time.perf_counter()
        await self._write(rows)
        self.seconds.append(time.perf_counter() - begun_s)


async def _steps(
    job: _Job, mirror: sb.Mirror, by_hand: Callable[[Any], None], rounds: int
) -> tuple[Sample, Sample, Sample]:
    """Seconds of each step of the mirror, of its writing alone, and of the same rows by hand, in turns."""
    timed = _Timed(mirror.target)
    ours: list[float] = []
    hand: list[float] = []
    async with open_mirroring(job.settings, mirror) as mirroring:
        await mirroring.catch_up()
        for _ in range(rounds):
            rows = await job.batch()
            begun_s = time.perf_counter()
            await mirroring.catch_up()
            ours.append(time.perf_counter() - begun_s)
            told = job.told(rows)
            begun_s = time.perf_counter()
            by_hand(told)
            hand.append(time.perf_counter() - begun_s)
    return Sample(ours), Sample(timed.seconds[-rounds:]), Sample(hand)


async def _parquet(report: Report, root: Path, job: _Job, rounds: int, at: dict[str, float | str]) -> None:
    folder = root / "by hand"
    folder.mkdir()

    def by_hand(rows: Any) -> None:
        name = folder / f"{time.monotonic_ns()}.parquet"
        pq.write_table(rows.add_column(0, "op", pa.repeat("update", len(rows))), name, compression="zstd")
        with name.open("rb") as file:
            os.fsync(file.fileno())  # as the mirror's store does

    ours, written, hand = await _steps(job, sb.Mirror("totals", to=root / "log", name="log"), by_hand, rounds)
    report.keep("a step of a log on Parquet", "s", {"mirror": ours, "its write": written, "by hand": hand}, **at)
    report.add(
        Line(
            "a log on Parquet, beside the bare write",
            "at most 1.3",
            ratio(ours, hand).median,
            "times",
            1.3,
            detail=f"{ours} s; its write alone {written} s; by hand {hand} s",
        )
    )


async def _postgres(report: Report, root: Path, job: _Job, rounds: int, at: dict[str, float | str]) -> None:
    if importlib.util.find_spec("psycopg") is None:
        report.skip("Postgres: there is no psycopg")
        return
    import psycopg  # noqa: PLC0415
    from pyarrow import csv  # noqa: PLC0415

    folder = root / "pg"
    folder.mkdir()
    try:
        with open_server(folder, SERVER) as (where, _), psycopg.connect(where, autocommit=True) as connection:
            columns = (
                "key text, n bigint, sum double precision, last text,"
                " key_group integer, checkpoint_id bigint, batch_id bigint, committed_at timestamptz"
            )
            connection.execute("SET timezone = 'UTC'")
            connection.execute(f"CREATE TABLE hand ({columns}, PRIMARY KEY (key))")
            connection.execute(f"CREATE TEMP TABLE new ({columns}) ON COMMIT DELETE ROWS")

            def by_hand(rows: Any) -> None:
                text = pa.BufferOutputStream()
                naive = rows.column("committed_at").cast(pa.timestamp("us"))  # ten times as quick as with its zone
                rows = rows.set_column(rows.num_columns - 1, "committed_at", naive)
                csv.write_csv(rows, text, csv.WriteOptions(include_header=False))
                with connection.transaction(), connection.cursor() as cursor:
                    with cursor.copy("COPY new FROM STDIN (FORMAT csv)") as copy:
                        copy.write(memoryview(text.getvalue()))
                    cursor.execute(
                        "INSERT INTO hand SELECT * FROM new ON CONFLICT (key) DO UPDATE SET"
                        " (n, sum, last, key_group, checkpoint_id, batch_id, committed_at) = (excluded.n,"
                        " excluded.sum, excluded.last, excluded.key_group, excluded.checkpoint_id, excluded.batch_id,"
                        " excluded.committed_at)"
                    )

            by_hand(job.told(job.rows(range(job.keys))))
            mirror = sb.Mirror("totals", to=sb.mirrors.PostgresTarget(where, "totals"), name="postgres")
            ours, written, hand = await _steps(job, mirror, by_hand, rounds)
    except ServerError as error:
        report.skip(f"Postgres: {error}")
        return
    report.keep(
        "a step of a table in Postgres", "s", {"mirror": ours, "its write": written, "COPY and upsert": hand}, **at
    )
    report.add(
        Line(
            "a table in Postgres, beside COPY and upsert",
            "at most 1.2",
            ratio(ours, hand).median,
            "times",
            1.2,
            detail=f"{ours} s; its write alone {written} s; by hand {hand} s",
        )
    )


async def _delta(report: Report, root: Path, job: _Job, at: dict[str, float | str]) -> None:
    if importlib.util.find_spec("deltalake") is None:
        report.skip("Delta: there is no deltalake")
        return
    import deltalake  # noqa: PLC0415

    ours, merged = root / "delta", root / "merged"
    target = DeltaTarget(str(ours), partitions=PARTITIONS)
    mirror = sb.Mirror("totals", to=target, name="delta")
    await sb.mirror_once(job.settings, mirror)
    deltalake.write_deltalake(merged, job.rows(range(job.keys)))
    whole = _bytes_added(ours)
    whole_merged = _bytes_added(merged)
    rows = await job.batch([7])
    await sb.mirror_once(job.settings, mirror)
    deltalake.DeltaTable(merged).merge(
        rows, "t.key = s.key", source_alias="s", target_alias="t"
    ).when_matched_update_all().when_not_matched_insert_all().execute()
    shares = {
        "mirror": Sample([_bytes_added(ours) / whole]),
        "MERGE": Sample([_bytes_added(merged) / whole_merged]),
    }
    report.keep("one changed key in Delta", "of the table", shares, **at)
    limit = 1.2 / PARTITIONS  # partitions are not of one size
    report.add(
        Line(
            f"one changed key in Delta rewrites a part of {PARTITIONS}",
            f"at most {limit:.3f}",
            shares["mirror"].median,
            "of the table",
            limit,
            detail=f"MERGE: {shares['MERGE'].median:.3f}",
        )
    )


def _bytes_added(table: Path) -> int:
    """The size of the files that the newest commit of a Delta table adds."""
    newest = max((table / "_delta_log").glob("*.json"))
    actions = map(json.loads, newest.read_text(encoding="utf-8").splitlines())
    return sum(action["add"]["size"] for action in actions if "add" in action)


async def _beside(report: Report, root: Path, job: _Job, batches: int, at: dict[str, float | str]) -> None:
    """Batches with a mirror on the same loop, and without, in turns of five."""
    with_mirror: list[float] = []
    without: list[float] = []
    mirror = sb.Mirror("totals", to=root / "beside", name="beside", every_s=0.2)
    await sb.mirror_once(job.settings, mirror)
    async with sb.open_backend(job.settings) as backend:
        for turn in range(max(2, batches // 5)):
            figures = with_mirror if turn % 2 else without
            async with _running(job.settings, mirror, runs=bool(turn % 2)):
                for _ in range(5):
                    rows = job.next_rows()  # to make them takes as long as all else, and moves by a third
                    begun_s = time.perf_counter()
                    await job.commit(backend, rows)
                    figures.append(time.perf_counter() - begun_s)
                    await asyncio.sleep(0.5)  # a stream has pauses, in which a mirror works
    samples = {"with a mirror": Sample(with_mirror), "without": Sample(without)}
    report.keep("a batch beside a mirror", "s", samples, **at)
    share = statistics.median(with_mirror) / statistics.median(without)
    report.add(
        Line(
            "p50 of a batch beside a mirror", "at most 1.03", share, "times", 1.03, detail=str(samples["with a mirror"])
        )
    )


class _running:  # noqa: N801  # a context
    def __init__(self, settings: sb.Settings, mirror: sb.Mirror, *, runs: bool) -> None:
        self._given = (settings, mirror)
        self._runs = runs

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(sb.keep_mirrored(*self._given)) if self._runs else None

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
