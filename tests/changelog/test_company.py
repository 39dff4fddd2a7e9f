"""The persist delay waits for company: where no writer could come any more, the queue is sent at once."""

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._tasks import open_tasks
from statebackend.ids import SequenceNumber
from statebackend.testing.virtual_time import VirtualClock, run_virtual, settle
from tests.changelog.fakes import FOREVER_S, HeldUploader, Uploader, change, open_log, scheduler_of, set_of, writer_on

FIRST = SequenceNumber(0)
WAITING = {"persist_delay_s": 1, "persist_size_threshold_bytes": 100_000}


async def append_and_persist(writer: ChangelogWriter) -> None:
    from_ = writer.next_sequence_number()
    writer.append(change())
    await writer.persist(from_)


@run_virtual
async def test_the_only_writer_waits_for_nobody() -> None:
    """Nobody else can come: no time passes, however long the delay is."""
    uploader = Uploader()
    async with open_log(uploader, persist_delay_s=FOREVER_S, persist_size_threshold_bytes=100_000) as log:
        for _ in range(3):
            await append_and_persist(log.writer)
    assert uploader.sent == [[("a", 0)], [("a", 1)], [("a", 2)]]
    assert VirtualClock().monotonic() == 0


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
@run_virtual
async def test_the_segment_goes_with_the_last_writer_to_come(pause_s: float) -> None:
    """Also if all come in one turn of the loop: the first of them does not go without the others."""
    uploader = Uploader()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **WAITING)
        writers = [writer_on(scheduler, tasks, log=name) for name in "abc"]
        async with anyio.create_task_group() as calls:
            for writer in writers:
                calls.start_soon(append_and_persist, writer)
                await anyio.sleep(pause_s) if pause_s else None
    assert uploader.sent == [[("a", 0), ("b", 0), ("c", 0)]]
    assert VirtualClock().monotonic() == pytest.approx(3 * pause_s)


@run_virtual
async def test_a_writer_that_may_still_come_is_waited_for_as_long_as_the_delay_lasts() -> None:
    """It is idle, or at its next batch: nobody can tell."""
    uploader = Uploader()
    async with open_log(uploader, company=True, **WAITING) as log:
        await append_and_persist(log.writer)
    assert VirtualClock().monotonic() == 1


@run_virtual
async def test_a_writer_that_leaves_is_not_waited_for() -> None:
    """It closes while the other waits. Closing again changes nothing, and one that comes later is company again."""
    uploader = Uploader()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **WAITING)
        staying, leaving = (writer_on(scheduler, tasks, log=name) for name in "ab")
        tasks.start_soon(append_and_persist, staying)
        await anyio.sleep(0.4)
        assert uploader.sent == []
        await leaving.aclose()
        await leaving.aclose()
        await settle()
        assert uploader.sent == [[("a", 0)]]
        assert VirtualClock().monotonic() == 0.4
        writer_on(scheduler, tasks, log="c")
        await append_and_persist(staying)
        assert VirtualClock().monotonic() == 1.4


@run_virtual
async def test_a_cancelled_persist_does_not_wait_any_more() -> None:
    """Its change sets stay in the queue, and its writer may bring more: the other is sent when the delay ends."""
    uploader = Uploader()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **WAITING)
        cancelled, waiting = (writer_on(scheduler, tasks, log=name) for name in "ab")
        with anyio.move_on_after(0.3):
            await append_and_persist(cancelled)
        await append_and_persist(waiting)
    assert uploader.sent == [[("a", 0), ("b", 0)]]
    assert VirtualClock().monotonic() == 1


@run_virtual
async def test_a_pre_emptive_upload_waits_for_more_of_its_writer() -> None:
    """Nobody waits for it, and what comes next shares its segment. The persist at the end sends both at once."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=20, **WAITING) as log:
        for size_bytes in (30, 40):
            log.writer.append(change(bytes(size_bytes)))
            await anyio.sleep(0.2)
        assert uploader.sent == []
        log.writer.append(change(b"x"))
        await log.writer.persist(FIRST)
    assert uploader.sent == [[("a", 0), ("a", 1), ("a", 2)]]
    assert VirtualClock().monotonic() == pytest.approx(0.4)


@run_virtual
async def test_a_persist_with_nothing_new_sends_what_was_uploaded_pre_emptively() -> None:
    """All it waits for is in the queue already."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=20, **WAITING) as log:
        log.writer.append(change(bytes(30)))
        await anyio.sleep(0.2)
        await log.writer.persist(FIRST)
    assert VirtualClock().monotonic() == 0.2


