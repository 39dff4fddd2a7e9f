"""Frames that hold their rows, as those of Spark Connect would to a sink: for tests of what a sink decides.

There a process serves one run of a query, so what comes to a sink in a test is one run, unless the test closes it.
"""

import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def session_in(zone: str) -> Any:
    """A session of this time zone, of another class than the classic one."""
    return SimpleNamespace(conf=SimpleNamespace(get={"spark.sql.session.timeZone": zone}.get))


class Frame:
    """A frame with the rows of an Arrow table. Two with equal rows come from the same plan."""

    def __init__(self, table: Any, zone: str = "UTC") -> None:
        self.table = table
        self._zone = zone
        self.sparkSession = session_in(zone)

    @property
    def columns(self) -> list[str]:
        names: list[str] = self.table.column_names
        return names

    def where(self, condition: str) -> "Frame":
        """The rows of which `column = 'text'` is true."""
        found = re.fullmatch(r"(\w+) = '(\w+)'", condition)
        assert found, condition
        return Frame(self.table.filter(pc.field(found[1]) == found[2]), self._zone)

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        return not self.table.num_rows

    def sameSemantics(self, other: "Frame") -> bool:  # noqa: N802 - Spark's name
        """By the values alone: Spark's plans have no names."""
        mine, theirs = (frame.table.rename_columns([*map(str, range(len(frame.columns)))]) for frame in (self, other))
        return bool(mine.equals(theirs))

    def toArrow(self) -> Any:  # noqa: N802 - Spark's name
        return self.table

    @property
    def write(self) -> Any:
        """What runs a batch without using its rows."""
        write = SimpleNamespace(save=lambda: None)
        write.format = write.mode = lambda _: write
        return write


def frame_of(keys: str, column: str = "key", zone: str = "UTC") -> Any:
    """A frame of one column, a row for each letter, in a session of this time zone."""
    return Frame(pa.table({column: pa.array(list(keys), pa.string())}), zone)
