"""The entries of all states of a backend at one moment, as the changes that would rebuild them."""

from collections.abc import Callable, Iterator, Mapping

from statebackend._codec.records import StateChange
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import AnyTable, Renew


class StatesSnapshot:
    """Every entry of the states at one moment. What is done to them later is not in it, so any thread may read it."""

    def __init__(self, tables: Mapping[int, AnyTable], renew: Mapping[int, Renew | None], keys: OwnedKeys) -> None:
        self._tables = tables
        self._renew = renew
        self._keys = keys

    def changes(self, groups: frozenset[int], pause: Callable[[], None] = lambda: None) -> Iterator[StateChange]:
        """Changes that rebuild the entries of these key groups from nothing, one group after the other.

        What had expired by then is not among them, and what was of an earlier version is upcast, which raises
        `ValueDecodeError` where that fails. The first step places every key, where the table has not: about half a
        second per million, and it calls `pause` a thousand times meanwhile. Each call begins anew.
        """
        placed = {state_id: table.placed(self._keys, groups, pause) for state_id, table in self._tables.items()}
        for group in sorted(groups):
            for state_id, table in self._tables.items():
                renew = self._renew.get(state_id)
                for key in placed[state_id].get(group, ()):
                    yield from table.changes(state_id, group, key, renew)