@run_virtual
async def test_a_pre_emptive_upload_does_not_count_as_its_writer() -> None:
    """One writer has something in the queue and works on: it may bring more, so the other waits for it."""
    uploader = Uploader()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **WAITING)
        working, waiting = (writer_on(scheduler, tasks, log=name, threshold_bytes=20) for name in "ab")
        working.append(change(bytes(30)))
        await anyio.sleep(0.2)
        await append_and_persist(waiting)
    assert VirtualClock().monotonic() == 1


@run_virtual
async def test_a_writer_whose_segment_is_on_its_way_cannot_come() -> None:
    """It waits for that one: the next to persist has nobody to wait for."""
    uploader = HeldUploader()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **WAITING)
        first, second = (writer_on(scheduler, tasks, log=name) for name in "ab")
        tasks.start_soon(append_and_persist, first)
        await anyio.sleep(1)
        tasks.start_soon(append_and_persist, second)
        await settle()
        assert uploader.sent == [[("a", 0)], [("b", 0)]]


@run_virtual
async def test_writers_whose_upload_has_ended_may_come_before_they_have_woken() -> None:
    """Both are told in the same turn. The first to persist again is not sent as if the other still waited."""
    uploader = Uploader()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **WAITING)
        async with anyio.create_task_group() as calls:
            for name in "ab":
                calls.start_soon(_in_rounds, writer_on(scheduler, tasks, log=name), 3)
    assert uploader.sent == [[("a", number), ("b", number)] for number in range(3)]


async def _in_rounds(writer: ChangelogWriter, rounds: int) -> None:
    for _ in range(rounds):
        await append_and_persist(writer)


@run_virtual
async def test_a_base_is_no_company() -> None:
    """It is uploaded alone: it neither joins the queue nor makes anybody wait for it."""
    uploader = HeldUploader()
    async with open_log(uploader, **WAITING) as log:
        log.tasks.start_soon(log.scheduler.upload_alone, [set_of(10, log="base")])
        await settle()
        uploader.complete(2)
        await append_and_persist(log.writer)
    assert uploader.sent == [[("base", 0)], [("a", 0)]]
    assert VirtualClock().monotonic() == 0


def _logs_queued(scheduler: UploadScheduler) -> set[int]:
    return {int(each.log_id) for request in scheduler.queue._queue for each in request._change_sets}


Step = tuple[str, int, float]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["persist", "persist", "append", "cancel", "close", "upload ends"]),
        st.integers(0, 2),  # whose turn it is
        st.sampled_from([0.0, 0.0, 0.1, 0.6]),  # pause afterwards
    ),
    max_size=25,
)


@example([("persist", 1, 0.6), ("append", 1, 0.6), ("persist", 0, 0.0)], 1000)  # two queues, one after the other
@given(STEPS, st.sampled_from([1, 20, 1000]))
@run_virtual
async def test_something_is_queued_only_while_somebody_may_come_and_nobody_waits_longer_than_the_delay(
    steps: Sequence[Step], threshold_bytes: int
) -> None:
    """Writers come, are cancelled, upload pre-emptively and leave. Whatever is queued has a reason and, if its
    writer waits or has left, an end.
    """
    uploader, clock = HeldUploader(), VirtualClock()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **WAITING)
        writers = [writer_on(scheduler, tasks, log=str(n), threshold_bytes=threshold_bytes) for n in range(3)]
        is_open = [True] * 3
        calls: list[list[anyio.CancelScope]] = [[], [], []]
        persists = [0] * 3
        first: Sequence[object] = ()  # in the queue, since then
        queued_since = 0.0

        async def persist(index: int) -> None:
            writers[index].append(change(bytes(5)))
            with anyio.CancelScope() as scope:
                calls[index].append(scope)
                persists[index] += 1
                try:
                    await writers[index].persist(FIRST)
                finally:
                    persists[index] -= 1

        ended = 0
        for kind, index, pause_s in steps:
            if kind == "upload ends":
                ended += len(uploader.attempts) > ended
                uploader.complete(ended)
            elif is_open[index]:
                if kind == "persist" and not persists[index]:
                    tasks.start_soon(persist, index)
                elif kind == "append":
                    writers[index].append(change(bytes(5)))
                elif kind == "cancel" and calls[index]:
                    calls[index][-1].cancel()
                elif kind == "close" and not persists[index]:
                    is_open[index] = False
                    await writers[index].aclose()
            await settle()
            queued = tuple(scheduler.queue._queue[:1])
            if queued != first:
                first, queued_since = queued, clock.monotonic()
            may_come = any(up and not waits for up, waits in zip(is_open, persists, strict=True))
            assert not queued or may_come or not any(is_open)
            gathers = all(is_open[log] and not persists[log] for log in _logs_queued(scheduler))
            assert gathers or clock.monotonic() - queued_since <= 1
            await anyio.sleep(pause_s)
