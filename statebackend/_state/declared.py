"""The keyed states of one backend: what was declared, what was restored, and the way between state and changelog."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, get_args

from msgspec import UNSET, UnsetType

from statebackend._codec.records import StateChange
from statebackend._codec.serializers import is_serializer
from statebackend._state import (
    aggregating_state,
    list_state,
    map_state,
    reducing_state,
    timers,
    value_state,
)
from statebackend._state.aggregating_state import Aggregate, AggregatingState, accumulator_type
from statebackend._state.descriptors import Shape, described, shape_of
from statebackend._state.every_kind import KeyedState
from statebackend._state.list_state import ListState
from statebackend._state.map_state import EntryKeys, MapState
from statebackend._state.operator_state import (
    OPERATOR_KINDS,
    Mode,
    OperatorState,
    OperatorStates,
    as_mode,
    mode_of,
)
from statebackend._state.reducing_state import ReducingState
from statebackend._state.timers import TimerClock, Timers
from statebackend._state.ttl import TimeToLive
from statebackend._state.value_state import ValueState
from statebackend._state.values import Upcast, Values
from statebackend._tables.heap import KINDS, heap_table
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tables.table import AnyTable, OpenTable
from statebackend.abc import Serializer
from statebackend.errors import DataError, InputError, StateTypeError, UnsupportedVersionError
from statebackend.ids import KeyGroupRange, OperatorElements, RangeState, StateDescriptor, all_key_groups

V = TypeVar("V")
K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S", bound=KeyedState[Any, Any])


class StateDeclarations(ABC):
    """A method for each kind of state, which declares one by name. Of `KeyedStates`, and of who has one."""

    @abstractmethod
    def _declaring(self) -> "KeyedStates":
        """Whose states they are. Called first; raises where none may be declared any more."""

    def value_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        *,
        default: V | UnsetType = UNSET,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> ValueState[V]:
        """The value state of that name, declared on first use: a mapping from key to values of `type_`.

        `type_` is any type that msgspec can decode, or a `Serializer`. Its fields may be added with defaults, and
        removed, from one run to the next. `migrate` holds one function for each other change there ever was: it gets
        a value as it was before that change, as builtins, and returns it as after.

        Raises `StateTypeError` where the state was written with another type, `InputError` for a type that msgspec
        cannot decode. Nothing is written before the next checkpoint. All of this goes for the other kinds of state too.
        """
        states, values = self._declaring(), Values(type_, ttl=ttl, migrate=migrate)
        state = states.declare(name, ValueState[V], (type_,), shape_of(value_state.KIND, values))
        state.declare(values, default)
        return state

    def list_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> ListState[V]:
        """The list state of that name: a mapping from key to a list of elements of `type_`."""
        states, values = self._declaring(), Values(type_, ttl=ttl, migrate=migrate)
        state = states.declare(name, ListState[V], (type_,), shape_of(list_state.KIND, values))
        state.declare(values)
        return state

    def map_state(
        self,
        name: str,
        key_type: type[K] | Serializer[K],
        type_: type[V] | Serializer[V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> MapState[K, V]:
        """The map state of that name: a mapping from key to a map from `key_type` to `type_`."""
        states, values, entry_keys = self._declaring(), Values(type_, ttl=ttl, migrate=migrate), EntryKeys(key_type)
        shape = shape_of(map_state.KIND, values, entry_keys.schema)
        state = states.declare(name, MapState[K, V], (key_type, type_), shape)
        state.declare(values, entry_keys)
        return state

    def reducing_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        reduce: Callable[[V, V], V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> ReducingState[V]:
        """The reducing state of that name: a mapping from key to all that was added, reduced to one of `type_`."""
        states, values = self._declaring(), Values(type_, ttl=ttl, migrate=migrate)
        state = states.declare(name, ReducingState[V], (type_,), shape_of(reducing_state.KIND, values))
        state.declare(values, reduce)
        return state

    def aggregating_state(
        self,
        name: str,
        aggregate: Aggregate[Any, V, R],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> AggregatingState[V, R]:
        """The aggregating state of that name: a mapping from key to what `aggregate` makes of all that was added."""
        states, type_ = self._declaring(), accumulator_type(aggregate)
        values: Values[Any] = Values(type_, ttl=ttl, migrate=migrate)
        state = states.declare(name, AggregatingState[V, R], (type_,), shape_of(aggregating_state.KIND, values))
        state.declare(values, aggregate)
        return state

    def timers(self, name: str, clock: TimerClock = "event") -> Timers:
        """The timers of that name: times of events, or of the processing, at which keys are due.

        Raises `StateTypeError` where they were registered by the other clock.
        """
        states = self._declaring()
        if clock not in get_args(TimerClock):
            raise InputError("timers are of one of these clocks", clock=repr(clock), clocks=get_args(TimerClock))
        return states.declare(name, Timers, (clock,), Shape(timers.KIND, clock))

    def operator_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        mode: Mode = "split",
        *,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> OperatorState[V]:
        """The operator state of that name: a list of elements of `type_` that belongs to this owner and to no key.

        With another number of owners, `split` deals the elements of all out anew, `union` gives all of them to each,
        and `broadcast` gives each a copy. All of it is in every commit: it is for offsets and the like. Raises
        `InputError` in the backend of a part of the key groups that was not told its `owners`.
        """
        states, values = self._declaring(), Values(type_, migrate=migrate)
        state: OperatorState[V] = states.declare_operator(name, (type_,), mode, values)
        state.declare(values)
        return state


class KeyedStates(StateDeclarations):
    """Tables by state id, filled by a restore before anybody declares them, and the declared views on them.

    A state that a commit holds but nobody declares is kept as it is and goes into the next commits. Raises
    `UnsupportedVersionError` where a commit holds a kind of state that this release does not know.

    Declaring a state again gives the same one, with the functions, clock and default of the newest declaration. Raises
    `StateTypeError` where it was written, or declared, with another kind or type; also where only the class is another
    one: values would come back as instances of the first.
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
    ) -> None:
        """`reported` is what former owners had, `owners` are all there are now, where this is not the only one."""
        self.key_groups: Final = key_groups
        self._owned_groups = frozenset(key_groups)
        self._keys = OwnedKeys(key_groups, max_parallelism)
        self._open_table = open_table
        self._descriptors: dict[str, StateDescriptor] = {descriptor.name: descriptor for descriptor in known}
        self._tables: dict[int, AnyTable] = {
            descriptor.state_id: self._table_of(descriptor)
            for descriptor in self._descriptors.values()
            if mode_of(descriptor.kind) is None
        }
        if owners is None and key_groups == all_key_groups(max_parallelism):
            owners = [key_groups]
        self._operator = OperatorStates(key_groups, self._descriptors.values(), reported, owners)
        self._declared: dict[str, KeyedState[Any, Any]] = {}
        self._types: dict[str, tuple[Any, ...]] = {}  # that a state was declared with in this process

    @property
    def descriptors(self) -> tuple[StateDescriptor, ...]:
        """Every state there is, in the order of their ids."""
        return tuple(sorted(self._descriptors.values(), key=lambda descriptor: descriptor.state_id))

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of keys per state, those included whose values have expired and were not dropped yet."""
        tables = self._tables
        return {
            name: len(tables[found.state_id].entries)
            for name, found in self._descriptors.items()
            if found.state_id in tables
        }

    def declare(self, name: str, class_: type[S], types: tuple[Any, ...], shape: Shape) -> S:
        """The view of `class_` on that state, the same one each time."""
        descriptor = self._describe(name, types, shape)
        if descriptor.state_id not in self._tables:
            self._tables[descriptor.state_id] = self._table_of(descriptor)
        if name not in self._declared:
            self._declared[name] = class_(name, self._tables[descriptor.state_id], self._keys)
        return cast("S", self._declared[name])

    def declare_operator(self, name: str, types: tuple[Any, ...], mode: Mode, values: Values[V]) -> OperatorState[V]:
        """The operator state of that name. Raises `InputError` where it is not known who the other owners are."""
        self._operator.check_owners()
        descriptor = self._describe(name, types, shape_of(OPERATOR_KINDS[as_mode(mode)], values))
        return self._operator.state(name, descriptor.state_id)

    def forget_types(self) -> None:
        """States may be declared with other classes from now on, as they may in another process."""
        self._types.clear()

    def operator_report(self) -> tuple[OperatorElements, ...]:
        """What this owner holds of each operator state, undeclared ones too."""
        return self._operator.report()

    def drain(self) -> Iterator[StateChange]:
        """The changes since the last drain."""
        for name, state in self._declared.items():
            yield from state.drain(self._descriptors[name].state_id)

    def replay(self, changes: Iterable[StateChange]) -> frozenset[int]:
        """Apply changes of a checkpoint, in order; the key groups that they are of. Foreign ones are passed over.

        The tables do not know each other, so each is given its own at once. Raises `DataError` where a change is of
        none of them, before any is applied.
        """
        changes = [*changes]
        groups = frozenset([change.key_group for change in changes])
        if not groups <= self._owned_groups:
            groups &= self._owned_groups
            changes = [change for change in changes if change.key_group in groups]
        state_ids = {change.state_id for change in changes}
        if unknown := state_ids - self._tables.keys():
            raise DataError("a change names a state that its commit does not describe", state_id=min(unknown))
        for state_id in state_ids:
            is_alone = len(state_ids) == 1
            own = changes if is_alone else [change for change in changes if change.state_id == state_id]
            self._tables[state_id].apply_many(own)
        return groups

    def snapshot(self) -> StatesSnapshot:
        """What the states hold now, undeclared ones too: a copy of references.

        It stands in for the changes up to here, so whoever writes it as a base drains first, to the end: what is in it
        and is logged behind it is applied twice, and a list would have its elements twice.
        """
        renew = {self._descriptors[name].state_id: state.renewed() for name, state in self._declared.items()}
        tables = {state_id: table.copy() for state_id, table in self._tables.items()}
        return StatesSnapshot(tables, renew, self._keys)

    def _declaring(self) -> "KeyedStates":
        return self

    def _describe(self, name: str, types: tuple[Any, ...], shape: Shape) -> StateDescriptor:
        next_id = 1 + max((found.state_id for found in self._descriptors.values()), default=-1)
        descriptor = described(self._descriptors.get(name) if type(name) is str else None, next_id, name, shape)
        first = self._types.setdefault(name, types)
        if not all(map(_is_same, first, types)):
            raise StateTypeError(
                "the state is declared with another class already",
                state=name,
                first=", ".join(map(repr, first)),
                now=", ".join(map(repr, types)),
            )
        self._descriptors[name] = descriptor
        return descriptor

    def _table_of(self, descriptor: StateDescriptor) -> AnyTable:
        if descriptor.kind not in KINDS:
            raise UnsupportedVersionError(
                "a state of a kind that this release does not know", state=descriptor.name, kind=descriptor.kind
            )
        return self._open_table(KINDS[descriptor.kind], descriptor.state_id)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two declared types are one; of serializers, whether their classes are."""
    return type(one) is type(other) if is_serializer(one) and is_serializer(other) else bool(one == other)
