"""Changes of a keyed state: an operation, a key and data each.

    body   := first:u16 width:u8 arity:u8 operation:u8* group* keys{1 or arity} data     little-endian
    group  := the change's key group less `first`, in `width` bytes, 1 or 2
    keys   := column      `arity` 0: the keys. Otherwise all keys are tuples of `arity` parts: a column for each part
    data   := column      the argument of each operation, as MessagePack's bin
    column := length:u32 msgpack([...])

There are as many operations, groups, keys and data as the part has records.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, starmap
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, Self, cast

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import GROUP, PART_BYTES_MAX, PART_RECORDS_MAX, Changes, KeyGroups
from statebackend._codec.change_sets.state_change import SCALARS, Operation, StateChange, as_key
from statebackend.ids import Key

CHANGE_OVERHEAD_BYTES: Final = 16
"""Bytes that a change takes in a segment besides its key and data. An estimate, for thresholds only."""
_CLEAR: Final = int(Operation.CLEAR)
_SET: Final = int(Operation.SET)
SET: Final = bytes([_SET])
ARITY_MAX: Final = 255
_UNCOUNTED_BYTES: Final = CHANGE_OVERHEAD_BYTES - 5
"""The overhead of a change less what its body has of it: operation, group, and some bytes before key and data."""

_HEAD = struct.Struct("<HBB")
_LENGTH = struct.Struct("<I")
_WIDTHS: Final[Mapping[int, np.dtype[np.unsignedinteger[Any]]]] = {1: np.dtype("<u1"), 2: np.dtype("<u2")}
_SIZED: Final = frozenset({str, bytes})
_GROUP_MAX: Final = 32_767

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_any: Final = msgspec.msgpack.Decoder(list[Any]).decode
_decode_data: Final = msgspec.msgpack.Decoder(list[bytes]).decode


class KeyedChanges(Changes):
    """Operations, one byte each, on keys as the user gave them. `data` is empty where an operation needs none.

    The columns are taken as they are, not copied: the caller never changes them again.
    """

    __slots__ = ("_body", "_data", "_data_bytes", "_keys", "operations")

    kind = 1

    def __init__(
        self,
        state_id: int,
        groups: KeyGroups,
        operations: bytes,
        keys: Sequence[Key],
        data: Sequence[bytes],
        *,
        body: bytes = b"",
        data_bytes: int | None = None,
    ) -> None:
        """`body`: the bytes of these changes, if they stand for `keys` and `data`, which are empty then.

        `data_bytes`: as the property, if it is known.
        """
        assert body or len(groups) == len(operations) == len(keys) == len(data), "columns of different lengths"
        super().__init__(state_id, groups)
        self.operations: Final = operations
        self._keys = keys
        self._data = data
        self._body = body
        self._data_bytes = data_bytes

    @property
    def data_bytes(self) -> int:
        """Bytes of all data, quickly: of data that were stored a few more, where one is longer than 255 bytes."""
        if self._data_bytes is None:
            stored = memoryview(self._body)
            self._data_bytes = _data_bytes(self.records, stored) if self._body else sum(map(len, self._data))
        return self._data_bytes

    @property
    def keys(self) -> Sequence[Key]:
        """The key of each change."""
        if not self._keys:
            self._keys, self._data = _keys_and_data(self.records, memoryview(self._body))
        return self._keys

    @property
    def data(self) -> Sequence[bytes]:
        """The argument of each operation."""
        return self._data if self.keys else ()

    @classmethod
    def of_arrays(cls, state_id: int, groups: KeyGroups, arity: int, arrays: Sequence[bytes]) -> Self:
        """A `SET` of each key. `arrays`: the keys' columns, as `key_columns` has them, then the data, encoded."""
        operations = SET * len(groups)
        return cls(state_id, groups, operations, (), (), body=b"".join(_body(groups, operations, arity, arrays)))

    def packed(self) -> Self:
        """The same changes, with their bytes in place of keys and data, which are decoded if they are asked for.

        Right after the columns were made they are in the processor's cache, and to encode them then costs less than to
        count their bytes. So it is done where they are made, on the event loop.
        """
        return type(self)(self.state_id, self.groups, self.operations, (), (), body=b"".join(self.body()))

    @property
    def all_set(self) -> bool:
        """True if every change sets its key: then the keys and data are the entries."""
        return self.operations.count(SET) == len(self.operations)

    def rows(self) -> Iterator[StateChange]:
        """The changes one by one."""
        return starmap(
            StateChange,
            zip(
                self.groups.tolist(),
                self.operations,
                [self.state_id] * self.records,
                self.keys,
                self.data,
                strict=True,
            ),
        )

    def sizes(self) -> npt.NDArray[np.int64]:
        keys = map(_size_of_key(self.keys), self.keys)
        return (
            np.fromiter(map(len, self.data), np.int64, self.records)
            + np.fromiter(keys, np.int64, self.records)
            + CHANGE_OVERHEAD_BYTES
        )

    def between(self, start: int, end: int) -> Self:
        groups, operations = self.groups[start:end], self.operations[start:end]
        return type(self)(self.state_id, groups, operations, self.keys[start:end], self.data[start:end])

    def taken(self, chosen: npt.NDArray[np.intp]) -> Self:
        if len(chosen) == 1:
            return self.between(int(chosen[0]), int(chosen[0]) + 1)
        pick = cast("Callable[[Sequence[Any]], tuple[Any, ...]]", itemgetter(*chosen.tolist()))
        operations = np.frombuffer(self.operations, np.uint8)[chosen].tobytes()
        return type(self)(self.state_id, self.groups[chosen], operations, pick(self.keys), pick(self.data))

    def with_groups(self, groups: KeyGroups) -> Self:
        """The same changes in other key groups, as if the job had another `max_parallelism`."""
        return type(self)(self.state_id, groups, self.operations, self.keys, self.data)

    def body(self) -> Sequence[bytes | bytearray | memoryview]:
        if self._body:
            return (self._body,)
        columns = key_columns(self.keys)
        return _body(self.groups, self.operations, columns.arity, list(map(_encode, (*columns.parts, self.data))))

    @classmethod
    def read_body(
        cls, state_id: int, records: int, body: memoryview, *, columns: Collection[str] | None = None
    ) -> Iterator[Self]:
        if len(body) < _HEAD.size:
            raise ValueError("the head of changes is cut off")
        first, width, _ = _HEAD.unpack_from(body)
        if width not in _WIDTHS:
            raise ValueError(f"key groups of {width} bytes")
        ends = (_HEAD.size + records, _HEAD.size + records * (1 + width))
        if ends[1] > len(body):
            raise ValueError(f"{records} changes in {len(body)} bytes")
        groups = np.frombuffer(body[ends[0] : ends[1]], _WIDTHS[width]).astype(np.int64) + first
        if records == 0 or groups.max() > _GROUP_MAX:
            raise ValueError("no changes, or a key group that is none")
        keys, data = _keys_and_data(records, body)
        operations, data_bytes = bytes(body[_HEAD.size : ends[0]]), _data_bytes(records, body)
        yield cls(state_id, groups.astype(GROUP), operations, keys, data, data_bytes=data_bytes)

    def _estimated_bytes(self) -> int:
        if self._body:
            return len(self._body) + _UNCOUNTED_BYTES * self.records
        key_bytes = sum(map(_size_of_key(self._keys), self._keys))
        return sum(map(len, self._data)) + CHANGE_OVERHEAD_BYTES * self.records + key_bytes


