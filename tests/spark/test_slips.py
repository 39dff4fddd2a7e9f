"""Plausible slips around a sink end in the right number or in an error that says what to do. Without Spark."""

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statebackend as sb
from statebackend.errors import InputError, OutcomeUnknownError, RewindError, StateGoneError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore
from tests.knobs import settings_with
from tests.spark.frames_without_spark import frame_of


def count(df: Any, batch_id: int, backend: sb.StateBackend) -> None:
    counts = backend.value_state("counts", int)
    for key, found in Counter(df.toArrow()["key"].to_pylist()).items():
        counts[key] = counts.get(key, 0) + found


class Counting(sb.spark.KeyedProcessor):
    """The same, key by key."""

    def open(self, context: Any) -> None:
        self.counts = context.value_state("counts", int)

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.counts[key] = self.counts.get(key, 0) + len(rows)


class Query:
    """A query by its sinks, on one job."""

    def __init__(self, folder: Path, sinks: ExitStack) -> None:
        self.settings = settings_with(job="job", primary=f"file://{folder}/primary", persist_delay_s=0.0)
        self._sinks = sinks

    def sink(self, work: Any = count, **options: Any) -> Callable[[Any, int], None]:
        options = {"query_id": "mine", "key": "key" if isinstance(work, Counting) else (), **options}
        return self._sinks.enter_context(sb.spark.StatefulSink(work, self.settings, **options))

    def run(self, sink: Any, *batches: str, first: int = 0) -> None:
        """Batches that follow each other, each a text of keys. It closes the sink, as the end of a run should."""
        for batch_id, keys in enumerate(batches, first):
            sink(frame_of(keys), batch_id)
        sink.close()

    def counts(self) -> dict[str, int]:
        """What is committed."""
        return asyncio.run(self._with_backend(lambda backend: dict(backend.value_state("counts", int)), read_only=True))

    def edit(self, key: str, **options: Any) -> int:
        """Set a count to 100 by hand; return the checkpoint."""

        def set_(backend: sb.StateBackend) -> int:
            backend.value_state("counts", int)[key] = 100
            return backend.next_checkpoint_id

        return asyncio.run(self._with_backend(set_, commit=True, **options))

    async def _with_backend(self, act: Callable[[Any], Any], *, commit: bool = False, **options: Any) -> Any:
        async with sb.open_backend(self.settings, **options) as backend:
            found = act(backend)
            if commit:
                await backend.checkpoint(backend.next_checkpoint_id)
            return found


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    with ExitStack() as sinks:
        yield Query(tmp_path, sinks)


@pytest.fixture(params=[count, Counting()], ids=["function", "processor"])
def work(request: pytest.FixtureRequest) -> Any:
    return request.param


# ------------------------------------------------------------------------------------------------ a batch in two calls


def test_a_second_frame_of_a_batch_is_refused(query: Query, work: Any) -> None:
    """By the ids it looks like a replay, and would be skipped: its rows would be missing, and nobody told."""
    sink = query.sink(work)
    sink(frame_of("ab"), 0)
    sink(frame_of("aa"), 1)
    for again in (1, 1):  # it stays refused, so a retry does not get through
        with pytest.raises(InputError, match="the whole batch in one call"):
            sink(frame_of("b"), again)
    assert query.counts() == {"a": 3, "b": 1}


def test_the_same_frame_of_a_batch_is_skipped(query: Query, work: Any) -> None:
    """A retry of the caller's around more than the sink: with the frame itself, or with one made anew."""
    sink, frame = query.sink(work), frame_of("ab")
    for again in (frame, frame, frame_of("ab")):
        sink(again, 0)
    assert query.counts() == {"a": 1, "b": 1}
    with pytest.raises(InputError):
        sink(frame_of("ab", column="name"), 0)  # Spark takes a plan with other names for the same one


def test_a_frame_behind_one_that_failed_is_no_replacement_for_it(query: Query) -> None:
    """The caller has swallowed the error of the first part. The whole, as it was, may be tried again."""
    is_broken = [True]

    def function(df: Any, batch_id: int, backend: sb.StateBackend) -> None:
        count(df, batch_id, backend)
        if is_broken:
            is_broken.clear()
            raise OSError

    sink = query.sink(function)
    with suppress(OSError):
        sink(frame_of("ab"), 0)
    with pytest.raises(InputError):
        sink(frame_of("c"), 0)
    sink(frame_of("ab"), 0)
    assert query.counts() == {"a": 1, "b": 1}


