"""Decides what a commit with another `max_parallelism` holds: each key's new group, and each owner's share. Pure.

Each key is placed anew. Operator state, which has no key, stays with the ranges that reported it: there are as many
as before, in the same order, each with its share of the new key groups. If there are fewer key groups than ranges,
neighbouring ranges are merged.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from statebackend._codec.change_sets.changes import GROUP, Changes
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._columns.keys import hash_parts
from statebackend._state.kinds.operator_state import Mode, elements_of, gathered
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import UnsupportedVersionError
from statebackend.ids import KeyGroupRange, OperatorElements, RangeState


class Owner(msgspec.Struct, frozen=True):
    """A range of the new key groups, and the operator state that is reported for it."""

    key_groups: KeyGroupRange
    operator: tuple[OperatorElements, ...]


def regrouped(changes: Changes, keys: OwnedKeys) -> Changes:
    """The changes with the key groups that `keys` gives them. Raises `KeyTypeError` for what cannot be a user's key."""
    if isinstance(changes, KeyedChanges):
        return changes.with_groups(keys.placed(changes.keys))
    if isinstance(changes, ColumnChanges):
        hashes = hash_parts(changes.key_parts) if changes.hashes is None else changes.hashes
        return changes.with_groups((hashes.view(np.int64) % keys.max_parallelism).astype(GROUP))
    raise UnsupportedVersionError("changes of this kind cannot be placed anew", kind=changes.kind)


def regrouped_owners(ranges: Iterable[RangeState], modes: Mapping[int, Mode], max_parallelism: int) -> Sequence[Owner]:
    """The owners of the new key groups, in order. `modes`: the modes of the operator states, by id."""
    former = sorted(ranges, key=lambda part: part.key_groups)
    count = min(len(former), max_parallelism)
    firsts = [place * max_parallelism // count for place in range(count)]
    together: list[list[RangeState]] = [[] for _ in firsts]
    for place, part in enumerate(former):
        together[place * count // len(former)].append(part)
    return [
        Owner(KeyGroupRange(first, end - 1), elements_of(report))
        for first, end, report in zip(firsts, (*firsts[1:], max_parallelism), gathered(together, modes), strict=True)
    ]
