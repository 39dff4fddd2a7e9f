"""When bases are due, which key groups they are of, in which segments, and what remains of the changelog."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._checkpoint.materialization.base_schedule import (
    OPENING_HANDLES_MAX,
    BaseTriggers,
    first_interval_s,
    is_due,
)
from statebackend._checkpoint.materialization.bases import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    LOG_ID,
    SEGMENT_BYTES_MAX,
    SMALL_BASES_MAX,
    SMALL_BYTES,
    Bases,
    Piece,
    base_of,
    base_segment_bytes,
    key_groups_to_write,
    pack,
    with_bases,
)
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.change_sets.keyed_changes import KeyedChanges, keyed_changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._codec.commit import Commit, encode_entry
from statebackend.ids import (
    EMPTY_RANGE,
    Base,
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    RangeState,
    RocksDBBase,
    RocksDBFile,
    SequenceNumber,
    all_key_groups,
    ranges_of,
)
from statebackend.settings import MiB
from tests.changes import paged

ALL = all_key_groups(16)
GROUPS = st.frozensets(st.integers(0, 15))


def handle(number: int, length: int = 100, key_groups: KeyGroupRange = ALL) -> ChangeSetHandle:
    segment = Handle(f"segments/{number}", 0, length + 100, number)
    return ChangeSetHandle(segment, "0-15", SequenceNumber(number), 8, length, key_groups, 1)


def base(name: str, *groups: int, length: int = 1000, written: int = 0) -> Base:
    return Base(Handle(f"segments/{name}", 0, length, 1), ranges_of(groups), written or len(groups))


def rocksdb_base(*groups: int, checkpoint_id: int = 7, length: int = 1000) -> RocksDBBase:
    """The files of all key groups, which stand for these."""
    files = (RocksDBFile("000008.sst", Handle("segments/n", 0, length, 1)),)
    return RocksDBBase(ALL, CheckpointId(checkpoint_id), ranges_of(groups), files)


def state(handles: int = 0, *bases: Base, length: int = 100) -> RangeState:
    return RangeState(ALL, tuple(handle(number, length) for number in range(handles)), bases)


def groups_of(found: Base | RocksDBBase) -> set[int]:
    return {group for each in found.key_groups for group in each}


def commit_of(*ranges: RangeState) -> Commit:
    return Commit(
        job="fleet",
        sequence=CommitSequence(0),
        checkpoint_id=CheckpointId(0),
        epoch=Epoch(1),
        parent=None,
        stamp="",
        max_parallelism=16,
        ranges=ranges,
        states=(),
    )


# ------------------------------------------------------------------------------------------------------------- when


def due(
    state: RangeState, *, over: bool = False, in_files: bool = False, opening: bool = False, **changed: Any
) -> bool:
    return is_due(state, BaseTriggers(**changed), interval_is_over=over, in_files=in_files, opening=opening)


def test_an_opening_asks_for_bases_of_fewer_change_sets() -> None:
    """It has read as many files. No trigger, no bases: not at an opening either; and a smaller one holds."""
    long, shorter = state(OPENING_HANDLES_MAX), state(OPENING_HANDLES_MAX - 1)
    assert due(long, opening=True, handles_max=512)
    assert not due(long, handles_max=512)
    assert not due(shorter, opening=True, handles_max=512)
    assert not due(long, opening=True, handles_max=0)
    assert due(shorter, opening=True, handles_max=OPENING_HANDLES_MAX - 1)


def test_nothing_is_due_where_nothing_was_logged_since_the_last_bases() -> None:
    """Section 13.2: whatever the triggers say, the same bases would be written again."""
    assert not due(state(0, base("a", 1)), over=True, handles_max=1, changelog_ratio=1e-9)


def test_without_a_trigger_nothing_is_due() -> None:
    """Each can be switched off, and all of them."""
    assert not due(state(10_000))


def test_the_end_of_the_interval_is_a_trigger() -> None:
    """One change set is enough: the interval is what bounds how much a restore has to replay."""
    assert due(state(1), over=True)


def test_the_number_of_handles_is_a_trigger() -> None:
    """At the limit, not before."""
    assert [due(state(count), handles_max=3) for count in (1, 2, 3, 4)] == [False, False, True, True]


def test_changelog_bytes_against_base_bytes_are_a_trigger() -> None:
    """400 bytes of changelog: half of 800, and not of 801."""
    ratio: dict[str, Any] = {"changelog_ratio": 0.5, "changelog_bytes_min": 0}
    assert due(state(4, base("a", *range(16), length=800)), **ratio)
    assert not due(state(4, base("a", *range(16), length=801)), **ratio)
    assert due(state(1), **ratio), "without any base"


def test_of_a_base_only_the_live_share_counts() -> None:
    """4 of 16 groups of 3,200 bytes are 800."""
    ratio: dict[str, Any] = {"changelog_ratio": 0.5, "changelog_bytes_min": 0}
    assert due(state(4, base("a", 0, 1, 2, 3, length=3200, written=16)), **ratio)
    assert not due(state(4, base("a", 0, 1, 2, 3, 4, length=3200, written=16)), **ratio)


def test_a_small_changelog_is_not_worth_a_base() -> None:
    """A job of a few hundred bytes would write one at every checkpoint."""
    floor: dict[str, Any] = {"changelog_ratio": 1.0, "changelog_bytes_min": 500}
    assert not due(state(4, base("a", 1, length=10)), **floor)
    assert due(state(5, base("a", 1, length=10)), **floor)


def of_changes(count: int, *bases: Base, length: int = 100) -> RangeState:
    """A changelog of one handle with that many changes."""
    (one,) = state(1, length=length).changelog
    return RangeState(ALL, (msgspec.structs.replace(one, records=count),), bases)


def test_many_changes_are_worth_a_base_however_few_bytes_they_are() -> None:
    """Replaying takes time by the change: 2.4 million small ones are 32 MiB, and several seconds."""
    floor: dict[str, Any] = {"changelog_ratio": 1.0, "changelog_bytes_min": 32 << 20}
    for changes_min, is_worth in ((0, False), (1000, True), (1001, False)):
        assert due(of_changes(1000), **floor, changelog_changes_min=changes_min) == is_worth
    assert not due(of_changes(1000), changelog_ratio=0, changelog_changes_min=1), "bases by size are turned off"


def test_many_changes_of_few_of_the_keys_are_not_worth_a_base() -> None:
    """It would take longer to write the base again and again than to replay them once."""
    by_changes: dict[str, Any] = {
        "changelog_ratio": 0.5,
        "changelog_bytes_min": 32 << 20,
        "changelog_changes_min": 1000,
    }
    assert due(of_changes(1000, base("a", *range(16), length=200)), **by_changes)
    assert not due(of_changes(1000, base("a", *range(16), length=201)), **by_changes)


def test_a_rocksdb_base_is_worth_it_sooner() -> None:
    """Half as many changes, of a 64th of it: only new files are written. By bytes it is due as any other."""
    by_changes: dict[str, Any] = {"changelog_ratio": 1.0, "changelog_bytes_min": 500, "changelog_changes_min": 1000}
    for changes, length, is_worth in ((500, 6400, True), (499, 6400, False), (500, 6401, False), (1, 400, False)):
        found = of_changes(changes, base("a", *range(16), length=length))
        assert due(found, **by_changes, in_files=True) == is_worth
        assert not due(found, **by_changes)
    for length, is_worth in ((499, False), (500, True)):
        assert due(of_changes(1, length=length), **by_changes, in_files=True) == is_worth


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.booleans())
def test_a_changelog_that_grows_becomes_due_and_stays_due(
    changes: int, length: int, base_bytes: int, in_files: bool
) -> None:
    """Whatever there is, and sooner or later; with RocksDB never later than without."""
    by_changes: dict[str, Any] = {"changelog_ratio": 1.0, "changelog_bytes_min": 500, "changelog_changes_min": 1000}
    bases = base("a", *range(16), length=base_bytes)
    found = [
        due(of_changes(changes * n, bases, length=length * n), **by_changes, in_files=in_files) for n in range(1, 9)
    ]
    assert found == sorted(found)
    assert due(of_changes(changes * 3000, bases, length=length * 3000), **by_changes, in_files=in_files)
    if due(of_changes(changes, bases, length=length), **by_changes):
        assert due(of_changes(changes, bases, length=length), **by_changes, in_files=True)


def test_the_first_interval_is_spread_by_job_and_range() -> None:
    """FLINK-26306, 28976: the same for the same owner, and anywhere in the interval for many."""
    spread = [first_interval_s(f"job {number}", ALL, 600) for number in range(200)]
    assert spread == [first_interval_s(f"job {number}", ALL, 600) for number in range(200)]
    assert all(0 <= each < 600 for each in spread)
    assert all(any(low <= each < low + 60 for each in spread) for low in range(0, 600, 60))
    assert len({first_interval_s("job", KeyGroupRange(first, 15), 600) for first in range(16)}) == 16


# --------------------------------------------------------------------------------------------------------- which groups


def test_only_changed_key_groups_are_written() -> None:
    """The others keep their base."""
    assert key_groups_to_write({3, 5}, [base("a", *range(8)), base("b", *range(8, 16))]) == {3, 5}


def test_a_base_that_would_be_mostly_stale_is_given_up() -> None:
    """3 of 8 left are less than half, 4 are not: or else a segment would be kept, and read, for one group."""
    assert key_groups_to_write({0, 1, 2, 3}, [base("a", *range(8))]) == {0, 1, 2, 3}
    assert key_groups_to_write({0, 1, 2, 3, 4}, [base("a", *range(8))]) == set(range(8))


def test_many_small_bases_are_written_together() -> None:
    """A restore reads a file for each. Large ones stay, and so do as many small ones as it may."""
    few = [base(str(group), group) for group in range(SMALL_BASES_MAX)]
    large = base("large", 20, 21, length=SMALL_BYTES)
    assert key_groups_to_write({22}, [*few, large]) == {22}
    more = [*few, base("one more", SMALL_BASES_MAX)]
    assert key_groups_to_write({22}, [*more, large]) == {22, *range(SMALL_BASES_MAX + 1)}
    assert key_groups_to_write({0, 22}, [*more, large]) == {0, 22}, "one of them goes anyway"


@given(st.lists(GROUPS, min_size=1, max_size=12))
def test_all_bases_together_are_at_most_twice_what_they_stand_for(rounds: list[frozenset[int]]) -> None:
    """Whatever changes in whatever order; and each key group that ever changed has one base."""
    current = state()
    for number, changed in enumerate(rounds):
        written = key_groups_to_write(changed, current.bases)
        new = (base(f"{number}", *written),) if written else ()
        current = with_bases(current, Bases(new, written, 0, frozenset()))
        live = [group for each in current.bases for group in groups_of(each)]
        assert sorted(live) == sorted(frozenset[int]().union(*rounds[: number + 1]))
        assert sum(each.key_groups_written for each in current.bases) <= 2 * len(live)


# ---------------------------------------------------------------------------------------------------- the next commit


def test_bases_take_the_place_of_what_they_cover() -> None:
    """The changelog since, the new bases, and of the old ones what is not written anew."""
    before = state(7, base("a", *range(8)), base("b", *range(8, 16)))
    new = base("c", 0, 3, 9)
    after = with_bases(before, Bases((new,), frozenset({0, 3, 9, 10}), 5, frozenset()))
    assert after.changelog == before.changelog[5:]
    assert [(each.segment.key, groups_of(each)) for each in after.bases] == [
        ("segments/a", {1, 2, 4, 5, 6, 7}),
        ("segments/b", {8, 11, 12, 13, 14, 15}),
        ("segments/c", {0, 3, 9}),
    ]
    assert all(each.key_groups_written == 8 for each in after.bases[:2])


def test_a_base_that_stands_for_nothing_leaves_the_commit() -> None:
    """So the sweep finds its segment unreferenced. Key groups without an entry need no base."""
    after = with_bases(state(1, base("a", 1, 2)), Bases((), frozenset({1, 2}), 1, frozenset()))
    assert (after.changelog, after.bases) == ((), ())


def test_ten_thousand_small_checkpoints_make_no_large_commit() -> None:
    """By default, with a base that takes ten checkpoints to be written, and one key group changed by each."""
    triggers, current, changed = BaseTriggers(handles_max=512), state(), set[int]()
    writing: tuple[int, Bases] | None = None
    longest = 0
    for number in range(10_000):
        current = msgspec.structs.replace(current, changelog=(*current.changelog, handle(number)))
        changed.add(number % 16)
        if writing is not None and number >= writing[0]:
            current, writing = with_bases(current, writing[1]), None
        elif writing is None and is_due(current, triggers, interval_is_over=False):
            groups = key_groups_to_write(changed, current.bases)
            covered = len(current.changelog)
            writing = (number + 10, Bases((base(f"b{number}", *groups),), groups, covered, frozenset()))
            changed.clear()
        longest = max(longest, len(current.changelog))
    assert longest <= 512 + 10
    assert len(encode_entry(commit_of(current), "commits/0").body) < 60_000
    assert [group for each in current.bases for group in sorted(groups_of(each))] == list(range(16))


# ------------------------------------------------------------------------------------------------------------- pieces

SIZES = st.lists(st.sampled_from([10, 1000, FRAME_BYTES_MIN // 2, FRAME_BYTES_MIN, FRAME_BYTES_MAX // 2]), max_size=6)


def changes_of(sizes: Sequence[Sequence[int]]) -> list[KeyedChanges]:
    """For each group changes of these sizes, one by one."""
    return [
        found
        for group, each in enumerate(sizes)
        for number, size in enumerate(each)
        for found in keyed_changes([StateChange(group, Operation.SET, 0, f"{group} {number}", bytes(size))])
    ]


@given(st.lists(SIZES, max_size=10), GROUPS, st.sampled_from([0, 100_000, 2_000_000]))
def test_pieces_hold_every_change_in_order_and_every_group_in_one_piece(
    sizes: list[list[int]], empty: frozenset[int], segment_bytes_max: int
) -> None:
    """Frames are full before they end, segments too; a segment ends with a key group."""
    changes = changes_of(sizes)
    groups = empty | {change.span.first for change in changes}
    pieces = list(pack(iter(changes), groups, segment_bytes_max=segment_bytes_max))
    frames = [frame for piece in pieces for frame in piece.frames]
    assert [change for frame in frames for change in frame.changes] == changes
    assert {frame.log_id for frame in frames} <= {LOG_ID}
    assert [frame.sequence_number for frame in frames] == list(range(len(frames)))
    for frame, following in pairwise(frames):
        border = following.key_groups.first != frame.key_groups.last
        assert frame.size_bytes >= (FRAME_BYTES_MIN if border else FRAME_BYTES_MAX)
    for frame in frames:
        last = [change for change in frame.changes if change.span.first == frame.key_groups.last]
        assert frame.size_bytes < FRAME_BYTES_MAX * 2, "at most one change beyond"
        if frame.key_groups.first != frame.key_groups.last:
            assert frame.size_bytes - sum(each.size_bytes for each in last) < FRAME_BYTES_MIN
    _check_groups(pieces, groups)
    for piece in pieces[:-1]:
        assert sum(frame.size_bytes for frame in piece.frames) >= segment_bytes_max


@given(st.lists(st.sampled_from([100, 6000, 30_000, 60_000]), min_size=1, max_size=6), st.sampled_from([0, 2_000_000]))
def test_a_frame_of_pages_has_its_key_group_whole(rows: list[int], segment_bytes_max: int) -> None:
    """However large that is, up to the size of a segment: what opens it pays for each part."""
    steps = ((group, at, count) for group, count in enumerate(rows) for at in range(0, count, 10_000))
    changes = [paged(min(10_000, count - at), group, first=at) for group, at, count in steps]
    pieces = list(pack(iter(changes), range(len(rows)), segment_bytes_max=segment_bytes_max))
    frames = [frame for piece in pieces for frame in piece.frames]
    assert sum(frame.records for frame in frames) == sum(rows)
    for frame, following in pairwise(frames):
        if following.key_groups.first == frame.key_groups.last:
            assert frame.size_bytes >= max(FRAME_BYTES_MAX, segment_bytes_max)
        else:
            assert frame.size_bytes >= FRAME_BYTES_MIN


def _check_groups(pieces: Sequence[Piece], groups: frozenset[int]) -> None:
    """Every group belongs to one piece, and to the one that has its entries."""
    if pieces:
        assert [group for piece in pieces for each in piece.key_groups for group in each] == sorted(groups)
    for piece in pieces:
        owned = {group for each in piece.key_groups for group in each}
        assert {group for frame in piece.frames for each in frame.changes for group in each.groups.tolist()} <= owned
        assert (
            base_of(piece, Handle("a", 0, 1, 1)).key_groups_written
            == len(owned)
            == base_of(piece, Handle("a", 0, 1, 1)).live
        )


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 1), min_size=1)), max_size=8),
    st.sampled_from([0, 1500]),
)
def test_groups_of_several_states_that_come_together_stay_together(
    times: list[tuple[int, set[int]]], segment_bytes_max: int
) -> None:
    """State after state: a later state's first group may lie below an earlier one's last."""
    changes: list[KeyedChanges] = []
    first = 0
    for count, states in times:
        for state_id in sorted(states):
            rows = [StateChange(group, 1, state_id, "a", bytes(500)) for group in range(first, first + count)]
            changes += keyed_changes(rows[state_id:] or rows)
        first += count
    pieces = list(pack(changes, range(first), segment_bytes_max=segment_bytes_max))
    assert [each for piece in pieces for frame in piece.frames for each in frame.changes] == changes
    _check_groups(pieces, frozenset(range(first)))


@pytest.mark.parametrize(("group_mib", "groups_in_a_piece"), [(1, 16), (5, 4), (6, 1), (8, 1)])
def test_a_large_group_has_a_piece_of_its_own(group_mib: int, groups_in_a_piece: int) -> None:
    """So erasing a key of many writes 1/128 of the state again, and smaller groups do not make many small objects."""
    changes = changes_of([[MiB] * group_mib] * 16)
    pieces = list(pack(changes, range(16), segment_bytes_max=16 * MiB))
    assert [sum(map(len, piece.key_groups)) for piece in pieces] == [groups_in_a_piece] * (16 // groups_in_a_piece)


def test_groups_without_entries_make_no_piece() -> None:
    """An empty segment must not exist."""
    assert list(pack(iter(()), {1, 2}, segment_bytes_max=1)) == []


def test_a_layer_of_the_smallest_segments_has_no_frame_without_changes() -> None:
    """Where next to nothing may be in flight: found by the simulation (seed 22, over runs)."""
    changes, layer = changes_of([[10]] * 3), ("layer", SequenceNumber(1))
    pieces = list(pack(changes, range(3), segment_bytes_max=0, merged=layer))
    assert [frame.records for piece in pieces for frame in piece.frames] == [1, 1, 1]


def test_a_piece_is_handed_out_before_the_next_is_begun() -> None:
    """So no more than one segment is in memory, however large the state is."""
    taken: list[int] = []

    def watched() -> Any:
        for change in changes_of([[FRAME_BYTES_MIN]] * 10):
            taken.append(change.span.first)
            yield change

    pieces = pack(watched(), range(10), segment_bytes_max=1)
    next(pieces)
    assert taken == [0, 1, 2], "the piece, and what told that it was over"


@given(GROUPS)
def test_ranges_are_the_fewest_that_hold_the_groups(groups: frozenset[int]) -> None:
    """In order, and never touching."""
    ranges = ranges_of(groups)
    assert [group for each in ranges for group in each] == sorted(groups)
    assert all(left.last + 1 < right.first for left, right in pairwise(ranges))


# ------------------------------------------------------------------------------------------------------------ rescale


def test_an_owner_takes_over_what_its_range_has_in_common_with_the_commit() -> None:
    """Handles and bases narrowed, in order; what has nothing in common is left out."""
    left = RangeState(
        KeyGroupRange(0, 7), (handle(1), handle(2, key_groups=KeyGroupRange(0, 3))), (base("a", 0, 1, 6),)
    )
    right = RangeState(KeyGroupRange(8, 15), (handle(1),), (base("b", 8, 9),))
    found = range_of(commit_of(left, right), KeyGroupRange(4, 15))
    assert [(each.sequence_number, each.key_groups) for each in found.changelog] == [
        (1, KeyGroupRange(4, 7)),
        (1, KeyGroupRange(8, 15)),
    ]
    assert [(each.segment.key, groups_of(each)) for each in found.bases] == [
        ("segments/a", {6}),
        ("segments/b", {8, 9}),
    ]
    assert found.bases[0].key_groups_written == 3


def test_a_range_taken_over_as_it_is_stays_as_it_is() -> None:
    """Not one handle is written differently."""
    part = state(3, base("a", 1, 5))
    assert range_of(commit_of(part), ALL) == part
    assert range_of(None, ALL) == RangeState(ALL, ())


@pytest.mark.parametrize("split", [1, 8, 15])
def test_split_and_put_together_again_every_change_set_stands_once_for_each_group(split: int) -> None:
    """FLINK-26766: neither half brings back the other's groups."""
    whole = state(2, base("a", *range(16)))
    halves = [KeyGroupRange(0, split - 1), KeyGroupRange(split, 15)]
    parts = [range_of(commit_of(whole), half) for half in halves]
    again = range_of(commit_of(*parts), ALL)
    for number in (0, 1):
        stands_for = [group for each in again.changelog if each.sequence_number == number for group in each.key_groups]
        assert stands_for == list(range(16))
    assert [group for each in again.bases for group in sorted(groups_of(each))] == list(range(16))


