"""The bytes of changes of columns: there and back, and no damage does more than raise `ValueError`."""

import itertools
import random
from contextlib import suppress
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.change_sets.changes import GROUP, change_set
from statebackend._codec.change_sets.column_changes import ColumnChanges, Typed
from statebackend._codec.columns import Fixed, Strings
from statebackend._codec.segment import decode_segment, encode_segment
from statebackend._columns.arrow import array_of, column_of
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.table_schema import table_schema, words_of
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import CorruptSegmentError
from statebackend.ids import KeyGroupRange, SequenceNumber
from tests.codec.samples import COMPRESSIONS
from tests.columns.column_types import TYPES, array
from tests.columns.states import base_of


def body_of(changes: ColumnChanges) -> bytes:
    """The body of a part."""
    return b"".join(changes.body())


def decoded(body: bytes, records: int) -> ColumnChanges:
    """The changes in a body."""
    return next(ColumnChanges.read_body(7, records, memoryview(body)))


def sample(columns: dict[str, pa.Array], records: int, drops: int = 0, *, hashed: bool = False) -> ColumnChanges:
    """Changes of keys that are tuples of text and an integer."""
    keys = [
        Typed("string", column_of(pa.array([f"key {number}" for number in range(records)]))),
        Typed("int64", column_of(pa.array([number * 1000 - 5 for number in range(records)]))),
    ]
    return ColumnChanges(
        7,
        np.arange(records).astype(GROUP) * 3,
        keys,
        {name: Typed(words_of(each.type), column_of(each)) for name, each in columns.items()},
        drops=drops,
        hashes=np.arange(records).astype(np.uint64) << np.uint64(50) if hashed else None,
    )


def plain(changes: ColumnChanges) -> Any:
    """All that changes hold, as plain data."""
    columns = {name: (each.type, items(each.column), nulls(each.column)) for name, each in changes.columns.items()}
    keys = [(each.type, items(each.column)) for each in changes.keys]
    hashes = None if changes.hashes is None else changes.hashes.tolist()
    return changes.state_id, changes.groups.tolist(), changes.drops, keys, columns, hashes


def items(column: Fixed | Strings) -> list[bytes]:
    """The bytes of each value."""
    if isinstance(column, Fixed):
        return [value.tobytes() for value in column.values]
    ends = zip(column.starts.tolist(), column.lengths.tolist(), strict=True)
    return [column.data[start : start + length].tobytes() for start, length in ends]


def nulls(column: Fixed | Strings) -> list[bool]:
    """Where the nulls are."""
    count = len(items(column))
    return [False] * count if column.valid is None else (~column.valid).tolist()


@settings(max_examples=100)
@given(type_=st.sampled_from(list(TYPES)), data=st.data())
def test_values_of_every_type_come_back(type_: pa.DataType, data: st.DataObject) -> None:
    """Nulls too, and arrays that begin in the middle of another; to Arrow and back as well."""
    values = data.draw(st.lists(st.none() | TYPES[type_], min_size=1, max_size=20))
    skipped = data.draw(st.integers(0, len(values) - 1))
    found = array(values, type_).slice(skipped)
    changes = sample({"c": found, "all": array(values, type_).slice(skipped)}, len(found) + 2, 2)
    again = decoded(body_of(changes), changes.records)
    assert plain(again) == plain(changes)
    assert array_of(again.columns["c"].column, type_).equals(found)
    assert int(changes.sizes().sum()) == changes.size_bytes
    one = next(ColumnChanges.read_body(7, changes.records, memoryview(body_of(changes)), columns={"all"}))
    assert plain(one)[:2] == plain(changes)[:2]
    assert one.columns.keys() == {"all"}
    assert items(one.columns["all"].column) == items(changes.columns["all"].column)


@pytest.mark.parametrize("hashed", [False, True])
def test_parts_of_changes_are_those_changes(hashed: bool) -> None:
    """Neighbours, any choice, and those of some key groups."""
    changes = sample({"n": pa.array([5, None, 300, -7]), "s": pa.array(["", "a", None, "b" * 50])}, 6, 2, hashed=hashed)
    both = [decoded(body_of(each), each.records) for each in (changes.between(0, 3), changes.between(3, 6))]
    assert [each.drops for each in both] == [0, 2]
    assert plain(changes.taken(np.array([5, 1, 2])))[3][1][1] == [
        (number * 1000 - 5).to_bytes(8, "little", signed=True) for number in (1, 2, 5)
    ]
    chosen = changes.of_groups([KeyGroupRange(3, 6), KeyGroupRange(15, 20)])
    assert chosen is not None
    assert (chosen.groups.tolist(), chosen.drops) == ([3, 6, 15], 1)
    assert plain(decoded(body_of(chosen), 3)) == plain(chosen)
    assert sum(each.records for each in changes.cut(40)) == 6


def test_integers_take_as_many_bytes_as_they_need() -> None:
    """By their range, whatever their size: frame of reference."""
    wide = pa.array(range(2**60, 2**60 + 200))
    alone, both = (len(body_of(sample(columns, 200))) for columns in ({}, {"n": wide}))
    assert both - alone < 200 + 40


