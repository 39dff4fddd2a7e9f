"""Finds what a commit holds of one state: changes are taken from the newest to the oldest, then the bases.

Where a change sets all that its key has, the newest one is the answer, and everything older about that key is passed
over. So no value is kept, and only the keys that the changelog has are: the state itself may be larger than memory. A
list and a map take several changes to make: those of the changelog are kept, and applied to what the bases have.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import GROUP, Changes, KeyGroups, of_kind
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.columns import Flags, Integers
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.column_table import key_columns
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.keys import Parts, hash_parts, taken
from statebackend._columns.table_schema import TableSchema
from statebackend._tables.heap import KINDS, cell_of
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import KeyTypeError, ValueDecodeError
from statebackend.ids import Key

ROWS_AT_ONCE: Final = 4096


class StoredRows(NamedTuple):
    """Keys with the group and the entry of each, as it lies in the state's table."""

    groups: KeyGroups
    keys: Sequence[Key]
    entries: Sequence[Any]


class ChosenRows(NamedTuple):
    """Rows of a columnar state, of which those flagged are meant; all of them without flags."""

    changes: ColumnChanges
    is_chosen: Flags | None


class Merge(ABC):
    """One read of one state."""

    is_done = False
    """True once every key that was asked for is found: what is older need not be read."""
    bases_apart = False
    """True if `base` changes nothing here, so that threads may take several parts at a time."""

    @abstractmethod
    def newer(self, changes: Changes) -> Iterator[Any]:
        """Take changes of the changelog, which are older than those taken before."""

    @abstractmethod
    def base(self, changes: Changes) -> Iterator[Any]:
        """Take entries of a base, once all of the changelog is taken. The changes of a key follow each other."""

    def base_ended(self) -> Iterator[Any]:
        """The rows that are left when a base ends."""
        yield from ()

    def rest(self) -> Iterator[Any]:
        """The rows that are left when all is taken."""
        yield from ()


class NewestCells(Merge):
    """For the kinds with one cell per key. Yields `StoredRows`. `wanted`: only these keys.

    `may_be_mixed`: those who ask take keys of several forms.
    """

    def __init__(self, wanted: frozenset[Key] | None, *, may_be_mixed: bool = False) -> None:
        self._wanted = wanted
        self._seen: set[Key] = set()
        self._forms = _KeyForms(wanted, may_be_mixed=may_be_mixed)

    def newer(self, changes: Changes) -> Iterator[StoredRows]:
        yield from self._taken(of_kind(changes, KeyedChanges), remember=True)

    def base(self, changes: Changes) -> Iterator[StoredRows]:
        found = of_kind(changes, KeyedChanges)
        if self._wanted is not None or not found.all_set:
            yield from self._taken(found, remember=self._wanted is not None)
            return
        is_seen = list(map(self._seen.__contains__, found.keys))
        if not any(is_seen):
            yield StoredRows(found.groups, found.keys, found.data)
        elif not all(is_seen):
            is_fresh = list(map(not_, is_seen))
            keys, data = (list(compress(each, is_fresh)) for each in (found.keys, found.data))
            yield StoredRows(found.groups[is_fresh], keys, data)

    def rest(self) -> Iterator[StoredRows]:
        self._forms.check()
        yield from ()

    def _taken(self, changes: KeyedChanges, *, remember: bool) -> Iterator[StoredRows]:
        wanted, seen = self._wanted, self._seen
        self._forms.note(changes.keys)
        newest = {key: place for place, key in enumerate(changes.keys)}
        fresh = {key: place for key, place in newest.items() if key not in seen and (wanted is None or key in wanted)}
        if remember:
            seen.update(fresh)
            self.is_done = wanted is not None and len(seen) == len(wanted)
        groups, operations, data = changes.groups, changes.operations, changes.data
        cells = {key: cell_of(operations[place], data[place]) for key, place in fresh.items()}
        there = [key for key, cell in cells.items() if cell is not None]
        if there:
            yield StoredRows(groups[[fresh[key] for key in there]], there, [cells[key] for key in there])


