"""The outbox where the work is done by executors: each task stages its rows, the driver names and publishes them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import statebackend as sb

SCHEMA = pa.schema([("key", pa.string()), ("count", pa.int64()), ("padding", pa.string()), ("chance", pa.binary())])


class Counting(sb.spark.KeyedProcessor):
    """Counts rows by key; no two runs of it on the same rows give the same. Rows of one key are many bytes."""

    output_schema = SCHEMA

    def open(self, context):
        self.counts = context.value_state("counts", int)

    def process(self, key, rows, context):
        import os  # noqa: PLC0415 - the class is pickled by value

        self.counts[key] = self.counts.get(key, 0) + len(rows)
        yield {"key": key, "count": self.counts[key], "padding": "x" * 20_000, "chance": os.urandom(8)}


class Receiver:
    """Stores the first rows of each batch, and asserts that they come again as they were."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.tables: dict[int, Any] = {}
        self.calls: list[int] = []
        self._fails_at = fails_at

    def __call__(self, publication: sb.spark.Publication) -> None:
        self.calls.append(publication.batch_id)
        table = publication.table
        assert self.tables.setdefault(publication.batch_id, table).equals(table)
        if publication.batch_id == self._fails_at:
            self._fails_at = None
            raise OSError("the receiver is away")

    @property
    def counts(self) -> list[dict[str, int]]:
        return [
            dict(zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True))
            for _, table in sorted(self.tables.items())
        ]


def named(settings: sb.Settings) -> list[str]:
    """The keys of the objects with the newest commit's output."""

    async def read() -> list[str]:
        async with sb.open_backend(settings, read_only=True) as backend:
            return [part.key for output in backend.outbox.pending for part in output.parts]

    return asyncio.run(read())


def test_what_tasks_put_out_is_published_once_it_is_committed_and_again_as_it_was(stream, open_sink, read) -> None:
    """By any number of tasks, also none. A batch that comes again is not processed, and gives the same rows.

    A task's single row is small enough for the commit; two are not, and of four keys two share a range.
    """
    settings = msgspec.structs.replace(stream.settings, inline_bytes_max=90_000)
    receiver = Receiver(fails_at=1)

    def sink() -> sb.spark.StatefulSink:
        options = {"key": "key", "execution": "executors", "parallelism": 3, "output": sb.spark.Outbox(receiver)}
        return open_sink(Counting(), settings, **options)

    stream.feed()
    stream.feed(*"abcabd")
    stream.feed("a")
    assert "the receiver is away" in stream.fail(sink())
    stream.run(sink())
    assert receiver.calls == [0, 1, 1, 2]
    assert receiver.counts == [{}, {"a": 2, "b": 2, "c": 1, "d": 1}, {"a": 3}]
    assert read(settings).counts == {"a": 3, "b": 2, "c": 1, "d": 1}
    staged = list(Path(settings.primary.removeprefix("file://")).glob("*/outbox/*"))
    assert {path.name[:8] for path in staged} == {"00000001"}  # what tasks stage is of the driver's epoch
    assert [key.partition("/")[0] for key in named(settings)] == ["commits"]