def test_the_ends_of_64_bits_come_back() -> None:
    """Where the difference of two values has no room in their own type."""
    ends = {pa.int64(): [-(2**63), 2**63 - 1], pa.uint64(): [2**64 - 1, 2**64 - 3], pa.int8(): [-128, 127]}
    for type_, values in ends.items():
        changes = sample({"n": pa.array(values, type_)}, 2)
        assert plain(decoded(body_of(changes), 2)) == plain(changes)


def test_no_damage_does_more_than_raise_value_error() -> None:
    """Bytes changed, cut off or added anywhere: an error, or other values."""
    changes = sample(
        {
            "n": pa.array([5, None, 300]),
            "s": pa.array(["", "a" * 30, None]),
            "f": pa.array([1.5, 2.5, None]),
            "b": pa.array([True, None, False]),
            "x": pa.array([b"abc", None, b"def"], pa.binary(3)),
        },
        5,
        2,
        hashed=True,
    )
    body, chance = body_of(changes), random.Random(7)
    for _ in range(3000):
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 127, 128, 206, 207, chance.randrange(256)])
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        records = chance.choice([5, 5, 5, 1, 0, 2**32 - 1])
        try:
            found = decoded(bytes(damaged), records)
        except ValueError:
            continue
        for each in (*found.keys, *found.columns.values()):
            items(each.column)
        list(found.body())


def of_a_table(kind: str) -> tuple[ColumnTable, ColumnChanges]:
    """A small table with nulls, and its base, or its last changes with a dropped key."""
    keys = OwnedKeys(KeyGroupRange(0, 127), 128)
    table = ColumnTable(table_schema(pa.schema({"n": pa.int64(), "s": pa.string()}), pa.string()), keys)
    rows, _ = table.find_or_add(pa.array(["a", "N14228", "", "gone"]))
    table.scatter(rows, pa.record_batch({"n": pa.array([0] * 4), "s": pa.array(["x"] * 4)}))
    list(table.drain(7))
    table.drop(rows[3:])
    table.scatter(rows[:3], pa.record_batch({"n": pa.array([1, None, 300]), "s": pa.array(["x", "", None])}))
    (changes,) = base_of(table, range(128), 128, 7) if kind == "base" else table.drain(7)
    return table, changes


@pytest.mark.parametrize("kind", ["log", "base"])
def test_every_flipped_bit_of_a_segment_is_found(kind: str) -> None:
    """Of changes with a dropped key and of a base with its hashes: an error with the place, and no changes."""
    _, changes = of_a_table(kind)
    assert (changes.hashes is not None, changes.drops) == (kind == "base", kind == "log")
    for compression in COMPRESSIONS:
        whole = b"".join(encode_segment([change_set("a", SequenceNumber(1), [changes])], compression).chunks)
        ((_, (found,)),) = decode_segment(whole, "segments/a")
        assert plain(cast("ColumnChanges", found)) == plain(changes)
        for offset, bit in itertools.product(range(len(whole)), range(8)):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << bit
            with pytest.raises(CorruptSegmentError) as caught:
                list(decode_segment(bytes(damaged), "segments/a"))
            assert caught.value.facts["object"] == "segments/a"


@pytest.mark.parametrize("kind", ["log", "base"])
def test_no_flipped_bit_of_a_body_does_more_than_raise_a_documented_error(kind: str) -> None:
    """If the checksums fit the damage. Nor does a table that such changes are applied to."""
    table, changes = of_a_table(kind)
    body = body_of(changes)
    for offset, bit in itertools.product(range(len(body)), range(8)):
        damaged = bytearray(body)
        damaged[offset] ^= 1 << bit
        with suppress(ValueError):
            found = decoded(bytes(damaged), changes.records)
            other = ColumnTable(table.described, OwnedKeys(KeyGroupRange(0, 127), 128))
            other.apply(found)
            other.gather(other.live_rows())


@pytest.mark.parametrize(
    "column",
    [
        ["c", "int64", ["i8", False, 8, 0, 0]],
        ["c", "int64", ["i8", False, 0, 0, 0]],
        ["c", "int64", ["i8", False, 16, 0, 0]],
        ["c", "float64", ["f8", False]],
        ["c", "bool", ["bits", False]],
        ["c", "binary(900000000)", ["V900000000", False]],
        ["c", "string", ["string", False, 1, 2**62, 2**62]],
        ["c", "string", ["string", False, 1, 0, -1]],
        ["c", "any", ["O", False]],
        ["c", "any", ["datetime64", False]],
    ],
)
def test_a_lie_about_lengths_costs_no_memory(column: list[Any]) -> None:
    """The head says that there are four billion rows, or as many bytes: refused before anything is allocated."""
    for records in (4, 2**32 - 1):
        head = msgspec.msgpack.encode([0, False, 0, 1, [["int64", ["i8", False, 1, 0, 0]]], [column]])
        body = len(head).to_bytes(4, "little") + head + bytes(4) + bytes(4) + bytes(3)
        if records == 4 and column[2][0] == "bits":
            continue
        with pytest.raises(ValueError, match=r"."):
            decoded(body, records)
