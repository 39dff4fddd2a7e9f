"""The base class of all kinds of keyed state: entries, the keys touched since the last drain, and expiry."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, KeyGroups
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.state_change import SCALARS
from statebackend._state.forgotten import NoChanges, forget
from statebackend._state.time.ttl import SWEEP_KEYS
from statebackend._state.values import Values
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import IsLive
from statebackend._tables.table import AnyTable
from statebackend.ids import Key

E = TypeVar("E")
V = TypeVar("V")


DRAINED_AT_ONCE: Final = 2048
"""Touched keys that are drained together: a millisecond, in which the loop waits, and they stay in its cache."""


class SetChanges(NamedTuple):
    """The changes that set some keys, in order. `counts`: how many each key takes; `None` if it is one for each."""

    operations: bytes
    data: Sequence[bytes]
    counts: Sequence[int] | None = None


class KeyedState(ABC, Generic[E, V]):
    """Entries by key, and the changes that the next drain logs.

    Iteration, `len` and `in` leave out expired entries; with a time-to-live, `len` and iteration look at every entry.
    """

    __slots__ = (
        "_check",
        "_check_many",
        "_dirty",
        "_entries",
        "_int_greatest",
        "_int_least",
        "_placed",
        "_scan",
        "_sweeping",
        "_values",
        "name",
    )

    _values: Values[V]

    def __init__(self, name: str, table: AnyTable, keys: OwnedKeys) -> None:
        self.name: Final = name
        self._entries: MutableMapping[Key, E] = table.entries
        self._scan = table.scan
        self._int_least, self._int_greatest = keys.int_least, keys.int_greatest
        self._check = keys.check
        self._check_many = keys.check_many
        self._placed = keys.placed
        self._dirty: dict[Key, object] = {}  # touched keys in order, with what a kind remembers of each
        self._sweeping: Iterator[Key] = iter(())

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        self._remove(key)

    def __contains__(self, key: object) -> bool:
        found = self._find(key)  # type: ignore[arg-type]  # a wrong or foreign key raises its error, never "no"
        if found is None:
            return False
        ttl = self._values.ttl
        return ttl is None or self._is_live(found, ttl.read_clock())

    def __iter__(self) -> Iterator[Key]:
        ttl = self._values.ttl
        if ttl is None:
            return iter(self._entries)
        now = ttl.read_clock()
        return (key for key, found in self._entries.items() if self._is_live(found, now))

    def __len__(self) -> int:
        return len(self._entries) if self._values.ttl is None else sum(1 for _ in self)

    def clear(self) -> None:
        """Remove every key."""
        for key in self._scan():
            self._remove(key)

    @property
    def is_changed(self) -> bool:
        """True if a drain has changes of the user's to log."""
        return len(self._dirty) > 0

    def drain(self, state_id: int) -> Iterator[KeyedChanges]:
        """The changes of the keys touched since the last drain: for each key the outcome of all that was done to it.

        With a time-to-live it also looks at some of the other keys and drops expired entries: more of them the more was
        written, so that expired entries do not far outnumber live ones.
        """
        ttl = self._values.ttl
        now = None if ttl is None else ttl.read_clock()
        dirty, self._dirty = self._dirty, {}
        for keys, found in _steps(dirty):
            yield from self._drained(state_id, keys, found)
            if now is not None:
                yield from self._drained(state_id, *self._swept(now, dirty, len(keys)))
        if now is not None:
            yield from self._drained(state_id, *self._swept(now, dirty, SWEEP_KEYS))

    def arrange(self, order: Collection[Key]) -> None:
        """Bring the keys touched since the last drain into this order, whatever the order in which they were touched.

        Keys that it lacks come first, as they are. The entries that lie in a dictionary and were added by this are
        ordered, too.
        """
        dirty = self._dirty
        arranged = [key for key in dirty if key not in order] + [key for key in order if key in dirty]
        self._dirty = {key: dirty[key] for key in arranged}
        entries = self._entries
        if isinstance(entries, dict):
            # What was added lies at the end. It may follow touched keys that were there before, the same in any order.
            added = set(itertools.takewhile(dirty.__contains__, reversed(entries)))
            for key in arranged:
                if key in added:
                    entries[key] = entries.pop(key)

    def _drained(self, state_id: int, keys: list[Key], found: list[object]) -> Iterator[KeyedChanges]:
        if keys:
            for changes in self._logged(state_id, self._placed(keys), keys, found):
                for piece in changes.cut(PART_BYTES_MAX):
                    yield piece.packed()

    def retire(self) -> None:
        """Refuse changes, which nothing would log; a read prolongs nothing. Until `resume`.

        The search for expired entries ends where it reads files: they would stay open. In memory it goes on later.
        """
        self._dirty = NoChanges(self.name)
        self._values.read_only()
        if not isinstance(self._entries, dict):
            self._sweeping = iter(())

    def resume(self) -> None:
        """Take changes again. Who declares the state again has reads prolong what they did before."""
        self._dirty = {}

    def forget(self) -> None:
        """Drop the references to the entries and to all else. From now on every use raises `BackendClosedError`."""
        forget(self)

    def living(self) -> IsLive | None:
        """Tells the cells that a base made now takes from those that have expired; `None` if it takes all of them."""
        ttl = self._values.ttl
        return None if ttl is None else partial(ttl.is_live, now=ttl.read_clock())

    @abstractmethod
    def setting(self, entries: Sequence[Any]) -> SetChanges:
        """The changes that would set one key after the other to these entries of the user's. The state stays as it is.

        Raises what setting them does, whichever of them is wrong.
        """

    @abstractmethod
    def _is_live(self, entry: E, now: float) -> bool:
        """True if some part of the entry has not expired."""

    @abstractmethod
    def _remove(self, key: Key) -> None:
        """Remove a key that has an entry."""

    @abstractmethod
    def _expire(self, key: Key, now: float) -> None:
        """Remove the expired parts of a key's entry, logged like a removal by the user."""

    @abstractmethod
    def _logged(self, state_id: int, groups: KeyGroups, keys: list[Key], found: list[object]) -> Iterator[KeyedChanges]:
        """The changes of touched keys since this was last called for them. `found`: what `_dirty` remembers of each."""

    def _find(self, key: Key) -> E | None:
        """The key's entry, expired or not. Raises for a wrong or foreign key."""
        found = self._entries.get(key) if type(key) in SCALARS else None
        if found is None:
            self._check(key)
            found = self._entries.get(key)
        return found

    def _touch(self, key: Key) -> None:
        if type(key) not in SCALARS or key not in self._dirty:
            self._check(key)
            self._dirty[key] = None

    def _swept(self, now: float, passed_over: Container[Key], keys: int) -> tuple[list[Key], list[object]]:
        """Look at some keys and drop expired entries. Returns the keys that were changed, no longer touched."""
        swept: list[Key] = []
        found: list[object] = []
        looked_at = 0
        for key in itertools.islice(self._sweeping, keys):
            looked_at += 1
            if key in self._entries and key not in passed_over:
                self._expire(key, now)
                if key in self._dirty:
                    swept.append(key)
                    found.append(self._dirty.pop(key))
        if looked_at < keys:
            self._sweeping = self._scan()
        return swept, found


def _steps(dirty: Mapping[Key, object]) -> Iterator[tuple[list[Key], list[object]]]:
    keys, found = iter(dirty), iter(dirty.values())
    while some := list(itertools.islice(keys, DRAINED_AT_ONCE)):
        yield some, list(itertools.islice(found, DRAINED_AT_ONCE))
