"""The half of a backend that user code runs with: it declares states here, as long as the backend is of any use."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from statebackend._state.aggregating_state import Aggregate, AggregatingState
from statebackend._state.keyed import KeyedStates
from statebackend._state.list_state import ListState
from statebackend._state.map_state import MapState
from statebackend._state.operator_state import Mode, OperatorState
from statebackend._state.reducing_state import ReducingState
from statebackend._state.timers import TimerClock, Timers
from statebackend._state.ttl import TimeToLive
from statebackend._state.value_state import ValueState
from statebackend._state.values import Upcast
from statebackend.abc import Serializer
from statebackend.errors import BackendClosedError, InputError

V = TypeVar("V")
K = TypeVar("K")
R = TypeVar("R")


class DeclaresStates:
    """Every kind of state by name. Each method raises `BackendClosedError` once the backend has failed or is closed."""

    def __init__(self, states: KeyedStates) -> None:
        self._states = states
        self._failure: Exception | None = None
        self._closed = False

    @property
    def is_usable(self) -> bool:
        """Whether it is neither closed nor has failed."""
        return self._failure is None and not self._closed

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
        self._check_usable()
        return self._states.value_state(name, type_, default=default, ttl=ttl, migrate=migrate)

    def list_state(
        self,
        name: str,
        type_: type[V] | Serializer[V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> ListState[V]:
        """The list state of that name: a mapping from key to a list of elements of `type_`."""
        self._check_usable()
        return self._states.list_state(name, type_, ttl=ttl, migrate=migrate)

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
        self._check_usable()
        return self._states.map_state(name, key_type, type_, ttl=ttl, migrate=migrate)

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
        self._check_usable()
        return self._states.reducing_state(name, type_, reduce, ttl=ttl, migrate=migrate)

    def aggregating_state(
        self,
        name: str,
        aggregate: Aggregate[Any, V, R],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> AggregatingState[V, R]:
        """The aggregating state of that name: a mapping from key to what `aggregate` makes of all that was added."""
        self._check_usable()
        return self._states.aggregating_state(name, aggregate, ttl=ttl, migrate=migrate)

    def timers(self, name: str, clock: TimerClock = "event") -> Timers:
        """The timers of that name: times of events, or of the processing, at which keys are due."""
        self._check_usable()
        return self._states.timers(name, clock)

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
        self._check_usable()
        return self._states.operator_state(name, type_, mode, migrate=migrate)

    @contextmanager
    def _failing(self) -> Generator[None, None, None]:
        """An error in here that is not the caller's ends the use of this backend."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            self._failure = error
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise BackendClosedError("the backend has failed: open a new one") from self._failure
        if self._closed:
            raise BackendClosedError("the backend is closed: open a new one")
