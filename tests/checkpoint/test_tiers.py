"""Which change sets of a changelog are merged, and how short that keeps commits and restores."""

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._checkpoint.materialization.tiers import FULL_BYTES, Neighbours, due, last_id, members, merged_id
from statebackend.ids import ChangeSetHandle, Handle, SequenceNumber, all_key_groups
from statebackend.settings import KiB, Settings

ALL = all_key_groups(128)
FAN_IN = Settings(job="j", primary="memory://x").materialize_fan_in


def handle(number: int, length: int = 100, count: int = 1, log_id: str = "0-127") -> ChangeSetHandle:
    """The handle of change set `number`, or of `count` ones merged, of which it is the last."""
    name = log_id if count == 1 else f"+{count} {log_id}"
    segment = Handle(f"commits/{number:012d}", 0, length + 500, 4_000_000_000)
    return ChangeSetHandle(segment, name, SequenceNumber(number), 400, length, ALL, 10)


def merged(changelog: Sequence[ChangeSetHandle], place: Neighbours) -> list[ChangeSetHandle]:
    """The changelog with the change sets at the place merged into one."""
    found = changelog[place.first : place.end]
    log_id, number = merged_id(found)
    length = sum(each.length for each in found)
    one = msgspec.structs.replace(
        found[-1],
        segment=Handle(f"segments/0000001-{number:022d}", 0, length + 100, 4_000_000_000),
        log_id=log_id,
        sequence_number=number,
        length=length,
        records=sum(each.records for each in found),
    )
    return [*changelog[: place.first], one, *changelog[place.end :]]


def settled(changelog: Sequence[ChangeSetHandle], fan_in: int) -> Iterator[list[ChangeSetHandle]]:
    """The changelog after each merge, until nothing is due."""
    found = list(changelog)
    while (place := due(found, fan_in)) is not None:
        found = merged(found, place)
        yield found


# ------------------------------------------------------------------------------------------------------------------ ids


def test_a_merged_change_set_says_how_many_it_stands_for_and_which_is_the_last() -> None:
    """Also when it is merged again: the mark does not grow."""
    first = merged([handle(1), handle(2), handle(3)], Neighbours(0, 3))
    (twice,) = merged([*first, handle(4)], Neighbours(0, 2))
    assert (members(twice), last_id(twice)) == (4, ("0-127", 4))
    assert (members(handle(4)), last_id(handle(4))) == (1, ("0-127", 4))
    assert twice.log_id == "+4 0-127"


@pytest.mark.parametrize("log_id", ["", "+", "+x 0-127", "+3", "+9999999999 a", "+ 3 a", "-1 a"])
def test_what_only_looks_like_a_mark_is_a_change_set_of_its_own(log_id: str) -> None:
    """The id comes from a file: a number of 5,000 digits is no number."""
    odd = handle(1, log_id=log_id)
    assert (members(odd), last_id(odd)) == (1, (log_id, 1))


# ---------------------------------------------------------------------------------------------------------- what is due


def test_as_many_neighbours_of_one_tier_as_the_fan_in_says_are_due() -> None:
    """The last ones first; those of the next tier when there are enough of them; none across a border."""
    assert due([handle(n) for n in range(3)], 4) is None
    assert due([handle(n) for n in range(4)], 4) == (0, 4)
    assert due([handle(0, count=4), *(handle(n) for n in range(1, 4))], 4) is None
    assert due([handle(0, count=4), *(handle(n) for n in range(1, 5))], 4) == (1, 5)
    assert due([handle(n, count=4) for n in range(4)], 4) == (0, 4)


def test_neighbours_that_are_full_together_are_due_whatever_their_number() -> None:
    """Up to the one that fills it. What is full is not written again."""
    third = FULL_BYTES // 3 + 1
    assert due([handle(n, third) for n in range(4)], 16) == (0, 3)
    assert due([handle(0, FULL_BYTES), handle(1, FULL_BYTES)], 2) is None


def test_what_lies_before_a_full_one_is_due_at_once() -> None:
    """Nothing is added there any more, so it would never be enough."""
    assert due([handle(0), handle(1), handle(2, FULL_BYTES)], 16) == (0, 2)
    assert due([handle(0), handle(1, FULL_BYTES), handle(2)], 16) is None


@pytest.mark.parametrize("fan_in", [0, 1])
def test_a_fan_in_below_two_asks_for_nothing(fan_in: int) -> None:
    """It is the switch, and one change set merged alone would be merged for ever."""
    assert due([handle(n) for n in range(100)], fan_in) is None


def test_what_is_to_be_left_is_left_and_what_lies_before_it_is_merged_at_once() -> None:
    """As if it were full: nothing is added there any more."""
    changelog = [handle(number) for number in range(5)]
    assert due(changelog, 4) == Neighbours(0, 5)
    assert due(changelog, 4, changelog[2:3]) == Neighbours(0, 2)
    assert due(changelog[2:], 4, changelog[2:3]) is None


