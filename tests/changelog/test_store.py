"""What is written comes back: through writer, scheduler, segment format and reader, whatever the compression."""

import random
import zlib
from collections import defaultdict

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._changelog.changelog_reader import changes_of, frames_of, plan_reads, verify
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._codec.segment import read_index
from statebackend.errors import CorruptSegmentError
from statebackend.ids import EMPTY_RANGE, ChangeSetHandle, Handle, KeyGroupRange, SequenceNumber
from statebackend.settings import Compression
from statebackend.testing.virtual_time import run_virtual
from tests.changelog.fakes import Uploader, change, open_log, scheduler_of, writer_on
from tests.changes import rows_of
from tests.formats.make_golden import GOLDEN

FIRST = SequenceNumber(0)
ALL_GROUPS = KeyGroupRange(0, 127)


def read(
    uploader: Uploader, handles: list[ChangeSetHandle], key_groups: KeyGroupRange = ALL_GROUPS
) -> list[StateChange]:
    """Every change that the handles point to, as a restore reads them."""
    changes: list[StateChange] = []
    for each in plan_reads(handles, key_groups):
        data = uploader.stored[each.segment.key]
        verify(data, each.segment)
        changes += rows_of(changes_of(frames_of(data, each), each.change_sets))
    return changes


@pytest.mark.parametrize("compression", ["none", "lz4", "snappy", "zstd"])
@run_virtual
async def test_every_record_comes_back_in_order(compression: Compression) -> None:
    """Rows: StateChangelogStorageTest.testWriteAndRead [memory], FsStateChangelogStorageTest.testWriteAndRead
    [compression on] and [compression off]. Key groups 0-5, 20 records of 405 bytes, a new number after each group.
    """
    chance = random.Random(405)
    uploader = Uploader()
    written: dict[int, list[bytes]] = defaultdict(list)
    async with open_log(uploader, compression=compression) as log:
        for key_group in range(6):
            for number in range(20):
                data = chance.randbytes(405)
                written[key_group].append(data)
                log.writer.append(change(data, key_group=key_group, key=f"key-{number}"))
            log.writer.next_sequence_number()
        handles = [each.handle for each in await log.writer.persist(FIRST)]
    assert [handle.key_groups for handle in handles] == [KeyGroupRange(group, group) for group in range(6)]
    came_back: dict[int, list[bytes]] = defaultdict(list)
    for each in read(uploader, handles):
        came_back[each.key_group].append(each.data)
    assert came_back == written


@run_virtual
async def test_only_segments_with_wanted_key_groups_are_read() -> None:
    """One read per file, of the change sets that may hold wanted groups, in their order."""
    uploader = Uploader()
    async with open_log(uploader, persist_delay_s=0) as log:
        for number, key_groups in enumerate(((0, 1), (2, 3), (1, 2))):
            for key_group in key_groups:
                log.writer.append(change(key_group=key_group))
            await log.writer.persist(SequenceNumber(number))
        handles = [each.handle for each in await log.writer.persist(FIRST)]
    plan = plan_reads(handles, KeyGroupRange(0, 1))
    assert [each.segment.key for each in plan] == ["segment-1", "segment-3"]
    assert plan_reads(handles, KeyGroupRange(4, 127)) == []


def test_metadata_of_early_segments_is_passed_over() -> None:
    """It has no key group, so no owner's restore reads it; what lies beside it in the file is read."""
    uploader = Uploader()
    uploader.stored["early"] = data = (GOLDEN / "segment-v1-none.bin").read_bytes()
    segment = Handle("early", 0, len(data), zlib.crc32(data))
    handles = [
        ChangeSetHandle(segment, *msgspec.structs.astuple(entry)) for entry in read_index(memoryview(data), "early")
    ]
    assert handles[-1].key_groups == EMPTY_RANGE
    assert read(uploader, handles)[-1] == StateChange(127, 0, 0, "key 0000")
    assert plan_reads(handles[-1:], KeyGroupRange(0, 127)) == []


@run_virtual
async def test_change_sets_of_several_writers_in_one_segment_are_told_apart() -> None:
    """Each gets back its own, and nothing of the others.

    Row: section 30, restore: log file referenced at several offsets by different ranges, compression on.
    Each is read from its own offset: FLINK-26799.
    """
    uploader = Uploader()
    handles: dict[str, list[ChangeSetHandle]] = {}

    async def persist(name: str) -> None:
        handles[name] = [each.handle for each in await writers[name].persist(FIRST)]

    async with anyio.create_task_group() as tasks:
        scheduler = scheduler_of(
            uploader, tasks, persist_delay_s=1, persist_size_threshold_bytes=1000, compression="zstd"
        )
        writers = {name: writer_on(scheduler, tasks, log=name) for name in "abc"}
        for name, writer in writers.items():
            writer.append(change(name.encode()))
            writer.next_sequence_number()
            writer.append(change(name.encode() * 2))
            tasks.start_soon(persist, name)
    assert len(uploader.attempts) == 1
    for name in "abc":
        assert [each.data for each in read(uploader, handles[name])] == [name.encode(), name.encode() * 2]


@run_virtual
async def test_a_handle_that_points_to_another_change_set_is_an_error() -> None:
    """A mix-up is found out, and not applied: the frame says whose it is."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        for _ in range(2):
            log.writer.append(change())
            log.writer.next_sequence_number()
        first, second = [each.handle for each in await log.writer.persist(FIRST)]
    mixed_up = ChangeSetHandle(
        first.segment, "a", second.sequence_number, first.offset, first.length, first.key_groups, 1
    )
    with pytest.raises(CorruptSegmentError) as caught:
        read(uploader, [mixed_up])
    assert caught.value.facts["object"] == "segment-1"


@given(st.integers(0, 10_000), st.integers(0, 7))
@run_virtual
async def test_damage_anywhere_is_found_before_anything_is_read(position: int, bit: int) -> None:
    """A flipped bit or a lost end: an error that names the object, whichever byte it is."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        log.writer.append(change(bytes(range(100))))
        handles = [each.handle for each in await log.writer.persist(FIRST)]
    whole = uploader.stored["segment-1"]
    flipped = bytearray(whole)
    flipped[position % len(whole)] ^= 1 << bit
    for damaged in (bytes(flipped), whole[: position % len(whole)], whole + b"\0"):
        uploader.stored["segment-1"] = damaged
        with pytest.raises(CorruptSegmentError) as caught:
            read(uploader, handles)
        assert caught.value.facts["object"] == "segment-1"
