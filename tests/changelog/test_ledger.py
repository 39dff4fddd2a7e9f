"""The ledger's rules one by one, each in the smallest case. All of them in any order: `test_ledger_machine`."""

import pytest

from statebackend._changelog.ledger import Ledger, UploadedChangeSet
from statebackend._codec.change_sets.keyed_changes import CHANGE_OVERHEAD_BYTES
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import ChangeSetHandle, CheckpointId, Handle, KeyGroupRange, SequenceNumber
from tests.changelog.fakes import change

CP1, CP2, CP3 = map(CheckpointId, (1, 2, 3))


def at(number: int) -> SequenceNumber:
    return SequenceNumber(number)


def uploaded(number: int) -> UploadedChangeSet:
    segment = Handle(f"segment-{number}", 0, 100, 0)
    return UploadedChangeSet(ChangeSetHandle(segment, "a", at(number), 8, 50, KeyGroupRange(0, 0), 1), local=False)


def ledger_with(sets: int) -> Ledger:
    """A ledger with that many sealed sets of one change each."""
    ledger = Ledger("a")
    for _ in range(sets):
        ledger.append(change())
        ledger.seal()
    return ledger


def test_giving_up_one_request_leaves_an_equal_one_waiting() -> None:
    """Two requests of one range look the same, but are not: the one that still waits gets the result."""
    ledger = ledger_with(1)
    still_waiting, _ = ledger.persist(at(0))
    given_up, _ = ledger.persist(at(0))
    ledger.abandon(given_up)
    ledger.succeed([uploaded(0)])
    assert still_waiting.result() == [uploaded(0)]


def test_two_requests_of_one_range_cause_one_upload() -> None:
    """6.2: what is in flight is waited for, what is uploaded is reused."""
    ledger = ledger_with(2)
    first, to_upload = ledger.persist(at(0))
    assert [each.sequence_number for each in to_upload] == [0, 1]
    second, to_upload = ledger.persist(at(0))
    assert to_upload == []
    ledger.succeed([uploaded(0), uploaded(1)])
    assert first.result() == second.result() == [uploaded(0), uploaded(1)]
    third, to_upload = ledger.persist(at(0))
    assert to_upload == []
    assert third.done


def test_sets_below_the_range_stay_where_they_are() -> None:
    """6.2, step 3: a materialisation that sealed them has made them unnecessary; nobody uploads them."""
    ledger = ledger_with(3)
    request, to_upload = ledger.persist(at(2))
    assert [each.sequence_number for each in to_upload] == [2]
    assert (request.from_, request.to) == (2, 3)


def test_a_request_is_done_with_exactly_its_range() -> None:
    """Results that arrive out of order and in parts: done with the last one, in order, without those below."""
    ledger = ledger_with(3)
    ledger.persist(at(0))
    request, _ = ledger.persist(at(1))
    ledger.succeed([uploaded(2)])
    ledger.succeed([uploaded(0)])
    assert not request.done
    ledger.succeed([uploaded(1)])
    assert request.result() == [uploaded(1), uploaded(2)]


def test_what_comes_after_the_range_is_not_part_of_it() -> None:
    """`to` is exclusive: a later set that is durable first neither completes the request nor joins its results.

    FLINK-25492, 25987.
    """
    ledger = ledger_with(1)
    request, _ = ledger.persist(at(0))
    ledger.append(change())
    ledger.take_open()
    ledger.succeed([uploaded(1)])
    assert not request.done
    ledger.succeed([uploaded(0)])
    assert request.result() == [uploaded(0)]


def test_an_empty_range_is_done_at_once() -> None:
    """6.2, step 6: nothing to wait for, nothing to upload."""
    ledger = ledger_with(2)
    request, to_upload = ledger.persist(at(2))
    assert request.done
    assert request.result() == []
    assert to_upload == []


def test_only_requests_whose_range_touches_a_failed_set_fail() -> None:
    """A failure of set 0 does not concern requests for 1 and later; asked again, the failed range fails at once."""
    ledger = ledger_with(1)
    failing, _ = ledger.persist(at(0))
    ledger.append(change())
    going_on, _ = ledger.persist(at(1))
    ledger.fail([at(0)], OSError("disk"))
    with pytest.raises(UploadError) as caught:
        failing.result()
    assert isinstance(caught.value.__cause__, OSError)
    assert not going_on.done
    ledger.succeed([uploaded(1)])
    assert going_on.result() == [uploaded(1)]
    with pytest.raises(UploadError):
        ledger.persist(at(0))