@pytest.mark.parametrize("is_made", [True, False], ids=["made", "not made"])
def test_a_batch_whose_commit_got_no_answer_is_applied_once(is_made: bool) -> None:
    """The same frame is processed or skipped, whichever is right; another one is refused in both cases."""
    store = FaultyStore(MemoryStore())
    settings = settings_with(
        job="job",
        primary="memory://unused",
        persist_delay_s=0.0,
        upload__retry_delay_s=0.0,
        upload__primary_outage_s=0.0,
    )
    with sb.spark.StatefulSink(count, settings, query_id="mine", store=store) as sink:
        sink(frame_of("a"), 0)
        store.plan += [
            Fail(operation="put_if_absent", key="*/commits/*", moment="after" if is_made else "before"),
            Fail(operation="get", key="*/commits/*"),
        ]
        with pytest.raises(OutcomeUnknownError):
            sink(frame_of("ab"), 1)
        store.plan.clear()
        with pytest.raises(InputError):
            sink(frame_of("c"), 1)
        sink(frame_of("ab"), 1)

    async def counts() -> dict[str, int]:
        async with sb.open_backend(settings, store=store, read_only=True) as backend:
            return dict(backend.value_state("counts", int))

    assert asyncio.run(counts()) == {"a": 2, "b": 1}


@pytest.mark.parametrize("keys", ["ab", "c"], ids=["the same frame", "another part"])
def test_two_sinks_on_one_job_are_refused(query: Query, keys: str) -> None:
    """The second would find the batch in the state and skip it, and has fenced the first one."""
    first, second = query.sink(), query.sink()
    first(frame_of("ab"), 0)
    with pytest.raises(InputError, match="a job of its own"):
        second(frame_of(keys), 0)
    first(frame_of("a"), 1)
    assert query.counts() == {"a": 2, "b": 1}


def test_a_sink_made_anew_for_each_part_is_refused(query: Query) -> None:
    """It is gone, or closed, when the next one comes: the job remembers."""
    with sb.spark.StatefulSink(count, query.settings, query_id="mine") as sink:
        sink(frame_of("ab"), 0)
    del sink
    with pytest.raises(InputError, match="the whole batch in one call"):
        query.sink()(frame_of("c"), 0)
    query.sink()(frame_of("ab"), 0)
    assert query.counts() == {"a": 1, "b": 1}


# ------------------------------------------------------------------------------------------- batches that are missing


def test_a_batch_that_is_not_given_to_the_sink_is_missed_by_the_next_one(query: Query) -> None:
    """It was empty, or its error was swallowed: the state cannot tell, so the next one is refused until it has come."""
    sink = query.sink()
    sink(frame_of("a"), 0)
    with pytest.raises(StateGoneError, match="also an empty one"):
        sink(frame_of("b"), 2)
    sink(frame_of(""), 1)
    sink(frame_of("b"), 2)
    assert query.counts() == {"a": 1, "b": 1}


def test_the_old_line_of_a_stream_is_refused_on_its_branch(query: Query) -> None:
    """Batches 0 to 5, a savepoint after 1, a branch from it; then the old program, with its own Spark checkpoint."""
    query.run(query.sink(), *"aa")
    asyncio.run(sb.savepoint(query.settings, "after-1"))
    query.run(query.sink(), *"aaaa", first=2)
    query.run(query.sink(savepoint="after-1"), "b", first=2)
    with pytest.raises(StateGoneError, match="ends with batch 2") as caught:
        query.run(query.sink(), "a", first=6)
    assert caught.value.facts["next_batch_id"] == 3
    assert query.counts() == {"a": 2, "b": 1}
    query.run(query.sink(), "b", first=3)
    assert query.counts() == {"a": 2, "b": 2}


def test_a_state_put_back_from_a_backup_is_refused_by_a_newer_stream(query: Query, tmp_path: Path) -> None:
    """Unless the sink says that it is to go on there: once, and for this batch only."""
    primary = tmp_path / "primary"
    query.run(query.sink(), "a", "a")
    shutil.copytree(primary, tmp_path / "backup")
    query.run(query.sink(), *"aaaa", first=2)
    shutil.rmtree(primary)
    shutil.copytree(tmp_path / "backup", primary)
    with pytest.raises(StateGoneError, match="first_batch_id=6"):
        query.run(query.sink(), "b", first=6)
    query.run(query.sink(first_batch_id=6), *"bb", first=6)
    assert query.counts() == {"a": 2, "b": 2}
    with pytest.raises(StateGoneError):
        query.run(query.sink(first_batch_id=6), "b", first=9)


