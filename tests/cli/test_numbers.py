"""The numbers that people are told are those of the commit: sums, shares, skews, each at its borders."""

from collections.abc import Sequence

import pytest

from statebackend._codec.commit import Claim, Commit
from statebackend._log.names import entry_key
from statebackend._log.sweeping.retention import ObjectReport, SweepReason
from statebackend._upkeep.inspect import LogRow, _row, totals
from statebackend._upkeep.progress import Meter, Progress, reading
from statebackend._upkeep.report import RequestRate, _pace, _range_row
from statebackend._upkeep.sizes import SizeTotal, size_rows, size_totals, sizes_by_state, source_of
from statebackend.abc import ObjectInfo
from statebackend.cli.progress_bar import size
from statebackend.cli.reading import begins_with, difference_line
from statebackend.cli.text import savepoint_lines, verify_lines
from statebackend.ids import (
    Base,
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    OperatorElements,
    RangeState,
    RestoreSource,
    SequenceNumber,
    SourceMark,
    StagedOutput,
    StateDescriptor,
    StateSize,
)
from statebackend.reports import Damage, Difference, RangeRow, SavepointInfo, VerifyReport
from statebackend.settings import Prices

HALVES = (KeyGroupRange(0, 3), KeyGroupRange(4, 7))
NAMES = ("legs", "seen", "sums")


def commit_of(*ranges: RangeState, outbox: Sequence[StagedOutput] = ()) -> Commit:
    """The commit of checkpoint 70 at place 7, of eight key groups."""
    return Commit(
        job="fleet",
        sequence=CommitSequence(7),
        checkpoint_id=CheckpointId(70),
        epoch=Epoch(2),
        parent=CommitSequence(6),
        stamp="",
        max_parallelism=8,
        ranges=ranges,
        states=tuple(StateDescriptor(number, name, "value", '"int"') for number, name in enumerate(NAMES)),
        source=SourceMark("query", 35),
        committed_at_s=1000.0,
        outbox=tuple(outbox),
    )


def in_halves(*sizes: tuple[StateSize, ...]) -> Commit:
    """A commit of two owners who know these sizes."""
    return commit_of(*(RangeState(groups, (), sizes=own) for groups, own in zip(HALVES, sizes, strict=True)))


def handle(key: str, offset: int, length: int, log_id: str = "0-7") -> ChangeSetHandle:
    """A change set of ten records in a segment of 100 bytes."""
    number = SequenceNumber(offset)
    return ChangeSetHandle(Handle(key, 0, 100, 0), log_id, number, offset, length, KeyGroupRange(0, 7), 10)


# ------------------------------------------------------------------------------------------------------------- sizes


def test_the_largest_range_is_compared_with_the_mean() -> None:
    """Of those that know the state; without a key all are alike. Estimates and counts are not added up."""
    found = size_totals(
        size_rows(
            in_halves(
                (StateSize((0,), 30, 300), StateSize((1,), 0, 0), StateSize((2,), 5, 50)),
                (StateSize((0,), 10, 500), StateSize((1,), 0, 0), StateSize((2,), 7, 70, is_estimate=True)),
            )
        )
    )
    assert found == (
        SizeTotal(("legs",), 40, 800, is_estimate=False, ranges=2, skew=1.5),
        SizeTotal(("seen",), 0, 0, is_estimate=False, ranges=2, skew=1.0),
        SizeTotal(("sums",), 5, 50, is_estimate=False, ranges=1, skew=1.0),
        SizeTotal(("sums",), 7, 70, is_estimate=True, ranges=1, skew=1.0),
    )


def test_a_range_that_knows_no_sizes_has_no_row() -> None:
    """The others have."""
    first, second = HALVES
    commit = commit_of(RangeState(first, ()), RangeState(second, (), sizes=(StateSize((9,), 1, 2),)))
    assert [(row.states, row.key_groups) for row in size_rows(commit)] == [(("9",), str(second))]
    assert sizes_by_state(commit) == {}


def test_a_state_that_is_also_known_with_others_is_not_known_by_itself() -> None:
    """What is its own in one range is not all of it."""
    alone, shared, about = StateSize((0,), 1, 10), StateSize((0, 1), 2, 20), StateSize((0,), 4, 40, is_estimate=True)
    assert sizes_by_state(in_halves((alone,), (about,))) == {}
    assert sizes_by_state(in_halves((about,), (about,))) == {0: StateSize((0,), 8, 80, is_estimate=True)}
    assert sizes_by_state(in_halves((alone,), (alone,))) == {0: StateSize((0,), 2, 20)}
    assert sizes_by_state(in_halves((alone, StateSize((2,), 3, 30)), (shared, StateSize((2,), 4, 40)))) == {
        2: StateSize((2,), 7, 70)
    }


