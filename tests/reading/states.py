"""What `read_batches` reads, as the values that the states themselves have."""

from typing import Any

import pyarrow as pa

import statebackend as sb
from statebackend.ids import Key


async def table_of(settings: sb.Settings, state: str, **options: Any) -> pa.Table:
    """All rows of a state."""
    async with sb.read_batches(settings, state, **options) as batches:
        found = [batch async for batch in batches]
        return pa.Table.from_batches(found, batches.schema)


def key_of(shown: Any) -> Key:
    """A key as the user gave it: a tuple is shown as a struct."""
    return tuple(map(key_of, shown.values())) if isinstance(shown, dict) else shown


def values_of(table: pa.Table) -> dict[Key, Any]:
    """The values by key. A map is shown as pairs. No key may be there twice."""
    rows = table.to_pylist()
    found = {key_of(row["key"]): row["value"] for row in rows}
    assert len(found) == len(rows), "a key came twice"
    is_map = pa.types.is_map(table.schema.field("value").type)
    return {key: dict(value) for key, value in found.items()} if is_map else found
