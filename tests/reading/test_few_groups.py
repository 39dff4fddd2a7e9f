"""The keys that a reader remembers may be of few key groups: those of the changes that no base has yet."""

from itertools import count

import numpy as np
import pyarrow as pa

from statebackend._columns.arrow import column_of
from statebackend._columns.keys import hash_parts
from statebackend._columns.table_schema import table_schema
from statebackend._reading.rows.merged_rows import key_rows
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups

GROUPS = 128
OF_FEW_GROUPS = 3
KEYS = 20_000
NEAR = 1_000
"""Places: of random keys in an index as full as it may be, the furthest lies 150 behind its own."""


def test_keys_of_few_groups_lie_near_their_places() -> None:
    """Else each look-up goes by all those before, and a million keys take many minutes."""
    keys = OwnedKeys(all_key_groups(GROUPS), GROUPS)
    rows = key_rows(table_schema(pa.schema({"n": pa.int64()}), pa.int64()), keys)
    numbers = np.arange(KEYS * GROUPS // OF_FEW_GROUPS)
    of_few = numbers[rows.groups_of(hash_parts((column_of(pa.array(numbers)),))) < OF_FEW_GROUPS]
    parts = (column_of(pa.array(of_few)),)
    hashes = hash_parts(parts)

    rows.find_or_add(parts, hashes)

    furthest = 0
    for order, row in zip(rows.orders(hashes[-100:]).tolist(), rows.find(parts, hashes)[-100:].tolist(), strict=True):
        place, row_at = rows._index.rows_from(order)
        furthest = max(furthest, next(steps for steps in count() if row_at(place + steps) == row))
    assert furthest < NEAR
