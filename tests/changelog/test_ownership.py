"""A segment lives while one change set in it is wanted, and for ever once a checkpoint has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.ownership import Ownership
from statebackend.abc import UploadedSegment
from statebackend.errors import UploadError
from statebackend.ids import ChangeSetHandle, Handle, KeyGroupRange, SequenceNumber


def uploaded(segment: str, log: str, number: int) -> UploadedChangeSet:
    handle = ChangeSetHandle(
        Handle(segment, 0, 100, 0), log, SequenceNumber(number), 8 + number, 10, KeyGroupRange(0, 0), 1
    )
    return UploadedChangeSet(handle, local=False)


def segment(name: str) -> UploadedSegment:
    return UploadedSegment(Handle(name, 0, 100, 0))


def ids(*change_sets: UploadedChangeSet) -> list[tuple[str, SequenceNumber]]:
    return [(each.handle.log_id, each.handle.sequence_number) for each in change_sets]


def test_a_segment_goes_with_its_last_change_set() -> None:
    """FLINK-28440: counted per change set. One writer with two sets in a file must not take the file from another."""
    a0, a1, b0 = uploaded("s", "a", 0), uploaded("s", "a", 1), uploaded("s", "b", 0)
    ownership = Ownership()
    ownership.start(segment("s"), ids(a0, a1, b0))
    assert ownership.release([a0, a1]) == []
    assert ownership.release([b0]) == [segment("s")]
    assert len(ownership) == 0


def test_a_change_set_counts_once_however_often_it_is_released() -> None:
    """Row: section 30, registry: release below zero, startTracking twice: never deletes a tracked file."""
    a0, b0 = uploaded("s", "a", 0), uploaded("s", "b", 0)
    ownership = Ownership()
    ownership.start(segment("s"), ids(a0, b0))
    assert [ownership.release([a0]) for _ in range(3)] == [[], [], []]
    assert ownership.release([b0]) == [segment("s")]
    assert ownership.release([a0, b0]) == []


def test_a_confirmed_segment_is_a_checkpoint_s() -> None:
    """One confirmed change set is enough: the commit names the file, whatever the other writers think of theirs."""
    a0, b0 = uploaded("s", "a", 0), uploaded("s", "b", 0)
    ownership = Ownership()
    ownership.start(segment("s"), ids(a0, b0))
    ownership.confirm([a0])
    assert ownership.release([a0, b0]) == []
    assert len(ownership) == 0


def test_what_is_unknown_can_be_released_and_confirmed() -> None:
    """Normal after a confirmation, and after a restore: not an error, and nothing is deleted."""
    ownership = Ownership()
    assert ownership.release([uploaded("s", "a", 0)]) == []
    ownership.confirm([uploaded("s", "a", 0)])


def test_two_segments_at_one_key_are_an_error_of_the_uploader() -> None:
    """An uploader that stores under a name of its own may overwrite: that must not look like success."""
    ownership = Ownership()
    ownership.start(segment("s"), ids(uploaded("s", "a", 0)))
    with pytest.raises(UploadError):
        ownership.start(segment("s"), ids(uploaded("s", "a", 1)))


SEGMENTS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=5)
EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60)


@given(SEGMENTS, EVENTS)
def test_a_segment_with_a_wanted_change_set_is_never_deleted(
    segments: list[list[str]], events: list[tuple[bool, int]]
) -> None:
    """Against a naive model: deleted exactly when every set of an unconfirmed segment is released, and only once."""
    ownership = Ownership()
    numbers = dict.fromkeys("abc", 0)
    everything: list[UploadedChangeSet] = []
    for index, logs in enumerate(segments):
        own = []
        for log in logs:
            own.append(uploaded(f"s{index}", log, numbers[log]))
            numbers[log] += 1
        ownership.start(segment(f"s{index}"), ids(*own))
        everything += own

    wanted = {each.handle for each in everything}
    confirmed: set[str] = set()
    deleted: list[str] = []
    for confirm, which in events:
        each = everything[which % len(everything)]
        name = each.handle.segment.key
        if confirm:
            ownership.confirm([each])
            if name not in deleted:
                confirmed.add(name)
        else:
            wanted.discard(each.handle)
            now = [gone.primary.key for gone in ownership.release([each])]
            alive = any(handle.segment.key == name for handle in wanted)
            assert now == ([] if alive or name in confirmed or name in deleted else [name])
            deleted += now
    assert len(set(deleted)) == len(deleted)
    assert not confirmed & set(deleted)
    assert len(ownership) == len(segments) - len(confirmed) - len(deleted)
