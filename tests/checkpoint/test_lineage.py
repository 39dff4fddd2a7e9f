"""A kept state is used for a commit only if the commit continues it, and then with exactly what it lacks."""

from collections.abc import Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._checkpoint.lineage import Lineage, extended, lineage_of, missing
from statebackend._checkpoint.materialization.bases import Bases, with_bases
from statebackend._checkpoint.materialization.tiers import last_id, merged_id
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._ranges.contribution import Contribution, combine
from statebackend.ids import (
    Base,
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
)
from tests.ranges.parts import ranges_of

GROUPS = 4
Content = Mapping[int, tuple[str, ...]]
"""Which change sets have made the state of each key group, in their order."""


class Held(msgspec.Struct):
    """What an attempt has left in a process, or on a host."""

    key_groups: KeyGroupRange
    lineage: Lineage
    content: Content


class Job:
    """Commits and cached states, with what they really consist of."""

    def __init__(self) -> None:
        self.commits: list[tuple[Commit | None, Content]] = [(None, dict.fromkeys(range(GROUPS), ()))]
        self.held: list[Held] = []
        self._numbers = 0

    def attempt(
        self, base: int, key_groups: KeyGroupRange, spans: list[KeyGroupRange], taken: int, merges: int = 0
    ) -> Contribution:
        """Change sets of these spans, on a commit; and a base in place of the first `taken` that this one lists.

        Before, `merges` times two neighbours that it lists are merged into one.
        """
        commit, content = self.commits[base]
        state, changed = range_of(commit, key_groups), {group: content[group] for group in key_groups}
        log_id, handles = f"log{self._numbers}", []
        self._numbers += 1
        for number, span in enumerate(filter(None, (span.intersection(key_groups) for span in spans))):
            handles.append(ChangeSetHandle(Handle("s", 0, 1, 0), log_id, SequenceNumber(number), 0, 1, span, 1))
            for group in span:
                changed[group] += (f"{log_id}.{number}",)
        history = extended(lineage_of(commit, key_groups).history, handles)
        for _ in range(min(merges, len(state.changelog) - 1)):
            log_id, number = merged_id(state.changelog[-2:])
            merged = msgspec.structs.replace(state.changelog[-1], log_id=log_id, sequence_number=number)
            place = len(state.changelog) - 2
            bases = Bases((), frozenset(), place + 2, frozenset(), first=place, merged=(merged,))
            state = with_bases(state, bases)
        state = msgspec.structs.replace(state, changelog=(*state.changelog, *handles))
        if taken:
            written = (Base(Handle(f"b{log_id}", 0, 1, 0), (key_groups,), len(key_groups)),)
            state = with_bases(
                state, Bases(written, frozenset(key_groups), min(taken, len(state.changelog)), frozenset())
            )
        last = last_id(state.changelog[-1]) if state.changelog else lineage_of(commit, key_groups).last
        self.held.append(Held(key_groups, Lineage(history, last), changed))
        snapshot = SnapshotResult(CheckpointId(0), msgspec.structs.replace(state, history=history), local=False)
        return Contribution(snapshot, (), None if commit is None else commit.sequence, "new")

    def commit(self, base: int, parts: int, contributions: list[Contribution]) -> None:
        """These, and what the base says of the other ranges."""
        before, content = self.commits[base]
        content = dict(content)
        for each in contributions:
            held = next(held for held in self.held if held.lineage.history == each.snapshot.state.history)
            content.update(held.content)
        snapshots, _ = combine(
            contributions, before, ranges_of(parts, GROUPS), checkpoint_id=CheckpointId(0), epoch=Epoch(1)
        )
        sequence = len(self.commits)
        commit = Commit(
            job="j",
            sequence=CommitSequence(sequence),
            checkpoint_id=CheckpointId(sequence),
            epoch=Epoch(1),
            parent=None,
            stamp=f"stamp{sequence}",
            max_parallelism=GROUPS,
            ranges=tuple(each.state for each in snapshots),
            states=(),
        )
        self.commits.append((commit, content))

    def check(self) -> None:
        """A cached state that can be used for a commit lacks exactly the change sets that `missing` returns."""
        for commit, content in self.commits:
            for held in self.held:
                lacks = missing(held.lineage, commit, held.key_groups)
                if lacks is not None:
                    found = dict(held.content)
                    for handle in lacks:
                        for group in handle.key_groups:
                            found[group] += (f"{handle.log_id}.{handle.sequence_number}",)
                    assert found == {group: content[group] for group in held.key_groups}


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Attempts that win and lose, branches, other numbers of ranges, bases of some or all of the changelog."""
    job = Job()
    spans = st.lists(st.sampled_from([KeyGroupRange(0, 3), KeyGroupRange(0, 1), KeyGroupRange(2, 3)]), max_size=2)
    for _ in range(draw(st.integers(1, 8))):
        newest = len(job.commits) - 1
        base = draw(st.sampled_from([newest, newest, newest, draw(st.integers(0, newest))]))
        parts = draw(st.sampled_from([1, 2, 2, 4]))
        contributions = []
        for key_groups in ranges_of(parts, GROUPS):
            attempts = [
                job.attempt(
                    base,
                    key_groups,
                    draw(spans),
                    draw(st.sampled_from([0, 0, 1, 9])),
                    draw(st.sampled_from([0, 0, 1, 9])),
                )
                for _ in range(2)
            ]
            if (won := draw(st.sampled_from([0, 1, 2]))) < len(attempts):
                contributions.append(attempts[won])
        job.commit(base, parts, contributions)
    return job


@given(jobs())
@settings(deadline=None)
def test_what_lineage_says_of_a_cached_state_is_true(job: Job) -> None:
    """Cached by any attempt, at any time, of any range: it is refused, or lacks exactly what is said."""
    job.check()


def test_a_cached_state_is_caught_up_unless_a_base_has_taken_in_what_it_lacks() -> None:
    """One that is a checkpoint behind, or two; not one that a base has overtaken."""
    job, all_groups = Job(), KeyGroupRange(0, 3)
    for _ in range(3):
        job.commit(len(job.commits) - 1, 1, [job.attempt(len(job.commits) - 1, all_groups, [all_groups], 0)])
    newest, _ = job.commits[-1]
    lacks = [missing(held.lineage, newest, all_groups) for held in job.held]
    assert [tail and len(tail) for tail in lacks] == [2, 1, ()]
    job.commit(3, 1, [job.attempt(3, all_groups, [all_groups], 2)])  # stands for the first two
    newest, _ = job.commits[-1]
    lacks = [missing(held.lineage, newest, all_groups) for held in job.held]
    assert [tail if tail is None else len(tail) for tail in lacks] == [None, 2, 1, 0]


def test_a_cached_state_that_has_a_part_of_a_merged_change_set_is_refused() -> None:
    """Applied whole, its first members would come twice, though the history is that of the commit."""
    job, all_groups = Job(), KeyGroupRange(0, 3)
    for merges in (0, 0, 0, 9):
        newest = len(job.commits) - 1
        job.commit(newest, 1, [job.attempt(newest, all_groups, [all_groups], 0, merges)])
    commit, _ = job.commits[-1]
    assert commit is not None
    assert [handle.log_id for handle in commit.ranges[0].changelog] == ["+3 log2", "log3"]
    lacks = [missing(held.lineage, commit, all_groups) for held in job.held]
    assert [tail if tail is None else len(tail) for tail in lacks] == [None, None, 1, 0]


def test_a_state_that_a_base_stands_for_exactly_is_of_use() -> None:
    """Though nothing in the changelog reminds of it."""
    job, all_groups = Job(), KeyGroupRange(0, 3)
    job.commit(0, 1, [job.attempt(0, all_groups, [all_groups], 0)])
    job.commit(1, 1, [job.attempt(1, all_groups, [], 1)])
    job.commit(2, 1, [job.attempt(2, all_groups, [all_groups], 0)])
    newest, _ = job.commits[-1]
    lacks = missing(job.held[0].lineage, newest, all_groups)
    assert lacks is not None
    assert len(lacks) == 1
