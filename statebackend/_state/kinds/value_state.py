"""One value per key. Whether it has expired, `cell_state.py` asks `_state/time/ttl.py`."""

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Final, TypeVar, overload

from msgspec import UNSET, UnsetType

from statebackend._codec.change_sets.state_change import SCALARS
from statebackend._state.bulk_arguments import Arrow, as_list, keys_as_list, own
from statebackend._state.kinds.cell_state import CellState
from statebackend._state.values import Values
from statebackend.errors import ValueDecodeError
from statebackend.ids import Key

V = TypeVar("V")
T = TypeVar("T")

KIND: Final = "value"


class ValueState(CellState[V], MutableMapping[Key, V]):
    """A mapping from key to value that survives this process.

        legs = backend.value_state("legs", Leg)
        legs["N14228"] = Leg("EWR", "IAH")

    It has all methods of `MutableMapping`, synchronous and without network I/O; the order of the keys is not promised.
    Values are copied in and out: after `leg = legs[key]; leg.miles += 1` the state is unchanged until
    `legs[key] = leg`.

    Only one thread may use it at a time, and not during a checkpoint. Nothing is durable before the next `checkpoint`.
    Every method that takes a key, `in` and `get` included, raises `KeyTypeError` for a value that cannot be a key and
    `KeyGroupError` for another owner's key. Setting raises `ValueEncodeError`, reading `ValueDecodeError`. After any of
    these errors the state is as before.

    If the state was declared with a `default`, reading a missing key, also by `get` and `setdefault`, returns a copy of
    the default and stores nothing.
    """

    __slots__ = ("_decode", "_default", "_encode", "_is_timed")

    def declare(self, values: Values[V], default: bytes | UnsetType = UNSET) -> None:
        """Apply a declaration: the first, or a later one of the same type. `default`: encoded."""
        self._default = default
        self._values = values
        self._encode = values.encode
        self._decode = values.decode_plain
        self._is_timed = values.ttl is not None

    def __getitem__(self, key: Key) -> V:
        cell = self._entries.get(key) if type(key) in SCALARS else None
        if cell is None or self._is_timed:
            cell = self._cell(key)
            if cell is None:
                return self._missing(key)
        try:
            return self._decode(cell)
        except ValueDecodeError:
            return self._values.decode(cell)

    def __setitem__(self, key: Key, value: V) -> None:
        cell = self._encode(value)
        # As `_set`, without its calls. A range check of an int is quicker than finding it among the dirty keys.
        if (type(key) is not int or not self._int_least <= key <= self._int_greatest) and (
            type(key) not in SCALARS or key not in self._dirty
        ):
            self._check(key)
        self._dirty[key] = cell if self._remembers else None
        self._entries[key] = cell

    @overload
    def pop(self, key: Key, /) -> V: ...
    @overload
    def pop(self, key: Key, /, default: V) -> V: ...
    @overload
    def pop(self, key: Key, /, default: T) -> V | T: ...
    def pop(self, key: Key, /, default: Any = UNSET) -> Any:
        """Remove the key and return its value, or `default` where there is none."""
        if key in self:
            value = self[key]
            self._remove(key)
            return value
        if isinstance(default, UnsetType):
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Key, V]:
        """Remove a key, and return it with its value. Raises `KeyError` where there is none."""
        entries = self._entries
        while isinstance(entries, dict) and entries:
            # To find its first key, or its last one, it passes the places of all that are gone; its own `popitem`
            # takes those at the end away.
            last, cell = entries.popitem()
            entries[last] = cell
            if last in self:
                return last, self.pop(last)
            self._remove(last)  # it has expired
        key = next((key for key in self if key in self), None)
        if key is None:
            raise KeyError("the state is empty")
        return key, self.pop(key)

    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: None = None) -> list[V | None]: ...
    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: V) -> list[V]: ...
    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: T) -> list[V | T]: ...
    def get_many(self, keys: Iterable[Key] | Arrow, default: Any = None) -> list[Any]:
        """The values of `keys`, in their order; for a missing key `default`, or the default of the declaration."""

        def missing(key: Key) -> Any:
            return self._missing(key) if default is None and self._default is not UNSET else own(default)

        return self._get_many(keys_as_list(keys), missing)

    def put_many(self, keys: Iterable[Key] | Arrow, values: Iterable[V] | Arrow) -> None:
        """Set each key to the value at the same index; of a repeated key the last one counts. All of them, or none."""
        self._put_many(keys_as_list(keys), as_list(values))

    def update_many(
        self, keys: Iterable[Key] | Arrow, values: Iterable[T] | Arrow, combine: Callable[[V, T], V]
    ) -> None:
        """For each value in turn, `state[key] = combine(state[key], value)`. All of them, or none.

        A repeated key is read and written only once. Raises `KeyError` for a missing key, unless the state was declared
        with a default.
        """
        self._fold_many(keys, values, lambda key, value: combine(self._missing(key), value), combine)

    def _missing(self, key: Key) -> V:
        if isinstance(self._default, UnsetType):
            raise KeyError(key)
        return self._values.serializer.decode(self._default)