def test_the_failure_of_a_truncated_set_is_forgotten() -> None:
    """6.2: it is irrelevant: nobody may ask for it any more, and a call that does gets an error saying so."""
    ledger = ledger_with(1)
    ledger.persist(at(0))
    ledger.truncate(at(1))
    ledger.fail([at(0)], OSError())
    with pytest.raises(InputError):
        ledger.persist(at(0))
    ledger.append(change())
    request, _ = ledger.persist(at(1))
    ledger.succeed([uploaded(1)])
    assert request.done


def test_truncating_takes_nothing_from_a_checkpoint_under_way() -> None:
    """Its caller is about to commit the handles: nothing is released while it waits, nor before it says what became."""
    ledger = ledger_with(2)
    ledger.persist(at(0))
    ledger.succeed([uploaded(0)])
    request, _ = ledger.persist(at(0), CP1)
    assert ledger.truncate(at(2)) == []
    assert ledger.succeed([uploaded(1)]) == []
    assert request.result() == [uploaded(0), uploaded(1)]
    assert ledger.confirm(at(0), at(2), CP1) == [uploaded(0), uploaded(1)]
    assert ledger.subsume(CP1) == []


def test_what_no_checkpoint_asked_for_goes_with_a_truncation() -> None:
    """A persist for nobody keeps nothing: its range is truncated, so its uploads go as soon as they are there."""
    ledger = ledger_with(1)
    request, _ = ledger.persist(at(0))
    assert ledger.truncate(at(1)) == []
    assert ledger.succeed([uploaded(0)]) == [uploaded(0)]
    assert request.done


def test_what_is_truncated_waits_for_the_checkpoint_that_holds_it() -> None:
    """Section 14: the lower of materialized and subsumed, whichever is told first. Here: materialized first."""
    ledger = held_by_two_checkpoints()
    assert ledger.truncate(at(3)) == [uploaded(2)]
    assert ledger.subsume(CP1) == [uploaded(0)]
    assert ledger.subsume(CP2) == [uploaded(1)]


def test_what_is_subsumed_waits_for_its_truncation() -> None:
    """Section 14, the other order. A checkpoint that is not known is fine."""
    ledger = held_by_two_checkpoints()
    assert ledger.subsume(CP2) == []
    assert ledger.subsume(CP3) == []
    assert ledger.truncate(at(2)) == [uploaded(0), uploaded(1)]
    assert ledger.truncate(at(3)) == [uploaded(2)]


def test_a_checkpoint_that_came_to_nothing_leaves_its_uploads_to_the_next_one() -> None:
    """6.2, reset: nothing is released, nothing is uploaded again. FLINK-25395."""
    ledger = held_by_two_checkpoints()
    assert ledger.reset(at(1), at(2), CP2) == []
    request, to_upload = ledger.persist(at(0), CP3)
    assert to_upload == []
    assert request.result() == [uploaded(0), uploaded(1), uploaded(2)]


def test_what_was_truncated_under_a_checkpoint_goes_when_that_comes_to_nothing() -> None:
    """A base covers it and no commit has it: the next checkpoint has no use for it, so nobody else would delete it."""
    ledger = held_by_two_checkpoints()
    assert ledger.truncate(at(2)) == []
    assert ledger.reset(at(0), at(1), CP1) == [uploaded(0)]
    assert ledger.confirm(at(1), at(2), CP2) == [uploaded(1)]


def held_by_two_checkpoints() -> Ledger:
    """Uploaded: set 0 for checkpoint 1, set 1 for checkpoint 2, set 2 for nobody."""
    ledger = Ledger("a")
    for number, checkpoint_id in enumerate((CP1, CP2, None)):
        ledger.append(change())
        ledger.persist(at(number), checkpoint_id)
        ledger.succeed([uploaded(number)])
    return ledger


def test_a_confirmed_range_can_be_asked_for_again() -> None:
    """6.2: until it is materialized, the next checkpoint begins with it. Its commit owns it and releases nothing."""
    ledger = held_by_two_checkpoints()
    assert ledger.confirm(at(0), at(1), CP1) == [uploaded(0)]
    request, to_upload = ledger.persist(at(0), CP3)
    assert to_upload == []
    assert request.result() == [uploaded(0), uploaded(1), uploaded(2)]
    assert ledger.truncate(at(1)) == []


def test_a_confirmation_hands_over_what_was_asked_for_in_its_name() -> None:
    """Row: FsStateChangelogWriterTest.testLocalFileAfterMaterialize: its range begins later than the one persisted."""
    ledger = ledger_with(3)
    ledger.persist(at(0), CP1)
    ledger.succeed([uploaded(0), uploaded(1), uploaded(2)])
    assert ledger.truncate(at(2)) == []
    assert ledger.confirm(at(2), at(3), CP1) == [uploaded(0), uploaded(1), uploaded(2)]
    assert ledger.truncate(at(3)) == []


