"""The part of a job's state that a reader asks for: checked against what a commit has, and cut into steps. Pure."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._tables.key_groups import key_group
from statebackend.errors import InputError
from statebackend.ids import Key, KeyGroupRange, RangeState, StateDescriptor, all_key_groups, ranges_of

KEY_BYTES: Final = 128
"""About as much memory as a key of the changelog takes while its key group is read."""


class ReadingStep(NamedTuple):
    """Read in one go: `part` of a commit, and of it the key groups `wanted`."""

    part: RangeState
    wanted: tuple[KeyGroupRange, ...]


def check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise `InputError`, which names the closest known one, for a name that is not known, or is given twice."""
    if isinstance(names, str):  # it would be a name for each of its letters
        raise InputError(f"give each {what} by its name, in a list", **{what: names})
    for place, name in enumerate(names):
        if name not in known:
            closest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {closest[0]!r}?" if closest else f"there are: {', '.join(known) or 'none'}"
            raise InputError(f"there is no {what} of that name: {hint}", **{what: name})
        if name in names[:place]:
            raise InputError(f"a {what} is named twice", **{what: name})


def state_in(commit: Commit, name: str) -> StateDescriptor:
    """The state of that name. Raises `InputError`, which names the closest one."""
    check_known("state", [name], [each.name for each in commit.states])
    return next(each for each in commit.states if each.name == name)


def can_read(newer: StateDescriptor, older: StateDescriptor) -> bool:
    """True if what was written as `older` can be read as `newer`, another declaration, by upcasts if need be."""
    if (newer.kind, newer.key_schema) != (older.kind, older.key_schema):
        return False
    if newer.version != older.version:
        return newer.version > older.version
    return older.schema in (newer.schema, *newer.earlier)


def groups_of(commit: Commit, key_groups: KeyGroupRange | None, keys: frozenset[Key] | None) -> Sequence[KeyGroupRange]:
    """The key groups asked for. Raises `KeyTypeError`, or `InputError` for groups that the job does not have."""
    owned = all_key_groups(commit.max_parallelism)
    wanted = owned if key_groups is None else key_groups
    if wanted.intersection(owned) != wanted or not wanted:
        raise InputError(
            "the job has other key groups: ask for some of those", key_groups=str(wanted), there_are=str(owned)
        )
    if keys is None:
        return (wanted,)
    return ranges_of({group for key in keys if (group := key_group(key, commit.max_parallelism)) in wanted})


def steps(
    commit: Commit, groups: Sequence[KeyGroupRange], *, bytes_max: int, by_keys: bool, holds_values: bool
) -> Iterator[ReadingStep]:
    """Cut the reading of these key groups so that what is held of the changelog takes about `bytes_max` in each step.

    That is its keys, and with `holds_values` its values: each step more reads the changelog once more. `by_keys`: only
    some keys are wanted, so that there is one step. A key group is never cut.
    """
    if not groups:
        return
    span = KeyGroupRange(groups[0].first, groups[-1].last)
    if by_keys:
        yield ReadingStep(_narrowed(range_of(commit, span), groups), tuple(groups))
        return
    first = span.first
    weights = _weights(commit, holds_values=holds_values)[: span.last + 1]
    while first <= span.last:
        fitting = int(np.searchsorted(np.cumsum(weights[first:]), bytes_max, side="right"))
        last = min(span.last, first + max(1, fitting) - 1)
        some = KeyGroupRange(first, last)
        yield ReadingStep(range_of(commit, some), (some,))
        first = last + 1


def _weights(commit: Commit, *, holds_values: bool) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The bytes that are held of each group's changes: each change set's share of them.

    Of all key groups, also where few are read: a change set that is narrowed down has all of its records all the same.
    """
    owned = all_key_groups(commit.max_parallelism)
    found = np.zeros(len(owned))
    for handle in range_of(commit, owned).changelog:
        share = (handle.records * KEY_BYTES + holds_values * handle.length) / len(handle.key_groups)
        found[handle.key_groups.first : handle.key_groups.last + 1] += share
    return found


def _narrowed(part: RangeState, groups: Iterable[KeyGroupRange]) -> RangeState:
    """The same with bases of these groups alone."""
    wanted = tuple(groups)

    def live(key_groups: Sequence[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
        return tuple(found for each in key_groups for other in wanted if (found := each.intersection(other)))

    return msgspec.structs.replace(
        part,
        bases=tuple(
            msgspec.structs.replace(base, key_groups=found) for base in part.bases if (found := live(base.key_groups))
        ),
        rocksdb=tuple(
            msgspec.structs.replace(base, key_groups=found) for base in part.rocksdb if (found := live(base.key_groups))
        ),
    )
