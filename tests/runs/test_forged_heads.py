"""A head with the right checksums that contradicts itself, or its state: only a faulty or hostile writer makes one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebackend._codec.change_sets.changes import change_set
from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges
from statebackend._codec.pages import item_of
from statebackend._codec.segment import decode_segment
from statebackend._columns.arrow import column_of
from statebackend._columns.keys import hash_parts
from statebackend._columns.table_schema import table_schema, words_of
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.page_map import PlacedPart
from statebackend._runs.run_file import open_run
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys, groups_of_hashes
from statebackend.errors import CorruptSegmentError, ValueDecodeError
from statebackend.ids import Handle, SequenceNumber, all_key_groups
from tests.columns.column_types import TYPES
from tests.runs.flushing import stored
from tests.runs.test_damaged_ranges import Answers, opened

GROUPS = all_key_groups(4)
TEXTS = pa.array(["a", "b", "c"])
LATER = "float128"
"""A type that a later release may have."""


def nulls(type_: pa.DataType) -> pa.Array:
    return pa.nulls(len(TEXTS), type_)


def segment_of(directory: Path, *, key: tuple[str, pa.Array], column: tuple[str, pa.Array]) -> tuple[Path, Handle]:
    """A segment with a part of three rows: a key and a column, each of a type in words, with the items of an array."""
    (key_type, keys), (type_, values) = key, column
    hashes = hash_parts([column_of(keys)])
    changes = PagedChanges(
        0,
        groups_of_hashes(hashes, len(GROUPS)),
        [Typed(key_type, column_of(keys))],
        {"x": Typed(type_, column_of(values))},
        hashes=hashes,
    )
    return stored(directory, [change_set("base", SequenceNumber(0), [changes])])


def refuse(path: Path, handle: Handle) -> None:
    """At the opening, on a disk and far away, and where all of it is read."""
    data = path.read_bytes()
    with pytest.raises(CorruptSegmentError, match="in a column of the type"):
        open_run(path, handle)
    with pytest.raises(CorruptSegmentError, match="in a column of the type"):
        opened(Answers(data), handle)
    with pytest.raises(CorruptSegmentError):
        list(decode_segment(data, handle.key))


@pytest.mark.parametrize("type_", TYPES, ids=words_of)
def test_items_of_another_type_are_refused(tmp_path: Path, type_: pa.DataType) -> None:
    """Numbers taken for other numbers were a wrong value; those of the type itself are opened."""
    words, own = words_of(type_), item_of(column_of(nulls(type_)))
    others = [each for each in TYPES if item_of(column_of(nulls(each))) != own]
    assert len(others) > 10
    for other in others:
        refuse(*segment_of(tmp_path, key=("string", TEXTS), column=(words, nulls(other))))
    (part,) = open_run(*segment_of(tmp_path, key=("string", TEXTS), column=(words, nulls(type_)))).parts
    assert part.records == len(TEXTS)


@pytest.mark.parametrize(
    ("type_", "keys"), [("int64", TEXTS), ("string", pa.array([1, 2, 3])), ("binary", pa.array([1, 2, 3]))]
)
def test_keys_with_items_of_another_type_are_refused(tmp_path: Path, type_: str, keys: pa.Array) -> None:
    refuse(*segment_of(tmp_path, key=(type_, keys), column=("int64", nulls(pa.int64()))))


def table_over(directory: Path, **forged: tuple[str, pa.Array]) -> RunTable:
    """A table of text keys with a number each that looks up in such a segment."""
    right = {"key": ("string", TEXTS), "column": ("int64", nulls(pa.int64()))}
    file = open_run(*segment_of(directory, **(right | forged)))
    schema = table_schema(pa.schema({"x": pa.int64()}), pa.string())
    table = RunTable(schema, OwnedKeys(GROUPS, len(GROUPS)), memory=OverlayMemory(1))
    table.attach([PlacedPart(part, (GROUPS,), is_whole=True) for part in file.parts])
    return table


def test_a_column_of_another_type_than_the_states_is_refused(tmp_path: Path) -> None:
    """Its items are those of its type, also where the release does not know that; the state has declared another."""
    for type_, values in (("timestamp(us)", nulls(pa.timestamp("us"))), (LATER, nulls(pa.binary(16)))):
        table = table_over(tmp_path, column=(type_, values))
        with pytest.raises(ValueDecodeError, match="another type"):
            table.find(TEXTS)
    assert (table_over(tmp_path).find(TEXTS) >= 0).all()
    assert np.array_equal(table_over(tmp_path).find(pa.array(["d"])), [-1])


@pytest.mark.parametrize(
    ("type_", "keys"), [("int64", pa.array([1, 2, 3])), ("binary", TEXTS.cast(pa.binary()))], ids=["numbers", "bytes"]
)
def test_keys_of_another_type_than_the_states_are_refused(tmp_path: Path, type_: str, keys: pa.Array) -> None:
    """When the table takes over the part."""
    with pytest.raises(ValueDecodeError, match="stored keys"):
        table_over(tmp_path, key=(type_, keys))
