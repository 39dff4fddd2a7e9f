"""The value of a key as a function gets it, and the operations that store what the function returns.

Without a type a value is plain: of a struct a dict. Then it can be moved, but not changed, since nothing says what the
state's class would make of it. With the type it is written as the state writes it.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from statebackend._codec.cells import Cell, framed, pack, split, unpack
from statebackend._codec.change_sets.state_change import Operation
from statebackend._codec.messagepack import decode_any
from statebackend._codec.serializers import OWN
from statebackend._state.kinds import list_state, map_state
from statebackend._state.time import timers
from statebackend._state.values import Values
from statebackend._tables.heap import row_changes
from statebackend.errors import InputError, ValueDecodeError
from statebackend.ids import StateDescriptor

Stored = Sequence[tuple[int, bytes]]
"""The operations that write one key from nothing, and their data."""
_SET, _PUT = int(Operation.SET), int(Operation.PUT)
_TIME: Final = struct.Struct("<d")


class StoredValues:
    """The values of one state that is not columnar, read and written by `values`, or as they are without them."""

    def __init__(self, state: StateDescriptor, values: Values[Any] | None) -> None:
        self._state = state
        self._values = values
        self._is_own = state.schema.startswith(OWN)

    def read(self, stored: Stored) -> Any:
        """A fresh value: a list, a dict of a map's entries, the times of timers as a list, or one value.

        Raises `ValueDecodeError`, and `InputError` for a map that no dict can hold.
        """
        data = [each for _, each in stored]
        if self._state.kind == timers.KIND:
            return [each for (each,) in _TIME.iter_unpack(data[0])]
        if self._state.kind == list_state.KIND:
            return list(map(self._decode, split(b"".join(data))))
        if self._state.kind == map_state.KIND:
            found = {_entry_key(entry_key): self._decode(cell) for entry_key, cell in map(split, data)}
            if len(found) < len(data):
                raise InputError(
                    "a map has names that Python takes for equal, such as 0.0 and -0.0: no function can be given both",
                    state=self._state.name,
                )
            return found
        return self._decode(data[0])

    def write(self, value: Any, before: Stored) -> Stored:
        """The operations for this value, in place of one that was stored as `before`; none for an empty one.

        What is as it was keeps its time of writing, the rest has the latest time of the key. Raises
        `ValueEncodeError`, and `InputError` for a value that cannot be written.
        """
        if self._state.kind == timers.KIND:
            return _times(value)
        if self._state.kind == map_state.KIND:
            return self._entries(value, before)
        if self._state.kind == list_state.KIND:
            old = split(b"".join(data for _, data in before))
            if not isinstance(value, list | tuple):
                raise InputError("give the list of a key as a list", state=self._state.name, value=repr(value)[:80])
            cells = self._cells(list(cast("Sequence[Any]", value)), old)
            return list(row_changes(b"".join(map(framed, cells)), _SET))
        return [(_SET, self._cells([value], [before[0][1]])[0])]

    def _entries(self, value: Any, before: Stored) -> Stored:
        old = {_entry_key(entry_key): (entry_key, cell) for entry_key, cell in (split(data) for _, data in before)}
        entries = cast("Mapping[Any, Any]", value)
        if not isinstance(value, Mapping) or not entries.keys() <= old.keys():
            raise InputError(
                "give the map of a key as a mapping; its entries can be dropped and changed, not added",
                state=self._state.name,
                value=repr(entries)[:80],
            )
        found = [(old[key], each) for key, each in entries.items()]
        cells = self._cells([each for _, each in found], [cell for (_, cell), _ in found])
        return [
            (_PUT, framed(entry_key) + framed(cell)) for ((entry_key, _), _), cell in zip(found, cells, strict=True)
        ]

    def _cells(self, values: Sequence[Any], old: Sequence[bytes]) -> list[bytes]:
        """The cells of these values; a value that is the old one at its place is that cell."""
        if self._values is None:
            fresh = list(map(self._decode, old))
            kept = [place for place, value in enumerate(values) if place < len(old) and _same(value, fresh[place])]
            if len(kept) == len(values):
                return [old[place] for place in kept]
            # A list may have lost elements. Others would have to be written, which nobody can without the type.
            unused = iter(zip(fresh, old, strict=True))
            found = [next((cell for value, cell in unused if _same(each, value)), None) for each in values]
            if None in found:
                raise InputError(
                    "a value was changed: give its `type`, and `migrate` if the state has upcasts",
                    state=self._state.name,
                )
            return [cell for cell in found if cell is not None]
        cells = list(map(unpack, old))
        latest = max((cell.stamp for cell in cells if cell.stamp is not None), default=None)
        return [
            self._cell(value, cells[place] if place < len(cells) else None, latest)
            for place, value in enumerate(values)
        ]

    def _cell(self, value: Any, old: Cell | None, latest: float | None) -> bytes:
        assert self._values is not None
        data, version = self._values.serializer.encode(value), self._values.version
        is_old = old is not None and (old.value, old.version) == (data, version)
        return pack(data, version, old.stamp if is_old and old is not None else latest)

    def _decode(self, cell: bytes) -> Any:
        if self._values is not None:
            return self._values.decode(cell)
        data = unpack(cell).value
        return data if self._is_own else _plain(data)


def _times(value: Any) -> Stored:
    """The times of a key's timers, earliest first."""
    given = cast("Sequence[object]", value)
    if not isinstance(value, list | tuple) or not all(
        isinstance(each, int | float) and math.isfinite(each) for each in given
    ):
        raise InputError("give the timers of a key as a list of seconds", value=repr(given)[:80])
    times = sorted({float(cast("float", each)) for each in given})
    return [(_SET, b"".join(map(_TIME.pack, times)))] if times else []


def _plain(data: bytes) -> Any:
    try:
        return decode_any(data)
    except (ValueError, RecursionError) as error:
        raise ValueDecodeError(f"a stored value is not MessagePack: {error}", size_bytes=len(data)) from error


def _entry_key(data: bytes) -> Any:
    return _hashable(_plain(data))


def _hashable(found: Any) -> Any:
    """The same, as a name in a dict: an array as a tuple, a record as one of its pairs, one NaN for all."""
    if isinstance(found, dict):
        return tuple((name, _hashable(each)) for name, each in cast("dict[Any, Any]", found).items())
    if isinstance(found, list):
        return tuple(map(_hashable, cast("list[Any]", found)))
    return math.nan if found != found else found  # noqa: PLR0124  # NaN alone is not itself


def _same(value: Any, fresh: Any) -> bool:
    """True if both would be stored as the same bytes: unlike `==`, that tells 1 from True, and takes NaN for NaN."""
    try:
        return msgspec.msgpack.encode(value) == msgspec.msgpack.encode(fresh)
    except (TypeError, ValueError, OverflowError):
        return False
