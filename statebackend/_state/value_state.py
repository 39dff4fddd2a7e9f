"""One value per key."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Final, TypeVar

from statebackend._codec.records import Operation, StateChange
from statebackend._state.heap import HeapTable
from statebackend.abc import Serializer
from statebackend.ids import Key

V = TypeVar("V")

KIND: Final = "value"
_SCALARS: Final = frozenset({str, int, bytes})


class ValueState(MutableMapping[Key, V]):
    """A mapping from key to value that survives this process.

    All of `MutableMapping` works, synchronously and without I/O; keys are iterated in no promised order. A value is
    copied in and out: after `leg = legs[key]; leg.miles += 1` the state is unchanged until `legs[key] = leg`.

    Reads and writes belong to one thread at a time and must not overlap a checkpoint. Nothing is durable before the
    next `checkpoint`. Whatever takes a key, `in` and `get` too, raises `KeyTypeError` for what is not a key and
    `KeyGroupError` for another owner's; setting raises `ValueEncodeError`, reading `ValueDecodeError`. After any of
    them the state is as before.
    """

    __slots__ = ("_decode", "_dirty", "_encode", "_group_of", "_table", "name")

    def __init__(self, name: str, table: HeapTable, serializer: Serializer[V], group_of: Callable[[Key], int]) -> None:
        self.name: Final = name
        self._table = table
        self._encode = serializer.encode
        self._decode = serializer.decode
        self._group_of = group_of
        self._dirty: dict[Key, int] = {}

    def __getitem__(self, key: Key) -> V:
        data = self._table.get(key) if type(key) in _SCALARS else None
        if data is None:
            self._group_of(key)  # a wrong or foreign key gets its own error, not a KeyError
            data = self._table[key]
        return self._decode(data)

    def __setitem__(self, key: Key, value: V) -> None:
        data = self._encode(value)
        self._touch(key)
        self._table[key] = data

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        self._touch(key)
        del self._table[key]

    def __contains__(self, key: object) -> bool:
        if type(key) in _SCALARS and key in self._table:
            return True
        self._group_of(key)  # type: ignore[arg-type]  # a wrong or foreign key gets its own error, never a "no"
        return key in self._table

    def __iter__(self) -> Iterator[Key]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def clear(self) -> None:
        """Remove every key."""
        for key in list(self._table):
            del self[key]

    def drain(self, state_id: int) -> Iterator[StateChange]:
        """One change per key touched since the last drain: of many writes to a key only the last is logged."""
        dirty, self._dirty = self._dirty, {}
        table = self._table
        for key, group in dirty.items():
            data = table.get(key)
            if data is None:
                yield StateChange(group, Operation.CLEAR, state_id, key)
            else:
                yield StateChange(group, Operation.SET, state_id, key, data)

    def _touch(self, key: Key) -> None:
        if type(key) not in _SCALARS or key not in self._dirty:
            self._dirty[key] = self._group_of(key)
