"""The schema of a columnar state: in words and back, what is refused, and what may change."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.table_schema import (
    TableSchema,
    misread_columns,
    read_schema,
    returned_column,
    table_schema,
    type_in,
    words_of,
)
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import InputError, UnsupportedVersionError, ValueDecodeError
from statebackend.ids import all_key_groups
from tests.columns.column_types import KEYS, TYPES
from tests.examples import name_of

TEXT = pa.string()


def schema(columns: dict[str, pa.DataType], **defaults: object) -> TableSchema:
    """The schema of a state with text keys."""
    return table_schema(pa.schema(columns), TEXT, defaults)


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_has_words(type_: pa.DataType) -> None:
    """And these words mean that type."""
    assert type_in(words_of(type_)) == type_


@pytest.mark.parametrize("key", KEYS)
def test_a_schema_is_read_back_from_its_words(key: pa.DataType) -> None:
    """Columns, keys and defaults."""
    columns = {"n": pa.int64(), "at": pa.timestamp("us", "UTC"), "name": TEXT, "price": pa.decimal128(9, 2)}
    found = table_schema(pa.schema(columns), key, {"n": -3, "name": "x", "price": Decimal("1.50")})
    assert read_schema(found.words, found.key_words) == found
    assert (found.arrow, found.key_type) == (pa.schema(columns), key)


def test_words_are_as_they_were() -> None:
    """They are in every commit."""
    found = table_schema(
        pa.schema({"n": pa.int32(), "at": pa.timestamp("us", "UTC"), "x": pa.binary(4)}),
        pa.struct({"from": TEXT, "no": pa.int64()}),
        {"n": 5},
    )
    assert found.words == '[["n","int32","05000000"],["at","timestamp(us,UTC)"],["x","binary(4)"]]'
    assert found.key_words == '[["from","string"],["no","int64"]]'


@pytest.mark.parametrize(
    "type_",
    [
        pa.null(),
        pa.list_(pa.int64()),
        pa.struct({"a": pa.int64()}),
        pa.map_(TEXT, TEXT),
        pa.dictionary(pa.int32(), TEXT),
        pa.decimal256(50, 2),
        pa.month_day_nano_interval(),
        pa.string_view(),
        pa.binary(0),
    ],
)
def test_other_types_are_refused(type_: pa.DataType) -> None:
    """With the name of the column."""
    with pytest.raises(InputError, match="odd"):
        schema({"n": pa.int64(), "odd": type_})


def test_bad_schemas_are_refused() -> None:
    """No columns, two of one name, keys of another type, defaults that do not fit."""
    for columns in ([], [("a", TEXT), ("a", TEXT)], [("", TEXT)]):
        with pytest.raises(InputError):
            table_schema(pa.schema(columns), TEXT)
    for key in (pa.int32(), pa.float64(), pa.struct([]), pa.struct({"a": pa.int32()}), pa.struct({"a": pa.struct({})})):
        with pytest.raises(InputError):
            table_schema(pa.schema({"n": pa.int64()}), key)
    for defaults in ({"n": "x"}, {"n": 2**63}, {"n": 1.5}, {"m": 1}):
        with pytest.raises(InputError):
            schema({"n": pa.int64()}, **defaults)
    for words in ("x", "[]x", '[["n"]]', '[["n","int65"]]', '[["n","decimal128(x)"]]', '{"n":"int64"}'):
        with pytest.raises(UnsupportedVersionError):
            read_schema(words, '"string"')


WIDER = [
    (pa.int8(), pa.int16()),
    (pa.int32(), pa.int64()),
    (pa.uint32(), pa.uint64()),
    (pa.uint32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(5, 2), pa.decimal128(9, 2)),
    (TEXT, pa.large_string()),
    (pa.binary(), pa.large_binary()),
]
NOT_WIDER = [
    (pa.int64(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.int32(), pa.uint64()),
    (pa.int32(), pa.float64()),
    (pa.float64(), pa.float32()),
    (pa.decimal128(5, 2), pa.decimal128(9, 3)),
    (TEXT, pa.binary()),
    (pa.timestamp("us"), pa.timestamp("ns")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.int64(), pa.timestamp("us")),
]


@pytest.mark.parametrize(
    ("old", "new", "default"),
    [
        (pa.int8(), pa.int64(), -5),
        (pa.uint32(), pa.int64(), 2**32 - 1),
        (pa.float32(), pa.float64(), 0.5),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), Decimal("1.50")),
        (TEXT, pa.large_string(), "none"),
        (pa.int8(), pa.int64(), None),
    ],
    ids=name_of,
)
def test_a_column_with_a_default_may_be_widened(old: pa.DataType, new: pa.DataType, default: Any) -> None:
    """To the same default in the wider type; to no other, for the rows that have it stay as they are."""
    written = schema({"n": old}, n=default).words
    assert misread_columns(written, schema({"n": new}, n=default)) is None
    other = "some" if isinstance(default, str) else 1
    assert misread_columns(written, schema({"n": new}, n=other)) == "n: its default cannot change"


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_a_column_may_be_widened(old: pa.DataType, new: pa.DataType) -> None:
    """In memory, and when changes from before are replayed."""
    value = {TEXT: "x", pa.binary(): b"x", pa.decimal128(5, 2): Decimal("1.25")}.get(old, 3)
    values = [None, value]
    of = ColumnTable(schema({"c": old}), OwnedKeys(all_key_groups(4), 4))
    rows, _ = of.find_or_add(pa.array(["a", "b"]))
    of.scatter(rows, pa.record_batch({"c": pa.array(values, old)}))
    wider = schema({"c": new})
    assert misread_columns(of.described.words, wider) is None
    replayed = ColumnTable(wider, OwnedKeys(all_key_groups(4), 4))
    for changes in of.drain(0):
        replayed.apply(changes)
    of.evolve(wider)
    for each in (of, replayed):
        assert each.gather(each.find(pa.array(["a", "b"]))).column(0).equals(pa.array(values, new))


@pytest.mark.parametrize(("old", "new"), NOT_WIDER)
def test_other_changes_of_type_are_refused(old: pa.DataType, new: pa.DataType) -> None:
    """By the check of the declaration, and by a replay."""
    assert misread_columns(schema({"c": old}).words, schema({"c": new})) is not None
    of = ColumnTable(schema({"c": old}), OwnedKeys(all_key_groups(4), 4))
    of.find_or_add(pa.array(["a"]))
    (changes,) = of.drain(0)
    with pytest.raises(ValueDecodeError):
        ColumnTable(schema({"c": new}), OwnedKeys(all_key_groups(4), 4)).apply(changes)


def test_columns_come_and_go() -> None:
    """One that is added has its default in rows from before, in memory and after a replay, and null in new rows."""
    of = ColumnTable(schema({"old": pa.int64(), "kept": TEXT}), OwnedKeys(all_key_groups(4), 4))
    rows, _ = of.find_or_add(pa.array(["a", "b"]))
    of.scatter(rows, pa.record_batch({"old": pa.array([1, 2]), "kept": pa.array(["x", None])}))
    drained = list(of.drain(0))
    after = schema({"n": pa.int32(), "kept": TEXT, "word": TEXT, "none": pa.float64()}, n=7, word="seven")
    assert misread_columns(of.described.words, after) is None
    of.evolve(after)
    replayed = ColumnTable(after, OwnedKeys(all_key_groups(4), 4))
    for changes in drained:
        replayed.apply(changes)
    for each in (of, replayed):
        assert list(each.drain(0)) == []
        found, _ = each.find_or_add(pa.array(["a", "b", "c"]))
        assert each.gather(found).to_pylist() == [
            {"n": 7, "kept": "x", "word": "seven", "none": None},
            {"n": 7, "kept": None, "word": "seven", "none": None},
            {"n": None, "kept": None, "word": None, "none": None},
        ]
        (changes,) = each.drain(0)
        assert isinstance(changes, ColumnChanges)
        assert list(changes.columns) == ["n", "kept", "word", "none"]


def test_a_default_does_not_change_and_a_dropped_column_does_not_return() -> None:
    """Rows from before would be restored with something else than they have in memory."""
    first, second = schema({"a": pa.int64(), "b": pa.int64()}), schema({"a": pa.int64(), "c": pa.int64()}, c=1)
    assert misread_columns(second.words, schema({"a": pa.int64(), "c": pa.int64()}, c=2)) is not None
    assert returned_column(second.words, [first.words], first) is not None
    assert returned_column(second.words, [first.words], schema({"a": pa.int64(), "d": pa.int64()})) is None
