"""Processors for executors. Workers import them by name, so this module imports nothing that workers lack.

Keys of the streams here are of the form `a:3`: the key `a` and the number 3.
"""

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa

from statebackend import TimeToLive
from statebackend.spark import KeyedProcessor

COUNTED = pa.schema([("key", pa.string()), ("count", pa.int64()), ("numbers", pa.list_(pa.int64()))])


def split(df: Any) -> Any:
    """The key and the number of each row."""
    return df.selectExpr("split(key, ':')[0] AS key", "cast(split(key, ':')[1] AS bigint) AS number")


class Counting(KeyedProcessor):
    """Counts rows by key. Yields nothing."""

    def open(self, context):
        self.counts = context.value_state("counts", int)

    def process(self, key, rows, context):
        self.counts[key] = self.counts.get(key, 0) + len(rows)


class Telling(Counting):
    """Yields each count as well, with the numbers of the batch."""

    output_schema = COUNTED

    def process(self, key, rows, context):
        super().process(key, rows, context)
        yield {"count": self.counts[key], "key": key, "numbers": [row["number"] for row in rows]}


SUMMED = pa.schema([("n", pa.int64()), ("sum", pa.int64())])


class Columns(KeyedProcessor):
    """Counts rows and sums their numbers by key, in columns. Returns what has changed."""

    output_schema = pa.schema([("key", pa.string()), *SUMMED])

    def open(self, context):
        self.sums = context.columnar_state("sums", SUMMED, key=pa.string())

    def process_table(self, table, context):
        return self.sums.merge(table, on="key", how={"n": "count", "sum": ("sum", "number")})


class ColumnsByKey(Columns):
    """The same a key at a time."""

    process_table = KeyedProcessor.process_table

    def process(self, key, rows, context):
        known = self.sums.get(key, {"n": 0, "sum": 0})
        self.sums[key] = {"n": known["n"] + len(rows), "sum": known["sum"] + sum(row["number"] for row in rows)}
        yield {"key": key, **self.sums[key]}


class Tables(KeyedProcessor):
    """The same by Arrow."""

    output_schema = COUNTED

    def open(self, context):
        self.counts = context.value_state("counts", int)

    def process_table(self, table, context):
        found = table.group_by("key").aggregate([("key", "count"), ("number", "list")])
        keys, counts = found["key"].to_pylist(), []
        for key, count in zip(keys, found["key_count"].to_pylist(), strict=True):
            counts.append(self.counts.get(key, 0) + count)
            self.counts[key] = counts[-1]
        return pa.table([found["number_list"], found["key"], counts], names=["numbers", "key", "count"])


class Sparing(Counting):
    """Yields True if the garbage collector ignores most objects of the process."""

    output_schema = pa.schema([("key", pa.string()), ("spared", pa.bool_())])

    def process(self, key, rows, context):
        super().process(key, rows, context)
        yield {"key": key, "spared": gc.get_freeze_count() > len(gc.get_objects())}


class Failing(Counting):
    """Fails in one batch after it has changed its state, once for each of `times`; the file remembers how often."""

    def __init__(self, memory: Path, *, batch_id: int, times: int = 1) -> None:
        self._memory = memory
        self._batch_id = batch_id
        self._times = times

    def process(self, key, rows, context):
        super().process(key, rows, context)
        if context.batch_id == self._batch_id and self._is_due():
            self.fail()

    def fail(self) -> None:
        """Fail."""
        raise ValueError("as it was told to")

    def _is_due(self) -> bool:
        happened = self._memory.stat().st_size if self._memory.exists() else 0
        if happened < self._times:
            with self._memory.open("ab") as memory:
                memory.write(b".")
        return happened < self._times


class Dying(Failing):
    """Ends its worker process by SIGKILL instead, without a last word."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Waiting(Counting):
    """In its first batch, waits until somebody opens the other end of a pipe, and then for ever."""

    def __init__(self, pipe: Path, memory: Path) -> None:
        self._pipe = pipe
        self._memory = memory

    def process(self, key, rows, context):
        super().process(key, rows, context)
        if not self._memory.exists():
            self._memory.touch()
            self._pipe.open("wb").close()
            signal.pause()


class Asking(Counting):
    """As `Telling`, but it waits between reading and writing: some turns of the loop, fewer for later keys."""

    output_schema = COUNTED

    async def process(self, key, rows, context):
        count = self.counts.get(key, 0)
        for _ in range(ord("z") - ord(key)):
            await asyncio.sleep(0)
        self.counts[key] = count + len(rows)
        yield {"key": key, "count": self.counts[key], "numbers": [row["number"] for row in rows]}


class Sessions(KeyedProcessor):
    """Ends the session of a key ten seconds after its last row, unless its time-to-live is over before that."""

    output_schema = pa.schema([("key", pa.string()), ("what", pa.string()), ("seconds", pa.float64())])

    def open(self, context):
        self.ends = context.timers("ends")
        self.last = context.value_state("last", float, ttl=TimeToLive(1000))

    def process(self, key, rows, context):
        last = max(row["number"] for row in rows)
        self.last[key] = max(last, self.last.get(key, last))
        self.ends.register(key, max(self.last[key] + 10, context.clock_before_s or 0))
        yield {"key": key, "what": "rows", "seconds": len(rows)}

    def process_late(self, key, rows, context):
        yield {"key": key, "what": "late", "seconds": len(rows)}

    def on_timer(self, key, at, context):
        if key not in self.last:
            yield {"key": key, "what": "expired", "seconds": at}
        elif self.last[key] + 10 <= at:
            del self.last[key]
            yield {"key": key, "what": "end", "seconds": at}


def timed(df: Any) -> Any:
    """As `split`, with the number as a time."""
    return split(df).selectExpr("*", "timestamp_seconds(number) AS at")
