"""A method for each kind of state, which declares it: what a backend and a processor's context offer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack, cast, get_args

from msgspec import UNSET, UnsetType

from statebackend._keywords import keywords_of
from statebackend._state.descriptors import Declaration, declaration_of
from statebackend._state.kinds import aggregating_state, list_state, map_state, reducing_state, value_state
from statebackend._state.kinds.aggregating_state import Aggregate, AggregatingState, accumulator_type
from statebackend._state.kinds.every_kind import KeyedState
from statebackend._state.kinds.list_state import ListState
from statebackend._state.kinds.map_state import EntryKeys, MapState
from statebackend._state.kinds.operator_state import Mode, OperatorState
from statebackend._state.kinds.reducing_state import ReducingState
from statebackend._state.kinds.value_state import ValueState
from statebackend._state.time import timers
from statebackend._state.time.job_clock import JobClock
from statebackend._state.time.timers import Timers
from statebackend._state.time.ttl import TimeToLive
from statebackend._state.values import Upcast, Values
from statebackend.abc import Serializer
from statebackend.errors import InputError
from statebackend.ids import ClockKind

if TYPE_CHECKING:
    from statebackend._state.columnar.columnar_state import ColumnarState

V = TypeVar("V")
K = TypeVar("K")
R = TypeVar("R")


S = TypeVar("S", bound="KeyedState[Any, Any] | ColumnarState")


class HowToKeep(TypedDict, total=False):
    """The keywords of every kind of keyed state but columns: `value_state` says what they mean."""

    ttl: TimeToLive | None
    migrate: Upcast | Sequence[Upcast]


class Declares(Protocol):
    """The states of a backend, in which each is declared by its name: `KeyedStates`, which stands above this file."""

    @property
    def clock(self) -> JobClock:
        """The job's clock, by which time-to-live and timers go."""
        ...

    def declare(self, name: str, class_: type[S], types: tuple[Any, ...], declaration: Declaration) -> S:
        """The state of this name as a `class_`, the same object each time."""
        ...

    def declare_columns(
        self, name: str, schema: Any, key: Any, ttl: TimeToLive | None, defaults: Mapping[str, Any]
    ) -> "ColumnarState":
        """The columnar state of this name."""
        ...

    def declare_operator(self, name: str, types: tuple[Any, ...], mode: Mode, values: Values[V]) -> OperatorState[V]:
        """The operator state of this name."""
        ...