# ------------------------------------------------------------------------------------------------------------- RocksDB


def test_a_rocksdb_base_takes_the_place_of_all_others() -> None:
    """It stands for every key group of its owner."""
    before = RangeState(ALL, state(3).changelog, (base("a", 1, 5),), rocksdb=(rocksdb_base(0, 2, 3),))
    new = rocksdb_base(*range(16), checkpoint_id=9)
    after = with_bases(before, Bases((), frozenset(range(16)), 2, frozenset(), new))
    assert (after.rocksdb, after.bases, after.changelog) == ((new,), (), before.changelog[2:])


def test_entries_that_were_written_anew_leave_the_rest_to_the_rocksdb_base() -> None:
    """As they do with other bases; one that stands for nothing is gone."""
    before = RangeState(ALL, (), rocksdb=(rocksdb_base(*range(16)),))
    some = Bases((base("a", 3, 4),), frozenset({3, 4}), 0, frozenset())
    after = with_bases(before, some)
    assert [groups_of(each) for each in after.rocksdb] == [set(range(16)) - {3, 4}]
    rest = Bases((base("b", *range(3), *range(5, 16)),), frozenset(range(16)) - {3, 4}, 0, frozenset())
    assert with_bases(after, rest).rocksdb == ()


def test_the_heap_writes_what_a_rocksdb_base_stands_for() -> None:
    """From then on the job can do without RocksDB."""
    assert key_groups_to_write({3}, [base("a", 5, 6)], [rocksdb_base(0, 1, 9)]) == {0, 1, 3, 9}


