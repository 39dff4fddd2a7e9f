"""Changes of a columnar state: rows set, then keys dropped.

    body    := head_length:u32 head groups [hashes] key+ column*                         little-endian
    head    := msgpack([drops, is_hashed, first_group, group_width, [[type, stored], ...], [[name, type, stored], ...]])
    groups  := the change's key group less `first_group`, in `group_width` bytes, 1 or 2
    hashes  := u64*                                  the keys' hashes, in bases only
    stored  := [item, has_nulls, width, least, size]              what an item does not need is 0
    item    := "i1" "i2" "i4" "i8" "u1" "u2" "u4" "u8"           integers: each less `least`, in `width` bytes
             | "f2" "f4" "f8" | "V" and a number                 floats; so many bytes, decimals among them: as they are
             | "bits"                                            bool: a bit each
             | "string"                                          lengths like integers, then `size` bytes of all of them
    column  := [validity] values
    validity, bool := bits, the first in the lowest bit of the first byte

There are as many groups, hashes and keys as the part has records. The last `drops` of them are keys that are dropped.
The others have a row each, with a value in every column that is named. A row replaces what the key had: then a column
that is not named is null, or has its default. Within one `ColumnChanges` a key occurs once.
"""

import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import GROUP, Changes, KeyGroups
from statebackend._codec.columns import Column, Fixed, Flags, Integers, Octets, Strings, gathered, starts_of

