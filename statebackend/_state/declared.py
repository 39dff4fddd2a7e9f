"""The states of one backend: what was declared, what was restored, and the way between state and changelog."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.serializers import is_serializer
from statebackend._state.declarations import StateDeclarations
from statebackend._state.descriptors import Declaration, declaration_of, described
from statebackend._state.kinds.every_kind import KeyedState
from statebackend._state.kinds.operator_state import (
    OPERATOR_KINDS,
    Mode,
    OperatorState,
    OperatorStates,
    as_mode,
    mode_of,
)
from statebackend._state.states_in_runs import StatesInRuns
from statebackend._state.time.job_clock import NOT_BEGUN, JobClock
from statebackend._state.time.job_timers import JobTimers
from statebackend._state.time.ttl import TimeToLive, apply
from statebackend._state.values import Values
from statebackend._tables.heap import KINDS, heap_table
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tables.table import EntryTable, OpenTable, Table, TableSize
from statebackend.errors import DataError, StateTypeError, UnsupportedVersionError
from statebackend.ids import (
    ClockMark,
    KeyGroupRange,
    Lifetime,
    OperatorElements,
    RangeState,
    StateDescriptor,
    StateSize,
    all_key_groups,
)

if TYPE_CHECKING:
    from statebackend._state.columnar.columnar_state import ColumnarState

V = TypeVar("V")
K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S", bound="KeyedState[Any, Any] | ColumnarState")

COLUMNAR: Final = "columnar"
"""The kind of columnar states in commits."""


class KeyedStates(StateDeclarations):
    """The tables by state id, filled by a restore before the states are declared, and the states that were declared.

    A state in a commit that is never declared stays as it is and goes into the next commits. Raises
    `UnsupportedVersionError` where a commit has a kind of state that this release does not know.

    Declaring a state again returns the same object, with the functions, clock and default of the newest declaration.
    Raises `StateTypeError` where the state was written or declared with another kind or type; also for another class
    with the same fields, since values would come back as instances of the first class.
    """

    def __init__(
        self,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        known: Iterable[StateDescriptor] = (),
        *,
        reported: Sequence[RangeState] = (),
        owners: Sequence[KeyGroupRange] | None = None,
        open_table: OpenTable = heap_table,
        clock: ClockMark | None = None,
    ) -> None:
        """`reported`: the operator state of the former owners. `owners`: all owners there are now, if not only this.

        `clock`: the job's, as of the commit.
        """
        self.clock: Final = JobClock(clock)
        self.key_groups: Final = key_groups
        self.max_parallelism: Final = max_parallelism
        self._keys = OwnedKeys(key_groups, max_parallelism)
        self._open_table = open_table
        self._descriptors: dict[str, StateDescriptor] = {descriptor.name: descriptor for descriptor in known}
        self._tables: dict[int, Table] = {
            descriptor.state_id: self._table_of(descriptor)
            for descriptor in self._descriptors.values()
            if mode_of(descriptor.kind) is None
        }
        if owners is None and key_groups == all_key_groups(max_parallelism):
            owners = [key_groups]
        self.runs: Final = StatesInRuns(self._tables)
        self._operator = OperatorStates(key_groups, self._descriptors.values(), reported, owners)
        self._declared: dict[str, KeyedState[Any, Any] | ColumnarState] = {}
        self.job_timers: Final = JobTimers(self.clock, self._descriptors, self._declared, self._tables, self._keys)
        self._ttls: dict[str, TimeToLive | None] = {}  # of the declared states
        self._types: dict[str, tuple[Any, ...]] = {}  # with which a state was declared in this process

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """All states, declared or not, ordered by id."""
        return tuple(sorted(self._descriptors.values(), key=lambda descriptor: descriptor.state_id))

    @property
    def declared(self) -> "Mapping[str, KeyedState[Any, Any] | ColumnarState]":
        """The keyed states that were declared, by name."""
        return self._declared

    @property
    def tables(self) -> Mapping[int, Table]:
        """The tables of all keyed states, declared or not, by state id."""
        return self._tables

    def take_over(self, others: "KeyedStates") -> None:
        """Have the states of `others`, which are not used any more, in place of those of the same names.

        Before any state is declared.
        """
        self._tables |= others.tables
        self._descriptors |= {found.name: found for found in others.descriptors}

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of keys per state, including those whose values have expired but were not dropped yet."""
        tables = self._tables
        return {
            name: len(tables[found.state_id]) for name, found in self._descriptors.items() if found.state_id in tables
        }

    @property
    def are_in_files(self) -> bool:
        """False if all states lie in memory even where the tables are files, as columns do."""
        return not self._tables or any(isinstance(table, EntryTable) for table in self._tables.values())

    def declare(self, name: str, class_: type[S], types: tuple[Any, ...], declaration: Declaration) -> S:
        """The state of this name as a `class_`, the same object each time."""
        descriptor = self._describe(name, types, declaration)
        if descriptor.state_id not in self._tables:
            self._tables[descriptor.state_id] = self._table_of(descriptor)
        if name not in self._declared:
            self._declared[name] = class_(name, cast("Any", self._tables[descriptor.state_id]), self._keys)
        return cast("S", self._declared[name])

    def declare_columns(
        self, name: str, schema: Any, key: Any, ttl: TimeToLive | None, defaults: Mapping[str, Any]
    ) -> "ColumnarState":
        """The columnar state of this name."""
        from statebackend._state.columnar import columnar_state, declaration  # noqa: PLC0415  # they need an extra

        found = self._descriptors.get(name) if type(name) is str else None
        columns = declaration.columns_of(found, schema, key, ttl, defaults)
        declared = declaration.declaration_of(columns, found, ttl)
        state = self.declare(name, columnar_state.ColumnarState, (schema, key), declared)
        state.declare(columns, ttl)
        return state

    def declare_operator(self, name: str, types: tuple[Any, ...], mode: Mode, values: Values[V]) -> OperatorState[V]:
        """The operator state of this name. Raises `InputError` where the other owners are not known."""
        self._operator.check_owners()
        descriptor = self._describe(name, types, declaration_of(OPERATOR_KINDS[as_mode(mode)], values))
        return self._operator.state(name, descriptor.state_id, as_mode(mode))

    def declare_anew(self, descriptor: StateDescriptor) -> None:
        """Have the next declaration of this state make an object of its own, as if it were the first.

        For reading only: what was declared before reads the same entries, and must not change them.
        """
        self._declared.pop(descriptor.name, None)
        self._types.pop(descriptor.name, None)
        self._descriptors[descriptor.name] = descriptor

    def operator_report(self) -> tuple[OperatorElements, ...]:
        """This owner's elements of each operator state, including those not declared."""
        return self._operator.report()

    def state_sizes(self) -> tuple[StateSize, ...]:
        """How much there is of each keyed state, declared or not, quickly. Call it when all changes are drained."""
        together: dict[object, tuple[TableSize, list[int]]] = {}
        for state_id, table in sorted(self._tables.items()):
            size = table.size()
            together.setdefault(table if size.database is None else size.database, (size, []))[1].append(state_id)
        return tuple(
            StateSize(tuple(states), size.keys, size.size_bytes, is_estimate=size.database is not None)
            for size, states in together.values()
        )

    def changed(self) -> list[str]:
        """The names of the states with changes since the last drain."""
        return [name for name, state in self._declared.items() if state.is_changed] + self._operator.changed()

    def drain(self) -> Iterator[Changes]:
        """The changes since the last drain, some thousands at a time."""
        for name, ttl in self._ttls.items():
            self._note_ttl(name, ttl)
        for name, state in self._declared.items():
            state_id = self._descriptors[name].state_id
            for changes in state.drain(state_id):
                self._tables[state_id].note(changes)
                yield changes

    def replay(self, parts: Iterable[Changes]) -> frozenset[int]:
        """Apply the changes of a checkpoint in order, and return their key groups. Other owners' changes are skipped.

        Raises `DataError` where a change names an unknown state, before any change is applied.
        """
        owned = (self.key_groups,)
        parts = [found for part in parts if (found := part.of_groups(owned)) is not None]
        if unknown := {part.state_id for part in parts} - self._tables.keys():
            raise DataError("a change names a state that its commit does not describe", state_id=min(unknown))
        for part in parts:
            self._tables[part.state_id].apply(part)
        return frozenset[int]().union(*(part.distinct_groups() for part in parts))

    def forget(self) -> None:
        """Drop all keyed state from memory, also what others still refer to: a state that is used after this raises.

        Not while anything drains, replays, or writes a base.
        """
        for state in self._declared.values():
            state.forget()
        for table in self._tables.values():
            table.forget()

    def ahead(self, parts: Iterator[Changes]) -> Iterator[Changes]:
        """Do what a replay of these changes needs no state for, in any thread: columns are decoded and hashed.

        Changes of other kinds are best decoded one part at a time: that takes the interpreter, and the processor's
        cache has them then when they are applied.
        """
        ready: list[Changes] = []
        for part in parts:
            table = self._tables.get(part.state_id)
            is_ahead = table is not None and table.look_at(part)
            ready.append(part)
            if not is_ahead:
                break
        return chain(ready, parts)

    def retire(self) -> None:
        """Nothing is logged any more: states can be read, and refuse to be changed; rows handed out refuse to be used.

        Nor does any state keep the files of its table open, however long somebody still refers to it.
        """
        for state in self._declared.values():
            state.retire()
        self._operator.retire()

    def resume(self) -> None:
        """Take changes again, as the states of another backend, and be declared with other classes than before."""
        for state in self._declared.values():
            state.resume()
        self._operator.resume()
        self._types.clear()

    def snapshot(self) -> StatesSnapshot:
        """A copy of all states as they are now, declared or not. It shares the entries.

        To write it as a base, drain to the end first: a change that is in the base and is logged after it is applied
        twice, and a list would have its elements twice.
        """
        return self._snapshot_of(self._tables)

    def snapshot_of(self, state_id: int) -> StatesSnapshot:
        """As `snapshot`, of one state."""
        return self._snapshot_of({state_id: self._tables[state_id]})

    def snapshot_in_memory(self) -> StatesSnapshot:
        """As `snapshot`, of the states that lie in memory even where the tables are files."""
        return self._snapshot_of(
            {state_id: table for state_id, table in self._tables.items() if not isinstance(table, EntryTable)}
        )

    def _snapshot_of(self, tables: Mapping[int, Table]) -> StatesSnapshot:
        is_live = {self._descriptors[name].state_id: state.living() for name, state in self._declared.items()}
        return StatesSnapshot({state_id: table.copy() for state_id, table in tables.items()}, is_live, self._keys)

    def _declaring(self) -> "KeyedStates":
        return self

    def _note_ttl(self, name: str, ttl: TimeToLive | None) -> None:
        """Note the state's time-to-live and since when it applies, now that this will be committed."""
        found = self._descriptors[name]
        lifetime = None if ttl is None else ttl.lifetime
        if ttl is not None and lifetime is not None:
            if lifetime.untimed_since_s is None:
                lifetime = msgspec.structs.replace(lifetime, untimed_since_s=ttl.stamp())
            apply(ttl, lifetime)
        if lifetime != found.lifetime:
            self._descriptors[name] = msgspec.structs.replace(found, lifetime=lifetime)

    def _describe(self, name: str, types: tuple[Any, ...], declaration: Declaration) -> StateDescriptor:
        next_id = 1 + max((found.state_id for found in self._descriptors.values()), default=-1)
        descriptor = described(self._descriptors.get(name) if type(name) is str else None, next_id, name, declaration)
        first = self._types.setdefault(name, types)
        if not all(map(_is_same, first, types)):
            raise StateTypeError(
                "the state was declared with another class before",
                state=name,
                first=", ".join(map(repr, first)),
                now=", ".join(map(repr, types)),
            )
        self._descriptors[name] = descriptor
        self._ttls[name] = declaration.ttl
        if declaration.ttl is not None:
            self._apply(declaration.ttl, descriptor.lifetime)
        return descriptor

    def _apply(self, ttl: TimeToLive, before: Lifetime | None) -> None:
        """Have it apply to what is stored: from the clock of the commit on, if it goes by that."""
        clock = self.clock
        at_s = clock.before_s if clock.has_moved else clock.now_s
        known_s = at_s if ttl.goes_by_job_clock and at_s != NOT_BEGUN else None
        apply(ttl, Lifetime(ttl.seconds) if before is None else before.changed_to(ttl.seconds, known_s))

    def _table_of(self, descriptor: StateDescriptor) -> Table:
        if descriptor.kind == COLUMNAR:
            from statebackend._columns.column_table import ColumnTable  # noqa: PLC0415  # it needs an extra
            from statebackend._columns.table_schema import read_schema  # noqa: PLC0415  # they need an extra

            columns = read_schema(descriptor.schema, descriptor.key_schema)
            return self._open_table(partial(ColumnTable, columns, self._keys), descriptor.state_id)
        if descriptor.kind not in KINDS:
            raise UnsupportedVersionError(
                "this release does not know a state's kind: upgrade", state=descriptor.name, kind=descriptor.kind
            )
        return self._open_table(KINDS[descriptor.kind], descriptor.state_id)


def _is_same(one: Any, other: Any) -> bool:
    """True if two declared types are equal, or two serializers of one class."""
    return type(one) is type(other) if is_serializer(one) and is_serializer(other) else bool(one == other)
