"""The true state of the simulated job, and what its lives were told; compared whenever either changes."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, cast

from statebackend._codec.commit import Claim, Commit, Entry, decode_entry
from statebackend._log.milestones import milestones_in
from statebackend._log.names import (
    COMMITS,
    FLOORS,
    HINT_KEY,
    MIRRORS,
    SAVEPOINTS,
    SavepointMarker,
    SavepointPin,
    beside_marker,
    entry_key,
    floor_key,
    floor_of,
    marker_of,
    parse_hint,
)
from statebackend.abc import CheckpointInfo
from statebackend.ids import ClockMark
from statebackend.testing.crash_store import Write
from statebackend.testing.virtual_time import VirtualClock
from tests import invariants
from tests.invariants import Contents
from tests.simulation.beside.losses import Loss
from tests.simulation.store import Place
from tests.simulation.timed import IDLE, TTL_S, JobTime

JOB: Final = "simulated"
ROOT: Final = f"{JOB}/"

Outcome = Literal["open", "acknowledged", "failed", "cancelled", "unknown"]


@dataclass(eq=False)
class CheckpointCall:
    """One call of `checkpoint`: the values to commit, the answer, and the commit's sequence, if there is one."""

    number: int
    checkpoint_id: int
    contents: Contents
    time: JobTime
    outcome: Outcome = "open"
    sequence: int | None = None
    final: bool = False
    """True if `sequence` can no longer change."""


