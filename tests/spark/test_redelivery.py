"""Batches that come again, come back, or come from elsewhere: each batch is in the state exactly once."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

import statebackend as sb
from statebackend.errors import StateGoneError
from statebackend.observers import Metrics, Observers


def test_a_batch_that_is_committed_already_is_not_applied_again(stream, open_sink, counting, read) -> None:
    """By the same sink, whose state is still open, and by a new one: nothing is run, nothing is committed."""
    stream.feed("a")
    stream.feed("a", "b")
    sink = open_sink(counting, stream.settings)
    stream.run(sink)
    before = read(stream.settings)
    for again in (sink, open_sink(counting, stream.settings)):
        stream.forget_commit(1)
        stream.run(again)
        assert read(stream.settings) == before
    assert counting.batches == [0, 1]
    stream.feed("b")
    stream.run(sink)
    assert read(stream.settings).counts == {"a": 2, "b": 2}


def test_a_batch_that_is_not_applied_again_is_still_run_once_for_spark(stream, open_sink, counting, read) -> None:
    """A stateful operator upstream fails the query when its batch is not consumed."""
    stream.feed("a", "b")
    stream.feed("b", "c")

    def deduplicated(df):
        return df.dropDuplicates(["key"])

    stream.run(open_sink(counting, stream.settings), plan=deduplicated)
    stream.forget_commit(1)
    stream.feed("c", "d")
    stream.run(open_sink(counting, stream.settings), plan=deduplicated)
    assert read(stream.settings).counts == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert counting.batches == [0, 1, 2]


def test_an_empty_batch_that_comes_again_is_not_applied_again(stream, open_sink, counting, read) -> None:
    """It advanced the state's batch id, so it is known."""
    stream.feed("a")
    stream.feed()
    sink = open_sink(counting, stream.settings)
    stream.run(sink)
    stream.forget_commit(1)
    stream.run(sink)
    assert counting.batches == [0, 1]
    assert read(stream.settings).batches == [1, 0]


@pytest.fixture
def rewound(stream, open_sink, counting):
    """A stream whose Spark checkpoint is an older copy: the state has batches 0 to 3, Spark continues with batch 1."""
    stream.feed("a")
    stream.run(open_sink(counting, stream.settings))
    shutil.copytree(stream.checkpoint, stream.checkpoint.with_name("copy"))
    for key in "bcd":
        stream.feed(key)
    stream.run(open_sink(counting, stream.settings))
    shutil.rmtree(stream.checkpoint)
    stream.checkpoint.with_name("copy").rename(stream.checkpoint)
    return stream


def test_a_rewound_query_fails_and_changes_nothing(rewound, open_sink, counting, read) -> None:
    """The default: somebody has to say which of the two is right."""
    before = read(rewound.settings)
    message = rewound.fail(open_sink(counting, rewound.settings))
    assert "RewindError" in message
    assert "on_rewind='rollback'" in message
    assert read(rewound.settings) == before
    assert counting.batches == [0, 1, 2, 3]


def test_a_rewound_query_takes_its_state_back_if_asked_to(rewound, open_sink, counting, read) -> None:
    """To the newest commit before the batch; what is applied from there on is applied once."""
    rewound.run(open_sink(counting, rewound.settings, on_rewind="rollback"))
    assert counting.batches == [0, 1, 2, 3, 1, 2, 3]
    found = read(rewound.settings)
    assert found.counts == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert found.batches == [3, 2, 1, 0]
    rewound.feed("a")
    rewound.run(open_sink(counting, rewound.settings))
    assert read(rewound.settings).counts == {"a": 2, "b": 1, "c": 1, "d": 1}


def test_a_rewind_to_before_everything_has_nothing_to_roll_back_to(stream, open_sink, counting, read) -> None:
    """A query id of one's own survives a deleted Spark checkpoint, and then batch 0 comes again, with other rows."""
    sink = open_sink(counting, stream.settings, query_id="mine", on_rewind="rollback")
    stream.feed("a")
    stream.feed("a")
    stream.run(sink)
    shutil.rmtree(stream.checkpoint)
    assert "cannot roll back" in stream.fail(sink)
    assert read(stream.settings).counts == {"a": 2}


