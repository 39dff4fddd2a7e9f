"""What always holds for a table over runs, by name: mutants of it are to be noticed by these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statebackend._checkpoint.materialization.layers import layers
from statebackend._checkpoint.materialization.tiers import PAGES, mark_of
from statebackend._columns.column_table import ColumnTable
from statebackend._runs.run_table import RunTable
from statebackend.errors import DataError
from statebackend.ids import RangeState
from tests.columns.column_types import array
from tests.columns.test_table_model import Content, plain


def assert_layers_are_the_model(found: ColumnTable, content: Content, types: Mapping[str, pa.DataType]) -> None:
    """A table has these rows, each once, over all pieces, and counts them."""
    _assert_same(found, content, types)


def assert_stored_is_the_model(found: ColumnTable, content: Content, types: Mapping[str, pa.DataType]) -> None:
    """So has one that was restored from what is stored: no key is lost between layers, and none comes back."""
    _assert_same(found, content, types)


def assert_the_newest_row_is_found(
    found: ColumnTable, key: pa.Array, values: Sequence[object], types: Mapping[str, pa.DataType]
) -> None:
    """A key that is looked up has the values that it was given last, whichever layers have others."""
    rows = found.find(key)
    assert (rows >= 0).all()
    gathered = found.gather(rows)
    for value, (name, type_) in zip(values, types.items(), strict=True):
        assert gathered.column(name).equals(array([value], type_))


def assert_ranges_are_the_file(read: Callable[[], bytes], expected: bytes) -> None:
    """Pages that are read by ranges are those of the file, whatever lies between them, and none is refused."""
    try:
        found = read()
    except DataError as error:
        raise AssertionError("what is right was refused") from error
    assert found == expected


def assert_rows_are_the_model(found: Mapping[str, Any], count: int, model: Mapping[str, Any]) -> None:
    """A state has these rows, and counts them, whatever of them is in memory, in runs, or in both."""
    assert found == model
    assert count == len(model)


def assert_looks_up_in_what_is_committed(table: ColumnTable, committed: RangeState) -> None:
    """In its layers, each in its place, and in no file that only an attempt has made which was not committed."""
    if not isinstance(table, RunTable) or table.has_strays or not table.runs:
        return
    listed = [committed.changelog[slice(*place)] for place in layers(committed.changelog)]
    in_pages = [{each.segment.key for each in layer if mark_of(each) == PAGES} for layer in listed]
    found = [{part.part.key for part in each.parts} for each in table.runs.maps]
    assert found[1:] == in_pages
    assert found[0] <= {base.segment.key for base in committed.bases}


def _assert_same(found: ColumnTable, content: Content, types: Mapping[str, pa.DataType]) -> None:
    seen = set()
    for rows in found.pieces():
        keys = list(map(plain, found.keys(rows).to_pylist()))
        assert not seen.intersection(keys)
        seen.update(keys)
        gathered = found.gather(rows)
        assert content.keys() >= set(keys)
        for number, (name, type_) in enumerate(types.items()):
            assert gathered.column(name).equals(array([content[key][number] for key in keys], type_))
    assert seen == content.keys()
    assert found.num_rows == len(content)


def assert_damage_is_refused(damaged: Iterable[Any], read: Callable[[Any], None]) -> None:
    """Each of these files is an error of ours when all of it is read: nothing of it is believed unverified."""
    for number, each in enumerate(damaged):
        try:
            read(each)
        except DataError:
            continue
        raise AssertionError(f"damage {number} was not noticed")
