"""Finds the state of any range of key groups in a commit, whichever ranges that was written by. Pure.

A handle's key groups say what it stands for. A handle taken from a range is narrowed to the groups that this range and
the new owner have in common (FLINK-26766). Two ranges that were one before may both hold a change set of that time.
When they are joined again, each of the two handles brings back its own groups only, and so does not undo what the other
range changed since.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from statebackend._checkpoint.materialization.layers import begin_of
from statebackend._codec.commit import Commit
from statebackend.ids import Base, ChangeSetHandle, KeyGroupRange, RangeState, RocksDBBase, StateSize

AnyBase = TypeVar("AnyBase", Base, RocksDBBase)


def range_of(commit: Commit | None, key_groups: KeyGroupRange) -> RangeState:
    """The state of `key_groups` in the commit, in the order of applying it; empty without a commit.

    Layers of all parts come before what lies over those of any: so all are looked up, and none has to be applied.
    It has a history if the commit has one of exactly these key groups. Its next timer may be one of another part.
    """
    in_layers: list[ChangeSetHandle] = []
    over: list[ChangeSetHandle] = []
    bases: list[Base] = []
    rocksdb: list[RocksDBBase] = []
    parts = [] if commit is None else [part for part in commit.ranges if part.key_groups.intersection(key_groups)]
    for part in parts:
        owned = part.key_groups.intersection(key_groups)
        end = begin_of(part.changelog, -1)
        in_layers += _narrowed(part.changelog[:end], owned)
        over += _narrowed(part.changelog[end:], owned)
        bases += _narrowed_bases(part.bases, owned)
        rocksdb += _narrowed_bases(part.rocksdb, owned)
    own = [part for part in parts if part.key_groups == key_groups]
    history = own[0].history if own else UNSET
    return RangeState(
        key_groups,
        (*in_layers, *over),
        tuple(bases),
        history=history,
        rocksdb=_joined(rocksdb),
        next_timer_s=_earliest([part.next_timer_s for part in parts]),
        sizes=_joined_sizes(parts, key_groups),
    )


def _earliest(times: Sequence[float | UnsetType | None]) -> float | UnsetType | None:
    """The first of them, `None` if they are all `None`; not known if one of them is not, or there are none."""
    if not times or UNSET in times:
        return UNSET
    return min((at for at in times if isinstance(at, float)), default=None)


def _joined_sizes(parts: Sequence[RangeState], key_groups: KeyGroupRange) -> tuple[StateSize, ...] | UnsetType:
    """The sizes of these parts together; not known if one is not, or reaches beyond the key groups."""
    found: dict[tuple[tuple[int, ...], bool], StateSize] = {}
    for part in parts:
        if isinstance(part.sizes, UnsetType) or part.key_groups.intersection(key_groups) != part.key_groups:
            return UNSET
        for each in part.sizes:
            key = each.states, each.is_estimate
            keys, size_bytes = (found[key].keys, found[key].size_bytes) if key in found else (0, 0)
            found[key] = StateSize(each.states, keys + each.keys, size_bytes + each.size_bytes, each.is_estimate)
    return tuple(found.values()) if parts else UNSET


def _narrowed(handles: Iterable[ChangeSetHandle], owned: KeyGroupRange) -> Iterator[ChangeSetHandle]:
    for handle in handles:
        common = handle.key_groups.intersection(owned)
        if common:
            yield handle if common == handle.key_groups else msgspec.structs.replace(handle, key_groups=common)


def _joined(parts: Iterable[RocksDBBase]) -> tuple[RocksDBBase, ...]:
    """Join parts of one base, so that its files are read once, and the tables can take it over if it is whole."""
    joined: dict[RocksDBBase, list[KeyGroupRange]] = {}
    for part in parts:
        joined.setdefault(msgspec.structs.replace(part, key_groups=()), []).extend(part.key_groups)
    return tuple(msgspec.structs.replace(base, key_groups=_neighbours_joined(found)) for base, found in joined.items())


def _neighbours_joined(ranges: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """The fewest ranges that hold the same groups as these, which do not overlap, in order."""
    joined: list[KeyGroupRange] = []
    for each in sorted(ranges):
        if joined and joined[-1].last + 1 == each.first:
            joined[-1] = KeyGroupRange(joined[-1].first, each.last)
        else:
            joined.append(each)
    return tuple(joined)


def _narrowed_bases(bases: Iterable[AnyBase], owned: KeyGroupRange) -> Iterator[AnyBase]:
    for base in bases:
        if common := tuple(filter(None, (each.intersection(owned) for each in base.key_groups))):
            yield base if common == base.key_groups else msgspec.structs.replace(base, key_groups=common)