def test_ranges_are_opened_side_by_side() -> None:
    """So their files add up, and their seconds do not: the slowest counts."""
    first, second = HALVES
    restored = [RestoreSource(1, 2, 30, 40, 5.0), RestoreSource(10, 20, 300, 400, 3.0)]
    ranges = [RangeState(groups, (), restored=each) for groups, each in zip(HALVES, restored, strict=True)]
    assert source_of(commit_of(*ranges)) == RestoreSource(11, 22, 330, 440, 5.0)
    assert source_of(commit_of(ranges[0], RangeState(second, ()))) == restored[0]
    assert source_of(commit_of(RangeState(first, ()), RangeState(second, ()))) is None


# ---------------------------------------------------------------------------------------------------------- progress


def test_progress_ends_with_the_whole_however_much_was_done() -> None:
    """A file that is read twice, or an empty phase, makes it no more than that."""
    told: list[Progress] = []
    meter = Meter("reading", 10, told.append)
    for done in (0, 9, 1, 1):
        meter.step(done, changes=2, size_bytes=3)
    assert [(each.share, each.changes, each.size_bytes) for each in told] == [
        (0.0, 2, 3), (0.9, 4, 6), (1.0, 6, 9), (1.0, 8, 12),
    ]  # fmt: skip
    Meter("writing", 0, told.append).step(0, changes=0, size_bytes=0)
    assert told[-1] == Progress("writing", 0.0, 0, 0)


def test_an_object_that_is_read_again_counts_its_bytes_once() -> None:
    """And its changes each time, since they are others. Of objects that several ranges share the total has one, too."""
    told: list[Progress] = []
    shared = (handle("a", 8, 20), handle("b", 8, 20), handle("a", 28, 20))
    done = reading(commit_of(*(RangeState(groups, shared) for groups in HALVES)), told.append)
    for key in ("a", "b", "a"):
        done(key, 100, 7)
    assert [(each.share, each.changes, each.size_bytes) for each in told] == [
        (0.5, 7, 100), (1.0, 14, 200), (1.0, 21, 200),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- log, report


def test_a_commit_points_into_objects_and_not_into_itself() -> None:
    """Each object once, staged output among them."""
    own = handle(entry_key(7), 8, 20)
    parts = tuple(Handle(key, 0, 50, 0) for key in ("outbox/x", "a", entry_key(7)))
    outbox = [StagedOutput(SourceMark("query", 35), 3, b"", parts)]
    commit = commit_of(RangeState(KeyGroupRange(0, 7), (handle("a", 8, 20), handle("a", 28, 20), own)), outbox=outbox)
    found = _row(7, commit, ObjectInfo(entry_key(7), 999, 0.0), on_branch=True, savepoints=("s",))
    handles = {handle("a", 8, 20).segment, *parts[:2]}
    assert found == LogRow(
        7, "commit", 999, 2, 70, 6, 1000.0, SourceMark("query", 35),
        objects=len(handles), object_bytes=sum(each.length for each in handles), on_branch=True, savepoints=("s",),
    )  # fmt: skip


@pytest.mark.parametrize(("newest", "base", "parent"), [(None, None, None), (6, None, 6), (6, 3, 3)])
def test_a_claim_shows_the_commit_that_its_writer_continues(
    newest: CommitSequence | None, base: CommitSequence | None, parent: int | None
) -> None:
    """That is not the newest one where the job was taken back."""
    claim = Claim(
        job="fleet", sequence=CommitSequence(7), epoch=Epoch(3), stamp="", newest=newest, claimed_at_s=5.0, base=base
    )
    found = _row(7, claim, ObjectInfo(entry_key(7), 9, 0.0), on_branch=False, savepoints=())
    assert found == LogRow(7, "claim", 9, 3, parent=parent, at_s=5.0)


def test_totals_are_by_name() -> None:
    """In the order of the names, each with its number and its bytes."""
    assert [*totals([("b", 1), ("a", 10), ("b", 0)]).items()] == [("a", (1, 10)), ("b", (2, 1))]


def test_a_base_counts_with_its_live_share() -> None:
    """Of a base of an early release the share is unknown: it counts whole. Merged change sets count as they were."""
    whole, half, early = (
        Base(Handle(key, 0, 1000, 0), (groups,), written)
        for key, groups, written in (("a", KeyGroupRange(0, 1), 2), ("b", HALVES[1], 8), ("c", KeyGroupRange(2, 3), 0))
    )
    state = RangeState(
        KeyGroupRange(0, 7),
        (handle("d", 8, 20, "+16 0-7"), handle("d", 28, 30)),
        (whole, half, early),
        (OperatorElements(0, (b"abc", b"d")), OperatorElements(1, (b"ef",))),
    )
    assert _range_row(state) == RangeRow("[0, 7]", 3, 2500, 17, 50, 6)


def placed(key: str, at_s: float) -> ObjectReport:
    return ObjectReport(key, 1, at_s, SweepReason.RETAINED, "")


SEGMENT = f"segments/00000001-00000001-{'0' * 32}"


@pytest.mark.parametrize("seconds", [59.0, 60.0, 120.0])
def test_a_rate_needs_a_minute(seconds: float) -> None:
    """From the first entry on, which the log had before, to the last. A segment behind that is of no commit yet."""
    last_s = 100.0 + seconds
    segments = [placed(SEGMENT, at_s) for at_s in (99.0, 100.0, 130.0, last_s, last_s + 1.0)]
    objects = [placed(entry_key(0), 100.0), placed(entry_key(1), last_s), placed("foreign", 130.0), *segments]
    found = _pace(objects, Prices(put_usd_per_1000=1000.0))
    assert found == (None if seconds < 60.0 else RequestRate(3, seconds, pytest.approx(3 / seconds * 30 * 24 * 3600)))


# ------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (1024**2, "1.0 MiB"),
        (1024**3, "1.0 GiB"),
        (1024**4, "1024.0 GiB"),
    ],
)
def test_a_unit_begins_where_there_is_one_of_it(count: int, told: str) -> None:
    """Not one byte later."""
    assert size(count) == told


