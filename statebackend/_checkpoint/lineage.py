"""What a state that somebody kept consists of, and what it lacks of a commit. Pure.

    history := digest of all change sets that ever made the state of a range, in their order; bases do not change it
    root    := digest of a commit's stamp and the range: all that came before, for who takes the range over there

An attempt at a range logs under a name that no other attempt has, so one history says one state. A kept state is of use
for a commit if the commit's history is that of the state, extended by the last change sets that the commit lists. An
attempt that lost, another branch, other key groups, a base that took in what the state lacks: all of that gives another
digest. Times and numbers of checkpoints say nothing.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend.ids import Base, ChangeSetHandle, KeyGroupRange, RocksDBBase, SequenceNumber

DIGEST_BYTES: Final = 16

ChangeSetId = tuple[str, SequenceNumber]
"""The log's name and the number in it: it stays when a change set moves from a result into a commit."""


class Lineage(msgspec.Struct, frozen=True):
    """What a state consists of: its history, and the last change set in it, `None` where there is none known."""

    history: bytes
    last: ChangeSetId | None = None


def lineage_of(commit: Commit | None, key_groups: KeyGroupRange) -> Lineage:
    """That of the state of `key_groups` in a commit; `None` for the empty state before the first."""
    state = range_of(commit, key_groups)
    history = state.history or root("" if commit is None else commit.stamp, key_groups)
    return Lineage(history, id_of(state.changelog[-1]) if state.changelog else None)


def root(stamp: str, key_groups: KeyGroupRange) -> bytes:
    """The history of whoever takes these key groups over from the commit of that stamp."""
    return _digest(b"", f"{stamp} {key_groups}")


def extended(history: bytes, handles: Iterable[ChangeSetHandle]) -> bytes:
    """The history with these change sets behind it."""
    for handle in handles:
        history = _digest(history, f"{handle.sequence_number} {handle.log_id}")
    return history


def missing(held: Lineage, commit: Commit | None, key_groups: KeyGroupRange) -> Sequence[ChangeSetHandle] | None:
    """The change sets that a state lacks of that of `key_groups` in `commit`; `None` where it is of no use for it."""
    changelog = range_of(commit, key_groups).changelog
    begin = 0
    for place, handle in enumerate(changelog, start=1):
        if id_of(handle) == held.last:
            begin = place
    tail = changelog[begin:]
    return tail if extended(held.history, tail) == lineage_of(commit, key_groups).history else None


def id_of(handle: ChangeSetHandle) -> ChangeSetId:
    """Of the change set that a handle points to."""
    return handle.log_id, handle.sequence_number


def bases_id(bases: Sequence[Base], rocksdb: Sequence[RocksDBBase]) -> bytes:
    """What tells these bases from others."""
    return blake2b(msgspec.msgpack.encode((bases, rocksdb)), digest_size=DIGEST_BYTES).digest()


def _digest(before: bytes, text: str) -> bytes:
    return blake2b(text.encode(), key=before, digest_size=DIGEST_BYTES).digest()
