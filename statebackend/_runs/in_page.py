"""Finds rows by their keys within pages that are in memory, for many pages at once.

Hashes are spread evenly, so a key lies near where its share of the page's span of hashes says: rows around that place
are compared at once. What is not there, and not between two of them either, is looked for by halving.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.paged_changes import orders_of
from statebackend._codec.columns import Flags, Integers, Octets
from statebackend._codec.pages import PageRows
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.keys import Parts, same_parts, taken

Floats = npt.NDArray[np.float64]

NEAR: Final = 32
"""Rows that are compared at once. Of a page of 4 KiB with 80, one in a thousand lies further off."""


class Scratch:
    """Memory for pages, kept from look-up to look-up: fresh memory costs as much as reading into it."""

    def __init__(self) -> None:
        self._free: Octets = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> Octets:
        """So many bytes, or more, which nobody else has."""
        found, self._free = self._free, np.empty(0, np.uint8)
        return found if len(found) >= size_bytes else np.empty(size_bytes, np.uint8)

    def give(self, found: Octets) -> None:
        """Take them back."""
        self._free = found


def matching(
    rows: PageRows, orders: Integers, hashes: Hashes, parts: Parts, shares: Floats
) -> tuple[Integers, Integers]:
    """The numbers of the keys that are in their pages, and how far behind the first row, which is in `rows`.

    `shares`: the part of the page's rows that should lie before each, as hashes are spread evenly. There it is nearly
    always, within a few rows.
    """
    at = np.clip((shares * rows.counts).astype(np.int64) - NEAR // 2, 0, np.maximum(rows.counts - NEAR, 0))
    hits, steps = _equal_hashes(rows.moved(at).hashes_from(NEAR), hashes, at, rows.counts)
    is_hit: Flags = np.zeros(len(orders), np.bool_)
    is_hit[hits] = True
    keys = parts if len(hits) == len(orders) else taken(parts, hits)
    same = same_parts(keys, rows.taken(hits).moved(steps).keys())
    found, steps = hits[same], steps[same]
    if len(found) == len(orders):
        return found, steps
    # Not there, if rows on both sides are; else it is looked for in the whole page.
    left = np.setdiff1d(np.arange(len(orders)), found, assume_unique=True)
    there, begin = rows.taken(left), at[left]
    end = np.minimum(begin + NEAR, there.counts) - 1
    low, high = (orders_of(each.hashes(), each.groups()) for each in (there.moved(begin), there.moved(end)))
    wanted = orders[left]
    left = left[~((low < wanted) & (wanted < high)) | is_hit[left]]
    if not len(left):
        return found, steps
    others, behind = _halved(rows.taken(left), orders[left], hashes[left], taken(parts, left))
    numbers = np.concatenate([found, left[others]])
    by_number = np.argsort(numbers, kind="stable")
    return numbers[by_number], np.concatenate([steps, behind])[by_number]


def _equal_hashes(near: Hashes, hashes: Hashes, at: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The keys near whose places there is a row of the same hash, ascending, and which row of the page is the first."""
    places = np.flatnonzero(near == hashes[:, np.newaxis])  # of a flat array: an axis of 32 takes ten times as long
    hits = places // NEAR
    steps = at[hits] + places % NEAR
    is_first = steps < counts[hits]  # behind the last row lies something else
    is_first[1:] &= (hits[1:] != hits[:-1]) | ~is_first[:-1]
    return hits[is_first], steps[is_first]


def _halved(rows: PageRows, orders: Integers, hashes: Hashes, parts: Parts) -> tuple[Integers, Integers]:
    """As `matching`, in no order."""
    low, high = np.zeros(len(orders), np.int64), rows.counts
    while (is_open := low < high).any():
        middle = (low + high) >> 1
        here = rows.moved(np.minimum(middle, rows.counts - 1))
        is_before = (orders_of(here.hashes(), here.groups()) < orders) & is_open
        low = np.where(is_before, middle + 1, low)
        high = np.where(is_before | ~is_open, high, middle)
    found: list[Integers] = [np.empty(0, np.int64)]
    steps: list[Integers] = [np.empty(0, np.int64)]
    pending = np.arange(len(orders))
    while len(pending):
        at = low[pending]
        in_page = at < rows.counts[pending]
        pending, at = pending[in_page], at[in_page]
        here = rows.taken(pending).moved(at)
        row_hashes = here.hashes()
        is_hit = row_hashes == hashes[pending]
        hits = np.flatnonzero(is_hit)
        same = same_parts(taken(parts, pending[hits]), here.taken(hits).keys())
        found.append(pending[hits[same]])
        steps.append(at[hits[same]])
        is_hit[hits[~same]] = False
        going_on = ~is_hit & (orders_of(row_hashes, here.groups()) == orders[pending])
        pending = pending[going_on]
        low[pending] += 1
    return np.concatenate(found), np.concatenate(steps)