@pytest.fixture
def bereft(stream, open_sink, counting, tmp_path):
    """A stream whose state is gone: Spark's checkpoint is at batch 2, the primary is empty, local copies are left."""
    stream.settings = msgspec.structs.replace(stream.settings, local=(str(tmp_path / "local"),), secondary_grace_s=60.0)
    for key in "ab":
        stream.feed(key)
    stream.run(open_sink(counting, stream.settings))
    shutil.rmtree(stream.settings.primary.removeprefix("file://"))
    stream.feed("c")
    counting.batches.clear()
    return stream


def copies(stream) -> list[Path]:
    """The local copies that are there."""
    return [path for root in stream.settings.local for path in Path(root).rglob("taskowned/**/*") if path.is_file()]


@pytest.mark.parametrize("options", [{}, {"adopt": True, "on_rewind": "rollback"}])
def test_a_batch_is_not_applied_to_a_state_that_is_gone(bereft, open_sink, counting, options, caplog) -> None:
    """Nor is anything committed; the local copies are named and stay. The message says what to do in each case."""
    before = copies(bereft)
    assert before
    message = bereft.fail(open_sink(counting, bereft.settings, **options))
    assert "StateGoneError" in message
    for told in ("first_batch_id=2", bereft.settings.primary, *bereft.settings.local, "job='stream'"):
        assert told in message
    assert counting.batches == []
    assert copies(bereft) == before
    assert "has no commit" in caplog.text


def test_executors_do_not_work_on_a_state_that_is_gone(bereft, on_executors) -> None:
    """The driver asks before it starts a task, and names the copies on its own host."""
    message = bereft.fail(on_executors(settings=bereft.settings))
    assert "StateGoneError" in message
    assert bereft.settings.local[0] in message


def test_a_mistyped_job_or_primary_is_refused(stream, open_sink, counting, tmp_path) -> None:
    """The same from the sink's side: the job of that name, at that place, is empty."""
    stream.feed("a")
    stream.run(open_sink(counting, stream.settings))
    stream.feed("b")
    for changed in ({"job": "steam"}, {"primary": f"file://{tmp_path}/stale"}):
        settings = msgspec.structs.replace(stream.settings, **changed)
        assert "StateGoneError" in stream.fail(open_sink(counting, settings))
    stream.run(open_sink(counting, stream.settings))
    assert counting.batches == [0, 1]


def test_a_sink_may_come_to_a_query_that_runs_already(stream, open_sink, counting, read) -> None:
    """Only if it says so. Said of this batch it may stay in the code: it does not allow a later one to find nothing."""
    for key in "abc":
        stream.feed(key)
    stream.run(lambda df, batch_id: None)
    stream.feed("a")
    assert "first_batch_id=3" in stream.fail(open_sink(counting, stream.settings))
    stream.run(open_sink(counting, stream.settings, first_batch_id=3))
    assert read(stream.settings).counts == {"a": 1}
    stream.feed("a")
    stream.run(open_sink(counting, stream.settings, first_batch_id=3))
    assert read(stream.settings).batches == [4, 3]
    shutil.rmtree(stream.settings.primary.removeprefix("file://"))
    stream.feed("a")
    sink = open_sink(counting, stream.settings, first_batch_id=3)
    assert "StateGoneError" in stream.fail(sink)
    stream.run(open_sink(counting, stream.settings, first_batch_id="any"))
    assert read(stream.settings).batches == [5]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [*(("first_batch_id", wrong) for wrong in (-1, True, 1.5, "0", None)), ("adopt", ""), ("adopt", None)],
)
def test_a_first_batch_and_a_query_are_named_by_their_ids(stream, counting, name, wrong) -> None:
    with pytest.raises(sb.errors.SettingsError, match=name):
        sb.spark.StatefulSink(counting, stream.settings, **{name: wrong})


