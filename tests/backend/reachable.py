"""What a sweep has to leave of a job whose every object is old, said from the log alone."""

from collections.abc import Set as AbstractSet

from statebackend._checkpoint.commits import HINT_KEY, commit_key
from statebackend._checkpoint.savepoints import floor_key
from statebackend._codec.commit import Commit
from statebackend.testing.invariants import Objects, commits_of, read_log


def newest_of(objects: Objects, job: str) -> Commit:
    """The newest commit of a job on which there is one branch."""
    return commits_of(read_log(objects, job))[-1]


def reachable_keys(objects: Objects, job: str, *, retained: int) -> AbstractSet[str]:
    """The newest `retained` commits and what follows the oldest of them, what these point into, and two marks."""
    log = read_log(objects, job)
    floor = commits_of(log)[-retained:][0].sequence
    kept = [entry for entry in log if entry.sequence >= floor]
    pointed_into = frozenset[str]().union(*(commit.segments() for commit in commits_of(kept)))
    return {HINT_KEY, floor_key(floor), *pointed_into, *(commit_key(entry.sequence) for entry in kept)}


def assert_copies_are_of_use(copies: Objects, primary: Objects, job: str) -> None:
    """Each is equal to what the primary has, and of what the newest commit needs there is one."""
    newest = newest_of(primary, job)
    assert copies == {key: primary.get(key) for key in copies}
    assert copies.keys() >= {commit_key(newest.sequence), *newest.segments()}
