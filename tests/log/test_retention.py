"""Which entries of the log stay, and the verdict on everything else: decided by values alone."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.commit import Commit
from statebackend._log.log_writer import LOG_CONTACT_MAX_S
from statebackend._log.names import DataName, data_name, data_name_of, entry_key, log_position
from statebackend._log.sweeping.retention import (
    CLOCK_SKEW_MAX_S,
    ENTRY_AGE_MIN_S,
    Ages,
    LogPlan,
    Reach,
    SweepReason,
    classify,
    plan_log,
)
from statebackend.abc import ObjectInfo
from statebackend.ids import (
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    RangeState,
    SequenceNumber,
)

NOW_S = 1_000_000.0
NEW = Ages(newest_s=NOW_S, now_s=NOW_S, min_age_s=0.0)
HEX = "0123456789abcdef" * 2


def old(count: int, *, first: int = 0) -> dict[int, float]:
    """So many entries, a day old."""
    return dict.fromkeys(range(first, first + count), NOW_S - 86_400.0)


def plan(modified_s: dict[int, float], **options: Any) -> LogPlan:
    given_ = {"retained": (), "pinned": {}, "ages": NEW, **options}
    return plan_log(modified_s, **given_)


def commit(sequence: int, *keys: str) -> Commit:
    handles = tuple(
        ChangeSetHandle(Handle(key, 0, 1, 0), "w", SequenceNumber(0), 0, 1, KeyGroupRange(0, 0), 1) for key in keys
    )
    return Commit(
        job="fleet",
        sequence=CommitSequence(sequence),
        checkpoint_id=CheckpointId(sequence),
        epoch=Epoch(1),
        parent=None,
        stamp="stamp",
        max_parallelism=1,
        ranges=(RangeState(KeyGroupRange(0, 0), handles),),
        states=(),
    )


def verdicts(keys: Iterable[str], *, age_s: float = 86_400.0, **options: Any) -> list[SweepReason]:
    """The verdict on each key, in order."""
    given_ = {"log": LogPlan({}, ()), "reach": Reach(), "known": {}, "epoch": Epoch(3), "ages": NEW, **options}
    return [each.verdict for each in classify([ObjectInfo(key, 1, NOW_S - age_s) for key in keys], **given_)]


def test_what_is_older_than_the_retained_goes_oldest_first() -> None:
    """From the oldest retained entry on all is kept, claims between the commits as well."""
    plan_ = plan(old(10), retained={9, 7})
    assert plan_.remove == (0, 1, 2, 3, 4, 5, 6)
    assert set(plan_.keep) == {7, 8, 9}


def test_the_end_of_the_log_stays_without_a_retained_commit() -> None:
    """Claims, and nobody ever committed."""
    assert plan(old(3)).remove == (0, 1)


def test_an_empty_log_has_nothing_to_remove() -> None:
    """A job that was never opened."""
    assert plan({}) == LogPlan({}, ())


def test_savepoints_stay_alone() -> None:
    """What lies between them and the log goes all the same."""
    plan_ = plan(old(10), retained={9}, pinned={3: "savepoint 'a'"})
    assert 3 in plan_.keep
    assert plan_.remove == (0, 1, 2, 4, 5, 6, 7, 8)


def test_a_young_entry_keeps_all_that_follows_it() -> None:
    """Times need not grow with the sequence: the log has no gap even so."""
    young = old(10) | {2: NOW_S}
    assert plan(young, retained={9}).remove == (0, 1)


def test_a_rollback_keeps_the_branch_it_left_until_it_has_commits_enough() -> None:
    """The parent of the newest is far down: the log in between has no gap."""
    assert plan(old(10), retained={9, 2}).remove == (0, 1)


def test_what_was_made_where_an_entry_had_been_swept_goes_when_it_is_old() -> None:
    """Alone below the log, and nobody's savepoint."""
    plan_ = plan(old(3, first=10) | {2: NOW_S - 86_400.0, 5: NOW_S}, retained={12})
    assert plan_.remove == (2, 10, 11)
    assert plan_.keep[5].startswith("too young")


def test_an_entry_outlives_the_time_for_which_a_writer_trusts_his_own_picture() -> None:
    """However small the minimum age is: a place must not be free again while its writer would not look again."""
    assert ENTRY_AGE_MIN_S >= 2 * LOG_CONTACT_MAX_S
    almost = {0: NOW_S - 2 * LOG_CONTACT_MAX_S + 1, 1: NOW_S}
    assert plan(almost).remove == ()
    assert plan(almost | {0: NOW_S - 2 * LOG_CONTACT_MAX_S}).remove == (0,)


def test_a_larger_minimum_age_holds_for_entries_too() -> None:
    """A day, and they are a day old less a second."""
    ages = Ages(newest_s=NOW_S, now_s=NOW_S, min_age_s=86_401.0)
    assert plan(old(3), ages=ages).remove == ()


def test_a_wrong_clock_on_this_host_makes_nothing_old() -> None:
    """Ahead by hours, or behind by a year: the store's own times decide. An idle job's grow old after a day."""
    for now_s in (NOW_S + CLOCK_SKEW_MAX_S, NOW_S - 365 * 86_400.0):
        ages = Ages(newest_s=NOW_S, now_s=now_s, min_age_s=0.0)
        assert not ages.is_old(NOW_S - 1, at_least_s=2.0)
        assert ages.is_old(NOW_S - 2, at_least_s=2.0)
    idle = Ages(newest_s=NOW_S, now_s=NOW_S + CLOCK_SKEW_MAX_S + 10, min_age_s=0.0)
    assert idle.is_old(NOW_S, at_least_s=10.0)