@pytest.mark.parametrize(
    ("key", "prefix", "begins"),
    [
        ("", "", True),
        ("abc", "ab", True),
        ("abc", "bc", False),
        (b"abc", "ab", True),
        (b"\xffa", "a", False),
        (12, "1", True),
        (12, "2", False),
        (-12, "-1", True),
        (("abc", "xyz"), "ab", True),
        (("abc", "xyz"), "xy", False),
        ((("abc", 1), "xyz"), "ab", True),
        ((7, "xyz"), "7", True),
    ],
)
def test_a_tuple_begins_as_its_first_part_does(key: object, prefix: str, *, begins: bool) -> None:
    """And text, bytes and digits as they are shown."""
    assert begins_with(key, prefix) == begins


@pytest.mark.parametrize(
    ("change", "before", "after", "told"),
    [
        ("added", None, 2, '+ legs "k" 2'),
        ("removed", 1, None, '- legs "k" 1'),
        ("changed", 1, 2, '~ legs "k" 1 -> 2'),
    ],
)
def test_a_difference_shows_what_was_and_what_is(change: str, before: object, after: object, told: str) -> None:
    """In this order."""
    assert difference_line(Difference("legs", change, "k", before, after)) == told  # type: ignore[arg-type]


def test_a_stream_goes_on_with_the_batch_after_that_of_its_savepoint() -> None:
    """That one is in the state. A state that no stream made goes on with none."""
    found = [
        SavepointInfo(name, CheckpointId(70), CommitSequence(7), 0.0, source)
        for name, source in (("a", SourceMark("query", 35)), ("b", None))
    ]
    _, first, second = savepoint_lines(found)
    assert first.split() == ["a", "70", "7", "1970-01-01", "00:00:00", *["batch", "36", "of", "query", "query"]]
    assert second.split() == ["b", "70", "7", "1970-01-01", "00:00:00"]


def test_damage_says_where_it_is_who_needs_it_and_what_helps() -> None:
    """As far as each is known; the first byte has a place, too."""
    known = Damage("segments/a", "primary", 0, "it differs", (1, 3), "/local/a")
    report = VerifyReport((1, 3), {"primary": 5, "local": 4}, {"primary": 600, "local": 500}, 1, (known,), 2)
    assert [" ".join(line.split()) for line in verify_lines(report)] == [
        "checkpoints 1, 3",
        "primary 5 objects 600 bytes are undamaged",
        "local 4 objects 500 bytes are undamaged",
        "local 1 copies are missing: a restore reads the primary instead",
        "local 2 copies are of another run: a restore reads the primary instead",
        (
            "damaged: primary segments/a at offset 0: it differs, needed by checkpoints 1, 3; "
            "an intact copy lies in /local/a: see repair"
        ),
    ]
    unknown = Damage("commits/7", "local", None, "it is gone", ())
    *lines, last = verify_lines(VerifyReport((), {}, {}, 0, (unknown,)))
    assert (lines, last) == (["checkpoints none"], "damaged: local commits/7: it is gone")
