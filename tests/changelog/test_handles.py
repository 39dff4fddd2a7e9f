"""Handles, cut to key groups and owned by checkpoints: what the original's keyed handles and their registry promise.

There a handle is cut and carries an offset for each key group; here a handle stands for one change set, with the groups
it spans, and a list of them is what is cut.
"""

import pytest

from statebackend._changelog.changelog_reader import plan_reads
from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.ownership import Ownership
from statebackend._local.registry import LocalRegistry
from statebackend.abc import UploadedSegment
from statebackend.errors import BackendClosedError, UploadError
from statebackend.ids import ChangeSetHandle, CheckpointId, Handle, KeyGroupRange, SequenceNumber
from statebackend.testing.virtual_time import run_virtual
from tests.changelog.fakes import Uploader, change, open_log

CP1, CP2 = CheckpointId(1), CheckpointId(2)


def handle(first: int, last: int, *, offset: int = 8, key: str = "segment") -> ChangeSetHandle:
    segment = Handle(key, 0, 1000, 7)
    return ChangeSetHandle(segment, "0-127", SequenceNumber(offset), offset, 50, KeyGroupRange(first, last), 5)


def owned(key: str, number: int) -> UploadedChangeSet:
    return UploadedChangeSet(handle(0, 127, offset=number, key=key), local=True)


def segment(key: str) -> UploadedSegment:
    return UploadedSegment(Handle(key, 0, 1000, 7))


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [((3, 7), range(3, 8)), ((2, 10), range(2, 11)), ((11, 13), ()), ((5, 13), range(5, 11)), ((0, 2), (2,))],
)
def test_of_handles_with_one_group_each_those_in_the_range_are_read(wanted: tuple[int, int], groups) -> None:
    """Rows: KeyGroupRangeOffsetTest.testKeyGroupIntersection, KeyGroupRangeOffsetTest.testKeyGroupRangeOffsetsBasics.

    Offsets 0 to 8 for groups 2 to 10; in order, each with the offset of its own.
    """
    handles = [handle(group, group, offset=group - 2) for group in range(2, 11)]
    reads = plan_reads(handles, KeyGroupRange(*wanted))
    found = [each for read in reads for each in read.change_sets]
    assert [(each.key_groups.first, each.offset) for each in found] == [(group, group - 2) for group in groups]


def test_a_handle_that_overlaps_is_read_from_the_same_file() -> None:
    """Rows: KeyGroupsStateHandleTest.testNonEmptyIntersection, and
    IncrementalRemoteKeyedStateHandleTest.testNonEmptyIntersection.

    The same handle, so that who counts by it counts the same file; groups that are not wanted are passed over later.
    """
    whole = handle(0, 7)
    (read,) = plan_reads([whole], KeyGroupRange(0, 3))
    assert read.change_sets == (whole,)
    assert read.segment == whole.segment


def test_a_handle_that_does_not_overlap_is_not_read() -> None:
    """Row: KeyGroupsStateHandleTest.testEmptyIntersection."""
    assert plan_reads([handle(0, 7)], KeyGroupRange(8, 11)) == []


def test_the_size_of_a_handle_is_that_of_its_frame() -> None:
    """Rows: KeyGroupsStateHandleTest.testCollectSizeStats, IncrementalRemoteKeyedStateHandleTest.testCollectSizeStats
    and IncrementalRemoteKeyedStateHandleTest.testCheckpointedSize: what is wanted of a file, and the whole of it.
    """
    (read,) = plan_reads([handle(0, 7), handle(8, 9, offset=58)], KeyGroupRange(0, 127))
    assert sum(each.length for each in read.change_sets) == 100
    assert read.segment.length == 1000
    assert read.is_sparse


# ----------------------------------------------------------------------------------------------------- who owns a file


def test_what_no_checkpoint_ever_held_is_deleted_whole() -> None:
    """Row: IncrementalRemoteKeyedStateHandleTest.testUnregisteredDiscarding."""
    ownership = Ownership()
    ownership.start(segment("s"), [("0-127", SequenceNumber(0)), ("0-127", SequenceNumber(1))])
    assert ownership.release([owned("s", 0), owned("s", 1)]) == [segment("s")]


def test_a_shared_file_goes_with_the_last_checkpoint_that_uses_it() -> None:
    """Rows: IncrementalRemoteKeyedStateHandleTest.testSharedStateDeRegistration (first) and
    IncrementalRemoteKeyedStateHandleTest.testSharedStateDeRegistration (second).
    """
    registry = LocalRegistry()
    registry.register(["private 1", "shared"], CP1)
    registry.register(["private 2", "shared"], CP2)
    assert registry.confirm(CP2) == ["private 1"]
    assert registry.confirm(CheckpointId(3)) == ["private 2", "shared"]


