"""Takes together the pieces that a look-up in runs finds: each that is added costs as much as thousands of rows."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from statebackend._codec.columns import Column, Integers, joined
from statebackend._columns.key_rows import ADDED_AT_ONCE
from statebackend._columns.table_schema import TableSchema, declared_columns
from statebackend._runs.page_map import FoundRows


class FoundColumns(NamedTuple):
    """The numbers of keys that were found, and the declared columns of their rows."""

    numbers: Integers
    columns: Mapping[str, Column]


def together(found: Iterable[FoundRows], declared: TableSchema) -> Iterator[FoundColumns]:
    """All that was found, as many rows at a time as are added at once, or a few more. Raises what `found` raises."""
    pieces: list[FoundColumns] = []
    count = 0
    for rows in found:
        number = len(rows.numbers)
        pieces.append(FoundColumns(rows.numbers, declared_columns(rows.values(), number, declared)))
        count += number
        if count >= ADDED_AT_ONCE:
            yield _joined(pieces)
            pieces, count = [], 0
    if pieces:
        yield _joined(pieces)


def _joined(pieces: list[FoundColumns]) -> FoundColumns:
    numbers = np.concatenate([each.numbers for each in pieces])
    return FoundColumns(numbers, {name: joined([each.columns[name] for each in pieces]) for name in pieces[0].columns})