def test_confirming_what_is_not_there_takes_nothing() -> None:
    """A confirmation that comes late, after an abort was told: what is not uploaded yet is neither lost nor given."""
    ledger = ledger_with(1)
    assert ledger.confirm(at(0), at(1), CP1) == []
    _, to_upload = ledger.persist(at(0), CP2)
    assert ledger.confirm(at(0), at(1), CP1) == []
    assert [each.sequence_number for each in to_upload] == [0]
    assert ledger.succeed([uploaded(0)]) == []
    assert ledger.confirm(at(0), at(1), CP2) == [uploaded(0)]


def test_a_confirmation_leaves_another_checkpoint_that_still_waits() -> None:
    """What it waits for is not uploaded, so no commit can have it: it is kept when it arrives."""
    ledger = ledger_with(1)
    ledger.persist(at(0), CP1)
    assert ledger.confirm(at(0), at(1), CP2) == []
    assert ledger.truncate(at(1)) == []
    assert ledger.succeed([uploaded(0)]) == []
    assert ledger.confirm(at(0), at(1), CP1) == [uploaded(0)]


def test_a_commit_that_holds_all_of_a_checkpoint_ends_it() -> None:
    """Bounded: of a checkpoint whose outcome is never told, nothing is remembered once a later commit has all of it."""
    ledger = held_by_two_checkpoints()
    ledger.confirm(at(0), at(3), CP3)
    assert ledger._undecided == []


def test_a_truncated_set_that_nobody_waits_for_is_released_when_it_arrives() -> None:
    """6.2: truncated while in flight: nobody keeps it, so it is the caller's to delete."""
    ledger = ledger_with(2)
    request, _ = ledger.persist(at(0))
    ledger.abandon(request)
    assert ledger.truncate(at(1)) == []
    assert ledger.succeed([uploaded(0), uploaded(1)]) == [uploaded(0)]
    assert ledger.truncate(at(2)) == [uploaded(1)]


def test_a_confirmed_range_is_handed_over_whole_while_others_wait() -> None:
    """A committed checkpoint owns its segments, also those that another request has in its range."""
    ledger = ledger_with(1)
    ledger.persist(at(0))
    ledger.succeed([uploaded(0)])
    ledger.append(change())
    request, _ = ledger.persist(at(0))
    assert ledger.confirm(at(0), at(1), CP1) == [uploaded(0)]
    ledger.succeed([uploaded(1)])
    assert request.result() == [uploaded(0), uploaded(1)]


def test_ranges_outside_the_log_are_refused() -> None:
    """Truncated, not appended yet, truncated beyond what was appended: the call is wrong, and nothing has changed."""
    ledger = ledger_with(3)
    ledger.truncate(at(1))
    for wrong in (0, 4):
        with pytest.raises(InputError):
            ledger.persist(at(wrong))
    for told in (ledger.confirm, ledger.reset):
        for wrong_range in ((0, 4), (2, 1)):
            with pytest.raises(InputError):
                told(*map(at, wrong_range), CP1)
    with pytest.raises(InputError):
        ledger.truncate(at(4))
    _, to_upload = ledger.persist(at(1))
    assert [each.sequence_number for each in to_upload] == [1, 2]


def test_closing_leaves_nobody_waiting_and_keeps_what_may_be_committed() -> None:
    """Hazard 15. What a checkpoint below `from_` holds may be committed: kept. All else goes, now or later."""
    ledger = held_by_two_checkpoints()
    ledger.append(change())
    waiting, _ = ledger.persist(at(0), CP3)
    assert ledger.close(at(1)) == [uploaded(1), uploaded(2)]
    with pytest.raises(BackendClosedError):
        waiting.result()
    assert ledger.succeed([uploaded(3)]) == [uploaded(3)]
    with pytest.raises(BackendClosedError):
        ledger.persist(at(0))
    assert ledger.confirm(at(0), at(1), CP1) == [uploaded(0)]


def test_closing_without_a_bound_keeps_what_any_checkpoint_holds() -> None:
    """And whichever came to nothing is told afterwards: it goes then."""
    ledger = held_by_two_checkpoints()
    assert ledger.close() == [uploaded(2)]
    assert ledger.confirm(at(0), at(1), CP1) == [uploaded(0)]
    assert ledger.reset(at(1), at(2), CP2) == [uploaded(1)]


