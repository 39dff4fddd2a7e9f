"""Decides the next step of a mirror: what leads from the commit that its table has to the newest. Writes nothing."""

from collections.abc import Sequence
from typing import Final

import msgspec

from statebackend._checkpoint.chain import added_by
from statebackend._codec.commit import Commit
from statebackend._log.mirror_steps import Kind, MirrorStep
from statebackend._reading.feed import Stretch, stretch
from statebackend._upkeep.job_primary import JobPrimary
from statebackend.errors import CheckpointNotFoundError, CorruptCommitError, MissingObjectError, WrongMirrorError
from statebackend.ids import StateDescriptor

COMMITS_MAX: Final = 200
"""Commits of one step."""
CHANGES_MAX: Final = 1_000_000
"""Changes of one step, unless one commit has more."""


class StepPlan(msgspec.Struct, frozen=True):
    """The work of the next step. `commits` are its own, oldest first; of a "whole" step, the one of the state.

    `before`: the commit before them. `undone`: commits whose changes are taken back. `behind`: commits that are left
    after it.
    """

    kind: Kind
    commits: Sequence[Commit]
    before: Commit | None = None
    undone: Sequence[Commit] = ()
    reason: str = ""
    behind: int = 0

    @property
    def last(self) -> Commit:
        """The commit that the table has then."""
        return self.commits[-1]


def whole(newest: Commit, reason: str) -> StepPlan:
    """Carry over the whole state."""
    return StepPlan("whole", [newest], reason=reason)


def declared(state: StateDescriptor) -> str:
    """Text that tells how the state's values are read: where it changes, values do that nobody writes."""
    return msgspec.json.encode([state.state_id, state.kind, state.schema, state.key_schema, state.version]).decode()


async def plan(primary: JobPrimary, at: MirrorStep, newest: Commit, state: StateDescriptor) -> StepPlan | None:
    """The next step after `at`; `None` if that has the newest commit. `state`: as the newest commit declares it.

    Raises `WrongMirrorError` for a log that is not the one which was mirrored.
    """
    if (newest.sequence, newest.stamp) == (at.sequence, at.stamp):
        return None
    if declared(state) != at.declared:
        return whole(newest, "the state has evolved")
    if newest.max_parallelism != at.max_parallelism:
        return whole(newest, "the job has another number of key groups")
    try:
        found = await stretch(primary, newest, is_before=lambda commit: commit.sequence <= at.sequence)
    except CheckpointNotFoundError:
        await _check_is_ours(primary, at, newest)
        return whole(newest, "it fell behind what is kept")
    if found.before is not None and (found.before.sequence, found.before.stamp) == (at.sequence, at.stamp):
        return _ahead(found, newest, state.name)
    await _check_is_ours(primary, at, newest)
    return await _back(primary, at, found, newest, state.name)


def _ahead(found: Stretch, newest: Commit, state: str) -> StepPlan:
    commits: list[Commit] = []
    changes, before = 0, found.before
    for commit in found.commits:
        added = _added(before, [commit], state)
        if isinstance(added, str):
            return whole(newest, added)
        changes += added
        if commits and changes > CHANGES_MAX:
            break
        commits.append(commit)
        before = commit
        if len(commits) == COMMITS_MAX:
            break
    return StepPlan("changes", commits, found.before, behind=len(found.commits) - len(commits))


async def _back(primary: JobPrimary, at: MirrorStep, found: Stretch, newest: Commit, state: str) -> StepPlan:
    """The job has left the branch of the commit that the table has."""
    if at.form == "table" or found.before is None:
        return whole(newest, "the job was taken back to an older checkpoint")
    fork, first = found.before, found.commits[0]
    try:
        left = await primary.log.load_commit(at.sequence)
        undone = await stretch(primary, left, is_before=lambda commit: commit.sequence <= fork.sequence)
    except (CheckpointNotFoundError, MissingObjectError, CorruptCommitError):
        return whole(newest, "the job was taken back, and what was undone is not kept")
    is_one_branch = undone.before is not None and undone.before.stamp == fork.stamp
    if (
        not is_one_branch
        or state not in {each.name for each in first.states}
        or isinstance(_added(fork, undone.commits, state), str)
        or isinstance(_added(fork, [first], state), str)
    ):
        return whole(newest, "the job was taken back, and what was undone cannot be told")
    return StepPlan("undo", [first], fork, undone.commits, behind=len(found.commits) - 1)


def _added(before: Commit | None, commits: Sequence[Commit], state: str) -> int | str:
    """How many changes the commits add, of all states; or why they do not explain the state."""
    if before is None:
        return "the log begins anew"
    own = [_narrowed(commit, state) for commit in commits]
    added = added_by(_narrowed(before, state), own, None)
    return added if isinstance(added, str) else sum(each.records for each in added)


def _narrowed(commit: Commit, state: str) -> Commit:
    return msgspec.structs.replace(commit, states=tuple(each for each in commit.states if each.name == state))


async def _check_is_ours(primary: JobPrimary, at: MirrorStep, newest: Commit) -> None:
    """Raise `WrongMirrorError` if the log has another commit where the table's was, or ends before it."""
    try:
        entry = await primary.log.load(at.sequence)
    except (MissingObjectError, CorruptCommitError):
        is_ours = newest.sequence > at.sequence
    else:
        is_ours = entry.stamp == at.stamp
    if not is_ours:
        raise WrongMirrorError(
            "the job's log was put back, or made anew, behind the commit that the table has: start over with anew=True",
            job=at.job,
            state=at.state,
            checkpoint_id=at.checkpoint_id,
            newest_checkpoint_id=newest.checkpoint_id,
        )
