"""The keyed states of one backend: what was declared, what was restored, and the way between state and changelog."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NewType, TypeVar

from statebackend._codec.records import StateChange
from statebackend._codec.serializers import MsgspecSerializer
from statebackend._state import value_state
from statebackend._state.heap import HeapTable, apply, entries
from statebackend._state.key_groups import key_group
from statebackend._state.value_state import ValueState
from statebackend.errors import DataError, InputError, KeyGroupError, StateTypeError
from statebackend.ids import Key, KeyGroupRange, StateDescriptor, all_key_groups

StateId = NewType("StateId", int)
V = TypeVar("V")


class KeyedStates:
    """Tables by state id, filled by a restore before anybody declares them, and the declared views on them.

    A state that a commit holds but nobody declares is kept as it is and goes into the next commits.
    """

    def __init__(self, key_groups: KeyGroupRange, max_parallelism: int, known: Iterable[StateDescriptor] = ()) -> None:
        self.key_groups: Final = key_groups
        self._place = partial(key_group, max_parallelism=max_parallelism)
        self._owns_all = key_groups == all_key_groups(max_parallelism)
        self._descriptors: dict[str, StateDescriptor] = {descriptor.name: descriptor for descriptor in known}
        self._tables: dict[int, HeapTable] = {descriptor.state_id: {} for descriptor in self._descriptors.values()}
        self._declared: dict[str, tuple[Any, ValueState[Any]]] = {}

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """Every state there is, in the order of their ids."""
        return tuple(sorted(self._descriptors.values(), key=lambda descriptor: descriptor.state_id))

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of keys per state."""
        return {name: len(self._tables[found.state_id]) for name, found in self._descriptors.items()}

    def value_state(self, name: str, type_: type[V]) -> ValueState[V]:
        """Declare a value state, or get the one declared before under this name.

        Raises `StateTypeError` where the state was written, or declared, with another kind or type; also where only the
        class is another one: values would come back as instances of the first.
        """
        serializer = MsgspecSerializer(type_)
        descriptor = self._describe(name, value_state.KIND, serializer.schema)
        if name not in self._declared:
            state = ValueState(name, self._tables[descriptor.state_id], serializer, self._group_of)
            self._declared[name] = (type_, state)
        declared, state = self._declared[name]
        if declared != type_:
            raise StateTypeError(
                "the state is declared with another class already", state=name, first=repr(declared), now=repr(type_)
            )
        return state

    def drain(self) -> Iterator[StateChange]:
        """The changes since the last drain, one per key and state."""
        for name, (_, state) in self._declared.items():
            yield from state.drain(self._descriptors[name].state_id)

    def replay(self, changes: Iterable[StateChange]) -> None:
        """Apply changes of a checkpoint, in order. Those of foreign key groups are passed over."""
        owned = self.key_groups
        for change in changes:
            if change.key_group in owned:
                table = self._tables.get(change.state_id)
                if table is None:
                    raise DataError(
                        "a change names a state that its commit does not describe", state_id=change.state_id
                    )
                apply(table, change)

    def snapshot(self) -> "StatesSnapshot":
        """What the states hold now, undeclared ones too, whether it was drained or not: a copy of references."""
        return StatesSnapshot({state_id: table.copy() for state_id, table in self._tables.items()}, self._place)

    def _describe(self, name: str, kind: str, schema: str) -> StateDescriptor:
        if type(name) is not str or not name or not name.isprintable():
            raise InputError("a state's name is a str of printable characters", name=ascii(name))
        known = self._descriptors.get(name)
        if known is None:
            state_id = 1 + max((found.state_id for found in self._descriptors.values()), default=-1)
            known = self._descriptors[name] = StateDescriptor(state_id, name, kind, schema)
            self._tables[state_id] = {}
        if (known.kind, known.schema) != (kind, schema):
            raise StateTypeError(
                "the state was written with another type: declare it as it was written, or use another name",
                state=name,
                kind_written=known.kind,
                kind_declared=kind,
                schema_written=known.schema,
                schema_declared=schema,
            )
        return known

    def _group_of(self, key: Key) -> int:
        group = self._place(key)
        if not self._owns_all and group not in self.key_groups:
            raise KeyGroupError(
                "the key belongs to another owner", key=key, key_group=group, owned=str(self.key_groups)
            )
        return group


class StatesSnapshot:
    """Every entry of the states at one moment. What is done to them later is not in it, so any thread may read it."""

    def __init__(self, tables: Mapping[int, HeapTable], place: Callable[[Key], int]) -> None:
        self._tables = tables
        self._place = place

    def changes(self, groups: frozenset[int]) -> Iterator[StateChange]:
        """Changes that rebuild the entries of these key groups from nothing, one group after the other.

        The first step places every key, about a second per million. Each call begins anew.
        """
        placed: dict[int, list[tuple[int, list[Key]]]] = {group: [] for group in sorted(groups)}
        for state_id, table in self._tables.items():
            keys_by_group: dict[int, list[Key]] = {}
            for key in table:
                keys_by_group.setdefault(self._place(key), []).append(key)
            for group, keys in keys_by_group.items():
                if group in placed:
                    placed[group].append((state_id, keys))
        for group, found in placed.items():
            for state_id, keys in found:
                yield from entries(self._tables[state_id], state_id, group, keys)