@settings(deadline=None)
@given(
    ages_s=st.lists(st.floats(0.0, 10_000.0), min_size=1, max_size=20),
    first=st.integers(0, 5),
    retained=st.sets(st.integers(0, 25), max_size=4),
    pinned=st.sets(st.integers(0, 25), max_size=3),
    gone=st.sets(st.integers(0, 8)),
)
def test_the_log_never_gets_a_gap_above_the_oldest_that_stays(
    *, ages_s: list[float], first: int, retained: set[int], pinned: set[int], gone: set[int]
) -> None:
    """Whatever is there and whatever is asked for."""
    end = first + len(ages_s) - 1
    modified_s = {first + number: NOW_S - age_s for number, age_s in enumerate(ages_s)}
    modified_s = {sequence: at for sequence, at in modified_s.items() if sequence not in gone or sequence == end}
    plan_ = plan(modified_s, retained=retained, pinned=dict.fromkeys(pinned, "pinned"))
    assert set(plan_.keep) | set(plan_.remove) == set(modified_s)
    assert not set(plan_.keep) & set(plan_.remove)
    assert list(plan_.remove) == sorted(plan_.remove)
    assert end in plan_.keep
    assert not set(plan_.remove) & (retained | pinned)
    assert all(modified_s[sequence] <= NOW_S - ENTRY_AGE_MIN_S for sequence in plan_.remove)
    run = end
    while run - 1 in modified_s:
        run -= 1
    for kept in set(plan_.keep) - pinned:
        if kept >= run:
            assert all(sequence in plan_.keep for sequence in range(kept, end + 1))


def test_data_is_judged_by_what_points_into_it_and_by_its_epoch() -> None:
    """In this order: needed, superseded, then by the name."""
    reach = Reach()
    needed, both, dropped = (f"segments/00000001-{number:08d}-{HEX}" for number in range(3))
    reach.add(commit(7, needed, both), stays=True)
    reach.add(commit(4, both, dropped), stays=False)
    names = [f"segments/{epoch:08d}-00000009-{HEX}" for epoch in (2, 3, 4)]
    assert verdicts([needed, both, dropped, *names], reach=reach) == [
        SweepReason.NEEDED,
        SweepReason.NEEDED,
        SweepReason.SUPERSEDED,
        SweepReason.ORPHAN,
        SweepReason.LIVE,
        SweepReason.LIVE,
    ]


def test_what_an_attempt_made_is_live_until_a_commit_of_its_epoch_lies_behind_its_base() -> None:
    """An attempt on commit n bears n + 1, one before the first commit 0; a backend of the whole job bears no number."""
    bases = (None, commit(4), commit(6), commit(7), commit(8))
    names = [data_name(Epoch(3), 999_999, HEX, position=log_position(base)) for base in bases]
    assert [data_name_of(name) for name in names] == [DataName(Epoch(3), position) for position in (0, 5, 7, 8, 9)]
    live, orphan = SweepReason.LIVE, SweepReason.ORPHAN
    assert verdicts(names, newest=7) == [orphan, orphan, orphan, live, live]
    assert verdicts(names) == [live] * 5
    assert verdicts(names, newest=7, epoch=Epoch(2)) == [live] * 5
    assert verdicts(names, epoch=Epoch(4)) == [orphan] * 5
    assert verdicts([data_name(Epoch(3), 5, HEX)], newest=7) == [live]


def test_an_object_of_any_name_is_ours_while_a_commit_points_into_it() -> None:
    """An uploader chooses its own keys."""
    reach = Reach()
    reach.add(commit(7, "mine/a"), stays=True)
    reach.add(commit(6, "mine/b"), stays=False)
    assert verdicts(["mine/a", "mine/b", "mine/c"], reach=reach) == [
        SweepReason.NEEDED,
        SweepReason.SUPERSEDED,
        SweepReason.FOREIGN,
    ]


@pytest.mark.parametrize(
    "key",
    [
        "README",
        "segments/notes.txt",
        f"segments/00000001-00000001-{HEX}.bak",
        f"segments/00000001-00000001-{HEX[:-1]}",
        f"segments/1-00000001-{HEX}",
        "commits/last",
        "commits/7",
        "commits/+00000000007",
        f"commits/00000001-00000001-{HEX}",
        "savepoints/a",
        f"savepoints/00000001-00000001-{HEX}",
        "newest.old",
    ],
)
def test_what_does_not_bear_one_of_our_names_is_foreign(key: str) -> None:
    """However close it comes, and however old it is: never garbage."""
    assert verdicts([key]) == [SweepReason.FOREIGN]
    assert not SweepReason.FOREIGN.is_garbage


def test_garbage_is_young_until_it_has_the_minimum_age() -> None:
    """What a commit pointed into is as old as that commit, which has had its own minimum."""
    ages = Ages(newest_s=NOW_S, now_s=NOW_S, min_age_s=100.0)
    orphan = f"segments/00000001-00000001-{HEX}"
    assert verdicts([orphan], ages=ages, age_s=99.0) == [SweepReason.YOUNG]
    assert verdicts([orphan], ages=ages, age_s=100.0) == [SweepReason.ORPHAN]
    reach = Reach()
    reach.add(commit(4, orphan), stays=False)
    assert verdicts([orphan], ages=ages, age_s=0.0, reach=reach) == [SweepReason.SUPERSEDED]


def test_an_entry_that_was_made_while_the_sweep_looked_stays() -> None:
    """It is in the listing of all that lies there, and was not in that of the log."""
    log = LogPlan({5: "kept"}, (4,))
    assert verdicts([entry_key(4), entry_key(5), entry_key(6)], log=log) == [
        SweepReason.SUPERSEDED,
        SweepReason.RETAINED,
        SweepReason.RETAINED,
    ]
