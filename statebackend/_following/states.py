"""The states of a follower, for reading: declared as those of a backend, each read of the commit that is applied.

What is declared stays usable while the job commits, goes back, or writes the state with another version of its type:
it is declared again where it has to be. Until the job has such a state, it is empty.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, Unpack, cast

import msgspec
from msgspec import UNSET, UnsetType

from statebackend._keywords import keywords_of
from statebackend._state.bulk_arguments import Arrow
from statebackend._state.declarations import HowToKeep
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.aggregating_state import Aggregate
from statebackend._state.kinds.list_state import ListState
from statebackend._state.kinds.map_state import MapState
from statebackend._state.time.timers import Timers
from statebackend._state.time.ttl import TimeToLive
from statebackend._state.values import Values
from statebackend.abc import Serializer
from statebackend.errors import InputError, StateTypeError
from statebackend.ids import ClockKind, Key

V = TypeVar("V")
K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S")


class Reads(Protocol):
    """The source that a state of a follower asks before each read for the states to read in. `StateFollower` is one."""

    def read_states(self) -> tuple[KeyedStates, object]:
        """The states to read in, and an object that is another one once they were changed. Raises `StaleError`."""
        ...

    def declared_in(self, states: KeyedStates, name: str) -> KeyedStates:
        """Those states, ready for another declaration of that name, or empty ones where they have no such state."""
        ...


class FollowedState(Generic[S]):
    """The base class of the states of a follower. Changing one raises `InputError`."""

    _anew = False
    """Declare it again for each commit, since it remembers what it has read."""

    def __init__(
        self,
        follower: Reads,
        declare: Callable[..., S],
        name: str,
        *types: Any,
        ttl: TimeToLive | None = None,
        **options: Any,
    ) -> None:
        """`declare`: the method of `KeyedStates` that gets the other arguments. A read does not prolong a `ttl`."""
        self.name: Final = name
        self._follower = follower
        if isinstance(cast("object", ttl), TimeToLive) and ttl is not None:  # what is none is refused by `declare`
            ttl = msgspec.structs.replace(ttl, on_read=False)
        self._declare: Callable[[KeyedStates], S] = lambda states: declare(states, name, *types, ttl=ttl, **options)
        self._declared_in: tuple[object, object] = (None, None)
        self._state: S = cast("S", None)
        self._now()

    def _now(self) -> S:
        """The state as of the commit that is applied."""
        states, version = self._follower.read_states()
        states_before, version_before = self._declared_in
        if states is not states_before or (self._anew and version is not version_before):
            self._state = self._declare(self._follower.declared_in(states, self.name))
            self._declared_in = states, version
        return self._state

    def __contains__(self, key: object) -> bool:
        return key in cast("Any", self._now())

    def __iter__(self) -> Iterator[Key]:
        return iter(cast("Any", self._now()))

    def __len__(self) -> int:
        return len(cast("Any", self._now()))

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse()

    def __delitem__(self, key: Any) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name in _WRITES:
            self._refuse()
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def _refuse(self) -> NoReturn:
        raise InputError("a follower is only read: change the state in the job, or promote the follower")


_WRITES: Final = frozenset(
    (
        *("add", "add_many", "append", "append_many", "clear", "delete", "due", "extend", "extend_many", "merge"),
        *("pop", "popitem", "put", "put_many", "register", "register_many", "remove", "remove_entry", "rows"),
        *("setdefault", "take_due", "update", "update_many"),
    )
)


class FollowedValues(FollowedState[Any], Mapping[Key, V]):
    """A value state, a reducing one or an aggregating one: a mapping from key to a fresh value, or result."""

    def __getitem__(self, key: Key) -> V:
        found: V = self._now()[key]
        return found

    def get_many(self, keys: Iterable[Key] | Arrow, default: Any = None) -> list[Any]:
        """The values of `keys`, in their order; for a missing key `default`, or the default of the declaration."""
        return cast("list[Any]", self._now().get_many(keys, default))


class FollowedLists(FollowedState[ListState[V]], Mapping[Key, list[V]]):
    """A list state: a mapping from key to a fresh list, empty where the key has none."""

    def __getitem__(self, key: Key) -> list[V]:
        return self._now().read(key)

    def get_many(self, keys: Iterable[Key] | Arrow) -> list[list[V]]:
        """The lists of `keys`, in their order."""
        return self._now().get_many(keys)


class FollowedMaps(FollowedState[MapState[K, V]], Mapping[Key, Mapping[K, V]], Generic[K, V]):
    """A map state: a mapping from key to a map, of which single entries are read, empty where the key has none."""

    def __getitem__(self, key: Key) -> Mapping[K, V]:
        self._now()[key]  # refuses what is no key
        return FollowedMap(self._now, key)

    def get_many(self, keys: Iterable[Key] | Arrow) -> list[dict[K, V]]:
        """The maps of `keys`, in their order."""
        return self._now().get_many(keys)


class FollowedMap(Mapping[K, V]):
    """The map of one key, as of the commit that is applied when it is asked."""

    def __init__(self, now: Callable[[], MapState[K, V]], key: Key) -> None:
        self._now = now
        self._key = key

    def __getitem__(self, entry_key: K) -> V:
        return self._now().read_entry(self._key, entry_key)

    def __contains__(self, entry_key: object) -> bool:
        return self._now().has_entry(self._key, cast("K", entry_key))

    def __iter__(self) -> Iterator[K]:
        return iter(self._now().entry_keys(self._key))

    def __len__(self) -> int:
        return self._now().length(self._key)

    def __setitem__(self, entry_key: K, value: V) -> NoReturn:
        raise InputError("a follower is only read: change the state in the job, or promote the follower")

    __delitem__ = cast("Any", __setitem__)


class FollowedTimers(FollowedState[Timers]):
    """Timers: which keys have some, and when. None is taken."""

    _anew = True

    def registered(self, key: Key) -> tuple[float, ...]:
        """The key's times, in ascending order."""
        return self._now().registered(key)

    def next_at(self) -> float | None:
        """The earliest time of all keys, `None` without a timer. Once per commit it looks at all of them."""
        return self._now().next_at()


