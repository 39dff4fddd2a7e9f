"""Of a commit with several change sets of a columnar state, each key is told once, as the last of them has it."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.change_sets.changes import GROUP
from statebackend._codec.change_sets.column_changes import ColumnChanges, Typed
from statebackend._columns.arrow import column_of
from statebackend._columns.table_schema import table_schema
from statebackend._reading.changed import DELETE, ChangedRows
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups

GROUPS = 8
SCHEMA = table_schema(pa.schema({"n": pa.int64()}), pa.string())
Part = tuple[set[int], set[int]]
"""Keys that are set, and others that are dropped."""
PARTS = st.lists(st.tuples(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30))), min_size=1, max_size=6)


def changes_of(number: int, part: Part, *, alike: bool) -> ColumnChanges:
    """The changes of one part, all values of which are its number. `alike`: half of the keys have one hash."""
    sets, drops = sorted(part[0]), sorted(part[1] - part[0])
    keys = [*sets, *drops]
    hashes = np.array([(0 if alike and key % 2 else key) << 50 for key in keys], np.uint64)
    return ColumnChanges(
        1,
        np.array([key % GROUPS for key in keys], GROUP),
        [Typed("string", column_of(pa.array([f"{key}" for key in keys], pa.string())))],
        {"n": Typed("int64", column_of(pa.array([number] * len(sets), pa.int64())))},
        drops=len(drops),
        hashes=hashes,
    )


@given(parts=PARTS, alike=st.booleans())
def test_the_newest_part_that_has_a_key_tells_it(parts: list[Part], *, alike: bool) -> None:
    """Whether the keys of two parts are told apart by their hashes or have to be compared."""
    expected: dict[str, int | None] = {}
    for number, (sets, drops) in enumerate(parts):
        expected |= {f"{key}": None for key in drops} | {f"{key}": number for key in sets}
    merge = ChangedRows(SCHEMA, OwnedKeys(all_key_groups(GROUPS), GROUPS))
    found: dict[str, int | None] = {}
    for number in reversed(range(len(parts))):
        for changed in merge.newer(changes_of(number, parts[number], alike=alike)):
            rows = changed.rows.changes
            for place, key in enumerate(strings_of(rows)):
                if changed.type == DELETE or place < rows.sets:
                    assert key not in found
                    found[key] = None if changed.type == DELETE else number
    assert found == expected


def strings_of(rows: ColumnChanges) -> list[str]:
    """The keys."""
    column = rows.keys[0].column
    ends = zip(column.starts.tolist(), column.lengths.tolist(), strict=True)  # type: ignore[union-attr]
    return [column.data[start : start + length].tobytes().decode() for start, length in ends]  # type: ignore[union-attr]
