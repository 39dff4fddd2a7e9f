"""An asynchronous `process`: its cost beside a synchronous one, and 5,000 keys that each wait for an answer.

    python -m benchmarks calls --sizes keys=500,rows=5000
    python -m benchmarks calls.spark                          the same in a stream, beside Spark's own state

Envelope. A synchronous call costs some 8 µs with its share of grouping rows. A call that never waits adds a coroutine,
a check at each use of state and its place in the order: 5 µs. A memo that has the answer adds 1 µs; without one, a
lookup has a timer, a place and a memo to make: 15 µs, which no request over a network notices.

Requests of 20 ms over loopback, 64 at a time: 5,000 of them take 1.56 s if nothing else does. Each takes the loop
100 to 150 µs, half of it in asyncio's streams: 0.7 s beside the waiting. A pool of 64 threads does the same with
blocking sockets, and passes the interpreter from thread to thread with each.
"""

import asyncio
import gc
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, Final

import pyarrow as pa

import statebackend as sb
from benchmarks.contest import Line, Report, ratio
from benchmarks.slow_service import serving
from statebackend._processing.runner import ProcessorRunner

EXPECTED: Final = {"idle": 2.0, "memo": 2.0, "lookup": 4.0}
"""CPU of calls that never wait, over a synchronous process."""
EXPECTED_OF_IDEAL: Final = 0.8
DELAY_MS: Final = 20
CONCURRENCY: Final = 64
OUTPUT: Final = pa.schema([("key", pa.string()), ("count", pa.int64())])

_jobs = count()


class Counting(sb.spark.KeyedProcessor):
    """Counts rows by key, without asking anybody."""

    output_schema = OUTPUT

    def open(self, context: sb.spark.ProcessorContext) -> None:
        self.counts = context.value_state("counts", int)

    def process(self, key: Any, rows: Sequence[Any], context: sb.spark.ProcessorContext) -> Any:
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        yield {"key": key, "count": self.counts[key]}


class Asking(Counting):
    """Asks first, with the last two digits of the key or all of it."""

    def __init__(self, ask: Any, *, digits: int | None) -> None:
        self._ask = ask
        self._part = slice(None if digits is None else -digits, None)

    async def process(self, key: Any, rows: Sequence[Any], context: sb.spark.ProcessorContext) -> Any:
        await self._ask(key[self._part])
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        yield {"key": key, "count": self.counts[key]}


class Connections:
    """An asynchronous client with as many connections as there are requests at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, question: str) -> str:
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"{question}\n".encode())
        answer = await reader.readline()
        self._free.append((reader, writer))
        return answer.decode().strip()

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


def run(report: Report, *, keys: int = 5_000, rows: int = 50_000, batches: int = 4, rounds: int = 5) -> None:
    """Both. Half a minute."""
    table = pa.table({"key": [f"key{number % keys}" for number in range(rows)]})
    _idle(report, table, batches, rounds)
    _requests(report, table, keys, rounds)


def _idle(report: Report, table: Any, batches: int, rounds: int) -> None:
    each = {
        "synchronous": Counting,
        "idle": lambda: Asking(_at_once, digits=0),
        "memo": lambda: Asking(sb.spark.lookup(_at_once), digits=2),
        "lookup": lambda: Asking(sb.spark.lookup(_at_once), digits=None),
    }
    samples = report.contest(
        "CPU of a batch of calls",
        "ms",
        {name: partial(_cpu, make, table, batches) for name, make in each.items()},
        rounds=rounds,
    )
    for name, claim in (
        ("idle", "an await that returns at once"),
        ("memo", "a lookup of 100 different arguments"),
        ("lookup", "a lookup of as many arguments as keys"),
    ):
        found = ratio(samples[name], samples["synchronous"])
        report.add(
            Line(
                f"CPU of a batch of {table.num_rows:,} rows, each key with {claim}, over a synchronous process",
                f"at most {EXPECTED[name]:g}x",
                found.median,
                "x",
                EXPECTED[name],
                detail=f"ms: {samples[name]}, synchronous {samples['synchronous']}; ratio {found}",
            )
        )


def _requests(report: Report, table: Any, keys: int, rounds: int) -> None:
    ideal_s = keys * DELAY_MS / 1000 / CONCURRENCY
    with serving(DELAY_MS) as port:
        samples = report.contest(
            "calls over loopback",
            "s",
            {
                "async": partial(_seconds, partial(_by_calls, table, port)),
                "threads": partial(_seconds, partial(_by_threads, table, port)),
            },
            rounds=rounds,
            keys=keys,
        )
    for name, claim in (("async", "calls of an asynchronous process"), ("threads", "threads of a pool")):
        report.add(
            Line(
                f"{keys:,} keys with {DELAY_MS} ms over loopback, {CONCURRENCY} {claim}: ideal over measured time",
                f"at least {EXPECTED_OF_IDEAL:g}",
                ideal_s / samples[name].median,
                "",
                EXPECTED_OF_IDEAL,
                at_least=True,
                detail=f"s: {samples[name]}, ideal {ideal_s:.3g}",
            )
        )


def _cpu(make: Any, table: Any, batches: int) -> float:
    """Milliseconds of CPU for a batch."""

    async def measure() -> float:
        async with sb.open_backend(_settings()) as backend:
            runner = _runner(make())
            await _batch(runner, table, 0, backend)
            gc.collect()  # what the contestant before has left
            begun = time.process_time()
            for number in range(1, batches + 1):
                await _batch(runner, table, number, backend)
            return (time.process_time() - begun) / batches * 1000

    return asyncio.run(measure())


def _seconds(measure: Any) -> float:
    begun = time.perf_counter()
    asyncio.run(measure())
    return time.perf_counter() - begun


async def _by_calls(table: Any, port: int) -> None:
    connections = Connections(port)
    async with sb.open_backend(_settings()) as backend:
        runner = _runner(Asking(connections.ask, digits=None), concurrency=CONCURRENCY)
        assert (await _batch(runner, table, 0, backend)).num_rows == len(table["key"].unique())
    connections.close()


async def _by_threads(table: Any, port: int) -> None:
    """As it would be in `foreachBatch`: all answers first, then the state."""
    keys = table["key"].unique().to_pylist()
    async with sb.open_backend(_settings()) as backend:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            shares = pool.map(partial(ask_blocking, port), (keys[first::CONCURRENCY] for first in range(CONCURRENCY)))
            assert sum(map(len, shares)) == len(keys)
        await _batch(_runner(Counting()), table, 0, backend)


def ask_blocking(port: int, questions: Sequence[str]) -> list[str]:
    """Ask one after the other, over one connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        answers = []
        for question in questions:
            stream.write(f"{question}\n".encode())
            stream.flush()
            answers.append(stream.readline().decode().strip())
        return answers


async def _batch(runner: ProcessorRunner, table: Any, number: int, backend: sb.StateBackend) -> Any:
    if not runner.is_async:
        return runner(table, number, backend)
    return runner.table_of(await runner.run(runner.keys_of(table), number, backend))


async def _at_once(question: str) -> str:
    return question


def _settings() -> sb.Settings:
    return sb.Settings(job="calls", primary=f"memory://calls-{next(_jobs)}")


def _runner(processor: sb.spark.KeyedProcessor, concurrency: int | None = None) -> ProcessorRunner:
    return ProcessorRunner(processor, key="key", order_by=(), has_output=True, concurrency=concurrency)