def of_cells(state_id: int, groups: KeyGroups, keys: Sequence[Key], cells: Sequence[bytes | None]) -> KeyedChanges:
    """One change for each key: a `SET` to its cell, a `CLEAR` for `None`."""
    if all(cells):  # quicker than looking for None, and wrong only for an empty cell, which is handled below
        return KeyedChanges(state_id, groups, SET * len(keys), keys, cast("Sequence[bytes]", cells))
    operations = bytes([_CLEAR if cell is None else _SET for cell in cells])
    return KeyedChanges(state_id, groups, operations, keys, [cell or b"" for cell in cells])


class ChangeColumns:
    """Columns of one state that grow change by change, for kinds of state whose keys take several changes."""

    __slots__ = ("_data", "_groups", "_keys", "_operations", "_size_bytes", "_state_id")

    def __init__(self, state_id: int) -> None:
        self._state_id = state_id
        self._begin()

    @property
    def is_full(self) -> bool:
        """True if there is as much as `Changes` should have: `take` it."""
        return self._size_bytes >= PART_BYTES_MAX or len(self._keys) >= PART_RECORDS_MAX

    def add(self, group: int, operation: int, key: Key, data: bytes = b"") -> None:
        """Append one change."""
        self._groups.append(group)
        self._operations.append(operation)
        self._keys.append(key)
        self._data.append(data)
        self._size_bytes += len(data)

    def take(self) -> Iterator[KeyedChanges]:
        """The changes so far, if there are any. The columns are empty then."""
        if self._keys:
            groups, operations = np.array(self._groups, dtype=GROUP), bytes(self._operations)
            changes = KeyedChanges(self._state_id, groups, operations, self._keys, self._data)
            self._begin()
            yield changes

    def _begin(self) -> None:
        self._groups: list[int] = []
        self._operations = bytearray()
        self._keys: list[Key] = []
        self._data: list[bytes] = []
        self._size_bytes = 0


