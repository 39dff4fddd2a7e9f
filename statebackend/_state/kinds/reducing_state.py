"""One value per key, into which a function reduces every value that is added."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from statebackend._state.bulk_arguments import Arrow, keys_as_list, own
from statebackend._state.kinds.cell_state import CellState
from statebackend._state.values import Values
from statebackend.ids import Key

V = TypeVar("V")
T = TypeVar("T")

KIND: Final = "reducing"


class ReducingState(CellState[V], Mapping[Key, V]):
    """A mapping from key to all values that were added to it, reduced to one.

        total = backend.reducing_state("total", int, operator.add)
        total.add("N14228", 3)

    `add` sets the key to `reduce(total[key], 3)`, or to 3 where there was no value. The outcome is logged, so a restore
    does not call `reduce`. Values are copied in and out, and errors are those of `ValueState`.
    """

    __slots__ = ("_reduce",)

    def declare(self, values: Values[V], reduce: Callable[[V, V], V]) -> None:
        """Apply a declaration: the first, or a later one of the same type."""
        self._values = values
        self._reduce = reduce

    def __getitem__(self, key: Key) -> V:
        cell = self._cell(key)
        if cell is None:
            raise KeyError(key)
        return self._values.decode(cell)

    def add(self, key: Key, value: V) -> None:
        """Reduce the key's value and this one to one. If that raises, the state is as before."""
        cell = self._cell(key)
        self._set(key, self._values.encode(value if cell is None else self._reduce(self._values.decode(cell), value)))

    def add_many(self, keys: Iterable[Key] | Arrow, values: Iterable[V] | Arrow) -> None:
        """Add each value to the key at the same index, in order. A key is read and written once. All, or none."""
        self._fold_many(keys, values, lambda _, value: value, self._reduce)

    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: None = None) -> list[V | None]: ...
    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: V) -> list[V]: ...
    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: T) -> list[V | T]: ...
    def get_many(self, keys: Iterable[Key] | Arrow, default: Any = None) -> list[Any]:
        """The values of `keys`, in their order, `default` for a missing key."""
        return self._get_many(keys_as_list(keys), lambda _: own(default))
