"""The rows of the keys: which row a key has, which rows are free, and the key of a row."""

from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import KeyGroups
from statebackend._codec.columns import Flags, Integers
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.growable import grown
from statebackend._columns.index import EMPTY, ROWS_MAX, HashIndex, Order
from statebackend._columns.keys import HashKeys, KeyColumns, Parts, PlainParts, count_of, plain_keys, same_parts, taken
from statebackend._tables.key_groups import SIGN, WRAP, OwnedKeys, groups_of_hashes
from statebackend.errors import InputError, KeyGroupError

ADDED_AT_ONCE: Final = 1 << 16
"""Keys found or added in one go, so that the index grows by the number of new keys, not by that of repeated ones."""
_LOWER: Final = np.uint64((1 << 32) - 1)


class KeyRows:
    """A row for each key. Rows are numbered from 0; those of removed keys are used again once they are released.

    `is_strewn`: keys may come some at a time in order of key group and hash, as from a file, and leave again. In an
    index in that order they would crowd into a corner, where each is behind all others: it took 20 us a key.
    """

    def __init__(
        self, key_columns: KeyColumns, owned: OwnedKeys, hash_keys: HashKeys, *, is_strewn: bool = False
    ) -> None:
        self.used = 0
        """Rows from this number on were never used."""
        self.hash: Final = hash_keys
        self._keys = key_columns
        self._owned = owned
        self._is_strewn = is_strewn
        self._index = HashIndex(len(owned.key_groups))
        self._is_indexed = True
        self._may_repeat = False  # a key may have several rows, of which the last counts, until it is indexed
        self._hashes: Hashes = np.zeros(0, np.uint64)
        self._is_live: Flags = np.zeros(0, np.bool_)
        self._free: Integers = np.zeros(0, np.int64)
        self._dead = 0  # rows below `used` that have no key
        self._is_shared = False  # a copy has the memory of the keys and hashes

    def __len__(self) -> int:
        self._settle_repeated()
        return self.used - self._dead

    @property
    def count(self) -> int:
        """The number of keys, without indexing them: a key that was restored twice counts twice until it is indexed."""
        return self.used - self._dead

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys."""
        return self._keys.used_bytes(self.used)

    def live(self) -> Integers:
        """The rows of all keys."""
        self._settle_repeated()
        return np.flatnonzero(self._is_live[: self.used])

    def live_flags(self) -> Flags:
        """For each row below `used`, if it has a key: to be read before anything changes."""
        self._settle_repeated()
        return self._is_live[: self.used]

    def are_live(self, rows: Integers) -> bool:
        """True if each of these rows has a key."""
        return not len(rows) or bool(rows.min() >= 0 and rows.max() < self.used and self._is_live[rows].all())

    def which_live(self, rows: Integers) -> Flags:
        """Flags of these rows, all of them once used: if they have a key."""
        return self._is_live[rows]

    def keys(self, rows: Any) -> Parts:
        """The keys of these rows, also of removed ones until these are released."""
        return self._keys.read(rows)

    def hashes(self, rows: Integers) -> Hashes:
        """The hashes of these rows' keys."""
        return self._hashes[rows]

    def groups_of(self, hashes: Hashes) -> KeyGroups:
        """The key groups of keys with these hashes."""
        return groups_of_hashes(hashes, self._owned.max_parallelism)

    def orders(self, hashes: Hashes) -> Order:
        """The order of the places in the index: by key group, then by the upper half of the hash; strewn, by the lower.

        All are less than the number of groups, shifted by 32.
        """
        if self._is_strewn:
            lower: Order = (hashes & _LOWER).view(np.int64)
            lower *= len(self._owned.key_groups)
            return lower
        orders = self.groups_of(hashes).astype(np.int64)
        orders -= self._owned.key_groups.first
        orders <<= 32
        orders |= (hashes >> np.uint64(32)).view(np.int64)
        return orders

    def check_owned(self, hashes: Hashes) -> None:
        """Raise `KeyGroupError` for keys of another owner."""
        owned = self._owned.key_groups
        if len(owned) == self._owned.max_parallelism:
            return
        groups = self.groups_of(hashes)
        foreign = np.flatnonzero((groups < owned.first) | (groups > owned.last))
        if len(foreign):
            raise KeyGroupError(
                "some keys belong to another owner",
                keys=len(foreign),
                key_group=int(groups[foreign[0]]),
                owned=str(owned),
            )

    def find(self, parts: Parts, hashes: Hashes) -> Integers:
        """The row of each key, -1 where there is none."""
        return self._find(parts, hashes)[0]

    def find_one(self, key: PlainParts, digest: int) -> int | None:
        """The row of one key with this hash, -1 where there is none, `None` for a key of another owner."""
        owned = self._owned.key_groups
        group = (digest - WRAP if digest >= SIGN else digest) % self._owned.max_parallelism
        if not owned.first <= group <= owned.last:
            return None
        self._ensure_index()
        hash_at, is_at = self._hashes.item, self._keys.is_at
        order = (digest & int(_LOWER)) * len(owned) if self._is_strewn else (group - owned.first) << 32 | digest >> 32
        place, row_at = self._index.rows_from(order)
        while (row := row_at(place)) != EMPTY:
            if row >= 0 and hash_at(row) == digest and is_at(row, key):
                return row
            place += 1
        return -1

    def find_or_add(self, parts: Parts, hashes: Hashes) -> tuple[Integers, Flags]:
        """The row of each key, and if it was added by this call."""
        count = len(hashes)
        if count <= ADDED_AT_ONCE:
            return self._find_or_add(parts, hashes)
        rows, is_new = np.empty(count, np.int64), np.empty(count, np.bool_)
        for start in range(0, count, ADDED_AT_ONCE):
            some = slice(start, start + ADDED_AT_ONCE)
            rows[some], is_new[some] = self._find_or_add(taken(parts, some), hashes[some])
        added = np.zeros(self.used, np.bool_)
        added[rows[is_new]] = True
        return rows, added[rows]  # a key that an earlier step added is new too

    @property
    def can_append(self) -> bool:
        """True before the keys are indexed: as long as nothing but bases was restored, and none was dropped."""
        return not self.used or not (self._is_indexed or len(self._free))

    def append(self, parts: Parts, hashes: Hashes) -> Integers:
        """New rows for all these keys, also for those that have one: then the last row stays. Only if `can_append`.

        They are indexed when that is next needed.
        """
        assert self.can_append, "rows that are used again are not the last ones"
        self._reserve(self.used + count_of(parts))
        rows = self._new_rows(count_of(parts))
        self._keys.write(rows, parts)
        self._hashes[rows] = hashes
        self._is_indexed, self._may_repeat = False, True
        return rows

    def remove(self, rows: Integers) -> None:
        """Remove the keys of these rows, all of them live, once each."""
        self._ensure_index()
        self._index.remove(self.orders(self._hashes[rows]), rows)
        self._is_live[rows] = False
        self._dead += len(rows)

    def release(self, rows: Integers) -> None:
        """Let the rows of removed keys be used again."""
        self._free = np.concatenate([self._free, rows])
        if self._keys.is_wasteful:
            is_kept = np.ones(self.used, np.bool_)  # also those that are removed and not released yet
            is_kept[self._free] = False
            self._keys.tidy(np.flatnonzero(is_kept))

    def copy(self, rows: Integers | None = None) -> Self:
        """The rows as they are now, or those of some that have keys, one behind the other: for reading only.

        What is not copied is not written again.
        """
        self._settle_repeated()
        some = slice(self.used) if rows is None else rows
        copied = type(self)(self._keys.copy(some, shared=True), self._owned, self.hash, is_strewn=self._is_strewn)
        copied._hashes, copied._is_live = self._hashes[some], self._is_live[some].copy()
        copied.used, copied._dead = len(copied._hashes), self._dead if rows is None else 0
        copied._is_indexed, copied._is_shared = False, True
        self._is_shared = self._is_shared or rows is None
        return copied

    def packed(self, rows: Integers) -> Self:
        """Only these rows, which have keys, and the bytes of these keys: to go on with in place of all."""
        packed = self.copy(rows)
        packed._keys.tidy(np.arange(len(rows)))
        packed._is_shared = False
        return packed

    def _find(self, parts: Parts, hashes: Hashes) -> tuple[Integers, Order]:
        self._ensure_index()

        def same(numbers: Integers, rows: Integers) -> Flags:
            wanted = parts if len(numbers) == len(hashes) else taken(parts, numbers)  # numbers ascend
            return same_parts(wanted, self._keys.read(rows))

        return self._index.find(self.orders(hashes), hashes, self._hashes, same)

    def _find_or_add(self, parts: Parts, hashes: Hashes) -> tuple[Integers, Flags]:
        rows, at = self._find(parts, hashes)
        is_new = rows < 0
        missing = np.flatnonzero(is_new)
        if not len(missing):
            return rows, is_new
        if not self._index.has_room(len(missing)):
            live = self.live()
            self._index.rebuild(self.orders(self._hashes[live]), live, len(missing))
            _, at = self._find(parts, hashes)
        self._reserve(self.used + len(missing))  # before a place is claimed, since it may fail
        new_parts, new_hashes = taken(parts, missing), hashes[missing]

        def same(ones: Integers, others: Integers) -> Flags:
            return same_parts(taken(new_parts, ones), taken(new_parts, others))

        first, places = self._index.add(at[missing], new_hashes, same)
        added = np.flatnonzero(first == np.arange(len(first)))
        own = self._new_rows(len(added))
        self._keys.write(own, taken(new_parts, added))
        self._hashes[own] = new_hashes[added]
        self._index.settle(places, own)
        numbers: npt.NDArray[np.int64] = np.empty(len(first), np.int64)
        numbers[added] = own
        rows[missing] = numbers[first]
        return rows, is_new

    def _new_rows(self, count: int) -> Integers:
        """Rows for new keys, live from now on: those that are free first."""
        reused, self._free = self._free[:count], self._free[count:]
        if len(reused):
            self._unshare()
            self._dead -= len(reused)
        fresh = np.arange(self.used, self.used + count - len(reused))
        self.used += len(fresh)
        rows = np.concatenate([reused, fresh]) if len(reused) else fresh
        self._is_live[rows] = True
        return rows

    def _reserve(self, needed: int) -> None:
        if needed > ROWS_MAX:
            raise InputError("too many keys for one owner: give it fewer key groups", keys=needed, keys_max=ROWS_MAX)
        self._hashes = grown(self._hashes, self.used, needed)
        self._is_live = grown(self._is_live, self.used, needed)
        self._keys.reserve(self.used, needed)

    def _unshare(self) -> None:
        if self._is_shared:
            self._keys = self._keys.copy(slice(len(self._hashes)), shared=False)
            self._hashes = self._hashes.copy()
            self._is_shared = False

    def _settle_repeated(self) -> None:
        if self._may_repeat:
            self._ensure_index()

    def _ensure_index(self) -> None:
        if self._is_indexed:
            return
        rows = np.flatnonzero(self._is_live[: self.used])
        orders = self.orders(self._hashes[rows])
        if not (orders[:-1] <= orders[1:]).all():
            by_order = np.argsort(orders, kind="stable")
            orders, rows = orders[by_order], rows[by_order]
        if self._may_repeat and len(older := self._older(orders, rows)):
            self._is_live[older] = False
            self._dead += len(older)
            self._free = np.concatenate([self._free, older])
            is_kept = self._is_live[rows]
            orders, rows = orders[is_kept], rows[is_kept]
        self._index.rebuild(orders, rows)
        self._is_indexed, self._may_repeat = True, False

    def _older(self, orders: Order, rows: Integers) -> Integers:
        """Of rows in order, those whose key has another row that was added after them."""
        alike = np.flatnonzero(orders[:-1] == orders[1:])
        in_question = rows[np.unique(np.concatenate([alike, alike + 1]))]
        newest: dict[object, int] = {}
        older: list[int] = []
        for key, row in zip(plain_keys(self._keys.read(in_question)), in_question.tolist(), strict=True):
            before = newest.get(key, row)
            newest[key] = max(before, row)
            if before != row:
                older.append(min(before, row))
        return np.array(older, np.int64)