def test_metadata_of_early_commits_is_not_taken_over() -> None:
    """It has no key group and changes no state: the next commit need not list it."""
    part = RangeState(ALL, (handle(0), handle(1, key_groups=EMPTY_RANGE), handle(2)))
    assert range_of(commit_of(part), ALL).changelog == (handle(0), handle(2))


def test_rocksdb_bases_count_for_what_is_due() -> None:
    """By the share of them that is live."""
    triggers = BaseTriggers(changelog_ratio=1.0, changelog_bytes_min=0)
    for groups, due in ((range(16), False), (range(8), True)):
        committed = RangeState(ALL, state(6).changelog, rocksdb=(rocksdb_base(*groups, length=1000),))
        assert is_due(committed, triggers, interval_is_over=False) == due


def test_columns_beside_a_rocksdb_base_count_whole() -> None:
    """Of RocksDB's files only new ones are written, of columns all: a 64th of them is not worth it."""
    by_changes: dict[str, Any] = {"changelog_ratio": 1.0, "changelog_bytes_min": 1 << 20, "changelog_changes_min": 1000}
    rocksdb = rocksdb_base(*range(16), length=6400)
    columns = RocksDBFile("columns-000000", msgspec.structs.replace(rocksdb.files[0].handle, length=200))
    both = msgspec.structs.replace(rocksdb, files=(*rocksdb.files, columns))
    for found, length, is_worth in ((rocksdb, 150, True), (both, 150, False), (both, 200, True)):
        committed = msgspec.structs.replace(of_changes(1000, length=length), rocksdb=(found,))
        assert due(committed, **by_changes, in_files=True) == is_worth


