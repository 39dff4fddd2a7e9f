"""A stream takes savepoints while it runs, and starts from one. The page on savepoints has one stream of all that."""

import pickle
from concurrent.futures import CancelledError

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._upkeep.savepoints import StartingPoint
from statebackend.errors import (
    BackendClosedError,
    InputError,
    RewindError,
    SavepointExistsError,
    StoreUnavailableError,
)
from statebackend.reports import SavepointInfo
from statebackend.spark.replay import starts_at_savepoint
from statebackend.spark.stream_savepoints import SavepointRequests
from tests.spark.test_replay import mark, summary

MINE = SavepointInfo("s", sb.ids.CheckpointId(1), sb.ids.CommitSequence(1), 0.0, mark("mine", 41))
KEPT = summary(mark("mine", 41), ())


@pytest.mark.parametrize(
    ("begun", "newest", "delivered", "expected"),
    [
        (False, mark("mine", 60), mark("mine", 42), True),
        (False, mark("mine", 60), mark("mine", 41), True),  # in the state already: it is skipped there
        (False, mark("mine", 60), mark("mine", 60), RewindError),  # Spark's checkpoint was not taken back
        (False, mark("mine", 60), mark("mine", 61), RewindError),
        (False, mark("mine", 60), mark("mine", 40), RewindError),
        (False, mark("mine", 60), mark("other", 0), True),  # if it may adopt the state
        (False, mark("mine", 41), mark("mine", 42), True),  # it is the newest itself
        (True, mark("mine", 45), mark("mine", 45), False),
        (True, mark("mine", 45), mark("mine", 46), False),
        (True, mark("mine", 45), mark("mine", 42), True),  # back once more
        (True, mark("mine", 45), mark("mine", 44), RewindError),
        (True, mark("other", 3), mark("other", 4), False),
        (True, mark("other", 3), mark("mine", 42), True),
        (True, None, mark("mine", 50), False),  # by hand, on top of it
    ],
)
def test_a_run_goes_on_where_sparks_checkpoint_does(begun, newest, delivered, expected) -> None:
    """From the savepoint, or from the newest commit if the query has gone on from there; else neither."""
    start = StartingPoint("s", KEPT, summary(newest), begun)
    if isinstance(expected, bool):
        assert starts_at_savepoint(delivered, start, on_rewind="fail") is expected
    else:
        with pytest.raises(expected) as caught:
            starts_at_savepoint(delivered, start, on_rewind="fail")
        assert caught.value.facts["next_batch_id"] == 42
    if begun and expected is RewindError:
        assert not starts_at_savepoint(delivered, start, on_rewind="rollback")


def test_a_savepoint_made_by_hand_goes_with_any_batch() -> None:
    """Nobody knows which."""
    by_hand = StartingPoint("s", summary(None, ()), summary(None, ()), is_begun=False)
    assert starts_at_savepoint(mark("mine", 7), by_hand, on_rewind="fail")


def test_a_savepoint_made_by_hand_on_top_of_a_batch_goes_with_the_one_after_it() -> None:
    """So does the newest commit, where a run has gone on from the savepoint and somebody has edited the state since."""
    edited = summary(None, (mark("other", 2), mark("mine", 41)))
    start = StartingPoint("s", edited, summary(None, (mark("mine", 60),)), is_begun=False)
    assert starts_at_savepoint(mark("mine", 42), start, on_rewind="fail")
    with pytest.raises(RewindError):
        starts_at_savepoint(mark("mine", 61), start, on_rewind="fail")
    begun = msgspec.structs.replace(start, is_begun=True)
    assert not starts_at_savepoint(mark("mine", 61), begun, on_rewind="fail")
    with pytest.raises(RewindError):
        starts_at_savepoint(mark("mine", 50), begun, on_rewind="fail")


class Job:
    """A job at whose savepoints the given error is raised."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.names: list[str] = []
        self._errors = list(errors)

    async def savepoint(self, name: str) -> SavepointInfo:
        self.names.append(name)
        if (error := self._errors.pop(0)) is not None:
            raise error
        return MINE


def test_a_savepoint_that_cannot_be_made_is_told_and_the_batch_stands(caplog) -> None:
    """To whoever asked for it, and in the log. The others are made; one that was cancelled meanwhile is not."""
    requests = SavepointRequests()
    taken, given_up, made, refused = map(requests.add, "abcd")
    given_up.cancel()
    job = Job(SavepointExistsError("taken", name="a"), None, StoreUnavailableError("no answer"))
    anyio.run(requests.make, job)
    assert job.names == ["a", "c", "d"]
    assert isinstance(taken.exception(), SavepointExistsError)
    assert made.result() is MINE
    assert isinstance(refused.exception(), StoreUnavailableError)
    assert "the savepoint a was not made: taken" in caplog.text
    with pytest.raises(CancelledError):
        given_up.result()
    assert not requests


def test_a_query_that_stops_while_a_savepoint_is_made_says_so() -> None:
    """It may be there. Others that were asked for are made behind the next batch."""
    requests = SavepointRequests()
    asked, behind = requests.add("a"), requests.add("b")
    with pytest.raises(KeyboardInterrupt):
        anyio.run(requests.make, Job(KeyboardInterrupt()))
    assert isinstance(asked.exception(timeout=0), BackendClosedError)
    assert requests
    anyio.run(requests.make, Job(None))
    assert behind.result(timeout=0) is MINE


def test_a_name_is_asked_for_once_and_is_a_name(tmp_path) -> None:
    """Both at once, before there is a batch. What waits stays here when the sink is pickled."""
    settings = sb.Settings(job="j", primary=f"file://{tmp_path}")
    sink = sb.spark.StatefulSink(print, settings)
    sink.savepoint("s")
    with pytest.raises(SavepointExistsError, match="asked for already"):
        sink.savepoint("s")
    with pytest.raises(InputError, match="a savepoint's name"):
        sink.savepoint("a/b")
    with pytest.raises(InputError, match="a savepoint's name"):
        sb.spark.StatefulSink(print, settings, savepoint="a/b")
    pickle.loads(pickle.dumps(sink)).savepoint("s")


def test_executors_take_a_savepoint_and_start_from_one(stream, on_executors, read) -> None:
    """The driver does it: the tasks are told which commit to start from. An unknown name is told."""
    stream.feed("a")
    with on_executors() as sink:
        asked = sink.savepoint("first")
        stream.run(sink)
    assert asked.result(timeout=0).source.batch_id == 0
    stream.feed("a", "b")
    assert "SavepointNotFoundError" in stream.fail(on_executors(savepoint="last"))
    stream.run(on_executors())
    for name in ("1", ".1.crc"):
        (stream.checkpoint / "offsets" / name).unlink()
    stream.forget_commit(1)
    stream.run(on_executors(savepoint="first"))
    found = read(stream.settings)
    assert (found.counts, found.batches) == ({"a": 2, "b": 1}, [1, 0])
