"""When the scheduler sends what, who hears of it, and what is in flight meanwhile."""

import asyncio
import gc
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from hypothesis import given
from hypothesis import strategies as st

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._codec.change_sets.changes import ChangeSet
from statebackend._tasks import StrayCancellationError, hops_under_way
from statebackend.abc import Segment
from statebackend.errors import BackendClosedError, StoreUnavailableError, UploadError
from statebackend.testing.virtual_time import RESOLUTION_S, VirtualClock, run_virtual, settle
from tests.changelog.fakes import (
    FOREVER_S,
    FailingUploader,
    HeldUploader,
    SlowUploader,
    Uploader,
    Watcher,
    open_log,
    open_scheduler,
    scheduler_of,
    set_of,
    sets_of,
)


class Calls:
    """Calls of `upload`, each in a task: `ended` has results or errors, in the order of their ends."""

    def __init__(self, scheduler: UploadScheduler, tasks: TaskGroup) -> None:
        self.ended: dict[str, list[UploadedChangeSet] | Exception] = {}
        self._scheduler = scheduler
        self._tasks = tasks
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def call(self, name: str, change_sets: list[ChangeSet]) -> None:
        """Begin a call, and let it come as far as it can."""
        self._scopes[name] = anyio.CancelScope()
        self._tasks.start_soon(self._upload, name, change_sets)
        await settle()

    async def cancel(self, name: str) -> None:
        self._scopes[name].cancel()
        await settle()

    def error_of(self, name: str) -> Exception:
        error = self.ended[name]
        assert isinstance(error, Exception)
        return error

    def numbers_of(self, name: str) -> list[int]:
        results = self.ended[name]
        assert isinstance(results, list)
        return [each.handle.sequence_number for each in results]

    async def _upload(self, name: str, change_sets: list[ChangeSet]) -> None:
        with self._scopes[name]:
            try:
                self.ended[name] = list(await self._scheduler.upload(change_sets))
            except Exception as error:  # noqa: BLE001  # kept for the test to look at
                self.ended[name] = error


# --------------------------------------------------------------------------------------------------------- when to send


