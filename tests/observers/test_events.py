"""What observers are told, and that none of them can break what it watches."""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._observers import EVENTS
from statebackend._ranges.range_owners import open_range_owners
from statebackend.errors import (
    BackendClosedError,
    FencedError,
    InputError,
    MissingObjectError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.observers import Metrics, Observers
from statebackend.testing import Fail, FaultyStore, run_virtual
from statebackend.testing.virtual_time import VirtualClock, settle
from tests.changelog.fakes import HeldUploader, SlowUploader, Uploader, open_scheduler, set_of
from tests.checkpoint.bases import BaseUploader
from tests.knobs import settings_with
from tests.ranges.parts import open_run

ARGUMENTS = {name: list(inspect.signature(getattr(sb.Observer, name)).parameters.values())[1:] for name in EVENTS}


class Recorder(sb.Observer):
    """Remembers every event with its arguments, and then does what it was made to do."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.heard: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        for event in EVENTS:
            setattr(self, event, self._recording(event, then))

    def _recording(self, event: str, then: Callable[[], None]) -> Callable[..., None]:
        def record(*args: Any, **facts: Any) -> None:
            self.heard.append((event, args, facts))
            then()

        return record

    @property
    def events(self) -> list[str]:
        return [event for event, _, _ in self.heard]

    def of(self, *events: str) -> list[tuple[Any, ...]]:
        """The positional arguments, or else the values of the others, of these events."""
        return [args or tuple(facts.values()) for event, args, facts in self.heard if event in events]


def raising(error: BaseException) -> Recorder:
    def fail() -> None:
        raise error

    return Recorder(fail)


async def eventful_life(root: Path, observer: sb.Observer) -> tuple[list[dict[sb.Key, int]], Counter[str]]:
    """Three backends, a cache and a range, to which all happens that an observer is told of.

    What was seen, and requested.
    """
    settings = settings_with(
        job="fleet",
        primary="memory://unused",
        local=(str(root / "local"),),
        local_bytes_max=1000,
        preemptive_persist_threshold_bytes=100,
        in_flight_bytes_max=1,
        persist_size_threshold_bytes=1,
        upload__timeout_s=0,
    )
    store = FaultyStore(MemoryStore(), [Fail(key="*segments*", nth=1)])
    states: list[dict[sb.Key, int]] = []
    for checkpoint_id in (1, 2):
        async with sb.open_backend(settings, store=store, observer=observer, clock=VirtualClock()) as backend:
            state = backend.value_state("n", int)
            state.update({f"{checkpoint_id} {number}": number for number in range(50)})
            await backend.checkpoint(checkpoint_id)
            states.append(dict(state))
    uploader = BaseUploader(ScopedStore(store, "fleet/"))
    settings = msgspec.structs.replace(settings, materialize_handles_max=1, materialize_retry_delay_s=0)
    async with sb.open_backend(
        settings, store=store, observer=observer, clock=VirtualClock(), uploader=uploader
    ) as backend:
        for checkpoint_id, error in ((3, StoreAccessError("refused")), (4, None)):  # bases that fail, and that do not
            uploader.error = error
            await backend.checkpoint(checkpoint_id)
            await anyio.sleep(10)
    store.plan.append(Fail(operation="get", key="*segments*", nth=1))
    shared = msgspec.structs.replace(
        settings, local=(), cache_dir=str(root / "cache"), cache_idle_s=1.0, restore_concurrency_max=1
    )
    async with sb.owners.open_download_cache(shared, store=store, observer=observer, clock=VirtualClock()) as cache:
        with pytest.raises(StoreUnavailableError):
            async with sb.open_backend(shared, store=store, cache=cache):
                pass
        for _ in range(2):
            async with sb.open_backend(shared, store=store, cache=cache) as backend:
                states.append(dict(backend.value_state("n", int)))
        await anyio.sleep(1)
        await settle()
    async with (
        open_run(shared, 1, store) as run,
        open_range_owners(store=store, observer=observer) as owners,
        owners.attempt(run.tasks()[0]) as attempt,
    ):
        states.append(dict(attempt.backend.value_state("n", int)))
    # Tested where damage is done; and only a sink tells of the other, which needs Spark.
    Observers(observer).older_checkpoint_opened(sb.ids.CheckpointId(3), MissingObjectError("gone"))
    Observers(observer).batches_missed(sb.SourceMark("query", 4, "run"), after=1)
    Observers(observer).rows_late(3)
    Observers(observer).fenced(FencedError("a newer writer owns this job"))
    Observers(observer).swept(deleted=2, failures=1, seconds=0.5)
    Observers(observer).sweep_failed(OSError("no answer"))
    Observers(observer).batch_progressed(4, rows=1, of_rows=2, seconds=1.0, keys_under_way=1)
    Observers(observer).commits_followed(2, changes=3, size_bytes=4, seconds=0.5)
    Observers(observer).follower_jumped("a sweep was faster")
    Observers(observer).follower_looked(0.25)
    Observers(observer).mirrored("legs", commits=2, rows=3, seconds=0.5, anew="it is new")
    Observers(observer).mirror_lagged("legs", commits=1, seconds=0.5)
    Observers(observer).mirror_failed("legs", OSError("no answer"))
    output = sb.StagedOutput(sb.SourceMark("query", 4, "run"), 7, b"")
    Observers(observer).publication_failed(output, OSError("no answer"), seconds=1.0)
    Observers(observer).output_published(output, seconds=2.0)
    return states, Counter(operation for operation, _ in store.calls)


# ---------------------------------------------------------------------------------------------------- several observers


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_goes_to_every_observer(event: str) -> None:
    """With all its arguments, in the order of the observers, however deep they are nested."""
    told: list[str] = []
    first, second = Recorder(lambda: told.append("first")), Recorder(lambda: told.append("second"))
    args = tuple(each.name for each in ARGUMENTS[event] if each.kind is each.POSITIONAL_OR_KEYWORD)
    facts = {each.name: object() for each in ARGUMENTS[event] if each.kind is each.KEYWORD_ONLY}
    getattr(Observers(Observers(first), second), event)(*args, **facts)
    assert first.heard == second.heard == [(event, args, facts)]
    assert told == ["first", "second"]


class Earlier(Metrics):
    """Written when a batch did not tell of its keys; what it inherits was not."""

    def batch_progressed(self, batch_id: int, *, rows: int, of_rows: int, seconds: float) -> None:  # type: ignore[override]
        super().batch_progressed(batch_id, rows=rows, of_rows=of_rows, seconds=seconds)


def test_an_observer_without_a_later_fact_is_told_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """An upgrade neither breaks it nor keeps the event from it, nor the fact from the one beside it."""
    earlier, metrics = Earlier(), Metrics()
    Observers(earlier, metrics).batch_progressed(4, rows=1, of_rows=2, seconds=1.0, keys_under_way=3)
    assert (earlier.batch_rows_begun, earlier.batch_rows, earlier.batch_keys_under_way) == (1, 2, 0)
    assert (metrics.batch_rows_begun, metrics.batch_rows, metrics.batch_keys_under_way) == (1, 2, 3)
    assert not caplog.records


@pytest.mark.parametrize(
    "wrong", [[Metrics()], (Metrics(),), Metrics, "metrics", None], ids=["list", "tuple", "class", "name", "none"]
)
def test_what_is_no_observer_is_refused(wrong: Any) -> None:
    """Several observers in a list, say, would be told of nothing."""
    with pytest.raises(InputError, match="Observers"):
        Observers(wrong)
    with pytest.raises(InputError, match="Observers"):
        Observers(Metrics(), wrong)


async def test_a_backend_with_a_list_of_observers_is_not_opened() -> None:
    """The mistake is told before anything is claimed."""
    settings, store = settings_with(job="fleet", primary="memory://unused"), MemoryStore()
    several: Any = [Metrics()]
    with pytest.raises(InputError, match="Observers"):
        async with sb.open_backend(settings, store=store, observer=several):
            pass
    assert [info async for info in store.list("")] == []


def test_an_event_that_nobody_wants_costs_nothing() -> None:
    """It stays the method that does nothing; and so it is with no observer at all."""
    for event in EVENTS:
        assert getattr(Observers(sb.Observer(), Observers()), event).__func__ is getattr(sb.Observer, event)
    assert not hasattr(Observers(Metrics()).upload_started, "__func__")


# ------------------------------------------------------------------------------------------------- observers that raise


@run_virtual
async def test_every_event_is_told(tmp_path: Path) -> None:
    """No method of `Observer` waits for something that never comes."""
    recorder = Recorder()
    await eventful_life(tmp_path, recorder)
    assert set(EVENTS) - set(recorder.events) == set()


@pytest.mark.parametrize("error", [KeyError("a defect"), asyncio.CancelledError()], ids=["exception", "cancellation"])
@run_virtual
async def test_an_observer_that_always_raises_breaks_nothing(
    error: BaseException, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Promises 6 and 7: the states and the requests are those of a life without it. Logged once for each event."""
    expected, raiser = await eventful_life(tmp_path / "unwatched", sb.Observer()), raising(error)
    with caplog.at_level(logging.WARNING):
        assert await eventful_life(tmp_path / "watched", raiser) == expected
    assert set(raiser.events) == set(EVENTS)
    logged = [record for record in caplog.records if record.exc_info and record.exc_info[1] is error]
    assert len(EVENTS) <= len(logged) <= 4 * len(EVENTS) < len(raiser.heard)  # three backends and a cache


@run_virtual
async def test_an_observer_that_raises_keeps_nothing_from_the_others(tmp_path: Path) -> None:
    """They are told the same as without it."""
    alone, beside = Recorder(), Recorder()
    await eventful_life(tmp_path / "alone", alone)
    await eventful_life(tmp_path / "beside", Observers(raising(KeyError("a defect")), beside))
    assert beside.events == alone.events


@run_virtual
async def test_an_error_is_logged_once_for_each_observer_and_event(caplog: pytest.LogCaptureFixture) -> None:
    """So a broken observer does not fill the disk, and does not hide another one."""
    observers = Observers(raising(KeyError("first")), raising(KeyError("second")))
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            observers.queue_changed(number)
            observers.in_flight_changed(number)
    assert len(caplog.records) == 4


@run_virtual
async def test_a_writer_that_is_fenced_tells_it_once() -> None:
    """At its commit, before the error is raised; the one that has the job hears nothing."""
    store, settings = MemoryStore(), settings_with(job="fleet", primary="memory://unused")
    early, late = Metrics(), Metrics()
    async with sb.open_backend(settings, store=store, observer=early) as fenced:
        async with sb.open_backend(settings, store=store, observer=late) as backend:
            await backend.checkpoint(1)
        with pytest.raises(FencedError):
            await fenced.checkpoint(1)
        with pytest.raises(BackendClosedError):
            await fenced.checkpoint(2)
    assert (early.fenced_checkpoints, late.fenced_checkpoints) == (1, 0)


def test_what_ends_the_process_ends_it() -> None:
    """Ctrl-C while an observer is at work is not an observer's error."""
    with pytest.raises(KeyboardInterrupt):
        Observers(raising(KeyboardInterrupt())).queue_changed(1)


# -------------------------------------------------------------------------------------------------------- of one upload


@run_virtual
async def test_the_events_of_one_upload_in_their_order() -> None:
    """In flight, queued, sent, attempted, decided, and in flight no more."""
    recorder = Recorder()
    async with open_scheduler(
        Uploader(), recorder, persist_delay_s=1, persist_size_threshold_bytes=100, compression="zstd"
    ) as scheduler:
        await scheduler.upload([set_of(20, number=0), set_of(20, number=1)])
    assert recorder.events == [
        "in_flight_changed",
        "queue_changed",
        "queue_changed",
        "batch_sent",
        "upload_started",
        "upload_succeeded",
        "upload_decided",
        "segment_uploaded",
        "in_flight_changed",
    ]
    assert recorder.of("in_flight_changed") == [(40,), (0,)]
    assert recorder.of("queue_changed") == [(1,), (0,)]
    ((segment, uploaded),) = recorder.of("segment_uploaded")
    assert recorder.of("upload_started", "upload_succeeded") == [(segment,), (segment, uploaded)]
    (sent,) = [facts for event, _, facts in recorder.heard if event == "batch_sent"]
    assert sent == {"uploads": 1, "change_sets": 2, "size_bytes": segment.size_bytes}


@run_virtual
async def test_a_loser_is_told_of_when_it_has_stored_its_segment() -> None:
    """One upload, one `segment_uploaded`; but each attempt that stored it has cost its requests and its time."""
    recorder = Recorder()
    async with open_scheduler(
        SlowUploader(1.7, 0.5), recorder, upload__attempts_max=2, upload__timeout_s=1
    ) as scheduler:
        await scheduler.upload([set_of(4)])
    told = [(event, facts["attempt"]) for event, _, facts in recorder.heard if "attempt" in facts]
    assert told == [
        ("upload_started", 1),
        ("upload_started", 2),
        ("upload_succeeded", 2),
        ("upload_decided", 2),
        ("segment_uploaded", 2),
        ("upload_succeeded", 1),
    ]


# -------------------------------------------------------------------------------------------------------- back-pressure


@run_virtual
async def test_a_wait_for_room_is_told_in_seconds() -> None:
    """Of the upload that waits and of who waits for room, at the end of the wait; not of those who need not wait."""
    metrics, uploader = Metrics(), HeldUploader()
    async with (
        open_scheduler(uploader, metrics, in_flight_bytes_max=10) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        await scheduler.room()
        tasks.start_soon(scheduler.upload, [set_of(10)])
        await settle()
        tasks.start_soon(scheduler.upload, [set_of(5)])
        await anyio.sleep(1)
        tasks.start_soon(scheduler.room)
        await anyio.sleep(2)
        assert metrics.room_wait_seconds.count == 0
        assert metrics.in_flight_bytes == 10
        uploader.complete(1)
        await settle()
        assert metrics.in_flight_bytes == 5
        uploader.complete(2)
    assert sorted(metrics.room_wait_seconds.last) == [2, 3]
    assert metrics.in_flight_bytes == 0


@run_virtual
async def test_a_wait_in_vain_was_a_wait() -> None:
    """A caller that is cancelled after four seconds was held back for four seconds, and holds nothing."""
    metrics, uploader = Metrics(), HeldUploader()
    async with (
        open_scheduler(uploader, metrics, in_flight_bytes_max=10) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(scheduler.upload, [set_of(10)])
        await settle()
        with anyio.move_on_after(4):
            await scheduler.upload([set_of(5)])
        assert metrics.room_wait_seconds.last == (4,)
        assert metrics.in_flight_bytes == 10
        uploader.complete(1)


@run_virtual
async def test_one_that_is_admitted_and_cancelled_at_once_is_not_left_in_flight() -> None:
    """The gauge follows what is held, also where the limiter itself takes it back."""

    class Cancelling(Metrics):
        def in_flight_changed(self, in_flight_bytes: int) -> None:
            super().in_flight_changed(in_flight_bytes)
            if in_flight_bytes == 5:  # the second is admitted, and has not woken yet
                second.cancel()

    metrics, uploader = Cancelling(), HeldUploader()
    async with (
        open_scheduler(uploader, metrics, in_flight_bytes_max=10) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(scheduler.upload, [set_of(10)])
        await settle()
        second = asyncio.ensure_future(scheduler.upload([set_of(5)]))
        await settle()
        uploader.complete(1)
        await asyncio.wait([second])
        assert second.cancelled()
        assert metrics.in_flight_bytes == 0
    assert len(uploader.attempts) == 1


# ------------------------------------------------------------------------------------------------------------- requests


async def test_every_request_to_the_primary_is_told_once(tmp_path: Path) -> None:
    """From opening to the end, over two backends, by kind: what the store has seen."""
    metrics, store = Metrics(), FaultyStore(MemoryStore())
    settings = sb.Settings(job="fleet", primary="memory://unused", local=(str(tmp_path),), persist_delay_s=0)
    for checkpoint_id in (1, 2):
        async with sb.open_backend(settings, store=store, observer=metrics) as backend:
            backend.value_state("n", int)["k"] = checkpoint_id
            info = await backend.checkpoint(checkpoint_id)
            assert sum(metrics.primary_requests.values()) == len(store.calls) >= info.requests
            assert [summary.checkpoint_id async for summary in backend.history()] == [*range(checkpoint_id, 0, -1)]
    assert metrics.primary_requests == Counter(operation for operation, _ in store.calls)
    assert sum(metrics.primary_requests.values()) > 0