LENGTHS = st.one_of(st.integers(1, 100), st.integers(1, 2 * FULL_BYTES), st.just(FULL_BYTES - 1))


@st.composite
def changelogs(draw: st.DrawFn) -> list[ChangeSetHandle]:
    """Small ones, large ones and merged ones, in any order."""
    sizes = draw(st.lists(st.tuples(LENGTHS, st.sampled_from([1, 1, 1, 2, 5, 16, 300])), max_size=60))
    return [handle(number, length, count) for number, (length, count) in enumerate(sizes)]


@given(changelogs(), st.integers(2, 20))
def test_merging_ends_and_loses_nothing(changelog: list[ChangeSetHandle], fan_in: int) -> None:
    """Whatever is joined there. Bytes, changes, members, the last id stay; each merge makes the list shorter."""
    before = changelog
    for after in settled(changelog, fan_in):
        assert len(after) < len(before)
        before = after

    def sums(handles: Sequence[ChangeSetHandle]) -> tuple[int, int, int]:
        return (
            sum(each.length for each in handles),
            sum(each.records for each in handles),
            sum(members(each) for each in handles),
        )

    assert sums(before) == sums(changelog)
    assert list(map(last_id, before[-1:])) == list(map(last_id, changelog[-1:]))
    assert [last_id(each) for each in before] == [
        last_id(each) for each in changelog if last_id(each) in {*map(last_id, before)}
    ]


@given(changelogs(), st.integers(2, 20))
def test_only_so_many_handles_are_left(changelog: list[ChangeSetHandle], fan_in: int) -> None:
    """Fewer than the fan-in of each tier, and two for each `FULL_BYTES`."""
    left = [changelog, *settled(changelog, fan_in)][-1]
    tiers, count = 1, max(1, sum(members(each) for each in left))
    while count >= fan_in:
        tiers, count = tiers + 1, count // fan_in
    full = sum(each.length for each in left) // FULL_BYTES
    assert len(left) <= tiers * (fan_in - 1) + 2 * full


# ------------------------------------------------------------------------------------------------------ in the long run


def lives(length: int, *, checkpoints: int, base_at: int) -> Iterator[tuple[list[ChangeSetHandle], int]]:
    """The changelog of each commit, and the bytes merged behind it. Bases after `base_at` change sets; 0: never."""
    changelog: list[ChangeSetHandle] = []
    for number in range(checkpoints):
        changelog.append(handle(number, length))
        written = 0
        after = changelog
        if base_at and sum(map(members, changelog)) >= base_at:
            after = []
        elif (place := due(changelog, FAN_IN)) is not None:
            after = merged(changelog, place)
            written = after[place.first].length
        yield changelog, written
        changelog = list(after)


@pytest.mark.parametrize("keys", [10, 1000])
@pytest.mark.parametrize("base_at", [512, 0])
def test_a_commit_is_small_and_a_restore_reads_few_files(keys: int, base_at: int) -> None:
    """On average at most 1.6 KB of handles, and at most 64 files and one for each 4 MiB. 50 bytes a key.

    With the default bases, and without any: then a changelog of 1,000 keys a commit grows by a handle every 4 MiB.
    """
    checkpoints, handle_bytes, merged_bytes, uploads, sizes = 5_000, 0, 0, 0, dict[str, int]()
    for changelog, written in lives(50 * keys, checkpoints=checkpoints, base_at=base_at):
        for each in changelog[-2:]:
            sizes[each.segment.key] = len(msgspec.msgpack.encode(each))
        handle_bytes += sum(sizes[each.segment.key] for each in changelog)
        uploads += written > 0
        merged_bytes += written
        assert len(changelog) <= 64 + sum(each.length for each in changelog) // FULL_BYTES
    if keys == 10 or base_at:
        assert handle_bytes / checkpoints <= 1.6 * KiB
    assert uploads / checkpoints <= 0.075
    assert merged_bytes / checkpoints <= 3 * 50 * keys


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([FULL_BYTES // 2] * 2, (0, 2)),
        ([FULL_BYTES // 2, FULL_BYTES // 2 - 1], None),
        ([FULL_BYTES - 1, 1, 1], (0, 2)),
        ([FULL_BYTES - 1, 1], (0, 2)),
        ([FULL_BYTES - 1], None),
        ([1, FULL_BYTES - 1, FULL_BYTES], (0, 2)),
        ([1, 1, FULL_BYTES - 1], (0, 3)),
        ([FULL_BYTES, 1, FULL_BYTES], None),
    ],
)
def test_neighbours_are_full_with_exactly_so_many_bytes(lengths: list[int], expected: tuple[int, int] | None) -> None:
    """Not one byte later. One alone is never merged."""
    assert due([handle(number, length) for number, length in enumerate(lengths)], 16) == expected
