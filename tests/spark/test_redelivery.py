"""Batches that come again, come back, or come from elsewhere: each batch is in the state exactly once."""

import asyncio
import shutil

import pytest

import statebackend as sb


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


def test_another_query_may_not_go_on_with_the_state(stream, open_sink, counting, read, tmp_path) -> None:
    """A new Spark checkpoint is a new query, whose batch ids begin again: they say nothing about this state."""
    stream.feed("a")
    stream.run(open_sink(counting, stream.settings))
    before = read(stream.settings)
    message = stream.fail(open_sink(counting, stream.settings), checkpoint=tmp_path / "other")
    assert "WrongQueryError" in message
    assert "adopt=True" in message
    assert read(stream.settings) == before


def test_another_query_may_adopt_the_state(stream, open_sink, counting, read, tmp_path) -> None:
    """It continues from what is there, under its own id. From then on the former query is the foreign one."""
    stream.feed("a")
    stream.run(open_sink(counting, stream.settings))
    query = stream.run(open_sink(counting, stream.settings, adopt=True), checkpoint=tmp_path / "other")
    found = read(stream.settings)
    assert found.counts == {"a": 2}
    assert found.batches == [0, 0]
    assert query.id in found.queries
    stream.feed("b")
    assert "WrongQueryError" in stream.fail(open_sink(counting, stream.settings))
    stream.run(open_sink(counting, stream.settings), checkpoint=tmp_path / "other")
    assert read(stream.settings).counts == {"a": 2, "b": 1}


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
