"""Computes the same result in one Spark batch query over the same files, and compares *every* aircraft.

    python -m benchmarks.demo.verify WORKDIR

A fresh process, so it reads the state from the primary and the local copy. Reports one `Verified`.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import statebackend as sb
from benchmarks.demo.aircraft import STATE_NAME, Aircraft
from benchmarks.demo.columns import COLUMNS, KEY
from benchmarks.demo.events import Known, Verified, tell
from benchmarks.demo.flights import ORDER, SPARK_SCHEMA
from benchmarks.demo.places import Places
from benchmarks.demo.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fleet = dict[str, Aircraft]
DIFFERENCES_TOLD_MAX = 10
BUSIEST_TOLD = 5


def by_batch_query(spark: "SparkSession", places: Places) -> Fleet:
    """The fleet, computed by window functions. Shares with the stream only the order of flights, no line of code."""
    from pyspark.sql import Window  # noqa: PLC0415 (as in session.py)
    from pyspark.sql import functions as f  # noqa: PLC0415

    in_order = Window.partitionBy("tailnum").orderBy("day", *ORDER)
    backwards = Window.partitionBy("tailnum").orderBy(*(f.desc(column) for column in ("day", *ORDER)))
    flown = spark.read.schema(SPARK_SCHEMA).parquet(str(places.days)).where("tailnum is not null")
    marked = flown.where("departed is not null").select(
        "*",
        f.lag("dest").over(in_order).alias("came_from"),
        (f.row_number().over(backwards) == 1).alias("is_last"),
    )
    fleet = marked.groupBy("tailnum").agg(
        f.max(f.when(f.col("is_last"), f.col("dest"))).alias("last_airport"),
        f.max(f.when(f.col("is_last"), f.col("arrived"))).alias("last_arrival"),
        f.count("*").alias("flights"),
        f.sum(f.greatest("delay_minutes", f.lit(0))).alias("delay_minutes"),
        f.count_if(f.col("came_from") != f.col("origin")).alias("jumps"),
    )
    rows: list[dict[str, Any]] = fleet.toArrow().to_pylist()
    return {row.pop("tailnum"): Aircraft(**row) for row in rows}


async def from_state(places: Places) -> tuple[Fleet, sb.RestoreReport | None, float]:
    """The fleet in the newest checkpoint, how it was restored, and how many seconds that took."""
    started_s = time.monotonic()
    async with sb.open_backend(places.settings) as backend:
        seconds = time.monotonic() - started_s
        if places.in_columns:
            rows = backend.columnar_state(STATE_NAME, COLUMNS, key=KEY).to_arrow(key="tailnum").to_pylist()
            return {row.pop("tailnum"): Aircraft(**row) for row in rows}, backend.restored, seconds
        fleet = backend.value_state(STATE_NAME, Aircraft)
        return {str(tail_number): fleet[tail_number] for tail_number in fleet}, backend.restored, seconds


def differences(expected: Fleet, found: Fleet) -> list[str]:
    """A sentence for each aircraft that is not the same in both."""
    return [
        f"{tail_number}: the batch query says {expected.get(tail_number)}, the state {found.get(tail_number)}"
        for tail_number in sorted(expected.keys() | found.keys())
        if expected.get(tail_number) != found.get(tail_number)
    ]


def _known(tail_number: str, aircraft: Aircraft) -> Known:
    arrival = "unknown" if aircraft.last_arrival is None else f"{aircraft.last_arrival:%Y-%m-%d %H:%M}"
    return Known(tail_number, aircraft.last_airport, arrival, aircraft.flights, aircraft.delay_minutes, aircraft.jumps)


def verify(places: Places) -> Verified:
    """Read the state, compute the expected fleet, and compare."""
    found, restored, open_seconds = asyncio.run(from_state(places))
    spark = spark_session(places)
    started_s = time.monotonic()
    expected = by_batch_query(spark, places)
    query_seconds = time.monotonic() - started_s
    spark.stop()
    sentences = differences(expected, found)
    busiest = sorted(found.items(), key=lambda item: (-item[1].flights, item[0]))[:BUSIEST_TOLD]
    return Verified(
        aircraft=len(expected),
        flights=sum(aircraft.flights for aircraft in found.values()),
        delay_minutes=sum(aircraft.delay_minutes for aircraft in found.values()),
        jumps=sum(aircraft.jumps for aircraft in found.values()),
        different=len(sentences),
        differences=sentences[:DIFFERENCES_TOLD_MAX],
        busiest=[_known(tail_number, aircraft) for tail_number, aircraft in busiest],
        query_seconds=query_seconds,
        open_seconds=open_seconds,
        restored=restored,
    )


if __name__ == "__main__":
    tell(verify(Places(Path(sys.argv[1]))))