def test_a_state_filled_by_hand_takes_a_batch_in_the_middle_of_a_stream_only_if_told_so(query: Query) -> None:
    """It may be what is left of another backup. With the mark of the batch before it, nothing need be told."""
    query.edit("a")
    with pytest.raises(StateGoneError, match="has no batch of this query"):
        query.run(query.sink(), "a", first=7)
    query.run(query.sink(first_batch_id=7), "a", first=7)
    assert query.counts() == {"a": 101}


def test_a_job_that_may_fall_back_goes_on_with_the_gap_that_it_has_accepted(query: Query, tmp_path: Path) -> None:
    """`fall_back_to_older` says that losing the newest batches is better than to stop. It is told."""
    told: list[tuple[int, int]] = []

    class Gaps(sb.Observer):
        def batches_missed(self, delivered: sb.SourceMark, *, after: int) -> None:
            told.append((delivered.batch_id, after))

    query.run(query.sink(), "a", "b", "c")
    newest = max((tmp_path / "primary" / "job" / "commits").glob("0*"))
    newest.write_bytes(b"damaged")
    query.settings = msgspec.structs.replace(query.settings, fall_back_to_older=True)
    sink = query.sink(observer=Gaps())
    sink(frame_of("d"), 3)
    assert told == [(3, 1)]
    with pytest.raises(StateGoneError):
        sink(frame_of("e"), 5)
    assert query.counts() == {"a": 1, "b": 1, "d": 1}


# ------------------------------------------------------------------------------------------------------- edits by hand


def test_a_batch_that_comes_again_counts_once_under_edits_and_a_sweep(query: Query, tmp_path: Path) -> None:
    """Its commit is gone, and nothing that is left points into it: it would be taken for a new one."""
    query.settings = msgspec.structs.replace(query.settings, checkpoints_retained=1, inline_bytes_max=0)
    query.run(query.sink(), "aab")
    commits = tmp_path / "primary" / "job" / "commits"
    for path in commits.iterdir():
        os.utime(path, (0, 0))
    for _ in range(2):
        query.edit("b")
    asyncio.run(sb.sweep(query.settings, dry_run=False, min_age_s=0.0))
    assert not (commits / f"{1:012}").exists(), "the commit of the batch"
    query.run(query.sink(), "aab")
    assert query.counts() == {"a": 2, "b": 100}


def test_a_rollback_keeps_an_edit_from_before_the_batch(query: Query) -> None:
    """The newest state without the batch is the edited one."""
    query.run(query.sink(), "a", "b")
    query.edit("a")
    query.run(query.sink(), *"bb", first=2)
    query.run(query.sink(on_rewind="rollback"), "c", first=2)
    assert query.counts() == {"a": 100, "b": 1, "c": 1}


def test_a_rollback_that_would_undo_an_edit_is_refused_and_says_the_way_past_it(query: Query) -> None:
    """A savepoint of the checkpoint that the error names."""
    query.run(query.sink(), *"abb")
    edited = query.edit("a")
    with pytest.raises(RewindError, match="by hand") as caught:
        query.run(query.sink(on_rewind="rollback"), "c", first=1)
    assert caught.value.facts["checkpoint_id"] == edited
    assert query.counts() == {"a": 100, "b": 2}
    asyncio.run(sb.savepoint(query.settings, "before", checkpoint_id=caught.value.facts["rollback_checkpoint_id"]))
    query.run(query.sink(savepoint="before"), "c", first=1)
    assert query.counts() == {"a": 1, "c": 1}


def test_going_back_by_hand_is_noticed_by_the_stream(query: Query) -> None:
    """Somebody has opened an older checkpoint and committed on top of it: the batches since are gone from the state."""
    query.run(query.sink(), *"abc")
    query.edit("a", checkpoint_id=0)
    with pytest.raises(StateGoneError, match="ends with batch 0"):
        query.run(query.sink(), "d", first=3)
    assert query.counts() == {"a": 100}
