"""Decides when changes go into a layer over the bases, which layers are written as one, and when into a base. Pure.

    bases:      A[0, 63] B[64, 127]
    changelog:  +300r0 +300s0 +300s0 | +16r1 +16s1 | h h h h h      two layers, and a tail of five change sets

A layer is a change set that all before it were merged into, cut into segments: what they have done to columnar states
in the end lies in pages, sorted, and is looked up there (mark `s`); the rest of them, and the keys that they have
dropped, are applied as ever (mark `r`). So a reader who knows nothing of layers applies them like any change set.

The layers of a changelog are its first handles. A new one takes in the first that is not larger than all that is newer,
and those behind it. So each is larger than all behind it, and there are about as many as the base is times as large as
the smallest, in powers of two. Once all are as large as `materialize_changelog_ratio` says, they go into a base.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from statebackend._checkpoint.materialization.tiers import Neighbours, layer_of
from statebackend.ids import Base, ChangeSetHandle, KeyGroupRange, RangeState


def layers(changelog: Sequence[ChangeSetHandle]) -> Sequence[Neighbours]:
    """Where the layers of a changelog lie, oldest first: before everything else."""
    found: list[Neighbours] = []
    for key, handles in groupby(changelog, key=layer_of):
        if key is None:
            break
        begin = found[-1].end if found else 0
        found.append(Neighbours(begin, begin + len(list(handles))))
    return found


def begin_of(changelog: Sequence[ChangeSetHandle], layer: int) -> int:
    """Where that layer begins; of a number that there is not yet, where what lies in no layer does."""
    return [0, *(place.end for place in layers(changelog))][layer]


def tail(changelog: Sequence[ChangeSetHandle]) -> Sequence[ChangeSetHandle]:
    """The changelog behind its layers."""
    return changelog[begin_of(changelog, -1) :]


def first_to_merge(state: RangeState, *, ratio: float, base_bytes: float) -> int | None:
    """The first layer that a new one takes in; their number for none. `None` if a base is due, of `base_bytes` now."""
    if not state.bases or state.rocksdb:
        return None
    newer = sum(handle.length for handle in state.changelog)
    if newer >= ratio * base_bytes:
        return None
    places = layers(state.changelog)
    for number, place in enumerate(places):
        size = sum(handle.length for handle in state.changelog[slice(*place)])
        newer -= size
        if size <= newer:
            return number
    return len(places)


def segments_of(layer: Sequence[ChangeSetHandle]) -> Iterator[Base]:
    """The segments of a layer, as bases of the key groups that each stands for."""
    for segment, handles in groupby(layer, key=lambda handle: handle.segment):
        spans = [handle.key_groups for handle in handles]
        yield Base(segment, (KeyGroupRange(min(each.first for each in spans), max(each.last for each in spans)),))
