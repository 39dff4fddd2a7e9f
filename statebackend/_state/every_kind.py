"""What the kinds of state share: whose keys they hold, which were touched since the last drain, what has expired."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Final, Generic, TypeVar

from statebackend._codec.records import SCALARS, Operation, StateChange
from statebackend._state.ttl import SWEEP_KEYS
from statebackend._state.values import Values
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import AnyTable, Renew
from statebackend.ids import Key

E = TypeVar("E")
V = TypeVar("V")


DRAINED_AT_ONCE: Final = 1024
"""Keys that are placed and looked up together."""
_CLEAN: Final = object()


class KeyedState(ABC, Generic[E, V]):
    """Entries by key, of one kind: what is held per key, and what the next drain has to say about it.

    Iteration, `len` and `in` pass over what has expired; with a time-to-live they look at every entry for it.
    """

    __slots__ = ("_check", "_check_many", "_dirty", "_entries", "_groups_of", "_scan", "_sweeping", "_values", "name")

    _values: Values[V]

    def __init__(self, name: str, table: AnyTable, keys: OwnedKeys) -> None:
        self.name: Final = name
        self._entries: MutableMapping[Key, E] = table.entries
        self._scan = table.scan
        self._check = keys.check
        self._check_many = keys.check_many
        self._groups_of = keys.groups_of
        self._dirty: dict[Key, object] = {}  # keys that were touched, in order, and what a kind has to remember of them
        self._sweeping: Iterator[Key] = iter(())

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        self._remove(key)

    def __contains__(self, key: object) -> bool:
        found = self._find(key)  # type: ignore[arg-type]  # a wrong or foreign key gets its own error, never a "no"
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

    def drain(self, state_id: int) -> Iterator[StateChange]:
        """What the keys touched since the last drain have to log: of what was done to one of them, the outcome.

        With a time-to-live it looks through some of the other keys too, and drops what has expired: the dropping keeps
        up with the writing, so that the expired are not many more than the living.
        """
        ttl = self._values.ttl
        now = None if ttl is None else ttl.read_clock()
        dirty, self._dirty = self._dirty, {}
        for keys, found in _steps(dirty):
            groups = self._groups_of(keys)
            if now is None:
                yield from self._logged_many(state_id, groups, keys, found)
                continue
            for key, group in zip(keys, groups, strict=True):
                yield from self._logged(state_id, group, key)
                yield from self._sweep(state_id, now, dirty, 1)
        if now is not None:
            yield from self._sweep(state_id, now, dirty, SWEEP_KEYS)

    def renewed(self) -> Renew | None:
        """How a base made now writes the state's cells anew, `None` where it takes them as they are."""
        ttl = self._values.ttl
        return self._values.renewed(None if ttl is None else ttl.read_clock())

    @abstractmethod
    def _is_live(self, entry: E, now: float) -> bool:
        """Whether a part of it has not expired."""

    @abstractmethod
    def _remove(self, key: Key) -> None:
        """Remove a key that is there."""

    @abstractmethod
    def _expire(self, key: Key, now: float) -> None:
        """Remove what has expired of a key that is there, as if the user did."""

    @abstractmethod
    def _logged(self, state_id: int, group: int, key: Key) -> Iterator[StateChange]:
        """What was done to the key since this was last asked."""

    def _logged_many(
        self, state_id: int, groups: Sequence[int], keys: Sequence[Key], found: Sequence[object]
    ) -> Iterable[StateChange]:
        """As `_logged` of each key. `found` is what was remembered of them."""
        for key, group in zip(keys, groups, strict=True):
            yield from self._logged(state_id, group, key)

    def _find(self, key: Key) -> E | None:
        """What is held of the key, expired or not. Raises for a wrong or foreign key."""
        found = self._entries.get(key) if type(key) in SCALARS else None
        if found is None:
            self._check(key)
            found = self._entries.get(key)
        return found

    def _touch(self, key: Key) -> None:
        if type(key) not in SCALARS or key not in self._dirty:
            self._check(key)
            self._dirty[key] = None

    def _sweep(self, state_id: int, now: float, passed_over: Container[Key], keys: int) -> Iterator[StateChange]:
        looked_at = 0
        for key in itertools.islice(self._sweeping, keys):
            looked_at += 1
            if key in self._entries and key not in passed_over:
                self._expire(key, now)
                if self._dirty.pop(key, _CLEAN) is not _CLEAN:
                    (group,) = self._groups_of([key])
                    yield from self._logged(state_id, group, key)
        if looked_at < keys:
            self._sweeping = self._scan()


def _steps(dirty: Mapping[Key, object]) -> Iterator[tuple[list[Key], list[object]]]:
    keys, found = iter(dirty), iter(dirty.values())
    while some := list(itertools.islice(keys, DRAINED_AT_ONCE)):
        yield some, list(itertools.islice(found, DRAINED_AT_ONCE))


def cleared(state_id: int, group: int, key: Key) -> StateChange:
    """The change that removes all there is of a key."""
    return StateChange(group, Operation.CLEAR, state_id, key)
