"""Event time: the column of a batch that has the time of each row, what of it is late, and the clock that follows it.

largest time of all rows less `lateness_s`  -> the job's clock, before the rows are processed
older than the clock of the batch before    -> late: dropped, kept, or put out

`EventTime.split` decides what is late. Spark decides the same by SQL where the rows stay there: `spark/batch_clock.py`.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from statebackend._processing.column_names import check_one
from statebackend._state.time.job_clock import NOT_BEGUN
from statebackend.errors import InputError, SettingsError

_pa: Any = pa  # it ships no types
_pc: Any = pc

Late = Literal["drop", "keep", "output"]
"""The fate of late rows: not processed, processed like any others, or given to `process_late` of the processor."""

_US: Final = 1_000_000
_UTC: Final = _pa.timestamp("us", tz="UTC")


class EventTime(msgspec.Struct, frozen=True):
    """The event-time column of a sink's batches. Times are seconds since 1970; those without a zone count as UTC."""

    column: str
    lateness_s: float
    late: Late

    def latest_s(self, table: Any) -> float:
        """The time that the rows of a `pyarrow.Table` move the clock to; `NOT_BEGUN` without rows.

        Raises `InputError` if the column is missing, has nulls, or holds no timestamps.
        """
        return self.clock_of(_pc.max(self._times(table)))

    def clock_of(self, latest: Any) -> float:
        """The time that a batch moves the clock to, by the largest time of its rows: an Arrow scalar, perhaps null."""
        if not _pa.types.is_timestamp(latest.type):
            raise InputError(
                "an event-time column must hold timestamps: cast it", column=self.column, type=str(latest.type)
            )
        found = latest.cast(_UTC, safe=False).cast(_pa.int64()).as_py()
        return NOT_BEGUN if found is None else found / _US - self.lateness_s

    def split(self, table: Any, before_s: float | None) -> tuple[Any, Any]:
        """The rows of a table that are in time, and those that are late by the clock of the batch before."""
        if before_s is None or not table.num_rows:
            return table, table.slice(0, 0)
        times = self._times(table).cast(_UTC, safe=False).cast(_pa.int64())
        is_late = _pc.less(times, in_us(before_s))
        return table.filter(_pc.invert(is_late)), table.filter(is_late)

    def check_nulls(self, count: int) -> None:
        """Raise `InputError` if any row has no time."""
        if count:
            raise InputError(
                "a row has no event time: filter such rows, or give them one", column=self.column, rows=count
            )

    def _times(self, table: Any) -> Any:
        check_one(self.column, table.column_names)
        times = table.column(self.column)
        self.check_nulls(times.null_count if _pa.types.is_timestamp(times.type) else 0)
        return times


def event_time_of(event_time: str | None, lateness_s: float | None, late: Late | None) -> EventTime | None:
    """The event time of these arguments of a sink, `None` without one. Raises `SettingsError` if they make no sense."""
    if event_time is None:
        if lateness_s is not None or late is not None:
            raise SettingsError(
                "lateness_s and late are about an event-time column: name it as event_time",
                lateness_s=lateness_s,
                late=late,
            )
        return None
    if type(event_time) is not str:
        raise SettingsError("event_time must be the name of a column", event_time=repr(event_time))
    if type(lateness_s) not in (int, float) or not 0 <= lateness_s < math.inf:  # type: ignore[operator]
        raise SettingsError(
            "event_time needs lateness_s: by how many seconds rows may be late, 0 or more", lateness_s=repr(lateness_s)
        )
    if late is not None and late not in get_args(Late):
        raise SettingsError("late must be 'drop', 'keep' or 'output'", late=repr(late))
    return EventTime(event_time, float(lateness_s), late or "drop")  # type: ignore[arg-type]


def in_us(time_s: float) -> int:
    """Seconds as whole microseconds, the unit of Spark's timestamps."""
    return round(time_s * _US)


def as_output(row: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """A row of the input with the columns of the output; those that it lacks are null."""
    return {name: row.get(name) for name in schema.names}