class NewestRows(Merge):
    """For columnar states. Yields `ChosenRows`. `wanted`: only these keys, in columns."""

    def __init__(self, schema: TableSchema, keys: OwnedKeys, wanted: Parts | None) -> None:
        self._types = [each.type for each in schema.keys]
        self._seen = key_rows(schema, keys)
        self._may_be_seen = HashBits()
        self.wanted: Final = wanted
        self._wanted: KeyRows | None = None
        if wanted is not None:
            self._wanted = key_rows(schema, keys)
            self._wanted.find_or_add(wanted, hash_parts(wanted))
        self.bases_apart = wanted is None

    def newer(self, changes: Changes) -> Iterator[ChosenRows]:
        yield from self._taken(changes, remember=True)

    def base(self, changes: Changes) -> Iterator[ChosenRows]:
        yield from self._taken(changes, remember=self._wanted is not None)

    def _taken(self, changes: Changes, *, remember: bool) -> Iterator[ChosenRows]:
        found = of_kind(changes, ColumnChanges)
        if (types := [each.type for each in found.keys]) != self._types:
            raise ValueDecodeError("stored keys are of another type than the state's", types=types)
        parts = found.key_parts
        hashes = hash_parts(parts) if found.hashes is None else found.hashes
        chosen = np.ones(found.records, np.bool_)
        maybe = np.flatnonzero(self._may_be_seen.has(hashes))  # few, as a rule: only these are looked up
        if len(maybe):
            chosen[maybe] = self._seen.find(taken(parts, maybe), hashes[maybe]) < 0
        if self._wanted is not None:
            chosen &= self._wanted.find(parts, hashes) >= 0
        if remember:
            self._seen.find_or_add(taken(parts, chosen), hashes[chosen])
            self._may_be_seen.add(hashes[chosen])
            self.is_done = self._wanted is not None and len(self._seen) == len(self._wanted)
        if found.drops:
            chosen[found.sets :] = False
            if found.sets:
                found, chosen = found.between(0, found.sets), chosen[: found.sets]
        if chosen.all():
            yield ChosenRows(found, None)
        elif chosen.any():
            yield ChosenRows(found, chosen)


class HashBits:
    """A bit for each value of the upper bits of a hash. In 1 MiB, so that it stays in the processor's cache."""

    _BITS: Final = 23

    def __init__(self) -> None:
        self._octets = np.zeros(1 << (self._BITS - 3), np.uint8)

    def add(self, hashes: Hashes) -> None:
        """Set the bits of these hashes."""
        np.bitwise_or.at(self._octets, self._places(hashes), np.uint8(1) << self._shifts(hashes))

    def has(self, hashes: Hashes) -> Flags:
        """False for a hash that was not added."""
        found = self._octets.take(self._places(hashes), mode="clip")  # quicker than by brackets
        found >>= self._shifts(hashes)
        found &= np.uint8(1)
        return found.view(np.bool_)

    def _places(self, hashes: Hashes) -> Integers:
        return (hashes >> np.uint64(64 - self._BITS + 3)).view(np.int64)

    def _shifts(self, hashes: Hashes) -> npt.NDArray[np.uint8]:
        return (hashes >> np.uint64(64 - self._BITS)).astype(np.uint8) & np.uint8(7)


