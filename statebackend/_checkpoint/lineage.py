"""Decides whether a cached state can be used for a commit, and which change sets it lacks then. Pure.

    history := digest of all change sets that ever made the state of a range, in their order; bases do not change it
    root    := digest of a commit's stamp and the range: stands for all that came before, if the range is new there

An attempt at a range logs under a name that no other attempt has, so one history means one state. A cached state can be
used for a commit if the commit's history is that of the state, extended by the last change sets that the commit lists.
An attempt that lost, another branch, other key groups, a base that took in what the state lacks: each gives another
digest. Times and numbers of checkpoints are not compared: they are equal on different branches.

A cached state that has all members of a merged change set lacks what comes behind it. One that may have some of them
is not used: applied as a whole, they would come a second time. No history has the id of a merged one, so none fits.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from statebackend._checkpoint.materialization.layers import begin_of
from statebackend._checkpoint.materialization.tiers import ChangeSetId, last_id
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend.ids import Base, ChangeSetHandle, KeyGroupRange, RangeState, RocksDBBase

DIGEST_BYTES: Final = 16


class Lineage(msgspec.Struct, frozen=True):
    """The history of a state, and the last change set in it, `None` if none is known."""

    history: bytes
    last: ChangeSetId | None = None


def lineage_of(commit: Commit | None, key_groups: KeyGroupRange) -> Lineage:
    """The lineage of `key_groups` in a commit; `None` stands for the empty state before the first."""
    state = range_of(commit, key_groups)
    history = state.history or root("" if commit is None else commit.stamp, key_groups)
    return Lineage(history, last_id(state.changelog[-1]) if state.changelog else None)


def root(stamp: str, key_groups: KeyGroupRange) -> bytes:
    """The history that begins where these key groups are taken over from the commit with that stamp."""
    return _digest(b"", f"{stamp} {key_groups}")


def extended(history: bytes, handles: Iterable[ChangeSetHandle]) -> bytes:
    """The history with these change sets behind it."""
    for handle in handles:
        history = _digest(history, f"{handle.sequence_number} {handle.log_id}")
    return history


def missing(cached: Lineage, commit: Commit | None, key_groups: KeyGroupRange) -> Sequence[ChangeSetHandle] | None:
    """The change sets of `key_groups` in `commit` that a cached state lacks; `None` if it cannot be used for that."""
    changelog = range_of(commit, key_groups).changelog
    begin = 0
    for place, handle in enumerate(changelog, start=1):
        if last_id(handle) == cached.last:
            begin = place
    tail = changelog[begin:]
    return tail if extended(cached.history, tail) == lineage_of(commit, key_groups).history else None


def bases_id(bases: Sequence[Base], rocksdb: Sequence[RocksDBBase]) -> bytes:
    """A digest that no other bases have."""
    return blake2b(msgspec.msgpack.encode((bases, rocksdb)), digest_size=DIGEST_BYTES).digest()


def runs_id(state: RangeState) -> bytes:
    """A digest that no other bases have, nor other layers over them: of all files that tables may look up in."""
    over = state.changelog[: begin_of(state.changelog, -1)]
    return blake2b(msgspec.msgpack.encode((state.bases, over)), digest_size=DIGEST_BYTES).digest()


def _digest(before: bytes, text: str) -> bytes:
    return blake2b(text.encode(), key=before, digest_size=DIGEST_BYTES).digest()
