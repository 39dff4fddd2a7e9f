"""What is refused in one place is refused in the other: types of columns, and threads that are not the query's."""

import threading
from typing import Any

import pytest

import statebackend as sb
from tests.spark.processors import Counting, split

KEY = "split(key, ':')[0] AS key"


@pytest.mark.parametrize(
    "column",
    [
        "make_interval(1, 2) AS i",
        "INTERVAL '1' MONTH AS i",
        "array(struct(make_interval(1, 2) AS deep)) AS i",
        "named_struct('a', 1, 'a', 2) AS i",
    ],
    ids=["calendar interval", "months", "nested", "a record with one name twice"],
)
def test_types_that_python_cannot_be_given_are_refused_in_both_places(
    stream: Any, open_sink: Any, on_executors: Any, read: Any, column: str
) -> None:
    """Workers were given some of them, so that a job did in one place and not in the other."""
    stream.feed("a:1")
    for sink in (open_sink(Counting(), stream.settings, key="key"), on_executors()):
        message = stream.fail(sink, plan=lambda df: df.selectExpr(KEY, column))
        assert "InputError" in message
        assert "cast it, or drop it before the sink" in message
    assert read(stream.settings).batches == []


def test_an_interval_of_days_is_processed_in_both_places(
    stream: Any, open_sink: Any, on_executors: Any, read: Any
) -> None:
    """As Python's `timedelta`."""
    for sink in (open_sink(Counting(), stream.settings, key="key"), on_executors()):
        stream.feed("a:1")
        stream.run(sink, plan=lambda df: df.selectExpr(KEY, "INTERVAL '1' DAY AS i"))
    assert read(stream.settings).counts == {"a": 2}


class OnAThread:
    """Gives a batch to a sink on a thread of its own, and raises what that has raised."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __call__(self, df: Any, batch_id: int) -> None:
        failed: list[Exception] = []

        def give() -> None:
            try:
                self._sink(df, batch_id)
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=give)
        thread.start()
        thread.join()
        for error in failed:
            raise error


@pytest.mark.parametrize("query_id", [None, "mine"])
@pytest.mark.parametrize("place", ["driver", "executors"])
def test_a_sink_on_a_thread_of_the_users_own_is_refused(
    stream: Any, open_sink: Any, read: Any, place: str, query_id: str | None
) -> None:
    """There it sees no run, so that a part of a batch was skipped as a replay. Behind it, the query goes on."""
    options = {"execution": "executors", "parallelism": 2} if place == "executors" else {}
    sink = open_sink(Counting(), stream.settings, key="key", query_id=query_id, **options)
    stream.feed("a:1", "b:2")
    message = stream.fail(OnAThread(sink), plan=split)
    assert "InputError" in message
    assert "a thread of your own" in message
    assert read(stream.settings).batches == []
    stream.run(sink, plan=split)
    assert read(stream.settings).counts == {"a": 1, "b": 1}


def test_a_frame_of_no_query_goes_to_a_sink_on_any_thread(spark: Any, stream: Any, open_sink: Any, read: Any) -> None:
    """Also while another query runs: with an id of its own, a program may give rows by hand."""
    settings = sb.Settings(job="hand", primary=stream.settings.primary)
    by_hand = OnAThread(open_sink(Counting(), settings, key="key", query_id="mine"))
    sink = open_sink(Counting(), stream.settings, key="key")
    rows = spark.createDataFrame([("a", 1)], "key string, number bigint")

    def both(df: Any, batch_id: int) -> None:
        sink(df, batch_id)
        by_hand(rows, batch_id)

    stream.feed("a:1")
    stream.run(both, plan=split)
    assert read(stream.settings).counts == {"a": 1}