def test_closing_twice_changes_nothing() -> None:
    """FLINK-25429: the second owner that closes must not release what the first one kept."""
    ledger = held_by_two_checkpoints()
    assert ledger.close(at(3)) == [uploaded(2)]
    assert ledger.close(at(0)) == ()
    assert ledger.confirm(at(0), at(2), CP2) == [uploaded(0), uploaded(1)]


def test_what_is_appended_after_closing_is_dropped() -> None:
    """FLINK-30729: a cancelled task that still writes state must not die of it.

    Row: StateChangelogStorageTest.testNoAppendAfterClose (disabled).
    """
    ledger = Ledger("a")
    ledger.close(at(0))
    ledger.append(change())
    assert ledger.open_bytes == 0
    assert ledger.seal() == 0


@pytest.mark.parametrize(("key", "size_bytes"), [("x" * 1000, 1000), (b"x" * 70, 70), (("ab", b"cde", 7), 13), (5, 8)])
def test_a_key_counts_towards_the_open_set(key: object, size_bytes: int) -> None:
    """Long keys reach the threshold as values do: what is uploaded early is what would take memory."""
    ledger = Ledger("log")
    ledger.append(change(b"data", key=key))
    assert ledger.open_bytes == len(b"data") + size_bytes + CHANGE_OVERHEAD_BYTES


# -------------------------------------------------------------------------------------------------------------- inline


def test_inline_change_sets_stay_until_a_commit_has_them() -> None:
    """Offered again, inline or for an upload, where the commit came to nothing, whether that was told or not."""
    ledger = ledger_with(2)
    ledger.append(change())
    offered = taken(ledger, 0)
    assert offered == [0, 1, 2]
    ledger.append(change())
    assert taken(ledger, 0) == [0, 1, 2, 3]
    ledger.reset(at(0), at(4), CP1)
    assert taken(ledger, 0) == [0, 1, 2, 3]
    _, to_upload = ledger.persist(at(0), CP2)
    assert [each.sequence_number for each in to_upload] == [0, 1, 2, 3]


def test_inline_change_sets_go_with_the_commit_that_has_them() -> None:
    """The log cannot give them again, so no later range begins before them."""
    ledger = ledger_with(2)
    taken(ledger, 0)
    assert ledger.confirm(at(0), at(2), CP1) == []
    for wrong in (0, 1):
        with pytest.raises(InputError):
            ledger.persist(at(wrong))
        with pytest.raises(InputError):
            ledger.take_inline(at(wrong), 1000)
    ledger.append(change())
    assert taken(ledger, 2) == [2]


def test_only_what_is_all_here_is_taken_inline() -> None:
    """A set that is uploaded, or on its way, would be stored twice; then all of the range is persisted."""
    ledger = ledger_with(2)
    ledger.persist(at(1))
    assert ledger.take_inline(at(0), 1000) is None
    ledger.succeed([uploaded(1)])
    assert ledger.take_inline(at(0), 1000) is None
    ledger.append(change())
    assert taken(ledger, 2) == [2]
    _, to_upload = ledger.persist(at(0))
    assert [each.sequence_number for each in to_upload] == [0, 2]


def test_only_what_is_small_is_taken_inline() -> None:
    """The limit counts what is open too, and is reached by what is exactly as large. What is refused is not sealed."""
    ledger = ledger_with(1)
    ledger.append(change())
    size_bytes = 2 * change().size_bytes
    assert ledger.take_inline(at(0), size_bytes - 1) is None
    assert ledger.open_bytes > 0
    offered = ledger.take_inline(at(0), size_bytes)
    assert offered is not None
    assert sum(each.size_bytes for each in offered) == size_bytes


def test_an_empty_range_is_inline() -> None:
    """Nothing to store is not too much to store."""
    assert Ledger("a").take_inline(at(0), 0) == []


def test_inline_change_sets_are_refused_where_a_persist_would_be() -> None:
    """Failed, not appended yet, truncated, closed: the same errors, so that a caller need not ask twice."""
    ledger = ledger_with(2)
    ledger.truncate(at(1))
    for wrong in (0, 3):
        with pytest.raises(InputError):
            ledger.take_inline(at(wrong), 1000)
    ledger.persist(at(1))
    ledger.fail([at(1)], OSError())
    with pytest.raises(UploadError):
        ledger.take_inline(at(1), 1000)
    ledger.close()
    with pytest.raises(BackendClosedError):
        ledger.take_inline(at(2), 1000)


def taken(ledger: Ledger, from_: int) -> list[int] | None:
    """The numbers of what is taken inline."""
    sets = ledger.take_inline(at(from_), 1000)
    return None if sets is None else [each.sequence_number for each in sets]