_HEAD_LENGTH: Final = struct.Struct("<I")
_WIDTHS: Final[Mapping[int, np.dtype[Any]]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_ITEM: Final = re.compile(r"[iu][1248]|f[248]|V[1-9]\d{0,8}")
_GROUP_MAX: Final = 32_767
_STRING: Final = "string"
_BITS: Final = "bits"


class Typed(NamedTuple):
    """A column and its type in words (see `_columns/table_schema.py`)."""

    type: str
    column: Column


class Stored(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """How a column lies in the body."""

    item: str
    has_nulls: bool = False
    width: int = 0
    least: int = 0
    size: int = 0


class Head(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The head of a body."""

    drops: int
    is_hashed: bool
    first_group: int
    group_width: int
    keys: list[tuple[str, Stored]]
    columns: list[tuple[str, str, Stored]]


_decode_head: Final = msgspec.msgpack.Decoder(Head).decode


class ColumnChanges(Changes):
    """Rows set and keys dropped. `keys`: a column for each part of the keys; `columns`: by name, without the drops.

    The arrays are taken as they are, not copied: a caller never changes them again.
    """

    __slots__ = ("columns", "drops", "hashes", "hashes_ahead", "keys")

    kind = 2

    def __init__(
        self,
        state_id: int,
        groups: KeyGroups,
        keys: Sequence[Typed],
        columns: Mapping[str, Typed],
        *,
        drops: int = 0,
        hashes: npt.NDArray[np.uint64] | None = None,
    ) -> None:
        super().__init__(state_id, groups)
        self.keys: Final = keys
        self.columns: Final = columns
        self.drops: Final = drops
        self.hashes: Final = hashes
        self.hashes_ahead = hashes
        """The keys' hashes, where a reader has computed them for the table that applies them."""

    @property
    def sets(self) -> int:
        """The number of rows set."""
        return self.records - self.drops

    @property
    def key_parts(self) -> Sequence[Column]:
        """The keys, a column for each part."""
        return [each.column for each in self.keys]

    def sizes(self) -> npt.NDArray[np.int64]:
        found = np.full(self.records, GROUP.itemsize, np.int64)
        for each in self.keys:
            found += _sizes_of(each.column)
        for each in self.columns.values():
            found[: self.sets] += _sizes_of(each.column)
        return found

    def between(self, start: int, end: int) -> Self:
        return self._part(slice(start, end), slice(start, min(end, self.sets)), max(0, end - max(start, self.sets)))

    def taken(self, chosen: npt.NDArray[np.intp]) -> Self:
        """The changes at these places: rows set before keys dropped, as always, both in the order given."""
        rows, dropped = chosen[chosen < self.sets], chosen[chosen >= self.sets]
        return self._part(np.concatenate([rows, dropped]), rows, len(dropped))

    def with_groups(self, groups: KeyGroups) -> Self:
        """The same changes in other key groups, as if the job had another `max_parallelism`."""
        return type(self)(self.state_id, groups, self.keys, self.columns, drops=self.drops, hashes=self.hashes)

    def body(self) -> Sequence[bytes | bytearray | memoryview]:
        span = self.span
        group_width = 1 if len(span) <= 256 else 2
        chunks = [(self.groups - span.first).astype(_WIDTHS[group_width]).tobytes()]
        if self.hashes is not None:
            chunks.append(self.hashes.astype("<u8", copy=False).tobytes())
        head = Head(
            self.drops,
            self.hashes is not None,
            span.first,
            group_width,
            [(each.type, _encode(each.column, chunks)) for each in self.keys],
            [(name, each.type, _encode(each.column, chunks)) for name, each in self.columns.items()],
        )
        raw = msgspec.msgpack.encode(head)
        return [_HEAD_LENGTH.pack(len(raw)), raw, *chunks]

    @classmethod
    def read_body(
        cls, state_id: int, records: int, body: memoryview, *, columns: Collection[str] | None = None
    ) -> Iterator[Self]:
        rest = _Rest(body)
        (length,) = _HEAD_LENGTH.unpack(rest.take(_HEAD_LENGTH.size))
        head = _decode_head(rest.take(length))
        if not 0 <= head.drops <= records or head.group_width not in (1, 2) or not head.keys or not records:
            raise ValueError("the head of changes contradicts itself")
        groups = rest.items(_WIDTHS[head.group_width], records).astype(np.int64) + head.first_group
        if head.first_group < 0 or groups.max() > _GROUP_MAX:
            raise ValueError("a key group that is none")
        hashes = rest.items(_WIDTHS[8], records).copy() if head.is_hashed else None
        keys = [Typed(type_, _decode(rest, stored, records)) for type_, stored in head.keys]
        if any(each.column.valid is not None for each in keys):
            raise ValueError("a key that is null")
        sets = records - head.drops
        found: dict[str, Typed] = {}
        for name, type_, stored in head.columns:
            if columns is None or name in columns:
                found[name] = Typed(type_, _decode(rest, stored, sets))
            else:
                rest.take(_size_of(stored, sets))
        if len({name for name, _, _ in head.columns}) != len(head.columns) or rest.size:
            raise ValueError("two columns of one name, or more bytes behind the columns")
        yield cls(state_id, groups.astype(GROUP), keys, found, drops=head.drops, hashes=hashes)

    def _estimated_bytes(self) -> int:
        values = sum(each.column.nbytes for each in self.columns.values())
        keys = sum(each.column.nbytes for each in self.keys)
        return GROUP.itemsize * self.records + keys + values

    def _part(self, chosen: Any, chosen_rows: Any, drops: int) -> Self:
        return type(self)(
            self.state_id,
            self.groups[chosen],
            [Typed(each.type, each.column.taken(chosen)) for each in self.keys],
            {name: Typed(each.type, each.column.taken(chosen_rows)) for name, each in self.columns.items()},
            drops=drops,
            hashes=None if self.hashes is None else self.hashes[chosen],
        )


class _Rest:
    """The bytes of a body that are still to be read. Each method checks that there are enough of them."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._offset = 0

    @property
    def size(self) -> int:
        return len(self._body) - self._offset

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.size:
            raise ValueError(f"cut off: {size} bytes where there are {self.size}")
        self._offset += size
        return self._body[self._offset - size : self._offset]

    def items(self, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.take(dtype.itemsize * count), dtype)

    def bits(self, count: int) -> Flags:
        octets = np.frombuffer(self.take((count + 7) // 8), np.uint8)
        return np.unpackbits(octets, count=count, bitorder="little").view(np.bool_)


def _encode(column: Column, chunks: list[bytes]) -> Stored:
    has_nulls = column.valid is not None
    if column.valid is not None:
        chunks.append(np.packbits(column.valid, bitorder="little").tobytes())
    if isinstance(column, Strings):
        width, least = _narrow(column.lengths, chunks)
        octets = gathered(column.data, column.starts, column.lengths).tobytes()
        chunks.append(octets)
        return Stored(_STRING, has_nulls, width, least, len(octets))
    values = column.values
    if values.dtype == np.bool_:
        chunks.append(np.packbits(values, bitorder="little").tobytes())
        return Stored(_BITS, has_nulls)
    item = values.dtype.str.lstrip("<|")
    if values.dtype.kind in "iu":
        return Stored(item, has_nulls, *_narrow(values, chunks))
    chunks.append(values.tobytes())
    return Stored(item, has_nulls)


def _narrow(values: npt.NDArray[Any], chunks: list[bytes]) -> tuple[int, int]:
    """Add integers in as few bytes as they need. Returns the width of each, and what was subtracted."""
    size = values.dtype.itemsize
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    width = next(each for each in _WIDTHS if most - least < 1 << 8 * each)
    unsigned = values.view(f"u{size}")
    if width >= size:
        chunks.append(unsigned.astype(_WIDTHS[size], copy=False).tobytes())
        return size, 0
    chunks.append((unsigned - unsigned.dtype.type(least % (1 << 8 * size))).astype(_WIDTHS[width]).tobytes())
    return width, least


def _decode(rest: _Rest, stored: Stored, count: int) -> Column:
    valid = rest.bits(count) if stored.has_nulls else None
    if stored.item == _STRING:
        return _decode_strings(rest, stored, count, valid)
    if stored.item == _BITS:
        return Fixed(rest.bits(count), valid)
    if _ITEM.fullmatch(stored.item) is None:
        raise ValueError("a column of unknown items")
    item = np.dtype(stored.item if stored.item[0] == "V" else f"<{stored.item}")
    if item.kind in "iu":
        return Fixed(_widen(rest, stored, count, item), valid)
    return Fixed(rest.items(item, count).copy(), valid)


def _size_of(stored: Stored, count: int) -> int:
    """The bytes of a column that `_decode` would read."""
    bits = (count + 7) // 8
    if stored.item == _STRING:
        size = stored.width * count + stored.size
    elif stored.item == _BITS:
        size = bits
    elif _ITEM.fullmatch(stored.item) is None:
        raise ValueError("a column of unknown items")
    else:
        size = (stored.width if stored.item[0] in "iu" else np.dtype(stored.item).itemsize) * count
    return size + bits if stored.has_nulls else size


def _widen(rest: _Rest, stored: Stored, count: int, item: np.dtype[Any]) -> npt.NDArray[Any]:
    if stored.width not in _WIDTHS or stored.width > item.itemsize:
        raise ValueError(f"integers of {stored.width} bytes in {item.itemsize}")
    wide = np.dtype(f"<u{item.itemsize}")
    values = rest.items(_WIDTHS[stored.width], count).astype(wide)
    values += wide.type(stored.least % (1 << 8 * item.itemsize))
    return values.view(item)


def _decode_strings(rest: _Rest, stored: Stored, count: int, valid: Flags | None) -> Strings:
    lengths: Integers = _widen(rest, stored, count, np.dtype("<i8"))
    octets: Octets = np.frombuffer(rest.take(stored.size), np.uint8).copy()
    if (count and (lengths.min() < 0 or lengths.max() > stored.size)) or lengths.sum(dtype=np.float64) != stored.size:
        raise ValueError("strings of other lengths than their bytes")
    return Strings(octets, starts_of(lengths), lengths, valid)


def _sizes_of(column: Column) -> Any:
    return column.values.dtype.itemsize if isinstance(column, Fixed) else column.lengths