class SimulatedJob:
    """The primary of the job, the attempts at its checkpoints, and the judge of both.

    `failure` is the first violation. It is stored, not raised: raised in the middle of a request it would reach the
    backend, which would take it for an error of the store.
    """

    def __init__(self, *, late: bool, checkpoints_retained: int) -> None:
        self._late = late
        self._checkpoints_retained = checkpoints_retained
        self.primary: Final = Place("primary", watch=self._watch)
        self.objects: Final[Mapping[str, bytes]] = _Scoped(self.primary.objects, ROOT)
        self.log: Final[list[Entry]] = []
        self.attempts: Final[list[CheckpointCall]] = []
        self.committed_at_s: Final[dict[int, float]] = {}
        """When each commit came to be there, by its sequence."""
        self.made_s: Final[dict[int, float]] = {}
        """The same, as the store's clock has it."""
        self.failure: Exception | None = None
        self.dropped: Final[set[str]] = set()
        """Names of savepoints that are being dropped, or were."""
        self._drops: Counter[str] = Counter()
        self._dropping: Counter[str] = Counter()  # how many drops are under way
        self._names: dict[str, set[SavepointMarker]] = {}
        self._unpinned: set[str] = set()  # keys of markers of commits that existed, made when no pin was there
        self._batches: frozenset[int] = frozenset()  # of timed rows, that were tried
        self._clocks: dict[int, ClockMark] = {}  # by batch
        self.was_damaged = False
        """True once an entry of the log has been lost or damaged."""
        self._lost: Loss | None = None
        self._continued: int | None = None  # the older commit that the claim at the end continues: no sweep deletes it

    @property
    def commits(self) -> Sequence[Commit]:
        """Every commit, in order."""
        return invariants.commits_of(self.log)

    @property
    def newest(self) -> int:
        """The sequence of the newest commit, -1 before the first."""
        return max((commit.sequence for commit in self.commits), default=-1)

    @property
    def floor(self) -> int:
        """The sweep floor: below it only savepoints and milestones can be opened."""
        return max((floor_of(key) or 0 for key in self.objects if key.startswith(FLOORS)), default=0)

    @property
    def retained(self) -> Sequence[Commit]:
        """The commits that can be opened, in order."""
        marks = {
            (mark.sequence, mark.stamp)
            for key in self.objects
            if key not in self._unpinned and (mark := marker_of(key)) is not None
        }
        floor = self.floor
        marks |= {
            (each.sequence, each.stamp)
            for each in milestones_in(self.objects.get(floor_key(floor), b""), "floor").values()
            if entry_key(each.sequence) in self.objects
        }
        return [
            commit for commit in self.commits if commit.sequence >= floor or (commit.sequence, commit.stamp) in marks
        ]

    @property
    def untouchable(self) -> Sequence[Commit]:
        """The commits of which nothing may be deleted: those, and one that is being opened."""
        retained = self.retained
        return retained if self._continued is None else [*retained, self.commit_at(self._continued)]

    def commit_at(self, sequence: int) -> Commit:
        """The commit at that sequence of the log."""
        entry = self.log[sequence]
        assert isinstance(entry, Commit), f"no commit at {sequence}"
        return entry

    def contents_at(self, sequence: int) -> Contents:
        """The values that the commit has to hold; none before the first."""
        return {} if sequence < 0 else self._attempt_of(self.commit_at(sequence)).contents

    def time_at(self, sequence: int) -> JobTime:
        """The batch and the clock that the commit has to have."""
        return JobTime() if sequence < 0 else self._attempt_of(self.commit_at(sequence)).time

    @contextmanager
    def judging(self) -> Generator[None, None, None]:
        """Turn an error in this block into the job's failure."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a checker that fails on what it finds has found something, too
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Record a violation. The first one counts."""
        while (
            isinstance(error, ExceptionGroup) and len(inner := cast("ExceptionGroup[Exception]", error).exceptions) == 1
        ):
            error = inner[0]
        if self.failure is None:
            self.failure = error

    # ----------------------------------------------------------------------------------------------- savepoints

    def named(self, name: str | None) -> AbstractSet[int]:
        """The sequences of the commits that have, or had, that name."""
        marks = self._names.get(name, set()) if name is not None else set[SavepointMarker]()
        return {commit.sequence for commit in self.commits for mark in marks if mark.names(commit)}

    def drops(self, name: str) -> int:
        """How often dropping the name was begun."""
        return self._drops[name]

    @contextmanager
    def dropping(self, name: str) -> Generator[None, None, None]:
        """The name is dropped in this block; by requests that are carried out late, perhaps after it."""
        self.dropped.add(name)
        self._drops[name] += 1
        self._dropping[name] += 1
        try:
            yield
        finally:
            self._dropping[name] -= not self._late

    def acknowledge_name(self, name: str, asked: int, told: int, *, dropped_before: int) -> None:
        """`savepoint` has returned: until the name is dropped, the commit is kept under it."""
        with self.judging():
            assert asked == told, f"asked for a savepoint of {asked}, told of {told}"
            key = SavepointMarker(name, told, self.commit_at(told).stamp).key  # type: ignore[arg-type]
            is_kept = key in self.objects and key not in self._unpinned
            assert is_kept or self._drops[name] > dropped_before, f"{name} was acknowledged, and keeps nothing"

    # ------------------------------------------------------------------------------------- what the lives are told

    def attempt(self, checkpoint_id: int, contents: Contents, time: JobTime) -> CheckpointCall:
        """A checkpoint is about to be tried."""
        self.attempts.append(CheckpointCall(len(self.attempts), checkpoint_id, dict(contents), time))
        return self.attempts[-1]

    def is_new(self, batch: int) -> bool:
        """True the first time."""
        is_new, self._batches = batch not in self._batches, self._batches | {batch}
        return is_new

    def acknowledge(self, attempt: CheckpointCall, info: CheckpointInfo | Commit) -> None:
        """`checkpoint` or `commit` has returned: the commit exists, at that sequence, from that attempt."""
        attempt.outcome = "acknowledged"
        with self.judging():
            assert attempt.sequence is not None, f"attempt {attempt.number} was acknowledged but is not committed"
            assert attempt.sequence == info.sequence, f"acknowledged at {info.sequence} but lies at {attempt.sequence}"
            assert attempt.checkpoint_id == info.checkpoint_id, "acknowledged under another id"

    def decide(self, attempt: CheckpointCall, outcome: Outcome) -> None:
        """`checkpoint` has raised. Unless the outcome is unknown, it can no longer change.

        "failed": it is not committed. "cancelled": it is or it is not; on a store that may carry out abandoned requests
        later, the outcome stays unknown.
        """
        attempt.outcome = outcome
        attempt.final = outcome == "failed" or (outcome == "cancelled" and not self._late)
        with self.judging():
            assert outcome != "failed" or attempt.sequence is None, (
                f"attempt {attempt.number} was reported as failed but is committed"
            )

    def check_end(self) -> None:
        """Everything has settled: what was acknowledged exists, and all that exists is whole."""
        with self.judging():
            log = invariants.read_log(self.objects, JOB)
            floor = self.floor
            since = [entry for entry in log if entry.sequence >= floor]
            invariants.assert_log_has_no_gap(since, self.objects)
            assert since == self.log[floor:], "the log has changed"
            assert all(entry == self.log[entry.sequence] for entry in log), "an entry was changed after its creation"
            for commit in self.untouchable:
                invariants.assert_commit_is_whole(commit, self.objects)
            lost = [each.number for each in self.attempts if each.outcome == "acknowledged" and each.sequence is None]
            assert not lost, f"acknowledged but lost: {lost}"

    def lose(self, loss: Loss) -> None:
        """Damage an entry. From now on it may be put back as it was."""
        self.was_damaged = True
        self._lost = loss
        self.primary.damage(ROOT + loss.key, loss.left)

    def mend(self, loss: Loss) -> None:
        """Put the entry back that nobody could."""
        self._lost = None
        self.primary.damage(ROOT + loss.key, loss.whole)

    # ------------------------------------------------------------------------------------------- what is really done

    def _watch(self, write: Write) -> None:
        with self.judging():
            key = write.key.removeprefix(ROOT)
            if self._lost is not None and key == self._lost.key:
                assert write.data == self._lost.whole, f"an entry was put back as another one: {key}"
                assert self._lost.proved, f"an entry was put back without proof: {key}"
                self._lost = None
            elif write.operation == "delete":
                self._judge_delete(key)
            elif key.startswith(COMMITS):
                self._watch_log(write, key)
            elif key.startswith(FLOORS):
                self._judge_floor(floor_of(key))
            elif key.startswith(SAVEPOINTS):
                self._watch_name(key)
            elif key != HINT_KEY and not key.startswith(MIRRORS):
                assert write.key not in self.primary.objects, f"a name is used twice: {key}"

    def _watch_log(self, write: Write, key: str) -> None:
        assert write.operation == "put_if_absent", f"{write.operation} of an entry"
        entry = decode_entry(write.data, key, job=JOB)
        invariants.assert_entry_follows(entry, self.log)
        if isinstance(entry, Commit):
            self._judge_commit(entry, write.data)
            self._continued = None
        else:
            self._watch_claim(entry)
        self.log.append(entry)

    def _watch_name(self, key: str) -> None:
        """A marker of a commit that exists keeps it only if its maker's pin is still there for sweeps to see."""
        if (mark := marker_of(key)) is None:
            return
        self._names.setdefault(mark.name, set()).add(mark)
        commit = self.log[mark.sequence] if mark.sequence < len(self.log) else None
        pins = (beside_marker(each) for each in self.objects if each.startswith(f"{key}-"))
        if isinstance(commit, Commit) and mark.names(commit) and not any(isinstance(pin, SavepointPin) for pin in pins):
            self._unpinned.add(key)

    def _watch_claim(self, claim: Claim) -> None:
        """A sweep that writes its floor after this finds the claim; before, the writer finds the floor."""
        self._continued = claim.base if claim.base in {commit.sequence for commit in self.retained} else None

    def _judge_delete(self, key: str) -> None:
        untouchable = self.untouchable
        assert all(key not in commit.segments() for commit in untouchable), (
            f"deleted although a commit points into it: {key}"
        )
        if key.startswith(COMMITS):
            sequence = int(key.removeprefix(COMMITS))
            assert sequence < self.floor, f"deleted from the log: {key}"
            assert all(commit.sequence != sequence for commit in untouchable), (
                f"deleted although it can be opened: {key}"
            )
            self._judge_hint(sequence)
        elif key in self._unpinned:
            self._unpinned.discard(key)
        elif key.startswith(SAVEPOINTS) and (mark := marker_of(key)) is not None and not self._dropping[mark.name]:
            assert not any(mark.names(commit) for commit in untouchable), (
                f"a savepoint was dropped without a request: {mark.name}"
            )

    def _judge_hint(self, deleted: int) -> None:
        """No search for the end meets a gap where `deleted` was: the hint names a later entry, or one that is gone."""
        hint = parse_hint(self.objects.get(HINT_KEY, b""))
        if hint is not None and entry_key(hint.sequence) in self.objects:
            assert hint.sequence >= deleted, f"entry {deleted} is deleted, and a search begins at {hint.sequence}"

    def _judge_floor(self, floor: int | None) -> None:
        assert floor is not None, "a sweep floor without a number"
        branched = {claim.newest for claim in self.log if isinstance(claim, Claim) and claim.base is not None}
        sequence: int | None = self.newest if self.commits else None
        for _ in range(self._checkpoints_retained):
            if (
                sequence is None or branched
            ):  # a writer that goes back meanwhile makes the sweep stop after it wrote its floor
                return
            assert sequence >= floor, f"swept up to {floor}, but commit {sequence} is retained"
            sequence = self.commit_at(sequence).parent

    def _judge_commit(self, commit: Commit, data: bytes) -> None:
        attempt = self._attempt_of(commit)
        assert not attempt.final, f"attempt {attempt.number} was told that it is over, but is committed now"
        assert attempt.sequence is None, f"attempt {attempt.number} is committed twice"
        assert attempt.checkpoint_id == commit.checkpoint_id, "committed under another id"
        objects = {
            **self.objects,
            entry_key(commit.sequence): data,
        }  # the commit is about to exist, and may carry changes
        invariants.assert_commit_is_whole(commit, objects)
        contents = invariants.read_contents(commit, objects)
        self._judge_time(commit, attempt, contents)
        found, expected = (invariants.living(each, attempt.time.now_s, TTL_S) for each in (contents, attempt.contents))
        invariants.assert_same_contents(found, expected, f"commit {commit.sequence}")
        attempt.sequence = commit.sequence
        self.committed_at_s[commit.sequence] = VirtualClock().monotonic()
        self.made_s[commit.sequence] = VirtualClock().time()

    def _judge_time(self, commit: Commit, attempt: CheckpointCall, contents: Contents) -> None:
        parent = None if commit.parent is None else self.commit_at(commit.parent)
        invariants.assert_clock_never_goes_back(commit.clock, None if parent is None else parent.clock)
        clock = attempt.time.clock
        if clock is not None and clock.kind == "event":
            first = self._clocks.setdefault(attempt.time.batch, clock)
            invariants.assert_replay_has_same_clock(commit.clock, first, attempt.time.batch)
        else:
            assert commit.clock == clock, f"committed with {commit.clock}, not {clock}"
        invariants.assert_no_timer_is_due(contents, IDLE, commit.clock)
        invariants.assert_next_timers_are_told(commit, contents, IDLE)

    def _attempt_of(self, commit: Commit) -> CheckpointCall:
        assert commit.source is not None, "a commit without its source"
        return self.attempts[commit.source.batch_id]


class _Scoped(Mapping[str, bytes]):
    """The objects below a root, with keys relative to it."""

    def __init__(self, objects: Mapping[str, bytes], root: str) -> None:
        self._objects = objects
        self._root = root

    def __getitem__(self, key: str) -> bytes:
        return self._objects[self._root + key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._root + key in self._objects

    def __iter__(self) -> Iterator[str]:
        return (key.removeprefix(self._root) for key in self._objects if key.startswith(self._root))

    def __len__(self) -> int:
        return sum(1 for _ in self)
