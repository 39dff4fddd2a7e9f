"""The demo's own judgement: what makes it fail must make it fail."""

from pathlib import Path

import pytest

import statebackend as sb
from benchmarks.demo.acts import Act, Damage, all_from_local, all_from_primary, one_from_primary, plan
from benchmarks.demo.aircraft import Aircraft
from benchmarks.demo.events import Begun, Committed, Event, Restored, understand
from benchmarks.demo.flights import DAYS_IN_DATA
from benchmarks.demo.places import Places, WorkdirError
from benchmarks.demo.story import Recovery, Story
from benchmarks.demo.verify import differences


def committed(batch: int) -> Committed:
    info = sb.CheckpointInfo(
        checkpoint_id=sb.ids.CheckpointId(batch),
        sequence=sb.ids.CommitSequence(batch),
        changes=1,
        primary_bytes=1,
        local_bytes=1,
        requests=1,
        seconds=0.1,
        local=True,
    )
    return Committed(batch, rows=1, changelog_bytes=1, info=info)


def report(local: int, primary: int, *fallbacks: sb.abc.Fallback) -> sb.RestoreReport:
    return sb.RestoreReport(
        checkpoint_id=sb.ids.CheckpointId(1),
        sequence=sb.ids.CommitSequence(1),
        files_local=local,
        files_primary=primary,
        bytes_local=0,
        bytes_primary=0,
        changes=0,
        seconds=0.1,
        fallbacks=fallbacks,
    )


def after(*events: Event) -> Story:
    story = Story(days=10)
    for event in events:
        story.note(event)
    return story


def test_each_batch_once_is_no_failure() -> None:
    """A batch whose function was cut short may be begun again: it was not committed."""
    assert after(Begun(0), committed(0), Begun(1), Begun(1), committed(1)).failures == []


@pytest.mark.parametrize("again", [Begun(0), committed(0)])
def test_committed_batch_that_comes_again_is_a_failure(again: Event) -> None:
    """Neither may the user's function see it again, nor may it be committed again."""
    assert len(after(Begun(0), committed(0), again).failures) == 1


def test_recovery_without_a_restore_is_a_failure(tmp_path: Path) -> None:
    """A process that starts from nothing after a kill has lost the state."""
    story = after(committed(0))
    story.recoveries.append(Recovery(plan(10)[0], 0, Damage("none"), spark_had_committed=False))
    story.judge_recovery(Places(tmp_path))
    assert len(story.failures) == 1


def test_restore_is_judged_by_its_act(tmp_path: Path) -> None:
    """The report of the restore goes to the newest recovery, and decides."""
    story = Story(days=10)
    story.recoveries.append(Recovery(plan(10)[0], 5, Damage("none"), spark_had_committed=False))
    story.note(Restored(report(3, 0)))
    story.judge_recovery(Places(tmp_path))
    assert story.failures == []


@pytest.mark.parametrize(
    ("expect", "good", "bad"),
    [
        (all_from_local, report(3, 0), report(2, 1)),
        (all_from_local, report(3, 0), report(0, 0)),
        (all_from_primary, report(0, 3), report(1, 2)),
        (all_from_primary, report(0, 3), report(0, 0)),
    ],
)
def test_files_come_from_where_they_should(expect: object, good: sb.RestoreReport, bad: sb.RestoreReport) -> None:
    """Every file counts; and a restore of no file proves nothing."""
    assert callable(expect)
    assert expect(good, Damage("none"), Places(Path("/nowhere"))) == []
    assert expect(bad, Damage("none"), Places(Path("/nowhere"))) != []


def test_harmed_file_must_be_repaired(tmp_path: Path) -> None:
    """The restore's word is not enough: the file's bytes must be the primary's."""
    places = Places(tmp_path)
    harmed, original = places.local / "file", places.primary / "file"
    for path in (harmed, original):
        path.parent.mkdir()
        path.write_bytes(b"whole")
    damage = Damage("one bit flipped", harmed)
    repaired = report(2, 1, sb.abc.Fallback("file", "corrupt", repaired=True))
    assert one_from_primary(repaired, damage, places) == []
    harmed.write_bytes(b"whole.")
    assert one_from_primary(repaired, damage, places) != []


def test_restore_without_fallback_does_not_pass_for_a_repair(tmp_path: Path) -> None:
    """A reader that never looked at the harmed file has not verified anything."""
    assert one_from_primary(report(3, 0), Damage("one bit flipped", tmp_path / "file"), Places(tmp_path)) != []


def test_acts_follow_each_other_whatever_the_days() -> None:
    """Each kill finds a batch to be killed in, later than the one before, and days are left after the last."""
    for days in range(10, DAYS_IN_DATA + 1):
        batches = [0, *(act.kill_at for act in plan(days)), days - 1]
        assert batches == sorted(set(batches)), f"{days} days"


def test_act_waits_for_its_moment() -> None:
    """It is due at the kind of event it names, from its batch on."""
    act = Act("", 5, "committed", lambda _: Damage(""), lambda *_: [])
    assert [act.is_due(event) for event in (committed(4), Begun(5), committed(5), committed(6))] == [
        False,
        False,
        True,
        True,
    ]


def test_noise_is_no_event() -> None:
    """What else is written to a child's output is passed over."""
    assert understand(b"WARNING: Using incubator modules\n") is None
    assert understand(b'{"type":"begun","batch":7}\n') == Begun(7)


def test_every_kind_of_difference_is_found() -> None:
    """Changed, missing, and surplus aircraft; equal ones are not mentioned."""
    one = Aircraft("EWR", None, flights=1, delay_minutes=0, jumps=0)
    changed = Aircraft("EWR", None, flights=2, delay_minutes=0, jumps=0)
    found = differences({"same": one, "changed": one, "lost": one}, {"same": one, "changed": changed, "surplus": one})
    assert [sentence.split(":")[0] for sentence in found] == ["changed", "lost", "surplus"]


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    """Only an empty folder, or one of an earlier demo, becomes the work directory."""
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(WorkdirError):
        Places(tmp_path).prepare()
    assert (tmp_path / "thesis.txt").exists()
    own = Places(tmp_path / "own")
    own.prepare()
    (own.workdir / "old").touch()
    own.prepare()
    assert not (own.workdir / "old").exists()
