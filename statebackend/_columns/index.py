"""From keys to rows: open addressing in one array of row numbers, looked up and filled in rounds.

A round takes one step for all keys that are not settled yet. A key's ideal place is by its key group, then by the upper
half of its hash, and its row is at that place or behind it, before the first empty one. So the places of a key group
are next to each other, and rows in order of `order_of` are placed in one pass, without a search.

There is no wrapping round: the array has room behind the last place, and gets more when that is used up.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import Flags, Integers
from statebackend._codec.xxh64 import Hashes

Order: TypeAlias = npt.NDArray[np.int64]

LOAD_MAX: Final = 0.66
"""Share of the places in use, those of removed rows included, above which the index grows."""
LOAD_REBUILT_MAX: Final = 0.5
"""The same right after it was rebuilt, so that it is not soon rebuilt again."""
PLACED_AT_ONCE: Final = 1 << 16
ROWS_MAX: Final = (1 << 31) - (1 << 20)
FEW: Final = 32
"""So many keys are searched one by one: a round costs more, and the last ones take many where places are crowded."""
EMPTY: Final = -1
REMOVED: Final = -2
_CLAIMED: Final = -3  # less the number of a key: a place that one of the keys being added has taken
_ROOM_BEHIND: Final = 64
_BITS: Final = 32


class HashIndex:
    """The rows by hash. `groups`: how many key groups there can be."""

    __slots__ = ("_groups", "_places", "_shift", "_used")

    def __init__(self, groups: int) -> None:
        self._groups = max(1, groups)
        self._used = 0
        self._shift = _BITS
        self._places: npt.NDArray[np.int32] = np.full(self._groups + _ROOM_BEHIND, EMPTY, np.int32)

    def has_room(self, count: int) -> bool:
        """True if as many rows can be added before the index must grow."""
        return self._used + count <= LOAD_MAX * len(self._places)

    def find(
        self, orders: Order, hashes: Hashes, row_hashes: Hashes, same: Callable[[Integers, Integers], Flags]
    ) -> tuple[Integers, Order]:
        """The row of each key, -1 where there is none, and the place where the search for it ended.

        `same` confirms that keys, by their numbers, are those of rows.
        """
        at = orders >> self._shift
        found = np.full(len(at), -1, np.int64)
        pending = np.arange(len(at))
        while len(pending) and len(row_hashes):
            self._find_hashes(at, found, pending, hashes, row_hashes)
            hits = pending[found[pending] >= 0]
            other = hits[~same(hits, found[hits])]  # equal hashes, different keys: search on
            found[other] = -1
            at[other] += 1
            pending = other
        return found, at

    def _find_hashes(self, at: Order, found: Integers, pending: Integers, hashes: Hashes, row_hashes: Hashes) -> None:
        """Move `at` of each pending key to the next row of the same hash, which is put in `found`, or to the end."""
        while len(pending) > FEW:
            here, wanted = (at, hashes) if len(pending) == len(at) else (at[pending], hashes[pending])
            rows = self._places[here].astype(np.int64)
            is_hit = row_hashes[rows] == wanted
            is_hit &= rows >= 0  # below: the hash of some other row
            hits = np.flatnonzero(is_hit)
            found[pending[hits]] = rows[hits]
            is_hit |= rows == EMPTY
            pending = pending[np.flatnonzero(~is_hit)]
            at[pending] += 1
        row_at, hash_at = self._places.item, row_hashes.item
        for number in pending.tolist():
            place, digest = at.item(number), hashes.item(number)
            while (row := row_at(place)) != EMPTY:
                if row >= 0 and hash_at(row) == digest:
                    found[number] = row
                    break
                place += 1
            at[number] = place

    def rows_from(self, order: int) -> tuple[int, Callable[[int], int]]:
        """The place of a key, and the row at each place: `EMPTY` ends the search behind it, `REMOVED` does not."""
        return order >> self._shift, self._places.item

    def add(self, at: Order, hashes: Hashes, same: Callable[[Integers, Integers], Flags]) -> tuple[Integers, Integers]:
        """Claim places for keys that have no row; `at`: where the search for each ended. There must be room for all.

        Returns for each key the number of the first one equal to it, and the places of those that are first, in order.
        `settle` must follow.
        """
        at, first = at.copy(), np.arange(len(at))
        pending = first
        while len(pending):
            here = at[pending]
            is_free = self._places[here] == EMPTY
            # Of several that want one place, the last written has it: so the first key is written last.
            self._places[here[is_free][::-1]] = _CLAIMED - pending[is_free][::-1]
            others = _CLAIMED - self._places[here].astype(np.int64)  # negative: a row, or a removed one
            lost = np.flatnonzero(others != pending)
            met = lost[others[lost] >= 0]
            met = met[hashes[others[met]] == hashes[pending[met]]]
            met = met[same(pending[met], others[met])] if len(met) else met
            first[pending[met]] = others[met]
            going_on = others != pending
            going_on[met] = False
            pending = pending[going_on]
            at[pending] += 1
            self._make_room_behind()
        return first, at[np.flatnonzero(first == np.arange(len(first)))]

    def settle(self, places: Integers, rows: Integers) -> None:
        """Put rows at the places that were claimed."""
        self._places[places] = rows
        self._used += len(rows)

    def remove(self, orders: Order, rows: Integers) -> None:
        """Remove these rows, all of which are there, once each."""
        at = orders >> self._shift
        pending = np.arange(len(rows))
        while len(pending):
            going_on = self._places[at[pending]] != rows[pending]
            self._places[at[pending[~going_on]]] = REMOVED
            pending = pending[going_on]
            at[pending] += 1

    def rebuild(self, orders: Order, rows: Integers, room: int = 0) -> None:
        """Replace the index by one of these rows, with room for so many more. In order of `orders` it is fastest."""
        while (self._groups << _BITS >> self._shift) * LOAD_REBUILT_MAX < len(rows) + room and self._shift:
            self._shift -= 1
        behind = (self._groups << _BITS >> self._shift) + _ROOM_BEHIND
        self._used = len(rows)
        if not len(rows) or (orders[:-1] <= orders[1:]).all():
            numbers = np.arange(len(rows))
            at = np.maximum.accumulate((orders >> self._shift) - numbers) + numbers
            last = int(at[-1]) if len(rows) else 0
            self._places = np.full(max(behind, last + _ROOM_BEHIND), EMPTY, np.int32)
            self._places[at] = rows
            return
        self._places = np.full(behind, EMPTY, np.int32)
        for start in range(0, len(rows), PLACED_AT_ONCE):
            self._place(orders[start : start + PLACED_AT_ONCE] >> self._shift, rows[start : start + PLACED_AT_ONCE])

    def _place(self, at: Order, rows: Integers) -> None:
        """Place rows whose keys are known to differ."""
        while len(rows):
            is_free = self._places[at] == EMPTY
            self._places[at[is_free]] = rows[is_free]
            lost = np.flatnonzero(self._places[at] != rows)
            at, rows = at[lost] + 1, rows[lost]
            self._make_room_behind()

    def _make_room_behind(self) -> None:
        """Keep the last place empty, where every search ends."""
        if self._places[-1] != EMPTY:
            more = np.full(len(self._places) // 8 + _ROOM_BEHIND, EMPTY, np.int32)
            self._places = np.concatenate([self._places, more])
