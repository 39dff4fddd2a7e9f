"""Decides what leads from one commit to the next, for one who has the state of the first. Pure.

It does not trust what it cannot explain: where the bases or the order of the change sets could mean another state than
the one before with something added, the answer is that the commit has to be read anew.
"""

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from statebackend._checkpoint.materialization.tiers import is_merged, last_id, members, members_in
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend.ids import ChangeSetHandle, KeyGroupRange, RangeState


def added_by(
    before: Commit, commits: Iterable[Commit], key_groups: KeyGroupRange | None
) -> Sequence[ChangeSetHandle] | str:
    """The change sets of `key_groups`, or of all, that `commits` add to `before`, in the order of applying them.

    Or the reason why the state of the last one has to be read anew.
    """
    found: list[ChangeSetHandle] = []
    for commit in commits:
        if commit.parent != before.sequence:
            return "the job was taken back to an older checkpoint"
        if commit.transformed:
            return "a state was transformed"
        if commit.max_parallelism != before.max_parallelism:
            return "the job has another number of key groups"
        if _columns(commit) != _columns(before) or not _kinds(before).items() <= _kinds(commit).items():
            return "a state was written with other columns, or is gone"
        for part in commit.ranges:
            wanted = part.key_groups if key_groups is None else part.key_groups.intersection(key_groups)
            if wanted:
                may_be_edit = commit.epoch != before.epoch and part.restored is UNSET
                more = _added(before, commit, wanted, may_be_edit=may_be_edit)
                if more is None:
                    return "the state was rewritten"
                found += more
        before = commit
    return found


def _added(
    before: Commit, commit: Commit, key_groups: KeyGroupRange, *, may_be_edit: bool
) -> Sequence[ChangeSetHandle] | None:
    """The change sets that `commit` adds to its parent; `None` unless all else in it is the state of the parent.

    `may_be_edit`: nothing proves that its writer is one that runs. Bases of such a one are of what it has restored, and
    of that it logs every change. One that came to rewrite the job brings bases which hold what nobody logged.
    """
    old, new = range_of(before, key_groups), range_of(commit, key_groups)
    has_new_bases = not set(new.all_bases) <= set(old.all_bases)
    if may_be_edit and has_new_bases:
        return None
    if _covered(old) - _covered(new):
        return None
    known = {(each.segment.key, each.offset) for each in old.changelog}
    begin = len(new.changelog)
    while begin and not is_merged(new.changelog[begin - 1]):
        last = new.changelog[begin - 1]
        if (last.segment.key, last.offset) in known:
            break
        begin -= 1
    if any(not members(each) and (each.segment.key, each.offset) not in known for each in new.changelog[:begin]):
        return None  # keys were erased from it, perhaps not for the first time
    # What stands before, merged or not, must end where the parent's changelog ends.
    if begin and (not old.changelog or not _end_alike(new.changelog[begin - 1], old.changelog[-1])):
        return None
    kept, had = (members_in(each) for each in (new.changelog[:begin], old.changelog))  # merging changes none
    if kept > had or (kept < had and not has_new_bases):
        return None  # change sets are gone, and no base took their place
    return new.changelog[begin:]


def _covered(part: RangeState) -> set[int]:
    """The key groups that have a base."""
    return {group for base in part.all_bases for each in base.key_groups for group in each}


def _end_alike(one: ChangeSetHandle, other: ChangeSetHandle) -> bool:
    if not is_merged(one) and not is_merged(other):
        return (one.segment.key, one.offset) == (other.segment.key, other.offset)
    return last_id(one) == last_id(other)


def _columns(commit: Commit) -> dict[int, tuple[str, str]]:
    return {each.state_id: (each.schema, each.key_schema) for each in commit.states if each.kind == "columnar"}


def _kinds(commit: Commit) -> dict[int, tuple[str, str]]:
    return {each.state_id: (each.name, each.kind) for each in commit.states}
