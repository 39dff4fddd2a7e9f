"""Finds rows by their keys within pages that are in memory, for many pages at once.

Hashes are spread evenly, so a key lies near where its share of the page's span of hashes says: rows around that place
are compared at once. What is not there, and not between two of them either, is looked for in the rows before or behind.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.paged_changes import orders_of
from statebackend._codec.columns import Integers, Octets
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
    counts = rows.counts
    at = np.clip((shares * counts).astype(np.int64) - NEAR // 2, 0, np.maximum(counts - NEAR, 0))
    found, steps = _found_near(rows, at, hashes, parts)
    if len(found) == len(orders):
        return found, steps
    numbers, places = [found], [steps]
    left = _others(len(orders), found)
    at, first = at[left], np.zeros(len(left), np.int64)  # the first row of the page that it can be
    while True:
        left, at, first = _further(rows.taken(left), left, at, first, orders[left])
        if not len(left):
            break
        found, steps = _found_near(rows.taken(left), at, hashes[left], taken(parts, left))
        numbers.append(left[found])
        places.append(steps)
        still = _others(len(left), found)
        left, at, first = left[still], at[still], first[still]
    all_numbers = np.concatenate(numbers)
    by_number = np.argsort(all_numbers, kind="stable")
    return all_numbers[by_number], np.concatenate(places)[by_number]


def _found_near(rows: PageRows, at: Integers, hashes: Hashes, parts: Parts) -> tuple[Integers, Integers]:
    """The keys that have one of the rows from there on, and which row of the page that is."""
    near = rows.moved(at).hashes_from(NEAR)
    places = np.flatnonzero(near == hashes[:, np.newaxis])  # of a flat array: an axis of 32 takes ten times as long
    hits = places // NEAR
    steps = at[hits] + places % NEAR
    is_row = steps < rows.counts[hits]  # behind the last row lies something else
    hits, steps = hits[is_row], steps[is_row]
    each_once = len(hits) == len(hashes) and bool((hits[1:] > hits[:-1]).all())  # equal hashes have several keys
    same = same_parts(parts if each_once else taken(parts, hits), rows.taken(hits).moved(steps).keys())
    return hits[same], steps[same]


def _others(count: int, numbers: Integers) -> Integers:
    """All numbers below `count` but these."""
    is_other = np.ones(count, np.bool_)
    is_other[numbers] = False
    others: Integers = np.flatnonzero(is_other)
    return others


def _further(
    rows: PageRows, left: Integers, at: Integers, first: Integers, orders: Integers
) -> tuple[Integers, Integers, Integers]:
    """Where to look next for keys that are not near these places: those left, their places, and the least of them.

    One between two of the rows that were seen is not there. What is not before is looked for behind, and then never
    before again.
    """
    end = np.minimum(at + NEAR, rows.counts)
    low, high = (orders_of(each.hashes(), each.groups()) for each in (rows.moved(at), rows.moved(end - 1)))
    is_before = (orders <= low) & (at > first)
    is_behind = ~is_before & (high <= orders) & (end < rows.counts)
    first = np.where(is_behind, end, first)
    at = np.where(is_behind, end, np.maximum(at - NEAR, first))
    goes_on = is_before | is_behind
    return left[goes_on], at[goes_on], first[goes_on]
