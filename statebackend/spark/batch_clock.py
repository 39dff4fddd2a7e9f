"""Moves the job's clock with each batch: by its event times, or to the time at which it began.

Where the rows are not at hand, Spark is asked for their largest time, in a job of its own. The rule of late rows is
here as SQL; `EventTime.split` in `_processing/event_time.py` has it for rows in Arrow.
"""

from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from statebackend._processing.column_names import check_one
from statebackend._processing.event_time import EventTime, in_us
from statebackend.abc import Clock
from statebackend.abc.clock import SystemClock
from statebackend.errors import SettingsError
from statebackend.ids import ClockKind
from statebackend.spark.frames import collected, without_adaptive_planning

ClockMode = Literal["batch", "kept"]
"""The clock of a job without event time: moved to the time of each batch, or left where it stands."""

_S_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _S_US


class BatchClock:
    """The clock of a sink's job: `event_time`, or else the time of its batches, by `clock`."""

    def __init__(self, event_time: EventTime | None, clock: Clock | None = None) -> None:
        self.event_time: Final = event_time
        self.kind: Final[ClockKind] = "processing" if event_time is None else "event"
        self._clock = clock or SystemClock()

    def rows_of(self, df: DataFrame) -> tuple[Any, float]:
        """The rows of a batch as a `pyarrow.Table`, and the time that it moves the clock to.

        Raises as `EventTime.latest_s`, and what Spark does.
        """
        began_s = self._clock.time()  # before Spark works out the rows, which may take long
        table = collected(df)
        return table, began_s if self.event_time is None else self.event_time.latest_s(table)

    def of_frame(self, df: DataFrame, before_s: float | None = None) -> tuple[float, int]:
        """The same for a batch whose rows are in Spark, and how many of them are older than `before_s`.

        With event time that is a Spark job. Raises as `EventTime.latest_s`.
        """
        if (event_time := self.event_time) is None:
            return self._clock.time(), 0
        check_one(event_time.column, df.columns)
        column = f.col(_quoted(event_time.column))
        is_late = "false" if before_s is None else self._is_late(df, before_s)
        with without_adaptive_planning(df):
            found = collected(df.agg(f.max(column), f.count_if(column.isNull()), f.count_if(f.expr(is_late))))
        latest, nulls, late = (each[0] for each in found.columns)
        to_s = event_time.clock_of(latest)
        event_time.check_nulls(nulls.as_py())
        return to_s, late.as_py()

    def in_time(self, df: DataFrame, before_s: float | None) -> DataFrame:
        """The rows of a batch that are not older than `before_s`."""
        return df if before_s is None else df.where(f"NOT ({self._is_late(df, before_s)})")

    def _is_late(self, df: DataFrame, before_s: float) -> str:
        """The condition for a late row, in SQL; false for a column without timestamps, which is told otherwise."""
        assert self.event_time is not None, "rows have no time"
        match df.schema[self.event_time.column].dataType:
            case t.TimestampType():
                before = f"timestamp_micros({in_us(before_s)}L)"
            case t.TimestampNTZType():
                days, rest = divmod(in_us(before_s), _DAY_US)  # a literal of Python's times ends with the year 9999
                seconds = f"{rest // _S_US}.{rest % _S_US:06}"
                before = f"(TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval({days}, 0, 0, {seconds}))"
            case _:
                return "false"
        return f"{_quoted(self.event_time.column)} < {before}"


def batch_clock_of(event_time: EventTime | None, clock: object) -> BatchClock | None:
    """The clock that a sink with these arguments moves, `None` if none. Raises `SettingsError` for any others."""
    if clock not in (None, *get_args(ClockMode)):
        raise SettingsError("clock must be 'batch' or 'kept', or left out", clock=repr(clock))
    if event_time is not None and clock is not None:
        raise SettingsError("a job has one clock: give event_time or clock", event_time=event_time.column, clock=clock)
    return None if event_time is None and clock != "batch" else BatchClock(event_time)


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"