def test_two_files_of_one_key_are_refused() -> None:
    """Row: IncrementalRemoteKeyedStateHandleTest.testSharedStateReRegistration (same registry).

    Whatever change sets the second has: the first is owned as before, by those it was stored with, until a checkpoint
    takes it over. From then on neither is in the way of anything.
    """
    ownership, first = Ownership(), segment("s")
    ownership.start(first, [("0-127", SequenceNumber(0)), ("0-127", SequenceNumber(1))])
    for number in (0, 2):
        with pytest.raises(UploadError):
            ownership.start(segment("s"), [("0-127", SequenceNumber(number))])
    assert len(ownership) == 1
    assert ownership.release([owned("s", 0), owned("s", 0), owned("s", 2)]) == []
    (deleted,) = ownership.release([owned("s", 1)])
    assert deleted is first
    assert ownership.release([owned("s", 1)]) == []
    ownership.start(first, [("0-127", SequenceNumber(3))])
    ownership.confirm([owned("s", 3)])
    assert ownership.release([owned("s", 3)]) == []


@run_virtual
async def test_what_comes_after_the_close_is_refused_and_takes_nothing_along() -> None:
    """Rows: IncrementalRemoteKeyedStateHandleTest.testSharedStateReRegistration (closed registry), and
    CheckpointStreamWithResultProviderTest.testCompletedAndCloseStateHandling (close first, primary) and
    CheckpointStreamWithResultProviderTest.testCompletedAndCloseStateHandling (close first, both).
    """
    uploader = Uploader()
    async with open_log(uploader) as log:
        log.writer.append(change())
        await log.writer.persist(SequenceNumber(0), CP1)
        await log.writer.aclose()
        with pytest.raises(BackendClosedError):
            await log.writer.persist(SequenceNumber(0), CP2)
    assert list(uploader.stored) == ["segment-1"]
    assert (len(uploader.attempts), uploader.discarded) == (1, [])


@run_virtual
async def test_what_was_handed_out_survives_the_close() -> None:
    """Rows: CheckpointStreamWithResultProviderTest.testCompletedAndCloseStateHandling (result first, primary), and
    CheckpointStreamWithResultProviderTest.testCompletedAndCloseStateHandling (result first, both).
    """
    uploader = Uploader(local=True)
    async with open_log(uploader) as log:
        log.writer.append(change())
        (uploaded,) = await log.writer.persist(SequenceNumber(0), CP1)
        await log.writer.aclose()
    assert uploaded.local
    assert list(uploader.stored) == [uploaded.handle.segment.key]


def test_a_registry_of_the_next_process_counts_anew() -> None:
    """Row: IncrementalRemoteKeyedStateHandleTest.testSharedStateReRegistration (new registry).

    It is told what was restored, and gives up that; what only the former one knew is not its to delete. Neither the
    number nor the order of earlier registrations counts, nor what the former one does meanwhile.
    """
    former, registry = LocalRegistry(), LocalRegistry()
    former.register(["x", "y", "shared"], CP1)
    former.register(["shared", "z"], CP2)
    registry.register(["x", "shared"], CP1)
    registry.register(["shared"], CP2)
    assert registry.confirm(CP2) == ["x"]
    assert "shared" in registry
    assert not {"x", "y", "z"} & {key for key in ("x", "y", "z") if key in registry}
    assert len(former) == 4
    assert former.confirm(CP2) == ["x", "y"]
    assert registry.confirm(CheckpointId(3)) == ["shared"]
    assert len(registry) == 0
    assert len(former) == 2


@run_virtual
async def test_two_checkpoints_of_the_same_changes_never_share_a_name() -> None:
    """Row: IncrementalRemoteKeyedStateHandleTest.testConcurrentCheckpointSharedStateRegistration. FLINK-29095.

    Two writers, both with change set 0 of a log of the same name: what the one discards the other keeps.
    FLINK-29913, FLINK-32761 were the same.
    """
    uploader = Uploader()
    async with open_log(uploader) as first:
        first.writer.append(change())
        await first.writer.persist(SequenceNumber(0), CP1)
        second = type(first.writer)("a", first.scheduler, tasks=first.tasks, preemptive_persist_threshold_bytes=1000)
        second.append(change())
        (kept,) = await second.persist(SequenceNumber(0), CP2)
        await first.writer.reset(SequenceNumber(0), SequenceNumber(1), CP1)
        await first.writer.aclose()
    assert list(uploader.stored) == [kept.handle.segment.key] == ["segment-2"]
