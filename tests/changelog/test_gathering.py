"""Pieces of a checkpoint that is being drained share a segment, however long the draining takes."""

import anyio
import numpy as np
import pytest

from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._changelog.requests import Request
from statebackend._codec import segment
from statebackend._codec.change_sets import keyed_changes
from statebackend._codec.change_sets.changes import GROUP, ChangeSet
from statebackend._codec.change_sets.keyed_changes import SET, KeyedChanges
from statebackend._codec.segment import EncodedFrame, frame_of
from statebackend._tasks import open_tasks
from statebackend.ids import SequenceNumber
from statebackend.settings import Compression, KiB, MiB
from statebackend.testing.virtual_time import VirtualClock, run_virtual, settle
from tests.changelog.fakes import HeldUploader, Uploader, change, contents, open_log, scheduler_of, set_of, writer_on

FIRST = SequenceNumber(0)
PIECES = 8
DELAYED = {"persist_delay_s": 1, "persist_size_threshold_bytes": 10 * MiB}


async def drain(writer: ChangelogWriter, *, piece_bytes: int = 600 * KiB, pieces: int = PIECES) -> None:
    """As a backend drains its states: the loop goes on in between, and time passes."""
    for number in range(pieces):
        writer.append(change(bytes([number]) * piece_bytes))
        await writer.room()
        await anyio.sleep(0.7)


@pytest.mark.parametrize("threshold_bytes", [512 * KiB, 5 * MiB])
@run_virtual
async def test_a_checkpoint_is_one_segment_whatever_the_pre_emptive_threshold_is(threshold_bytes: int) -> None:
    """Pieces sealed early wait for the rest: nobody else waits for them. The persist sends all at once."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=threshold_bytes, **DELAYED) as log:
        await drain(log.writer)
        drained_s = VirtualClock().monotonic()
        assert uploader.sent == []
        await log.writer.persist(FIRST)
    assert len(uploader.sent) == 1
    assert VirtualClock().monotonic() == drained_s


@run_virtual
async def test_more_than_the_size_threshold_does_not_wait_for_the_rest() -> None:
    """What is gathered is bounded: the pieces that reach the threshold are sent while the draining goes on."""
    uploader = Uploader()
    async with open_log(
        uploader, threshold_bytes=512 * KiB, persist_delay_s=1, persist_size_threshold_bytes=2 * MiB
    ) as log:
        await drain(log.writer)
        assert [len(names) for names in uploader.sent] == [4, 4]


@run_virtual
async def test_early_pieces_are_encoded_while_they_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left for the persist is the last piece, and to put the frames together in order."""
    encoded: list[int] = []
    really_encode = segment.encode_for_segment

    def encode(change_set: ChangeSet, compression: Compression) -> EncodedFrame:
        encoded.append(change_set.sequence_number)
        return really_encode(change_set, compression)

    monkeypatch.setattr(segment, "encode_for_segment", encode)
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=512 * KiB, **DELAYED) as log:
        await drain(log.writer)
        assert sorted(encoded) == list(range(PIECES))
        log.writer.append(change(b"x"))
        await log.writer.persist(FIRST)
    assert encoded[-1] == PIECES
    assert uploader.sent == [[("a", number) for number in range(PIECES + 1)]]


@pytest.mark.parametrize("bytes_max", [100 * MiB, 1 * MiB])
@run_virtual
async def test_gathered_pieces_are_taken_back_for_a_commit_that_can_carry_them(
    bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those encoded early as frames. If no commit carries them after all, they are uploaded, and not encoded again."""
    encoded: list[int] = []
    really_encode = segment.encode_for_segment

    def encode(change_set: ChangeSet, compression: Compression) -> EncodedFrame:
        encoded.append(change_set.sequence_number)
        return really_encode(change_set, compression)

    monkeypatch.setattr(segment, "encode_for_segment", encode)
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=512 * KiB, **DELAYED) as log:
        await drain(log.writer, pieces=3)
        log.writer.append(change(b"x"))
        taken = await log.writer.take_inline(FIRST, bytes_max)
        if bytes_max < 2 * MiB:
            assert taken is None
            assert log.scheduler.in_flight_bytes > 0
        else:
            assert taken is not None
            assert [isinstance(each, EncodedFrame) for each in taken] == [True, True, True, False]
            assert log.scheduler.in_flight_bytes == 0
            log.writer.encoded([really_encode(each, "none") for each in taken if isinstance(each, ChangeSet)])
            encoded.append(3)
        assert uploader.sent == []
        assert [each.handle.sequence_number for each in await log.writer.persist(FIRST)] == [0, 1, 2, 3]
    assert sorted(encoded) == [0, 1, 2, 3]
    assert uploader.sent == [[("a", number) for number in range(4)]]
    assert [len(data) for data in contents(uploader, "segment-1")] == [600 * KiB] * 3 + [1]


@run_virtual
async def test_what_is_being_sent_or_waited_for_is_not_taken_back() -> None:
    """A part of the log is on its way: a commit could carry the rest only, and a waiting call would get nothing."""
    uploader = HeldUploader()
    async with open_log(
        uploader, threshold_bytes=512 * KiB, persist_delay_s=1, persist_size_threshold_bytes=MiB
    ) as log:
        await drain(log.writer, pieces=3)  # two are sent, the third waits for company
        assert len(uploader.sent) == 1
        assert await log.writer.take_inline(FIRST, 100 * MiB) is None
        log.tasks.start_soon(log.writer.persist, FIRST)
        await settle()
        assert await log.writer.take_inline(FIRST, 100 * MiB) is None
        uploader.complete(1)
        uploader.complete(2)
        await settle()
        assert len(await log.writer.persist(FIRST)) == 3
    assert uploader.sent == [[("a", 0), ("a", 1)], [("a", 2)]]


@run_virtual
async def test_a_cancelled_look_for_gathered_pieces_leaves_them_in_the_queue() -> None:
    """It waited for a piece that was still being encoded."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=512 * KiB, **DELAYED) as log:
        log.writer.append(change(bytes(600 * KiB)))
        await log.writer.room()
        (request,) = log.scheduler.queue.of(log.writer._may_join)
        assert request.is_encoding
        with anyio.CancelScope() as scope:
            scope.cancel()
            await log.writer.take_inline(FIRST, 100 * MiB)
        assert uploader.sent == []
        assert len(await log.writer.persist(FIRST)) == 1
    assert uploader.sent == [[("a", 0)]]


@run_virtual
async def test_gathered_pieces_are_not_held_back_from_who_waits() -> None:
    """Another writer persists: it waits as long as the delay lasts, and what is gathered goes with it."""
    uploader = Uploader()
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **DELAYED)
        draining, waiting = (writer_on(scheduler, tasks, log=name, threshold_bytes=512 * KiB) for name in "ab")
        draining.append(change(bytes(600 * KiB)))
        await anyio.sleep(3)
        assert uploader.sent == []
        waiting.append(change())
        await waiting.persist(FIRST)
    assert uploader.sent == [[("a", 0), ("b", 0)]]
    assert VirtualClock().monotonic() == 3