class FollowedColumns(FollowedState[Any], Mapping[Key, Mapping[str, Any]]):
    """A columnar state: Arrow for many keys, a dict of Python values for one."""

    _anew = True

    def __getitem__(self, key: Key) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._now()[key]
        return found

    @property
    def schema(self) -> Any:
        """The columns of a row, a `pyarrow.Schema`."""
        return self._now().schema

    def gather(self, keys: Any, columns: Sequence[str] | None = None) -> Any:
        """The rows of these keys, a `pyarrow.RecordBatch`: nulls for a key without a row. `keys`: Arrow or iterable."""
        return self._now().rows(keys).gather(columns)

    def to_arrow(self, columns: Sequence[str] | None = None, *, key: str = "key") -> Any:
        """All rows, a `pyarrow.Table`: the keys in a column of the name `key`, then the columns, or some of them."""
        return self._now().to_arrow(columns, key=key)


class FollowedStates:
    """A method for each kind of state, which declares it for reading, with the arguments that a backend takes."""

    @abstractmethod
    def _reads(self) -> Reads:
        """The follower itself: the states ask it before each read."""

    @keywords_of(HowToKeep, Values)
    def value_state(
        self, name: str, type_: type[V] | Serializer[V], *, default: V | UnsetType = UNSET, **kept: Unpack[HowToKeep]
    ) -> FollowedValues[V]:
        """The value state of this name, as `StateBackend.value_state`: a mapping that is only read.

        Each declaration has its own type: the same state may be declared twice, with different classes. Reading raises
        `StateTypeError` once the job writes the state with a type that this one cannot read. The same holds for all
        kinds.
        """
        return FollowedValues(self._reads(), KeyedStates.value_state, name, type_, default=default, **kept)

    @keywords_of(HowToKeep, Values)
    def list_state(self, name: str, type_: type[V] | Serializer[V], **kept: Unpack[HowToKeep]) -> FollowedLists[V]:
        """The list state of this name: a mapping from key to a list."""
        return FollowedLists(self._reads(), KeyedStates.list_state, name, type_, **kept)

    @keywords_of(HowToKeep, Values)
    def map_state(
        self, name: str, key_type: type[K] | Serializer[K], type_: type[V] | Serializer[V], **kept: Unpack[HowToKeep]
    ) -> FollowedMaps[K, V]:
        """The map state of this name: a mapping from key to a map from `key_type` to `type_`."""
        return FollowedMaps(self._reads(), KeyedStates.map_state, name, key_type, type_, **kept)

    @keywords_of(HowToKeep, Values)
    def reducing_state(
        self, name: str, type_: type[V] | Serializer[V], reduce: Callable[[V, V], V], **kept: Unpack[HowToKeep]
    ) -> FollowedValues[V]:
        """The reducing state of this name: a mapping from key to all values that were added, reduced to one."""
        return FollowedValues(self._reads(), KeyedStates.reducing_state, name, type_, reduce, **kept)

    @keywords_of(HowToKeep, Values)
    def aggregating_state(
        self, name: str, aggregate: Aggregate[Any, V, R], **kept: Unpack[HowToKeep]
    ) -> FollowedValues[R]:
        """The aggregating state of this name: a mapping from key to the result of `aggregate`."""
        return FollowedValues(self._reads(), KeyedStates.aggregating_state, name, aggregate, **kept)

    def columnar_state(
        self,
        name: str,
        schema: Any,
        *,
        key: Any,
        ttl: TimeToLive | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> FollowedColumns:
        """The columnar state of this name. Raises `StateTypeError` unless the columns are those that the job has."""
        return FollowedColumns(self._reads(), _columns_as_they_are, name, schema, key=key, ttl=ttl, defaults=defaults)

    def timers(self, name: str, clock: ClockKind | None = None) -> FollowedTimers:
        """The timers of this name."""
        return FollowedTimers(self._reads(), _timers, name, clock)


def _columns_as_they_are(
    states: KeyedStates, name: str, schema: Any, *, ttl: TimeToLive | None = None, **options: Any
) -> Any:
    """Declare columns. Raises `StateTypeError` if that would change them.

    Without `ttl` where the job has none yet: then no row has a time, and none expires.
    """
    before = next((each for each in states.descriptors if each.name == name), None)
    for kept in (ttl,) if before is None or ttl is None else (ttl, None):
        blank = KeyedStates(states.key_groups, states.max_parallelism, () if before is None else (before,))
        blank.clock.stand_at(states.clock.mark)
        blank.columnar_state(name, schema, ttl=kept, **options)
        after = next(each for each in blank.descriptors if each.name == name)
        if before is None or (before.schema, before.key_schema) == (after.schema, after.key_schema):
            return states.columnar_state(name, schema, ttl=kept, **options)
    assert before is not None
    raise StateTypeError(
        "a follower reads columns as the job has them: declare these",
        state=name,
        columns=before.schema,
        key=before.key_schema,
    )


def _timers(states: KeyedStates, name: str, clock: ClockKind | None, **_: object) -> Timers:
    """Declare timers, which never expire."""
    return states.timers(name, clock)
