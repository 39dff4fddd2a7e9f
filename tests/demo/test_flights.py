"""The data set as one file per day: typed times, missing values, and the order in which Spark will read."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from benchmarks.demo.flights import SCHEMA, typed, write_days

NAN = float("nan")


def a_raw_row(day: int, **changed: Any) -> dict[str, Any]:
    row = {
        "year": 2013,
        "month": 1,
        "day": day,
        "sched_dep_time": 515,
        "dep_time": 517.0,
        "dep_delay": 2.0,
        "arr_time": 830.0,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
    }
    return row | changed


def written(folder: Path, *rows: dict[str, Any], days: int = 365) -> list[dict[str, Any]]:
    """The rows of all files, in the order in which Spark's file source would take them."""
    write_days(typed(pd.DataFrame(list(rows))), folder, days=days)
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    return [row for path in files for row in pq.read_table(path, schema=SCHEMA).to_pylist()]


def local(day: int, hour: int, minute: int) -> datetime:
    return datetime(2013, 1, day, hour, minute)  # noqa: DTZ001 (local times, as the data has them)


def test_days_are_in_order_of_modification_time(tmp_path: Path) -> None:
    """Whatever the order of the rows, the files' times ascend with the days, one file for each."""
    rows = written(tmp_path / "days", *(a_raw_row(day) for day in (3, 1, 12, 2)))
    assert [row["day"].day for row in rows] == [1, 2, 3, 12]
    assert len({path.stat().st_mtime for path in (tmp_path / "days").iterdir()}) == 4


def test_only_the_first_days_are_written(tmp_path: Path) -> None:
    """`days` counts days that have flights."""
    rows = written(tmp_path / "days", *(a_raw_row(day) for day in (5, 1, 9)), days=2)
    assert [row["day"].day for row in rows] == [1, 5]


def test_missing_values_are_none_not_nan(tmp_path: Path) -> None:
    """A cancelled flight of an unknown aircraft has neither times nor delay nor tail number."""
    (row,) = written(
        tmp_path / "days", a_raw_row(1, tailnum=NAN, dep_time=NAN, dep_delay=NAN, arr_time=NAN), a_raw_row(2), days=1
    )
    assert [row[name] for name in ("tailnum", "departed", "arrived", "delay_minutes")] == [None] * 4


def test_times_cross_midnight(tmp_path: Path) -> None:
    """Delayed past midnight, landing past midnight, and 2400 for midnight itself: all stay in the scheduled day."""
    rows = written(
        tmp_path / "days",
        a_raw_row(1, sched_dep_time=2300, dep_time=30.0, dep_delay=90.0, arr_time=345.0),
        a_raw_row(2, sched_dep_time=2200, dep_time=2210.0, dep_delay=10.0, arr_time=105.0),
        a_raw_row(3, sched_dep_time=2350, dep_time=2400.0, dep_delay=10.0, arr_time=200.0),
        a_raw_row(4, sched_dep_time=2100, dep_time=2100.0, dep_delay=0.0, arr_time=2400.0),
    )
    assert [(row["day"].day, row["departed"], row["arrived"]) for row in rows] == [
        (1, local(2, 0, 30), local(2, 3, 45)),
        (2, local(2, 22, 10), local(3, 1, 5)),
        (3, local(4, 0, 0), local(4, 2, 0)),
        (4, local(4, 21, 0), local(5, 0, 0)),
    ]
