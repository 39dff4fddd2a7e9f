"""A topic with one partition, read with the options and offsets of Kafka's source: there is no Kafka here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition


class Topic:
    """The rows of the topic `orders`, in a file: customer and amount."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    @property
    def end(self) -> int:
        """The offset behind the last row."""
        return len(self.path.read_text().splitlines())

    def append(self, rows: list[tuple[str, int]]) -> None:
        """Append rows."""
        lines = [json.dumps({"customer": customer, "amount": amount}) for customer, amount in rows]
        self.path.write_text(self.path.read_text() + "".join(f"{line}\n" for line in lines))


class Span(InputPartition):
    """Offsets from `start` up to `end`."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class _Rows:
    path: str

    def read(self, span: Any) -> Iterator[tuple[bytes]]:
        for line in Path(self.path).read_text().splitlines()[span.start : span.end]:
            yield (line.encode(),)


class TopicBatch(_Rows, DataSourceReader):
    """The rows up to `endingOffsets`."""

    def __init__(self, path: str, end: int) -> None:
        self.path = path
        self.end = end

    def partitions(self) -> list[Span]:
        return [Span(0, self.end)]


class TopicStream(_Rows, DataSourceStreamReader):
    """The rows from `startingOffsets` on, with offsets as Kafka has them."""

    def __init__(self, path: str, start: Any) -> None:
        self.path = path
        self.start = start

    def initialOffset(self) -> Any:  # noqa: N802  # Spark's name
        return self.start

    def latestOffset(self, *_: Any) -> Any:  # noqa: N802  # Spark's name
        return {"orders": {"0": len(Path(self.path).read_text().splitlines())}}

    def partitions(self, start: Any, end: Any) -> list[Span]:
        return [Span(start["orders"]["0"], end["orders"]["0"])]

    def commit(self, end: Any) -> None:
        pass


def source_of(topic: Topic) -> type[DataSource]:
    """The class to register."""
    path = str(topic.path)

    class TopicSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "topic"

        def schema(self) -> str:
            return "value binary"

        def reader(self, schema: Any) -> TopicBatch:
            return TopicBatch(path, json.loads(self.options["endingoffsets"])["orders"]["0"])

        def streamReader(self, schema: Any) -> TopicStream:  # noqa: N802  # Spark's name
            return TopicStream(path, json.loads(self.options["startingoffsets"]))

    return TopicSource