def keyed_changes(rows: Iterable[StateChange]) -> list[KeyedChanges]:
    """These changes, in columns: neighbours of one state together. Raises `ValueDecodeError` for a key that is none."""
    found: list[KeyedChanges] = []
    for state_id, own in groupby(rows, key=attrgetter("state_id")):
        own_rows = list(own)
        groups = np.array([row.key_group for row in own_rows], dtype=GROUP)
        operations = bytes([row.operation for row in own_rows])
        keys, data = as_keys([row.key for row in own_rows]), [row.data for row in own_rows]
        found.append(KeyedChanges(state_id, groups, operations, keys, data))
    return found


def as_keys(found: list[Any]) -> list[Key]:
    """Return as keys what MessagePack decoded. Raises `ValueDecodeError` for what is no key."""
    return found if SCALARS.issuperset(map(type, found)) else list(map(as_key, found))


class KeyParts(NamedTuple):
    """Keys in columns: of tuples that all have `arity` parts one for each part, of others one, and the arity is 0."""

    arity: int
    parts: Sequence[Sequence[object]]


def key_columns(keys: Sequence[Key]) -> KeyParts:
    """The columns of these keys."""
    if set(map(type, keys)) == {tuple}:
        tuples = cast("Sequence[tuple[Key, ...]]", keys)
        arity = len(tuples[0])
        if 0 < arity <= ARITY_MAX and all(len(key) == arity for key in tuples):
            return KeyParts(arity, list(zip(*tuples, strict=True)))
    return KeyParts(0, [keys])


def _body(groups: KeyGroups, operations: bytes, arity: int, columns: Sequence[bytes]) -> list[bytes]:
    first, last = int(groups.min()), int(groups.max())
    width = 1 if last - first < 256 else 2
    head = _HEAD.pack(max(0, first), width, arity)
    offsets = (groups - max(0, first)).astype(_WIDTHS[width]).tobytes()
    return [head, operations, offsets, *(each for raw in columns for each in (_LENGTH.pack(len(raw)), raw))]


def _columns_of(records: int, body: memoryview) -> tuple[int, list[memoryview]]:
    """The arity of the keys, and the columns: those of the keys, then the data."""
    _, width, arity = _HEAD.unpack_from(body)
    return arity, _columns_in(body[_HEAD.size + records * (1 + width) :], 1 + max(1, arity))


def _data_bytes(records: int, body: memoryview) -> int:
    """The bytes of the data column without MessagePack's heads, the least there can be: 2 for each, 1 to 5 for all."""
    head = 1 if records < 1 << 4 else 3 if records < 1 << 16 else 5
    return len(_columns_of(records, body)[1][-1]) - head - 2 * records


def _keys_and_data(records: int, body: memoryview) -> tuple[Sequence[Key], Sequence[bytes]]:
    arity, (*keys, data) = _columns_of(records, body)
    decoded = [as_keys(_decode_any(column)) for column in keys]
    found = cast("list[Key]", list(zip(*decoded, strict=True)) if arity else decoded[0])
    values = _decode_data(data)
    if len(found) != records or len(values) != records:
        raise ValueError(f"{records} changes, and {len(found)} keys with {len(values)} data")
    return found, values


def _columns_in(rest: memoryview, count: int) -> list[memoryview]:
    columns: list[memoryview] = []
    offset = 0
    for _ in range(count):
        if offset + _LENGTH.size > len(rest):
            raise ValueError("a column's length is cut off")
        (length,) = _LENGTH.unpack_from(rest, offset)
        offset += _LENGTH.size
        if offset + length > len(rest):
            raise ValueError("a column is cut off")
        columns.append(rest[offset : offset + length])
        offset += length
    if offset != len(rest):
        raise ValueError("more bytes behind the columns")
    return columns


def _size_of_key(keys: Sequence[Key]) -> Callable[[Any], int]:
    return len if _SIZED.issuperset(map(type, keys)) else _key_bytes


def _key_bytes(key: Key) -> int:
    if isinstance(key, (str, bytes)):
        return len(key)
    return sum(map(_key_bytes, key)) if isinstance(key, tuple) else 8
