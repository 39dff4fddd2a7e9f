"""The ledger's rules one by one, each in the smallest case. All of them in any order: `test_ledger_machine`."""

import pytest

from statebackend._changelog.ledger import CHANGE_OVERHEAD_BYTES, Ledger, UploadedChangeSet
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import ChangeSetHandle, Handle, KeyGroupRange, SequenceNumber
from tests.changelog.fakes import change


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
    """Two requests of one range look the same, and are not: whoever still waits gets the result."""
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
    """`to` is exclusive: a later set that is durable first neither completes the request nor joins its results."""
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
    """A failure of set 0 is none for whoever asked for 1 and later; asked again, the failed range fails at once."""
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
    """6.2: it is irrelevant: nobody may ask for it any more, and whoever does hears just that."""
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


def test_truncating_takes_nothing_from_a_request_that_waits() -> None:
    """It holds its own results, and their segments are not released: its caller is about to commit them."""
    ledger = ledger_with(2)
    ledger.persist(at(0))
    ledger.succeed([uploaded(0)])
    request, _ = ledger.persist(at(0))
    assert ledger.truncate(at(2)) == []
    assert ledger.succeed([uploaded(1)]) == []
    assert request.result() == [uploaded(0), uploaded(1)]


def test_a_truncated_set_that_nobody_waits_for_is_released_when_it_arrives() -> None:
    """6.2: truncated while in flight: nobody keeps it, so it is the caller's to delete."""
    ledger = ledger_with(2)
    request, _ = ledger.persist(at(0))
    ledger.abandon(request)
    assert ledger.truncate(at(1)) == []
    assert ledger.succeed([uploaded(0), uploaded(1)]) == [uploaded(0)]
    assert ledger.truncate(at(2)) == [uploaded(1)]


def test_a_confirmed_range_is_handed_over_whole_whoever_waits() -> None:
    """A committed checkpoint owns its segments, also those that another request has in its range."""
    ledger = ledger_with(1)
    ledger.persist(at(0))
    ledger.succeed([uploaded(0)])
    ledger.append(change())
    request, _ = ledger.persist(at(0))
    assert ledger.confirm(at(1)) == [uploaded(0)]
    ledger.succeed([uploaded(1)])
    assert request.result() == [uploaded(0), uploaded(1)]


def test_ranges_outside_the_log_are_refused() -> None:
    """Truncated, not appended yet, truncated beyond what was appended: the call is wrong, and nothing has changed."""
    ledger = ledger_with(3)
    ledger.truncate(at(1))
    for wrong in (0, 4):
        with pytest.raises(InputError):
            ledger.persist(at(wrong))
    with pytest.raises(InputError):
        ledger.truncate(at(4))
    _, to_upload = ledger.persist(at(1))
    assert [each.sequence_number for each in to_upload] == [1, 2]


def test_closing_leaves_nobody_waiting_and_keeps_what_may_be_committed() -> None:
    """Hazard 15. Below `from_` a commit may be under way: kept. From there on: released, also what arrives later."""
    ledger = ledger_with(2)
    ledger.persist(at(0))
    ledger.succeed([uploaded(0), uploaded(1)])
    ledger.append(change())
    waiting, _ = ledger.persist(at(0))
    assert ledger.close(at(1)) == [uploaded(1)]
    with pytest.raises(BackendClosedError):
        waiting.result()
    assert ledger.succeed([uploaded(2)]) == [uploaded(2)]
    with pytest.raises(BackendClosedError):
        ledger.persist(at(0))


def test_closing_twice_changes_nothing() -> None:
    """FLINK-25429: the second owner that closes must not release what the first one kept."""
    ledger = ledger_with(1)
    ledger.persist(at(0))
    ledger.succeed([uploaded(0)])
    assert ledger.close(at(1)) == []
    assert ledger.close(at(0)) == ()
    assert list(ledger._uploaded) == [0]


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