@run_virtual
async def test_gathered_pieces_make_room_for_a_base() -> None:
    """Nobody else may ever come: a base that waits for room has them sent."""
    uploader = Uploader()
    async with open_log(
        uploader, threshold_bytes=20, persist_delay_s=1, persist_size_threshold_bytes=100, in_flight_bytes_max=100
    ) as log:
        log.writer.append(change(bytes(60)))
        await anyio.sleep(3)
        assert uploader.sent == []
        await log.scheduler.upload_alone([set_of(60, log="base")])
    assert uploader.sent == [[("a", 0)], [("base", 0)]]


@run_virtual
async def test_what_is_encoded_already_needs_no_pause() -> None:
    """Frames of pages come encoded: to put them into a segment takes no time."""
    pauses = list[int]()
    async with open_log(Uploader(), persist_delay_s=1) as log:
        plain, encoded = set_of(10, log="plain"), frame_of(set_of(10, log="encoded"), "zstd")
        await log.scheduler.upload_alone([encoded, plain, encoded], lambda: pauses.append(1))
    assert pauses == [1]


@run_virtual
async def test_a_writer_is_asked_as_often_as_it_brings_something() -> None:
    """Not once for each piece that it has brought before: with pieces of a row that took minutes."""
    uploader, asked = Uploader(), 0

    def may_join() -> bool:
        nonlocal asked
        asked += 1
        return True

    async with open_tasks() as tasks:
        queue = scheduler_of(uploader, tasks, **DELAYED).queue
        queue.register(may_join)
        requests = [Request([set_of(60, number=number)], may_join) for number in range(100)]
        for request in requests:
            queue.put(request)
        assert asked == len(requests)
        for request in requests:
            queue.remove(request)


@run_virtual
async def test_gathered_pieces_of_a_writer_that_leaves_go() -> None:
    """It will not bring more. What nothing wants is discarded."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=20, **DELAYED) as log:
        log.writer.append(change(bytes(60)))
        await anyio.sleep(3)
        await log.writer.aclose()
        await settle()
        assert uploader.stored == {}
        assert log.scheduler.in_flight_bytes == 0
    assert len(uploader.sent) == 1


@run_virtual
async def test_the_order_in_a_segment_is_that_of_the_queue_with_several_threads() -> None:
    """Large change sets are encoded by several threads, and may end in any order."""
    uploader = Uploader()
    sizes = [2 * MiB, 300 * KiB, 1, 40 * KiB, 1 * MiB]
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, cpu_threads_max=4, persist_delay_s=0)
        results = await scheduler.upload([set_of(size, number=number) for number, size in enumerate(sizes)])
    assert uploader.sent == [[("a", number) for number in range(len(sizes))]]
    assert [each.handle.sequence_number for each in results] == list(range(len(sizes)))


@run_virtual
async def test_changes_that_are_encoded_already_are_not_decoded_to_fill_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut unless it is larger than a full set by itself: two pieces of 60 are a set of 120, not of 100."""
    decoded: list[int] = []
    monkeypatch.setattr(keyed_changes, "_keys_and_data", lambda records, body: decoded.append(records))
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=100) as log:
        pieces = [KeyedChanges(0, np.zeros(4, GROUP), SET * 4, [number] * 4, [b""] * 4).packed() for number in range(4)]
        assert all(50 < piece.size_bytes <= 100 for piece in pieces)
        for piece in pieces:
            log.writer.append(piece)
        monkeypatch.undo()
        handles = await log.writer.persist(FIRST)
    assert decoded == []
    assert [each.handle.records for each in handles] == [8, 8]
