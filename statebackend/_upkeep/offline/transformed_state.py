"""A state that is transformed: its entries, the function that is given them, and the states that take what it returns.

Nothing here waits on a store: it is run in a thread, some thousand keys at a time.
"""

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, cast

import msgspec

from statebackend._codec.change_sets.keyed_changes import ChangeColumns, KeyedChanges
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import AnyTable, OpenTable
from statebackend._upkeep.offline.stored_values import Stored, StoredValues
from statebackend.errors import InputError, StateBackendError
from statebackend.ids import Key, StateDescriptor

Function = Callable[[Any, Any], Iterable[tuple[Any, ...]] | None]
"""Gets a key and its value. Returns what takes its place: pairs of a key and a value, or triples with the name of
another state before; `None` for nothing."""
KEYS_AT_ONCE: Final = 10_000


class Into(NamedTuple):
    """Where it goes: `states`, and those of `new_states`. `open_table` opens the tables of what is made of the state.

    `refuses` two keys that become one, or counts them.
    """

    states: KeyedStates
    new_states: frozenset[str]
    open_table: OpenTable
    refuses: bool


class TransformedState(ABC):
    """Transforms one of the states by `function`. `state` describes it as it will be.

    What is made of it lies in tables of its own; other states of the same type take what they get into theirs.
    """

    def __init__(self, into: Into, state: StateDescriptor, function: Function) -> None:
        self._into = into
        self._states = into.states
        self._state = state
        self._function = function
        self._keys = OwnedKeys(into.states.key_groups, into.states.max_parallelism)
        self._known = {each.name: each for each in into.states.descriptors}
        self._made: dict[str, KeyedStates] = {}
        self._targets: dict[str, int] = {}
        self._target(state.name)
        self.keys: Final = Counter[str]({state.name: 0})
        """How many were written, by state."""
        self.keys_read = self.unchanged = self.dropped = self.collisions = 0
        self.collision: tuple[str, Key] | None = None

    @abstractmethod
    def steps(self) -> Iterator[int]:
        """Do some of it at a time; yield how many keys that were. Raises as `transform`."""

    def finish(self) -> None:
        """Have the states have what was made of them."""
        for each in self._made.values():
            self._states.take_over(each)

    def _returned(self, key: Key, value: Any) -> Iterator[tuple[str, Key, Any]]:
        """The pairs that the function returns for a key, with the name of the state."""
        try:
            found = self._function(key, value)
            if inspect.iscoroutine(found):
                found.close()
            if inspect.iscoroutine(found) or inspect.isasyncgen(found):
                raise InputError("the function is async: give one that returns its pairs", state=self._state.name)
            pairs = [] if found is None else list(found)
        except StateBackendError:
            raise
        except Exception as error:
            raise InputError(f"the function failed: {error!r}", state=self._state.name, key=key) from error
        self.keys_read += 1
        self.dropped += not pairs
        for each in pairs:
            if not _is_pair_or_triple(each):
                raise InputError(
                    "the function returns pairs of key and value, or triples with the name of a state before",
                    state=self._state.name,
                    key=key,
                    returned=repr(each)[:80],
                )
            yield each if len(each) == 3 else (self._state.name, *each)

    def _target(self, name: str) -> int:
        """The id of the state of this name, which is made if it is a new one. Raises `InputError`."""
        if name not in self._targets:
            known = self._known.get(name)
            if known is None or name == self._state.name:
                known = self._state if known is not None else self._new(name)
                self._made[name] = KeyedStates(
                    self._states.key_groups, self._states.max_parallelism, [known], open_table=self._into.open_table
                )
            self._check_type(known)
            self._targets[name] = known.state_id
        return self._targets[name]

    def _new(self, name: str) -> StateDescriptor:
        if name not in self._into.new_states:
            raise InputError(
                "the function names a state that the job does not have: a triple is (state, key, value), and a state "
                "that is to be made stands in new_states",
                state=ascii(name)[:80],
                known=sorted(self._known),
                new_states=sorted(self._into.new_states),
            )
        return msgspec.structs.replace(self._state, name=name, state_id=self._next_id())

    def _check_type(self, known: StateDescriptor) -> None:
        state = self._state
        if _type_of(known) != _type_of(state):
            raise InputError(
                "the states are of different types: no key of one can go into the other",
                state=state.name,
                other=known.name,
                kind=state.kind,
                kind_other=known.kind,
                schema=state.schema,
                schema_other=known.schema,
            )

    def _next_id(self) -> int:
        ids = [each.state_id for each in self._known.values()] + list(self._targets.values())
        return 1 + max(ids)

    def _holder(self, name: str) -> KeyedStates:
        return self._made.get(name, self._states)

    def _collided(self, name: str, key: Key) -> None:
        if self._into.refuses:
            raise InputError("the key is there already: two keys cannot become one", state=name, key=key)
        self.collisions += 1
        self.collision = self.collision or (name, key)


class TransformedEntries(TransformedState):
    """Of every kind but columns: the values are read and written by `values`."""

    def __init__(self, into: Into, state: StateDescriptor, function: Function, values: StoredValues) -> None:
        super().__init__(into, state, function)
        self._values = values
        self._columns: dict[str, ChangeColumns] = {}
        self._pending: dict[str, set[Key]] = {}

    def steps(self) -> Iterator[int]:
        groups = frozenset(self._states.key_groups)
        parts = self._states.snapshot_of(self._state.state_id).changes(groups)
        rows = chain.from_iterable(each.rows() for each in parts if isinstance(each, KeyedChanges))
        done = 0
        for key, own in groupby(rows, key=lambda change: change.key):
            self._give(key, [(change.operation, change.data) for change in own])
            done += 1
            if done == KEYS_AT_ONCE:
                yield done
                done = 0
        for name in self._columns:
            self._flush(name)
        yield done

    def _give(self, key: Key, stored: Stored) -> None:
        count, is_unchanged = 0, True
        for name, new_key, value in self._returned(key, self._values.read(stored)):
            written = self._values.write(value, stored)
            count += 1
            is_unchanged &= (name, new_key) == (self._state.name, key) and list(written) == list(stored)
            if written:
                self._put(name, new_key, written)
        self.unchanged += is_unchanged and count == 1

    def _put(self, name: str, key: Key, stored: Stored) -> None:
        state_id, group = self._target(name), self._keys.group_of(key)
        pending = self._pending.setdefault(name, set())
        table = self._holder(name).tables[state_id]
        if key in pending or key in cast("AnyTable", table).entries:
            self._collided(name, key)
            return
        pending.add(key)
        columns = self._columns.setdefault(name, ChangeColumns(state_id))
        for operation, data in stored:
            columns.add(group, operation, key, data)
        self.keys[name] += 1
        if columns.is_full:
            self._flush(name)

    def _flush(self, name: str) -> None:
        self._holder(name).replay(self._columns[name].take())
        self._pending[name] = set()


def _is_pair_or_triple(found: object) -> bool:
    if type(found) is not tuple:
        return False
    parts = cast("tuple[Any, ...]", found)
    return len(parts) == 2 or (len(parts) == 3 and type(parts[0]) is str)


def _type_of(state: StateDescriptor) -> Sequence[object]:
    return state.kind, state.schema, state.key_schema, state.version, state.earlier