@run_virtual
async def test_without_delay_every_call_is_sent_at_once() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testNoDelayAndThreshold."""
    uploader = Uploader()
    async with open_scheduler(uploader, persist_delay_s=0, persist_size_threshold_bytes=0) as scheduler:
        await scheduler.upload([set_of(4, number=0)])
        assert uploader.sent == [[("a", 0)]]
        await scheduler.upload([set_of(4, number=1)])
        assert uploader.sent == [[("a", 0)], [("a", 1)]]
    assert VirtualClock().monotonic() == 0


@run_virtual
async def test_the_size_threshold_sends_at_once() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testSizeThreshold."""
    uploader = Uploader()
    async with (
        open_scheduler(uploader, persist_delay_s=FOREVER_S, persist_size_threshold_bytes=77) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        for number, change_set in enumerate(sets_of([11] * 7)):
            assert uploader.sent == []
            await calls.call(str(number), [change_set])
    assert uploader.sent == [[("a", number) for number in range(7)]]
    assert VirtualClock().monotonic() < 1  # and the timer is cancelled: it would have kept the scheduler busy


@run_virtual
async def test_the_delay_sends_what_waits() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testDelay. A one-shot timer of exactly the delay."""
    uploader = Uploader()
    async with open_scheduler(uploader, persist_delay_s=0.05, persist_size_threshold_bytes=10_000) as scheduler:
        clock = VirtualClock()
        async with anyio.create_task_group() as tasks:
            await Calls(scheduler, tasks).call("only", [set_of(4)])
            await anyio.sleep(0.0499)
            assert uploader.sent == []
        assert uploader.sent == [[("a", 0)]]
        assert clock.monotonic() == 0.05
        await anyio.sleep(1)
    assert len(uploader.sent) == 1


@run_virtual
async def test_the_first_waiter_arms_the_timer_and_later_ones_do_not_move_it() -> None:
    """7.2: at most one timer. A steady stream of small calls does not put off the first of them for ever."""
    uploader = Uploader()
    async with (
        open_scheduler(uploader, persist_delay_s=1.0, persist_size_threshold_bytes=10_000) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        for number in range(5):
            await calls.call(str(number), [set_of(4, number=number)])
            await anyio.sleep(0.3)
    assert [len(sent) for sent in uploader.sent] == [4, 1]  # at 0, 0.3, 0.6, 0.9; sent at 1.0; then the one at 1.2


@run_virtual
async def test_a_timer_that_lost_against_the_size_threshold_sends_nothing() -> None:
    """Row: section 30, scheduler: timer fires after a size-triggered drain (FLINK-31139). No empty segment, ever.

    And what comes after the drain waits for a full delay of its own, not for what is left of the old one.
    """
    uploader = Uploader()
    clock = VirtualClock()
    async with (
        open_scheduler(uploader, persist_delay_s=1.0, persist_size_threshold_bytes=10) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("arms", [set_of(4, number=0)])
        await anyio.sleep(0.5)
        await calls.call("fills", [set_of(6, number=1)])
        await calls.call("arms again", [set_of(4, number=2)])
        await anyio.sleep(0.9)
        assert uploader.sent == [[("a", 0), ("a", 1)]]
    assert uploader.sent == [[("a", 0), ("a", 1)], [("a", 2)]]
    assert clock.monotonic() == pytest.approx(1.5)


@pytest.mark.parametrize("moment_s", [1.0 - RESOLUTION_S / 2, 1.0 + RESOLUTION_S / 2])
@run_virtual
async def test_a_timer_disarmed_as_it_goes_off_does_not_send_early(moment_s: float) -> None:
    """The size threshold is reached in the very turn in which the timer fires: what comes next has its full delay."""
    uploader = Uploader()

    async def upload_late(at_s: float, size_bytes: int, log: str) -> None:
        await anyio.sleep(at_s)
        await scheduler.upload([set_of(size_bytes, log=log)])

    async with (
        open_scheduler(uploader, persist_delay_s=1.0, persist_size_threshold_bytes=10) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        await Calls(scheduler, tasks).call("arms", [set_of(4, log="arms")])
        tasks.start_soon(upload_late, moment_s, 10, "fills")
        tasks.start_soon(upload_late, moment_s + RESOLUTION_S / 4, 1, "arms again")
        await anyio.sleep(1.5)
        assert ("arms again", 0) not in [name for sent in uploader.sent for name in sent]
    assert uploader.sent[-1] == [("arms again", 0)]
    assert VirtualClock().monotonic() == pytest.approx(2.0, abs=2 * RESOLUTION_S)


@run_virtual
async def test_a_call_without_change_sets_sends_nothing() -> None:
    """No empty segment, and nothing to wait for."""
    uploader = Uploader()
    async with open_scheduler(uploader) as scheduler:
        assert await scheduler.upload([]) == ()
    assert uploader.sent == []


# ------------------------------------------------------------------------------------------------------- who hears what


@run_virtual
async def test_several_writers_share_a_segment_and_each_gets_its_own() -> None:
    """One object for all that waited; every call gets handles to its own change sets, in its own order."""
    uploader = Uploader()
    async with (
        open_scheduler(uploader, persist_delay_s=1.0, persist_size_threshold_bytes=10_000) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("a", sets_of([10, 20], log="a"))
        await calls.call("b", sets_of([30], log="b"))
        await calls.call("c", sets_of([40, 50, 60], log="c"))
    assert len(uploader.attempts) == 1
    assert uploader.attempts[0].log_ids == ("a", "b", "c")
    for name, count in (("a", 2), ("b", 1), ("c", 3)):
        results = calls.ended[name]
        assert isinstance(results, list)
        assert [each.handle.log_id for each in results] == [name] * count
        assert calls.numbers_of(name) == list(range(count))
        assert {each.handle.segment.key for each in results} == {uploader.attempts[0].name}


@run_virtual
async def test_an_error_reaches_exactly_the_calls_of_its_batch() -> None:
    """The first batch fails, the second does not: each call hears how its own batch ended."""
    uploader = FailingUploader(1)
    async with (
        open_scheduler(uploader, persist_delay_s=1.0, persist_size_threshold_bytes=10_000) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("first", [set_of(4, log="a")])
        await calls.call("with it", [set_of(4, log="b")])
        await anyio.sleep(1)
        await calls.call("later", [set_of(4, log="c")])
    assert isinstance(calls.error_of("first"), StoreUnavailableError)
    assert isinstance(calls.error_of("with it"), StoreUnavailableError)
    assert calls.numbers_of("later") == [0]


@run_virtual
async def test_change_sets_that_cannot_be_encoded_fail_their_batch_only() -> None:
    """An error before the first attempt reaches the calls as well, and the scheduler goes on."""
    uploader = Uploader()
    async with open_scheduler(uploader) as scheduler:
        with pytest.raises(TypeError):
            await scheduler.upload([set_of(4, key=object())])
        await scheduler.upload([set_of(4)])
    assert len(uploader.attempts) == 1


@pytest.mark.parametrize(("size_bytes", "threads"), [(1_000_000, 1), (1_000, 0)])
@run_virtual
async def test_a_large_batch_is_encoded_in_a_thread_and_a_small_one_is_not(size_bytes: int, threads: int) -> None:
    """What takes long to encode does not stop the loop, and what does not is not worth a thread."""
    uploader, loop = Uploader(), asyncio.get_running_loop()
    at_work: list[int] = []

    async def watch() -> None:
        while not uploader.stored:
            at_work.append(hops_under_way(loop))
            await anyio.lowlevel.checkpoint()

    async with open_scheduler(uploader) as scheduler, anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        (result,) = await scheduler.upload([set_of(size_bytes)])
    assert max(at_work) == threads
    assert result.handle.records == 1
    assert len(uploader.stored[result.handle.segment.key]) > size_bytes


@run_virtual
async def test_the_uploader_cannot_end_the_backend_with_a_stray_cancellation() -> None:
    """A `CancelledError` that nobody asked for is a final error of that upload, and of nothing else."""
    uploader = FailingUploader(1, asyncio.CancelledError())
    async with open_scheduler(uploader, upload__attempts_max=3) as scheduler:
        with pytest.raises(StrayCancellationError):
            await scheduler.upload([set_of(4)])
        await scheduler.upload([set_of(4)])


@run_virtual
async def test_an_uploader_that_overwrites_is_found_out() -> None:
    """Two segments at one key: the first one's change sets are gone, so the second upload must not succeed."""

    class Overwriting(Uploader):
        async def upload(self, segment):  # type: ignore[no-untyped-def]
            uploaded = await super().upload(segment)
            return type(uploaded)(type(uploaded.primary)("always the same", 0, 1, 0))

    async with open_scheduler(Overwriting()) as scheduler:
        await scheduler.upload([set_of(4, number=0)])
        with pytest.raises(UploadError):
            await scheduler.upload([set_of(4, number=1)])


# ------------------------------------------------------------------------------------------------- attempts and retries


@run_virtual
async def test_an_io_error_is_retried_by_nobody_but_the_retry_layer() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testRetry. The call hears of success only, after attempt 5."""
    uploader, watcher = FailingUploader(4), Watcher()
    async with open_scheduler(uploader, watcher, upload__attempts_max=5) as scheduler:
        assert len(await scheduler.upload([set_of(4)])) == 1
    assert [attempt for attempt, _ in watcher.failed] == [1, 2, 3, 4]
    assert [attempt for _, attempt, _ in watcher.uploaded] == [5]


@run_virtual
async def test_the_only_attempt_s_timeout_fails_every_change_set() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testUploadTimeout."""
    uploader = SlowUploader(FOREVER_S)
    clock = VirtualClock()
    async with open_scheduler(uploader, upload__timeout_s=0.001) as scheduler:
        with pytest.raises(TimeoutError):
            await scheduler.upload(sets_of([1, 2, 3]))
        assert clock.monotonic() == 0.001
    assert uploader.stored == {}


@run_virtual
async def test_the_late_result_of_an_attempt_that_timed_out_counts() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testRetryOnTimeout. Released when two attempts have begun."""
    uploader, watcher = HeldUploader(), Watcher()
    async with (
        open_scheduler(uploader, watcher, upload__attempts_max=3, upload__timeout_s=0.05) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("only", sets_of([1, 2, 3]))
        await anyio.sleep(0.06)
        assert len(uploader.attempts) == 2
        uploader.complete(1)
        await settle()
        assert calls.numbers_of("only") == [0, 1, 2]
        uploader.complete(2)
    assert watcher.failed == []
    assert [name for name, _, _ in watcher.uploaded] == ["segment-1"]
    assert uploader.discarded == ["segment-2"]


@run_virtual
async def test_every_attempt_has_a_fresh_name_and_losers_are_discarded() -> None:
    """5.1, FLINK-26485: attempts never collide; of three objects one remains, the one given out."""
    uploader = SlowUploader(2.5, 1.8, 0.1)
    async with open_scheduler(uploader, upload__attempts_max=3, upload__timeout_s=1) as scheduler:
        (result,) = await scheduler.upload([set_of(4)])
        assert result.handle.segment.key == "segment-3"
    assert [segment.name for segment in uploader.attempts] == ["segment-1", "segment-2", "segment-3"]
    assert sorted(uploader.discarded) == ["segment-1", "segment-2"]
    assert list(uploader.stored) == ["segment-3"]


@run_virtual
async def test_the_observer_is_told_of_the_winner_and_of_failures() -> None:
    """One upload, one event, whatever the number of attempts. An observer that raises harms nobody."""

    class Raising(Watcher):
        def segment_uploaded(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            super().segment_uploaded(*args, **kwargs)
            raise KeyError

    watcher = Raising()
    async with open_scheduler(SlowUploader(1.5, 1), watcher, upload__attempts_max=2, upload__timeout_s=1) as scheduler:
        await scheduler.upload([set_of(4)])
    assert watcher.uploaded == [("segment-1", 1, 1.5)]


@pytest.mark.parametrize("reason", ["disk full", None])
@run_virtual
async def test_the_observer_is_told_why_an_uploader_left_out_the_local_copy(reason: str | None) -> None:
    """One of one's own says so with its result. One that never keeps any has nothing to tell."""
    told: list[tuple[str, str]] = []

    class Listening(Watcher):
        def local_copy_dropped(self, name: str, reason: str) -> None:
            told.append((name, reason))

    async with open_scheduler(Uploader(dropped=reason), Listening()) as scheduler:
        await scheduler.upload([set_of(4)])
    assert told == ([] if reason is None else [("segment-1", reason)])


# -------------------------------------------------------------------------------------------------------- back-pressure


@run_virtual
async def test_a_call_s_change_sets_are_summed() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testBackPressure (availability). Two sets of 5,000 fill 10,000."""
    uploader = HeldUploader()
    async with (
        open_scheduler(uploader, in_flight_bytes_max=10_000) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        assert scheduler.has_room
        await Calls(scheduler, tasks).call("both", sets_of([5_000, 5_000]))
        assert not scheduler.has_room
        assert scheduler.in_flight_bytes == 10_000
        uploader.complete(1)


@run_virtual
async def test_a_call_waits_while_too_much_is_in_flight() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testBackPressure (blocking)."""
    uploader = HeldUploader()
    async with (
        open_scheduler(uploader, in_flight_bytes_max=10_000) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("large", sets_of([5_000, 5_000]))
        await calls.call("small", [set_of(1, log="b")])
        await anyio.sleep(0.5)
        assert len(uploader.attempts) == 1
        uploader.complete(1)
        uploader.complete(2)
        await settle()
        assert list(calls.ended) == ["large", "small"]
    assert uploader.sent[1] == [("b", 0)]


@run_virtual
async def test_a_call_cancelled_while_it_waits_for_room_sends_nothing() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testInterruptedWhenBackPressured.

    10,001 bytes are admitted although they are more than the limit; a second call waits; it is cancelled.
    """
    uploader = HeldUploader()
    async with (
        open_scheduler(uploader, in_flight_bytes_max=10_000) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("oversized", [set_of(10_001)])
        assert len(uploader.attempts) == 1
        await calls.call("second", [set_of(1, log="b")])
        await calls.cancel("second")
        assert "second" not in calls.ended
        uploader.complete(1)
    assert uploader.sent == [[("a", 0)]]


@run_virtual
async def test_room_is_signalled_when_an_upload_ends() -> None:
    """7.4: the soft stage. A producer of changes waits for room before making more."""
    uploader = HeldUploader()
    async with (
        open_scheduler(uploader, in_flight_bytes_max=10) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        await scheduler.room()
        await Calls(scheduler, tasks).call("fills", [set_of(10)])
        with anyio.move_on_after(100) as waited:
            await scheduler.room()
        assert waited.cancelled_caught
        uploader.complete(1)
        await scheduler.room()


@pytest.mark.parametrize("end", ["success", "failure", "cancellation"])
@run_virtual
async def test_bytes_are_given_back_however_an_upload_ends(end: str) -> None:
    """Row: section 30, scheduler: upload fails. Capacity is returned and waiters wake."""
    uploader = HeldUploader()
    async with (
        open_scheduler(uploader, in_flight_bytes_max=10) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("first", [set_of(10)])
        await calls.call("second", [set_of(10, log="b")])
        if end == "cancellation":
            await calls.cancel("first")
            assert len(uploader.attempts) == 1  # still at work: its bytes are in flight
        if end == "failure":
            uploader.fail(1, OSError())
        else:
            uploader.complete(1)
        uploader.complete(2)
        await settle()
        assert calls.numbers_of("second") == [0]
    assert uploader.discarded == (["segment-1"] if end == "cancellation" else [])


@run_virtual
async def test_the_bytes_of_an_attempt_that_has_lost_are_in_flight_until_it_ends() -> None:
    """Bounded: hedging must not hold more in memory than the limit says."""
    uploader = SlowUploader(1.9, 0.1)
    async with open_scheduler(
        uploader, upload__attempts_max=2, upload__timeout_s=1, in_flight_bytes_max=10
    ) as scheduler:
        await scheduler.upload([set_of(10)])
        assert VirtualClock().monotonic() == 1.1
        assert scheduler.in_flight_bytes == 10
        await scheduler.room()
        assert VirtualClock().monotonic() == 1.9


class ForgetfulUploader(Uploader):
    """Each attempt ends with its error, or takes so many seconds. Of the segments only one frame is kept."""

    def __init__(self, *ends: float | type[Exception]) -> None:
        super().__init__()
        self.kept: list[bytes] = []
        self._ends = ends

    async def store(self, number: int, segment: Segment) -> None:
        self.kept[:] = segment.body[1:2]
        end = self._ends[number - 1]
        if isinstance(end, type):
            raise end("no answer")
        await anyio.sleep(end)

    def forget(self) -> None:
        self.attempts.clear()
        self.stored.clear()


@pytest.mark.parametrize(
    "ends",
    [(0,), (StoreUnavailableError, 0), (1.5, 0.1), (1.5, 1)],
    ids=["at once", "retried", "hedged", "hedged in vain"],
)
@run_virtual
async def test_what_is_not_in_flight_any_more_is_not_in_memory_either(ends: Sequence[float | type[Exception]]) -> None:
    """Bounded: nothing of an upload waits for the collector, which changes do not call."""
    uploader = ForgetfulUploader(*ends)
    gc.collect()
    gc.disable()
    try:
        async with open_scheduler(uploader, upload__attempts_max=2, upload__timeout_s=1) as scheduler:
            await scheduler.upload([set_of(10)])
            await anyio.sleep(10)
            uploader.forget()
            assert scheduler.in_flight_bytes == 0
            assert gc.get_referrers(*uploader.kept) == [uploader.kept]
    finally:
        gc.enable()


# --------------------------------------------------------------------------------------------------------- cancellation


@run_virtual
async def test_a_call_cancelled_in_the_queue_is_never_sent() -> None:
    """Its bytes are free at once; the others in the queue are sent as if it had not come."""
    uploader = Uploader()
    async with (
        open_scheduler(uploader, persist_delay_s=1, persist_size_threshold_bytes=100) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("a", [set_of(40, log="a")])
        await calls.call("b", [set_of(40, log="b")])
        await calls.cancel("a")
        assert scheduler.in_flight_bytes == 40
        await calls.call("c", [set_of(40, log="c")])
        assert uploader.sent == []  # 80 bytes wait, not 120
    assert uploader.sent == [[("b", 0), ("c", 0)]]


@run_virtual
async def test_the_last_call_cancelled_in_the_queue_disarms_the_timer() -> None:
    """Nothing waits: nothing is sent, and the next call has a delay of its own."""
    uploader = Uploader()
    async with (
        open_scheduler(uploader, persist_delay_s=1, persist_size_threshold_bytes=100) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("a", [set_of(4)])
        await anyio.sleep(0.5)
        await calls.cancel("a")
        await calls.call("b", [set_of(4, log="b")])
        await anyio.sleep(0.9)
        assert uploader.sent == []
    assert uploader.sent == [[("b", 0)]]


@run_virtual
async def test_a_call_cancelled_on_its_way_does_not_disturb_the_others_in_its_segment() -> None:
    """The upload goes on for the others; what nobody will ever release is released. The segment lives for them."""
    uploader = HeldUploader()
    async with (
        open_scheduler(uploader, persist_delay_s=1, persist_size_threshold_bytes=8) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        calls = Calls(scheduler, tasks)
        await calls.call("a", [set_of(4, log="a")])
        await calls.call("b", [set_of(4, log="b")])
        await calls.cancel("a")
        uploader.complete(1)
        await settle()
        results = calls.ended["b"]
        assert isinstance(results, list)
        assert list(uploader.stored) == ["segment-1"]
        await scheduler.release(results)
    assert uploader.discarded == ["segment-1"]


@pytest.mark.parametrize("first", ["cancelled", "done"])
@run_virtual
async def test_a_call_cancelled_as_it_ends_leaves_no_segment_without_an_owner(first: str) -> None:
    """No moment exists in which an uploaded segment belongs to nobody."""

    class Cancelling(Uploader):
        async def store(self, number: int, segment: object) -> None:
            await anyio.sleep(1)
            if first == "cancelled":
                call.cancel()

    class Late(Watcher):
        def segment_uploaded(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if first == "done":  # the results are handed out, and the call has not woken yet
                call.cancel()

    uploader = Cancelling()
    async with open_scheduler(uploader, Late()) as scheduler:
        call = asyncio.ensure_future(scheduler.upload([set_of(4)]))
        await asyncio.wait([call])
        assert call.cancelled()
    assert uploader.discarded == ["segment-1"]


# ----------------------------------------------------------------------------------------------- the end of the backend


@run_virtual
async def test_uploading_after_the_tasks_have_ended_is_an_error_at_once() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testErrorHandling. The call itself raises, and holds nothing."""
    for delay_s in (0, FOREVER_S):
        async with anyio.create_task_group() as tasks:
            scheduler = scheduler_of(Uploader(), tasks, persist_delay_s=delay_s, persist_size_threshold_bytes=100)
        for _ in range(2):
            with pytest.raises(BackendClosedError):
                await scheduler.upload([set_of(4)])
            assert scheduler.in_flight_bytes == 0


@run_virtual
async def test_a_fresh_scheduler_leaves_nothing_to_close() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testClose. Timer and attempts live in `tasks` and end with it."""
    async with anyio.create_task_group() as tasks:
        scheduler_of(Uploader(), tasks, persist_delay_s=FOREVER_S)
    assert VirtualClock().monotonic() == 0


@run_virtual
async def test_the_end_of_the_tasks_reaches_every_call() -> None:
    """Row: section 30, scheduler: close with queued, running and blocked uploads.

    The callers live elsewhere. Each hears that the backend has ended; nothing is uploaded; accounting ends at 0.
    """
    uploader = SlowUploader(FOREVER_S)
    async with anyio.create_task_group() as callers, anyio.create_task_group() as tasks:
        scheduler = scheduler_of(
            uploader, tasks, persist_delay_s=1, persist_size_threshold_bytes=8, in_flight_bytes_max=10
        )
        calls = Calls(scheduler, callers)
        await calls.call("running", [set_of(8)])
        await calls.call("queued", [set_of(7, log="b")])
        await calls.call("blocked", [set_of(1, log="c")])
        tasks.cancel_scope.cancel()
    for name in ("running", "queued", "blocked"):
        assert isinstance(calls.error_of(name), BackendClosedError)
    assert uploader.sent == [[("a", 0)]]
    assert uploader.stored == {}
    assert scheduler.in_flight_bytes == 0


# -------------------------------------------------------------------------------------------------------------- release


@run_virtual
async def test_a_released_segment_is_deleted_with_its_last_change_set() -> None:
    """Three change sets, three releases: the object goes with the last one. A confirmed one stays."""
    uploader = Uploader()
    async with open_scheduler(uploader) as scheduler:
        results = await scheduler.upload(sets_of([1, 2, 3]))
        confirmed = await scheduler.upload(sets_of([1, 2, 3], log="b"))
        scheduler.confirm(confirmed[:1])
        await scheduler.release(confirmed)
        for result in results[:2]:
            await scheduler.release([result])
        assert uploader.discarded == []
        await scheduler.release(results[2:])
        assert uploader.discarded == ["segment-1"]


@run_virtual
async def test_a_deletion_goes_on_when_its_caller_is_cancelled() -> None:
    """Also that of the segments after the first: nothing would ever ask for them again."""

    class SlowToDiscard(Uploader):
        async def discard(self, uploaded):  # type: ignore[no-untyped-def]
            await anyio.sleep(1)
            await super().discard(uploaded)

    uploader = SlowToDiscard()
    async with open_scheduler(uploader) as scheduler:
        results = [*await scheduler.upload([set_of(1)]), *await scheduler.upload([set_of(1, number=1)])]
        with anyio.move_on_after(0.5):
            await scheduler.release(results)
    assert uploader.discarded == ["segment-1", "segment-2"]


@pytest.mark.parametrize("ends", [False, True])
@run_virtual
async def test_deletions_run_side_by_side_and_not_too_many(ends: bool) -> None:
    """Of all calls together. When the backend ends meanwhile, all of them are made all the same."""
    at_work: list[int] = []

    class SlowToDiscard(Uploader):
        running = 0

        async def discard(self, uploaded):  # type: ignore[no-untyped-def]
            self.running += 1
            at_work.append(self.running)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            self.running -= 1
            await super().discard(uploaded)

    uploader, clock = SlowToDiscard(), VirtualClock()
    async with open_log(uploader, discard_concurrency_max=3) as log:
        uploaded = [(await log.scheduler.upload([set_of(1, number=number)]))[0] for number in range(9)]
        begun_s = clock.monotonic()
        with anyio.move_on_after(0.5 if ends else 60.0):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log.scheduler.release, uploaded[:5])
                tasks.start_soon(log.scheduler.release, uploaded[5:])
    assert sorted(uploader.discarded) == sorted(each.handle.segment.key for each in uploaded)
    assert (max(at_work), clock.monotonic() - begun_s) == (3, 3.0)


@pytest.mark.parametrize("error", [OSError(), KeyError(), asyncio.CancelledError()])
@run_virtual
async def test_a_deletion_that_fails_is_not_an_error(error: BaseException) -> None:
    """What cannot be deleted is garbage for a sweep; the segments after it are deleted all the same."""

    class Undeletable(Uploader):
        async def discard(self, uploaded):  # type: ignore[no-untyped-def]
            if uploaded.primary.key == "segment-1":
                raise error
            await super().discard(uploaded)

    uploader = Undeletable()
    async with open_scheduler(uploader) as scheduler:
        results = [*await scheduler.upload([set_of(1)]), *await scheduler.upload([set_of(1, number=1)])]
        await scheduler.release(results)
    assert uploader.discarded == ["segment-2"]


# --------------------------------------------------------------------------------------------------------------- in all


PLAN = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.001, 0.02]),  # pause before the call
        st.lists(st.integers(1, 60), min_size=1, max_size=3),  # sizes of its change sets
        st.sampled_from([None, 0.0, 0.005, 0.1]),  # when it is cancelled
        st.sampled_from([0.0, 0.01, 0.5, 1.5]),  # how long an attempt takes
        st.sampled_from([None, OSError(), ValueError()]),  # how it ends
    ),
    max_size=12,
)


@given(PLAN, st.sampled_from([0.0, 0.01]), st.integers(0, 100), st.integers(100, 150))
@run_virtual
async def test_every_call_ends_once_and_every_object_has_an_owner(
    plan: list[tuple[float, list[int], float | None, float, Exception | None]],
    delay_s: float,
    threshold_bytes: int,
    limit_bytes: int,
) -> None:
    """Whatever happens: each call ends as its segment did; what remains stored is exactly what was given out.

    And never more in flight than the limit and one call; nothing at the end.
    """

    class Scripted(Uploader):
        async def store(self, number: int, segment: object) -> None:
            assert scheduler.in_flight_bytes < limit_bytes + 180
            _, _, _, seconds, error = plan[number % len(plan)]
            await anyio.sleep(seconds)
            if error is not None:
                raise error

    uploader = Scripted()
    outcomes: dict[int, object] = {}

    async def call(index: int, sizes: list[int], cancel_s: float | None) -> None:
        with anyio.move_on_after(cancel_s if cancel_s is not None else FOREVER_S):
            try:
                outcomes[index] = await scheduler.upload(sets_of(sizes, log=str(index)))
            except (OSError, ValueError) as error:
                outcomes[index] = error

    async with (
        open_scheduler(
            uploader,
            persist_delay_s=delay_s,
            persist_size_threshold_bytes=threshold_bytes,
            in_flight_bytes_max=limit_bytes,
            upload__attempts_max=3,
            upload__timeout_s=1,
            upload__retry_delay_s=0.1,
        ) as scheduler,
        anyio.create_task_group() as tasks,
    ):
        for index, (pause_s, sizes, cancel_s, _, _) in enumerate(plan):
            await anyio.sleep(pause_s)
            tasks.start_soon(call, index, sizes, cancel_s)
    given_out: set[str] = set()
    for index, (_, sizes, cancel_s, _, _) in enumerate(plan):
        outcome = outcomes.get(index)
        assert outcome is not None or cancel_s is not None
        if isinstance(outcome, list):
            assert [each.handle.sequence_number for each in outcome] == list(range(len(sizes)))
            assert {each.handle.log_id for each in outcome} == {str(index)}
            given_out |= {each.handle.segment.key for each in outcome}
    assert set(uploader.stored) == given_out
    assert all(uploader.sent)
