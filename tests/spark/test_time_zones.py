"""One time zone: in the driver, on executors, and from one start to the next."""

import asyncio
import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import InputError, SettingsError
from tests.knobs import settings_with
from tests.spark.conftest import configured
from tests.spark.frames_without_spark import Frame

NEW_YORK = "America/New_York"
TIMES = ["2024-03-10T06:30:00Z", "2024-03-10T07:30:00Z", "2024-11-03T05:30:00Z", "2024-01-01T00:15:00Z"]
"""Around the hours that are left out and come twice in New York, and in the last year there."""


class Days(sb.spark.KeyedProcessor):
    """Counts rows by day, and keeps what a user would make of a time."""

    def open(self, context: Any) -> None:
        self.days = context.map_state("days", str, int)

    def process(self, key: Any, rows: Any, context: Any) -> None:
        counts = self.days[key]
        for row in rows:
            at, nested = row["at"], row["nested"]["at"]
            seen = f"{at.date()} {at.hour} {at:%H:%M} {nested.date()} {row['many'][0].hour}"
            counts[seen] = counts.get(seen, 0) + 1


class Counted:
    """A job that is started again and again, each time in a session of some zone."""

    def __init__(self, folder: Path, sinks: ExitStack) -> None:
        self.settings = settings_with(job="job", primary=f"file://{folder}/primary", persist_delay_s=0.0)
        self.batch_id = 0
        self._sinks = sinks

    def start(self, zone: str, *, batch_id: int | None = None, **options: Any) -> None:
        """Run with the next batch, or with this one."""
        number = self.batch_id if batch_id is None else batch_id
        at = dt.datetime(2024, 3, 10, 3, number, tzinfo=dt.UTC)
        frame: Any = Frame(pa.table({"at": pa.array([at], pa.timestamp("us", "UTC"))}), zone)
        work = lambda df, batch_id, backend: backend.value_state("counts", int).update({str(batch_id): 1})  # noqa: E731
        sink = self._sinks.enter_context(sb.spark.StatefulSink(work, self.settings, query_id="mine", **options))
        try:
            sink(frame, number)
            self.batch_id = number + 1
        finally:
            sink.close()

    def edit(self) -> None:
        async def commit() -> None:
            async with sb.open_backend(self.settings) as backend:
                await backend.checkpoint(backend.next_checkpoint_id)

        asyncio.run(commit())

    def commits(self) -> list[Any]:
        async def read() -> list[Any]:
            async with sb.open_backend(self.settings, read_only=True) as backend:
                return [summary async for summary in backend.history()]

        return asyncio.run(read())


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    with ExitStack() as sinks:
        yield Counted(tmp_path, sinks)


def test_a_start_in_another_zone_is_refused_until_it_is_meant(counted) -> None:
    """Whether or not somebody has edited the state in between. Nothing is committed by a refused start."""
    counted.start(NEW_YORK)
    for edit in (False, True):
        if edit:
            counted.edit()
        before = len(counted.commits())
        with pytest.raises(SettingsError, match="time_zone='Asia/Tokyo'"):
            counted.start("Asia/Tokyo")
        assert len(counted.commits()) == before
    counted.start("Asia/Tokyo", time_zone="Asia/Tokyo")
    counted.start("Asia/Tokyo")
    with pytest.raises(SettingsError, match=NEW_YORK):
        counted.start(NEW_YORK)
    with pytest.raises(SettingsError, match="told"):
        counted.start(NEW_YORK, time_zone="Asia/Tokyo")
    assert [summary.source.time_zone for summary in counted.commits() if summary.source][:2] == ["Asia/Tokyo"] * 2


def test_a_replay_is_skipped_whatever_its_zone(counted) -> None:
    """It changes nothing, so a query may first get rid of the batch that Spark delivers again."""
    counted.start("UTC")
    counted.start("Asia/Tokyo", batch_id=0)
    assert len(counted.commits()) == 1


def test_a_rollback_goes_on_in_the_zone_of_the_commit_that_it_goes_back_to(counted) -> None:
    counted.start("UTC")
    counted.start("Asia/Tokyo", time_zone="Asia/Tokyo")
    counted.start("Asia/Tokyo")
    with pytest.raises(SettingsError, match="UTC"):
        counted.start("Asia/Tokyo", batch_id=1, on_rewind="rollback")
    counted.start("UTC", batch_id=1, on_rewind="rollback")


def test_a_part_of_a_batch_is_refused_whatever_the_zone_is_set_to_in_between(counted) -> None:
    """The parts are those of one batch all the same."""
    counted.start("UTC")
    part: Any = Frame(pa.table({"other": ["a"]}), "Asia/Tokyo")
    with (
        sb.spark.StatefulSink(lambda *_: None, counted.settings, query_id="mine") as sink,
        pytest.raises(InputError, match="the whole batch in one call"),
    ):
        sink(part, 0)


def test_what_is_no_name_of_a_zone_is_refused_at_once(counted) -> None:
    with pytest.raises(SettingsError, match="time_zone"):
        sb.spark.StatefulSink(print, counted.settings, time_zone=dt.UTC)  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", [NEW_YORK, "+05:45", "GMT"])
def test_driver_executors_and_sql_see_the_same_days(spark, tmp_path, zone) -> None:
    """Spark's own functions are the measure. The key's state goes from one place to the other and back."""
    settings = settings_with(job="job", primary=f"file://{tmp_path}/primary", persist_delay_s=0.0)
    instants = ", ".join(f"TIMESTAMP'{time}'" for time in TIMES)
    sql = "SELECT 'k' AS key, at, named_struct('at', at) AS nested, array(at) AS many"
    with configured(spark, {"spark.sql.session.timeZone": zone}):
        df = spark.sql(f"{sql} FROM (SELECT explode(array({instants})) AS at)")
        rows = df.selectExpr(
            "concat_ws(' ', to_date(at), hour(at), date_format(at, 'HH:mm'), to_date(nested.at), hour(many[0])) AS seen"
        ).collect()
        for batch_id, where in enumerate(({}, {"execution": "executors", "parallelism": 2}, {})):
            with sb.spark.StatefulSink(Days(), settings, key="key", query_id="mine", **where) as sink:
                sink(df, batch_id)
    (days,) = sb.read_state(settings, "days").read_all().column("value").to_pylist()
    assert dict(days) == {row["seen"]: 3 for row in rows}