@given(st.lists(st.integers(1, 15), unique=True, max_size=4), st.integers(0, 15), st.integers(0, 15))
def test_a_rocksdb_base_is_divided_and_whole_again(borders: list[int], one: int, other: int) -> None:
    """Each new owner gets its own key groups of the base; where parts are joined, the files are named once."""
    whole = RangeState(ALL, (), rocksdb=(rocksdb_base(*range(16)),))
    ends = [0, *sorted(borders), 16]
    parts = [range_of(commit_of(whole), KeyGroupRange(first, end - 1)) for first, end in pairwise(ends)]
    assert [groups_of(part.rocksdb[0]) for part in parts] == [{*part.key_groups} for part in parts]
    assert range_of(commit_of(*parts), ALL) == whole
    middle = KeyGroupRange(min(one, other), max(one, other))
    (found,) = range_of(commit_of(*parts), middle).rocksdb
    assert found.key_groups == (middle,)


def test_bases_of_two_checkpoints_do_not_become_one() -> None:
    """They name different files."""
    left = RangeState(KeyGroupRange(0, 7), (), rocksdb=(rocksdb_base(*range(8), checkpoint_id=7),))
    right = RangeState(KeyGroupRange(8, 15), (), rocksdb=(rocksdb_base(*range(8, 16), checkpoint_id=8),))
    assert range_of(commit_of(left, right), ALL).rocksdb == (*left.rocksdb, *right.rocksdb)


def test_a_segment_is_a_small_part_of_what_may_be_in_memory() -> None:
    """A quarter of what may be in flight; and an eighth of the memory for rows over runs, if that is short."""
    assert base_segment_bytes(1024 * MiB) == SEGMENT_BYTES_MAX
    assert base_segment_bytes(20 * MiB) == 5 * MiB
    assert [base_segment_bytes(1024 * MiB, each * MiB) for each in (1024, 128, 64, 8)] == [
        SEGMENT_BYTES_MAX, SEGMENT_BYTES_MAX, 8 * MiB, SMALL_BYTES
    ]  # fmt: skip
    assert base_segment_bytes(4 * MiB, 64 * MiB) == MiB