def test_a_gap_in_the_batches_is_refused_or_told(stream, open_sink, counting, read, caplog) -> None:
    """Where the sink says that the state goes on there, the observer gets both batches, and the log says so."""
    told = []

    class Gaps(sb.Observer):
        def batches_missed(self, delivered: sb.SourceMark, *, after: int) -> None:
            told.append((delivered.batch_id, after))

    metrics = Metrics()
    options = {"observer": Observers(Gaps(), metrics), "query_id": "mine"}
    df = stream.spark.createDataFrame([("a",)], "key string")
    sink = open_sink(counting, stream.settings, **options)
    for batch_id in (0, 1, 2):
        sink(df, batch_id)
    with pytest.raises(StateGoneError, match="ends with batch 2"):
        sink(df, 6)
    assert (told, metrics.missed_batches) == ([], 0)
    sink = open_sink(counting, stream.settings, first_batch_id=6, **options)
    for batch_id in (6, 6, 7):
        sink(df, batch_id)
    assert (told, metrics.missed_batches) == ([(6, 2)], 3)
    logged = [record.getMessage() for record in caplog.records if "follows batch" in record.getMessage()]
    assert [text.partition(",")[0] for text in logged] == ["batch 6 of query mine follows batch 2 in the state"]
    assert read(stream.settings).batches == [7, 6, 2, 1, 0]


@pytest.mark.parametrize(("where", "runs"), [("driver", 2), ("executors", 1)])
def test_a_batch_that_is_given_in_parts_fails_the_query(
    stream, open_sink, on_executors, counting, read, *, where, runs
) -> None:
    """The second part would be skipped as a replay. The batch comes again, with a part of it in the state: the same."""
    stream.feed("a", "b", "b")

    def in_parts(df, batch_id) -> None:
        sink(df.where("key = 'a'"), batch_id)
        sink(df.where("key = 'a'"), batch_id)  # made anew from the same plan, as a retry may do: it is skipped
        sink(df.where("key = 'b'"), batch_id)

    for _ in range(runs):
        sink = on_executors() if where == "executors" else open_sink(counting, stream.settings)
        message = stream.fail(in_parts)
        assert "InputError" in message
        assert "the whole batch in one call" in message
    assert read(stream.settings).counts == {"a": 1}


def test_a_sink_is_given_the_batch_id_of_spark(stream, open_sink, counting, read) -> None:
    """With the same id each time, every batch but the first would be skipped as a replay."""
    stream.feed("a")
    stream.feed("b")
    sink = open_sink(counting, stream.settings)
    assert "the batch_id that foreachBatch gives" in stream.fail(lambda df, batch_id: sink(df, 0))
    stream.run(sink)
    assert read(stream.settings).counts == {"a": 1, "b": 1}


def test_another_query_may_not_go_on_with_the_state(stream, open_sink, counting, read, tmp_path) -> None:
    """A new Spark checkpoint is a new query, whose batch ids begin again: they say nothing about this state."""
    stream.feed("a")
    query = stream.run(open_sink(counting, stream.settings))
    before = read(stream.settings)
    message = stream.fail(open_sink(counting, stream.settings), checkpoint=tmp_path / "other")
    assert "WrongQueryError" in message
    assert f"adopt='{query.id}'" in message
    assert read(stream.settings) == before


def test_another_query_may_adopt_the_state(stream, open_sink, counting, read, tmp_path) -> None:
    """It continues from what is there, under its own id. From then on the former query is the foreign one."""
    stream.feed("a")
    former = stream.run(open_sink(counting, stream.settings))
    query = stream.run(open_sink(counting, stream.settings, adopt=former.id), checkpoint=tmp_path / "other")
    found = read(stream.settings)
    assert found.counts == {"a": 2}
    assert found.batches == [0, 0]
    assert query.id in found.queries
    stream.feed("b")
    assert "WrongQueryError" in stream.fail(open_sink(counting, stream.settings))
    again = open_sink(counting, stream.settings, adopt=former.id)
    stream.run(again, checkpoint=tmp_path / "other")
    assert read(stream.settings).counts == {"a": 2, "b": 1}
    assert "WrongQueryError" in stream.fail(again, checkpoint=tmp_path / "a third one"), "all rows would count again"


def test_a_commit_made_by_hand_does_not_hide_the_batches_below_it(stream, open_sink, counting, read) -> None:
    """It has no source, but the state still has the batch that was committed before it."""

    async def commit_by_hand() -> None:
        async with sb.open_backend(stream.settings) as backend:
            backend.value_state("counts", int)["by hand"] = 7
            await backend.checkpoint(backend.next_checkpoint_id)

    stream.feed("a")
    stream.run(open_sink(counting, stream.settings))
    asyncio.run(commit_by_hand())
    stream.forget_commit(0)
    stream.run(open_sink(counting, stream.settings))
    assert read(stream.settings).counts == {"a": 1, "by hand": 7}
