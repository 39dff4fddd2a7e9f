"""The zone in which a processor sees instants. The zones' names are those that Java and Spark give."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from statebackend._columns.arrow import plain_of
from statebackend._processing.processor import KeyedProcessor
from statebackend._processing.time_zones import check_zone, in_zone, zone_named, zone_of
from statebackend._state.bulk_arguments import as_list
from statebackend.errors import SettingsError
from statebackend.ids import SourceMark
from statebackend.testing import ProcessorTester

AT = dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
NAIVE = pa.timestamp("us")
NEW_YORK = "America/New_York"


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        *((name, "UTC") for name in ("UTC", "Etc/UTC", "Z", "GMT", "GMT0", "UT", "+00:00", "-00:00", "GMT+00:00")),
        *((name, "+02:00") for name in ("+02:00", "GMT+02:00", "UTC+02:00", "UT+02:00")),
        ("-09:30", "-09:30"),
        ("Europe/Berlin", "Europe/Berlin"),
        ("GMT+2", "GMT+2"),
    ],
)
def test_a_zone_has_one_name(name, known_as) -> None:
    """So that a laptop whose zone is Etc/UTC goes on where a server in GMT has stopped."""
    assert zone_named(name) == known_as


@pytest.mark.parametrize("zone", ["America/New_York", "-04:00", "UTC"])
def test_all_instants_are_shown_in_the_zone_and_stay_the_same(zone) -> None:
    """Also in records, lists and maps, on both sides. Times without a zone are not touched, nor is anything else."""
    naive = AT.replace(tzinfo=None)
    columns: dict[str, tuple[Any, Any]] = {
        "at": (UTC, AT),
        "record": (pa.struct([pa.field("at", UTC, nullable=False), pa.field("n", pa.int32())]), {"at": AT, "n": 1}),
        "list": (pa.list_(UTC), [AT, None]),
        "map": (pa.map_(UTC, pa.list_(UTC)), [(AT, [AT])]),
        "naive": (NAIVE, naive),
        "naive list": (pa.list_(NAIVE), [naive]),
        "number": (pa.int64(), 7),
    }
    plain = pa.table({name: pa.array([value, None], type_) for name, (type_, value) in columns.items()})
    shown = in_zone(plain, zone)
    assert shown.to_pylist() == plain.to_pylist()
    row = shown.to_pylist()[0]
    instants = [row["at"], row["record"]["at"], row["list"][0], row["map"][0][0], row["map"][0][1][0]]
    hour = 6 if zone == "UTC" else 1 if zone == "America/New_York" else 2
    assert [each.hour for each in instants] == [hour] * len(instants)
    assert row["naive"].hour == row["naive list"][0].hour == naive.hour
    assert not shown.schema.field("record").type.field("at").nullable
    assert in_zone(shown, "UTC").schema == plain.schema


@pytest.mark.parametrize("zone", ["GMT+2", "PST", "Nowhere/Land", "+2:00", ""])
def test_a_zone_that_python_does_not_know_is_refused_where_it_would_be_shown(zone) -> None:
    """Arrow would raise something of its own with the first row that is read. A job without instants needs no zone."""
    with pytest.raises(SettingsError, match="timeZone"):
        in_zone(pa.table({"at": pa.array([AT], UTC)}), zone)
    rows = pa.table({"n": [1], "at": pa.array([None], NAIVE)})
    assert in_zone(rows, zone) is rows


@pytest.mark.parametrize(
    ("session", "committed", "told", "goes_on"),
    [
        ("Asia/Tokyo", "Asia/Tokyo", None, True),
        ("Asia/Tokyo", "UTC", None, False),
        ("UTC", "Etc/UTC", None, True),
        ("Asia/Tokyo", None, None, True),
        ("Asia/Tokyo", "UTC", "Asia/Tokyo", True),
        ("UTC", "Asia/Tokyo", "GMT", True),
        ("Asia/Tokyo", "Asia/Tokyo", "UTC", False),
        ("Asia/Tokyo", None, "UTC", False),
    ],
)
def test_another_zone_is_refused_unless_it_is_meant(session, committed, told, goes_on) -> None:
    """What the sink was told is checked even where the state would fit."""
    delivered = SourceMark("query", 5, "run", session)
    newest = SourceMark("query", 4, "run") if committed is None else SourceMark("query", 4, "run", committed)
    if goes_on:
        check_zone(delivered, newest, told=told)
        return
    with pytest.raises(SettingsError) as refused:
        check_zone(delivered, newest, told=told)
    assert session in str(refused.value)
    assert (told or committed) in str(refused.value)


def test_the_first_batch_of_a_job_may_have_any_zone() -> None:
    """And one that does not say its zone, as an earlier release wrote them, is seen in UTC."""
    check_zone(SourceMark("query", 0, "run", "Asia/Tokyo"), None, told=None)
    assert zone_of(SourceMark("query", 0)) == "UTC"


@pytest.mark.parametrize(
    ("session", "told", "is_said"), [("UTC", None, 0), (NEW_YORK, None, 1), (NEW_YORK, NEW_YORK, 0)]
)
def test_a_job_of_an_earlier_release_takes_on_the_zone_with_a_word(session, told, is_said, caplog) -> None:
    """Its driver showed times in UTC. Who names the zone has meant it."""
    check_zone(SourceMark("query", 1, "run", session), SourceMark("query", 0, "earlier"), told=told)
    assert caplog.text.count("name none") == is_said


class Spans(KeyedProcessor):
    """Puts out the seconds from the first to the last time of a key, as Python subtracts and compares them."""

    output_schema = pa.schema([("key", pa.string()), ("span_s", pa.float64()), ("nested_s", pa.float64())])

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        times = [row["at"] for row in rows]
        nested = [row["record"]["times"][0] for row in rows] + [row["map"][0][0] for row in rows]
        spans = [(max(each) - min(each)).total_seconds() for each in (times, nested)]
        yield dict(zip(("key", "span_s", "nested_s"), (key, *spans), strict=True))


@pytest.mark.parametrize("zone", ["Europe/Berlin", NEW_YORK, "UTC", "+01:00"])
@pytest.mark.parametrize("hour", [0, 1, 5, 6, 7])
def test_times_are_compared_and_subtracted_as_instants(zone, hour) -> None:
    """Summer time ended at one in Berlin, and at six in New York a week later. Python goes by the clock on the wall."""
    for day in (dt.datetime(2024, 10, 27, tzinfo=dt.UTC), dt.datetime(2024, 11, 3, tzinfo=dt.UTC)):
        first = day + dt.timedelta(hours=hour, minutes=-10)
        last = first + dt.timedelta(minutes=20)
        rows = [{"key": "a", "at": at, "record": {"times": [at]}, "map": [(at, 1)]} for at in (last, first)]
        record, pairs = pa.struct([("times", pa.list_(UTC))]), pa.map_(UTC, pa.int64())
        table = pa.Table.from_pylist(
            rows, pa.schema([("key", pa.string()), ("at", UTC), ("record", record), ("map", pairs)])
        )
        with ProcessorTester(Spans(), key="key") as tester:
            assert tester.batch(in_zone(table, zone)) == [{"key": "a", "span_s": 1200.0, "nested_s": 1200.0}]


def test_so_are_those_of_a_columnar_state() -> None:
    """Whose column may have a zone with summer time, too; and those that a bulk call is given as an Arrow array."""
    last = dt.datetime(2024, 10, 27, 1, 10, tzinfo=dt.UTC)
    times = pa.array([last, last - dt.timedelta(minutes=20)], pa.timestamp("us", "Europe/Berlin"))
    table = pa.RecordBatch.from_arrays([times, times], ["x", "y"])
    for found in (plain_of(times), [row["y"] for row in plain_of(table)], as_list(times)):
        assert found[0] - found[1] == dt.timedelta(minutes=20)
        assert found[0] > found[1]