class StateDeclarations(ABC):
    """A method for each kind of state, which declares a state by its name."""

    @abstractmethod
    def _declaring(self) -> Declares:
        """The states to declare in. Called first; raises where none may be declared any more."""

    @keywords_of(HowToKeep, Values)
    def value_state(
        self, name: str, type_: type[V] | Serializer[V], *, default: V | UnsetType = UNSET, **kept: Unpack[HowToKeep]
    ) -> ValueState[V]:
        """The value state of this name, declared on first use: a mapping from key to one value of `type_`.

            legs = backend.value_state("legs", Leg)
            legs["N14228"] = Leg("EWR", "IAH")

        `type_` is any type that msgspec can decode, or a `Serializer`. From one run to the next it may lose fields, and
        get new ones with defaults. `migrate` has one function for each other change the type ever had, oldest first:
        it takes a value as it was before the change, as builtins, and returns it as it is after the change.

        Raises `StateTypeError` where the state was written with another type, `InputError` for a type that msgspec
        cannot decode, `ValueEncodeError` for a `default` of another type. Nothing is written before the next
        checkpoint. All of this holds for the other kinds too.
        """
        states = self._declaring()
        values = _values(type_, states, **kept)
        encoded = default if isinstance(default, UnsetType) else values.serializer.encode(default)
        state = states.declare(name, ValueState[V], (type_,), declaration_of(value_state.KIND, values))
        state.declare(values, encoded)
        return state

    @keywords_of(HowToKeep, Values)
    def list_state(self, name: str, type_: type[V] | Serializer[V], **kept: Unpack[HowToKeep]) -> ListState[V]:
        """The list state of this name: a mapping from key to a list of elements of `type_`."""
        states = self._declaring()
        values = _values(type_, states, **kept)
        state = states.declare(name, ListState[V], (type_,), declaration_of(list_state.KIND, values))
        state.declare(values)
        return state

    @keywords_of(HowToKeep, Values)
    def map_state(
        self, name: str, key_type: type[K] | Serializer[K], type_: type[V] | Serializer[V], **kept: Unpack[HowToKeep]
    ) -> MapState[K, V]:
        """The map state of this name: a mapping from key to a map from `key_type` to `type_`."""
        states, entry_keys = self._declaring(), EntryKeys(key_type)
        values = _values(type_, states, **kept)
        declaration = declaration_of(map_state.KIND, values, entry_keys.schema)
        state = states.declare(name, MapState[K, V], (key_type, type_), declaration)
        state.declare(values, entry_keys)
        return state

    @keywords_of(HowToKeep, Values)
    def reducing_state(
        self, name: str, type_: type[V] | Serializer[V], reduce: Callable[[V, V], V], **kept: Unpack[HowToKeep]
    ) -> ReducingState[V]:
        """The reducing state of this name: a mapping from key to all values that were added, reduced to one `type_`."""
        states = self._declaring()
        values = _values(type_, states, **kept)
        state = states.declare(name, ReducingState[V], (type_,), declaration_of(reducing_state.KIND, values))
        state.declare(values, reduce)
        return state

    @keywords_of(HowToKeep, Values)
    def aggregating_state(
        self, name: str, aggregate: Aggregate[Any, V, R], **kept: Unpack[HowToKeep]
    ) -> AggregatingState[V, R]:
        """The aggregating state of this name: a mapping from key to the result of `aggregate` for all added values."""
        states, type_ = self._declaring(), accumulator_type(aggregate)
        values: Values[Any] = _values(type_, states, **kept)
        state = states.declare(name, AggregatingState[V, R], (type_,), declaration_of(aggregating_state.KIND, values))
        state.declare(values, aggregate)
        return state

    def columnar_state(
        self,
        name: str,
        schema: Any,
        *,
        key: Any,
        ttl: TimeToLive | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> "ColumnarState":
        """The columnar state of this name: a row of columns per key, for whole batches in Arrow. Needs pyarrow.

            fleet = backend.columnar_state("fleet", pa.schema({"n": pa.int64()}), key=pa.string())

        `schema` is a `pyarrow.Schema` of the columns, `key` the `pyarrow.DataType` of the keys: `string`, `int64`,
        `binary`, or a `struct` of these for tuples. From one run to the next, columns may be dropped, widened, and
        added: then rows written before have null there, or the column's value of `defaults`. Columns are in memory,
        also where other states are in RocksDB, unless `Settings.table` says "runs".

        Raises `SettingsError` where pyarrow is missing, `InputError` for a type of which there can be no column, and
        `StateTypeError` where the state was written with a schema that cannot become this one.
        """
        states = self._declaring()
        return states.declare_columns(name, schema, key, _timed(ttl, states), defaults or {})

    def timers(self, name: str, clock: ClockKind | None = None) -> Timers:
        """The timers of this name: the times at which keys are due, in event time or processing time.

        `clock` is by default that of the job, and event time where it has none. Raises `StateTypeError` where they were
        declared with the other clock before.
        """
        states = self._declaring()
        if clock is not None and clock not in get_args(ClockKind):
            raise InputError("timers go by one of these clocks", clock=repr(clock), clocks=get_args(ClockKind))
        kind: ClockKind = clock or states.clock.kind or "event"
        state = states.declare(name, Timers, (kind,), Declaration(timers.KIND, kind))
        state.declare(kind, states.clock)
        return state

    def operator_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        mode: Mode = "split",
        *,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> OperatorState[V]:
        """The operator state of this name: a list of elements of `type_` that belongs to this owner and to no key.

        When the number of owners changes, `split` deals out the elements of all owners again, `union` gives all
        elements to each owner, and `broadcast` gives each owner a copy. Every commit contains all of it, so it is for
        offsets and the like. Raises `InputError` in the backend of a part of the key groups that was opened without
        `owners`.
        """
        states, values = self._declaring(), Values(type_, migrate=migrate)
        state: OperatorState[V] = states.declare_operator(name, (type_,), mode, values)
        state.declare(values)
        return state


def _values(
    type_: type[V] | Serializer[V],
    states: Declares,
    *,
    ttl: TimeToLive | None = None,
    migrate: Upcast | Sequence[Upcast] = (),
) -> Values[V]:
    return Values(type_, ttl=_timed(ttl, states), migrate=migrate)


def _timed(ttl: TimeToLive | None, states: Declares) -> TimeToLive | None:
    """A time-to-live on the job's clock unless it has a function. What is none goes on, to be refused."""
    return ttl.going_by(states.clock) if isinstance(cast("object", ttl), TimeToLive) and ttl is not None else ttl
