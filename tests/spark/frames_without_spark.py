"""Frames that hold their rows, as those of Spark Connect would to a sink: for tests of what a sink decides.

There a process serves one run of a query, so what comes to a sink in a test is one run, unless the test closes it.
"""

import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class Frame:
    """A frame with the rows of an Arrow table. Two with equal rows come from the same plan."""

    sparkSession = object()  # noqa: N815 - Spark's name

    def __init__(self, table: Any) -> None:
        self.table = table

    @property
    def columns(self) -> list[str]:
        names: list[str] = self.table.column_names
        return names

    def where(self, condition: str) -> "Frame":
        """The rows of which `column = 'text'` is true."""
        found = re.fullmatch(r"(\w+) = '(\w+)'", condition)
        assert found, condition
        return Frame(self.table.filter(pc.field(found[1]) == found[2]))

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


def frame_of(keys: str, column: str = "key") -> Any:
    """A frame of one column, a row for each letter."""
    return Frame(pa.table({column: pa.array(list(keys), pa.string())}))
