"""Decides which neighbouring change sets of a changelog are merged into one. Pure.

    changelog:  256 16 16 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1     the numbers of change sets that each handle stands for
    merged:     256 16 16 16                                  with a fan-in of 16

A merged change set has all changes of its members, in their order, so that a replay of it does what a replay of them
does. Its log id says how many there are, and the rest of its id is that of the last one: `members`, `last_id`.

The tier of a handle is how often its members were merged. As many neighbours of one tier as the fan-in says become one
of the next, so a change is written again once per tier, and a changelog of n change sets has half the fan-in of handles
in each of log(n) tiers. What has `FULL_BYTES` is full, and is not written again. Neighbours that reach it together are
merged even if they are few, and what lies before a full one, where nothing is added any more, is merged at once: so a
changelog has at most two handles for each `FULL_BYTES`, mostly one, and a bounded number more.

Sorted change sets, which lie in layers (`layers`), are merged ones too, of other rules: here they are left alone.
"""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from statebackend.ids import ChangeSetHandle, SequenceNumber
from statebackend.settings import MiB

FULL_BYTES: Final = 4 * MiB
"""Stored bytes from which a change set is not merged any more: to fetch it takes longer than to ask for it."""
_MERGED: Final = re.compile(r"\+([0-9]{1,9})(?:([sr])([0-9]{1,9}))? (.*)", re.DOTALL)
"""A merged log id. No writer has one: writers are named after their key groups."""
PAGES: Final = "s"
"""The mark of a merged change set with rows in pages, sorted."""
REST: Final = "r"
"""The mark of one with what its members have beside such rows."""

ChangeSetId = tuple[str, SequenceNumber]
"""Log id and sequence number. It stays when a change set moves from a contribution into a commit."""


class Neighbours(NamedTuple):
    """Neighbours in a changelog: from `first` up to, not including, `end`."""

    first: int
    end: int


def members(handle: ChangeSetHandle) -> int:
    """How many change sets were merged into the one that the handle points to; 1 if it is none of these."""
    return int(found[1]) if (found := _merged(handle)) is not None else 1


def last_id(handle: ChangeSetHandle) -> ChangeSetId:
    """The id of the change set that the handle points to; of a merged one, that of its last member."""
    found = _merged(handle)
    return (handle.log_id if found is None else found[4]), handle.sequence_number


def is_merged(handle: ChangeSetHandle) -> bool:
    """False for a change set as its writer has logged it."""
    return _merged(handle) is not None


def mark_of(handle: ChangeSetHandle) -> str:
    """`PAGES` or `REST` of a change set that lies in a layer, empty for others."""
    return "" if (found := _merged(handle)) is None else found[2] or ""


def layer_of(handle: ChangeSetHandle) -> tuple[ChangeSetId, int] | None:
    """The same for all handles of one layer, another one for its neighbours; `None` for what lies in none.

    The last of its members does not tell: two openings of a job number their change sets alike. So a layer has one
    more than the layer before it.
    """
    found = _merged(handle)
    return None if found is None or not found[2] else (last_id(handle), int(found[3]))


def members_in(changelog: Iterable[ChangeSetHandle]) -> int:
    """How many change sets these stand for. Each of a layer says it for all of them."""
    total = 0
    for _, of_layer in groupby(changelog, key=lambda handle: layer_of(handle) or handle):
        total += members(next(of_layer))
    return total


def merged_id(handles: Sequence[ChangeSetHandle]) -> ChangeSetId:
    """The id of the change set that these are merged into. There is at least one."""
    log_id, number = last_id(handles[-1])
    return f"+{members_in(handles)} {log_id}", number


def id_in_layer(changelog: Sequence[ChangeSetHandle], begin: int, mark: str) -> ChangeSetId:
    """The id of a change set of the layer that a changelog becomes from `begin` on."""
    before = layer_of(changelog[begin - 1]) if begin else None
    log_id, number = last_id(changelog[-1])
    return f"+{members_in(changelog[begin:])}{mark}{0 if before is None else before[1] + 1} {log_id}", number


def due(changelog: Sequence[ChangeSetHandle], fan_in: int, left: Container[ChangeSetHandle] = ()) -> Neighbours | None:
    """The neighbours to be merged next, `None` if there are none. Below 2 `fan_in` asks for nothing.

    `left`: those that are not merged, whatever their size.
    """
    if fan_in < 2:
        return None
    for place, enough in _of_one_tier(changelog, fan_in, left):
        if (found := _to_merge(changelog, place, enough)) is not None:
            return found
    return None


def _of_one_tier(
    changelog: Sequence[ChangeSetHandle], fan_in: int, left: Container[ChangeSetHandle]
) -> Iterator[tuple[Neighbours, int]]:
    """Neighbours that belong together, the last ones first, and how many of them are enough to be merged.

    A handle counts as of the highest tier behind it: what is joined from two ranges need not be in order.
    """
    end, tier, enough = len(changelog), 0, fan_in
    for place in reversed(range(len(changelog))):
        handle = changelog[place]
        if handle.length >= FULL_BYTES or handle in left or mark_of(handle):
            yield Neighbours(place + 1, end), enough
            end, enough = place, 2
        elif enough == fan_in and (own := _tier(members(handle), fan_in)) > tier:
            yield Neighbours(place + 1, end), enough
            end, tier = place + 1, own
    yield Neighbours(0, end), enough


def _to_merge(changelog: Sequence[ChangeSetHandle], place: Neighbours, enough: int) -> Neighbours | None:
    size_bytes = 0
    for at in range(*place):
        size_bytes += changelog[at].length
        if size_bytes >= FULL_BYTES and at > place.first:
            return Neighbours(place.first, at + 1)
    return place if place.end - place.first >= enough else None


def _tier(count: int, fan_in: int) -> int:
    tier = 0
    while count >= fan_in:
        count, tier = count // fan_in, tier + 1
    return tier


def _merged(handle: ChangeSetHandle) -> re.Match[str] | None:
    return _MERGED.fullmatch(handle.log_id) if handle.log_id.startswith("+") else None
