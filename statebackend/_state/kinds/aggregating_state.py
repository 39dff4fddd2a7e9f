"""One accumulator per key, whose type may differ from the values added to it and from the result read from it."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar, get_type_hints, overload

from statebackend._state.bulk_arguments import Arrow, keys_as_list, own
from statebackend._state.kinds.cell_state import CellState
from statebackend._state.values import Values
from statebackend.errors import InputError
from statebackend.ids import Key

A = TypeVar("A")
V = TypeVar("V")
R = TypeVar("R")
T = TypeVar("T")
V_contra = TypeVar("V_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

KIND: Final = "aggregating"


class Aggregate(Protocol[A, V_contra, R_co]):
    """Turns the values added to an `AggregatingState` into the result read from it. For example:

        class Mean:
            def create(self) -> tuple[int, float]: return 0, 0.0
            def add(self, accumulator, value): return accumulator[0] + 1, accumulator[1] + value
            def result(self, accumulator): return accumulator[1] / accumulator[0]
            def merge(self, accumulator, other): return accumulator[0] + other[0], accumulator[1] + other[1]

    The accumulator is stored as the type that `create` is annotated to return. Each call gets a freshly decoded one, so
    a method may change it in place and return it.
    """

    def create(self) -> A:
        """An accumulator without values. The return annotation is required: it is the type that is stored."""
        ...

    def add(self, accumulator: A, value: V_contra) -> A:
        """The accumulator with one more value."""
        ...

    def result(self, accumulator: A) -> R_co:
        """The result that the state shows for the key."""
        ...

    def merge(self, accumulator: A, other: A) -> A:
        """Both accumulators in one, as when two sessions turn out to be the same."""
        ...


class AggregatingState(CellState[Any], Mapping[Key, R], Generic[V, R]):
    """A mapping from key to the result of all values that were added to it.

        mean = backend.aggregating_state("mean", Mean())
        mean.add("N14228", 12.5)

    The accumulator is logged, so a restore calls no method of the `Aggregate`. Values are copied in and out, and errors
    are those of `ValueState`.
    """

    __slots__ = ("_aggregate",)

    def declare(self, values: Values[Any], aggregate: Aggregate[Any, V, R]) -> None:
        """Apply a declaration: the first, or a later one of the same type."""
        self._values = values
        self._aggregate = aggregate

    def __getitem__(self, key: Key) -> R:
        return self._aggregate.result(self._accumulator(key))

    def add(self, key: Key, value: V) -> None:
        """Add one value to the key's accumulator, or to a new one. If that raises, the state is as before."""
        cell = self._cell(key)
        accumulator = self._aggregate.create() if cell is None else self._values.decode(cell)
        self._set(key, self._values.encode(self._aggregate.add(accumulator, value)))

    def add_many(self, keys: Iterable[Key] | Arrow, values: Iterable[V] | Arrow) -> None:
        """Add each value to the key at the same index, in order. A key is read and written once. All, or none."""
        aggregate = self._aggregate
        self._fold_many(keys, values, lambda _, value: aggregate.add(aggregate.create(), value), aggregate.add)

    def merge(self, key: Key, others: Iterable[Key]) -> None:
        """Merge the accumulators of `others` into the key's, and remove them. A key without one adds nothing."""
        keys = [key, *keys_as_list(others)]
        self._check_many(keys)
        keys = list(dict.fromkeys(keys))
        found = [cell for cell in map(self._cell, keys) if cell is not None]
        if not found:
            return
        first, *rest = self._values.decode_many(found)
        self._set(key, self._values.encode(functools.reduce(self._aggregate.merge, rest, first)))
        for other in keys[1:]:
            if other in self._entries:
                self._remove(other)

    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: None = None) -> list[R | None]: ...
    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: R) -> list[R]: ...
    @overload
    def get_many(self, keys: Iterable[Key] | Arrow, default: T) -> list[R | T]: ...
    def get_many(self, keys: Iterable[Key] | Arrow, default: Any = None) -> list[Any]:
        """The results of `keys`, in their order, `default` for a missing key."""
        missing = object()
        found = self._get_many(keys_as_list(keys), lambda _: missing)
        return [own(default) if each is missing else self._aggregate.result(each) for each in found]

    def _accumulator(self, key: Key) -> Any:
        cell = self._cell(key)
        if cell is None:
            raise KeyError(key)
        return self._values.decode(cell)


def accumulator_type(aggregate: Aggregate[Any, Any, Any]) -> Any:
    """The return annotation of `create`. Raises `InputError` where there is none, or a method is missing."""
    if isinstance(aggregate, type) or not all(
        callable(getattr(aggregate, name, None)) for name in ("create", "add", "result", "merge")
    ):
        raise InputError("an aggregate must be an object with create, add, result and merge", aggregate=repr(aggregate))
    try:
        return get_type_hints(aggregate.create, include_extras=True)["return"]
    except (KeyError, NameError, TypeError) as error:
        raise InputError(
            "annotate the return type of `create`: it is the type that is stored", aggregate=type(aggregate).__name__
        ) from error
