"""What the golden files of columns hold: plain data, fixed for good; integers for times. See `content_v1`."""

from decimal import Decimal

import pyarrow as pa

from statebackend._codec.change_sets.changes import ChangeSet, change_set
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.table_schema import TableSchema, table_schema, type_in
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import SequenceNumber, all_key_groups
from tests.columns.column_types import array
from tests.columns.states import base_of

EXAMPLE = {"n": ("int64", [7, None]), "name": ("string", ["EWR", "x"])}
EXAMPLE_KEYS = ["N14228", "N24211"]
EXAMPLE_DROPPED = ["N619AA"]

COLUMNS: dict[str, tuple[str, list[object]]] = {
    **{f"i{bits}": (f"int{bits}", [1 - (1 << bits - 1), None, 5]) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (f"uint{bits}", [(1 << bits) - 1, None, 5]) for bits in (8, 16, 32, 64)},
    "f16": ("float16", [1.5, None, -2.0]),
    "f32": ("float32", [1.5, None, -2.0]),
    "f64": ("float64", [0.1, None, -2.0]),
    "bool": ("bool", [True, None, False]),
    "date": ("date32", [20_000, None, -1]),
    "date64": ("date64", [86_400_000, None, 0]),
    "time": ("time32(s)", [86_399, None, 0]),
    "time64": ("time64(ns)", [1, None, 0]),
    "at": ("timestamp(us)", [1_700_000_000_000_000, None, 0]),
    "at_zone": ("timestamp(ns,Europe/Berlin)", [1_700_000_000_000_000_000, None, -1]),
    "took": ("duration(ms)", [1500, None, -1]),
    "price": ("decimal128(9,2)", [Decimal("1.50"), None, Decimal("-0.01")]),
    "mac": ("binary(6)", [b"\x00\x01\x02\x03\x04\x05", None, b"abcdef"]),
    "text": ("string", ["Zürich", None, ""]),
    "long_text": ("large_string", ["x" * 300, None, ""]),
    "raw": ("binary", [b"\x00", None, b""]),
    "long_raw": ("large_binary", [b"\xff" * 300, None, b""]),
}
KEYS = [{"from": "EWR", "no": 1}, {"from": "", "no": -1}, {"from": "Zürich", "no": 2**63 - 1}]
KEY_TYPE = pa.struct({"from": pa.string(), "no": pa.int64()})


def described(columns: dict[str, tuple[str, list[object]]], key: pa.DataType) -> TableSchema:
    """The schema of these columns."""
    return table_schema(pa.schema({name: type_in(words) for name, (words, _) in columns.items()}), key)


def batch(columns: dict[str, tuple[str, list[object]]]) -> pa.RecordBatch:
    """The rows."""
    arrays = [array(values, type_in(words)) for words, values in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def table(columns: dict[str, tuple[str, list[object]]], key: pa.DataType) -> ColumnTable:
    """An empty table."""
    return ColumnTable(described(columns, key), OwnedKeys(all_key_groups(128), 128))


def filled(columns: dict[str, tuple[str, list[object]]], key: pa.DataType, keys: list[object]) -> ColumnTable:
    """A table with these rows, nothing of it drained."""
    found = table(columns, key)
    rows, _ = found.find_or_add(pa.array(keys, key))
    found.scatter(rows, batch(columns))
    return found


def example() -> list[ChangeSet]:
    """Two rows, and the drop of a third that was logged before."""
    of = filled(EXAMPLE, pa.string(), EXAMPLE_KEYS)
    dropped, _ = of.find_or_add(pa.array(EXAMPLE_DROPPED))
    list(of.drain(0))
    of.scatter(of.find(pa.array(EXAMPLE_KEYS)), batch(EXAMPLE))
    of.drop(dropped)
    return [_set_of("0-127", 0, list(of.drain(0)))]


def every_type() -> list[ChangeSet]:
    """A column of each type: as logged, and in a base, with hashes."""
    of = filled(COLUMNS, KEY_TYPE, KEYS)
    return [_set_of("0-127", 1, list(of.drain(3))), _set_of("base", 0, base_of(of.copy(), range(128), 128, 3))]


def in_pages() -> list[ChangeSet]:
    """A column of each type in a base of a table over runs."""
    of = RunTable(described(COLUMNS, KEY_TYPE), OwnedKeys(all_key_groups(128), 128))
    rows, _ = of.find_or_add(pa.array(KEYS, KEY_TYPE))
    of.scatter(rows, batch(COLUMNS))
    list(of.drain(3))
    return [_set_of("base", 0, base_of(of.copy(), range(128), 128, 3))]


def _set_of(log_id: str, number: int, changes: list[ColumnChanges]) -> ChangeSet:
    return change_set(log_id, SequenceNumber(number), changes)