class WholeEntries(Merge):
    """For lists and maps. Yields `StoredRows`. `kind`: of the state; the others as for `NewestCells`."""

    def __init__(self, kind: str, wanted: frozenset[Key] | None, *, may_be_mixed: bool = False) -> None:
        self._open = KINDS[kind]
        self._wanted = wanted
        self._newer: list[KeyedChanges] = []
        self._changed: dict[Key, int] = {}  # the keys that the changelog has, with their groups
        self._changing = self._open()
        self._read = self._open()
        self._groups: dict[Key, int] = {}  # of the keys in `_read`
        self._forms = _KeyForms(wanted, may_be_mixed=may_be_mixed)

    def newer(self, changes: Changes) -> Iterator[StoredRows]:
        found = self._of_wanted(of_kind(changes, KeyedChanges))
        if found is not None:
            self._newer.append(found)
            self._changed.update(zip(found.keys, found.groups.tolist(), strict=True))
        yield from ()

    def base(self, changes: Changes) -> Iterator[StoredRows]:
        found = self._of_wanted(of_kind(changes, KeyedChanges))
        if found is None:
            return
        is_changed = np.fromiter((key in self._changed for key in found.keys), np.bool_, found.records)
        if is_changed.any():
            self._changing.apply(found.taken(np.flatnonzero(is_changed)))
        if not is_changed.all():
            others = found.taken(np.flatnonzero(~is_changed))
            self._read.apply(others)
            self._groups.update(zip(others.keys, others.groups.tolist(), strict=True))
            yield from _entries(self._read.entries, self._groups, keep=others.keys[-1])

    def base_ended(self) -> Iterator[StoredRows]:
        yield from _entries(self._read.entries, self._groups)

    def rest(self) -> Iterator[StoredRows]:
        self._forms.check()
        while self._newer:
            self._changing.apply(self._newer.pop())
        yield from _entries(self._changing.entries, self._changed)

    def _of_wanted(self, changes: KeyedChanges) -> KeyedChanges | None:
        if self._wanted is None:
            return changes
        self._forms.note(changes.keys)
        chosen = [place for place, key in enumerate(changes.keys) if key in self._wanted]
        return changes.taken(np.array(chosen, np.intp)) if chosen else None


class _KeyForms:
    """The forms of the keys that were read, to tell an absent key from one that no key of the state is like."""

    def __init__(self, wanted: frozenset[Key] | None, *, may_be_mixed: bool) -> None:
        self._wanted = frozenset(map(form_of, wanted or ()))
        self._may_be_mixed = may_be_mixed
        self._read: set[str] = set()

    def note(self, keys: Sequence[Key]) -> None:
        """Some keys of the state."""
        if self._wanted:
            types = set(map(type, keys))
            self._read.update(map(form_of, keys) if tuple in types else (each.__name__ for each in types))

    def check(self) -> None:
        """Raise `KeyTypeError` if all keys that were read are of one form, and some wanted one is not.

        Of a state whose keys may be of several forms, only if none is: the others may be like keys that were not read.
        """
        strange = self._wanted - self._read
        if len(self._read) == 1 and strange and not (self._may_be_mixed and self._wanted & self._read):
            raise KeyTypeError(
                "the state has keys of another type: convert these",
                types=sorted(self._read),
                types_wanted=sorted(strange),
            )


def form_of(key: Key) -> str:
    """The types of a key's parts."""
    return f"({', '.join(map(form_of, key))})" if isinstance(key, tuple) else type(key).__name__


def _entries(entries: Any, groups: dict[Key, int], keep: Key | None = None) -> Iterator[StoredRows]:
    """Take the entries out of a table, and their groups, but for that of `keep`, which may be without its end."""
    ready = [key for key in entries if key != keep]
    for start in range(0, len(ready), ROWS_AT_ONCE):
        keys = ready[start : start + ROWS_AT_ONCE]
        yield StoredRows(np.array([groups.pop(key) for key in keys], GROUP), keys, [entries.pop(key) for key in keys])


def groups_of(keys: Sequence[Key], groups: Mapping[Key, int]) -> KeyGroups:
    """The group of each of the keys."""
    return np.array([groups[key] for key in keys], GROUP)


def key_rows(schema: TableSchema, keys: OwnedKeys) -> KeyRows:
    """An empty set of keys of a columnar state. They may be of few key groups: those that no base has yet."""
    return KeyRows(key_columns(schema), keys, hash_parts, is_strewn=True)
