"""The entries of all states of a backend at one moment, as the changes that would rebuild them."""

from collections.abc import Callable, Iterator, Mapping

from statebackend._codec.records import StateChange
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import AnyTable, Renew


class StatesSnapshot:
    """Every entry of the states at one moment. Later writes do not show, and any thread may read it."""

    def __init__(self, tables: Mapping[int, AnyTable], renew: Mapping[int, Renew | None], keys: OwnedKeys) -> None:
        self._tables = tables
        self._renew = renew
        self._keys = keys

    def changes(self, groups: frozenset[int], pause: Callable[[], None] = lambda: None) -> Iterator[StateChange]:
        """The changes that rebuild the entries of these key groups from nothing, one group after the other.

        Values that had expired by the moment of the snapshot are left out, and values of an earlier version are upcast,
        which raises `ValueDecodeError` where it fails. The first step finds the group of every key, unless the table
        lies in key groups: about half a second per million keys, calling `pause` a thousand times. Each call starts
        from the beginning.
        """
        placed = {state_id: table.placed(self._keys, groups, pause) for state_id, table in self._tables.items()}
        for group in sorted(groups):
            for state_id, table in self._tables.items():
                renew = self._renew.get(state_id)
                for key in placed[state_id].get(group, ()):
                    yield from table.changes(state_id, group, key, renew)
