"""A state that has no key any more, or none yet: what Spark plans for it fits what its tasks read."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from tests.spark.test_reading_evolved_types import rows_of, source_of

Write = Callable[[sb.StateBackend, sb.Key], None]
KEYS: list[sb.Key] = ["a", 7, b"a", ("a", 7), ("a", (7, b"a"))]
CELLS: dict[str, tuple[Write, Write]] = {
    "value": (
        lambda backend, key: backend.value_state("legs", int).update({key: 1}),
        lambda backend, key: backend.value_state("legs", int).clear(),
    ),
    "list": (
        lambda backend, key: backend.list_state("legs", int)[key].append(1),
        lambda backend, key: backend.list_state("legs", int)[key].clear(),
    ),
    "map": (
        lambda backend, key: backend.map_state("legs", str, int).put(key, "a", 1),
        lambda backend, key: backend.map_state("legs", str, int)[key].clear(),
    ),
    "timers": (
        lambda backend, key: backend.timers("legs").register(key, 1.0),
        lambda backend, key: backend.timers("legs").delete(key, 1.0),
    ),
}
"""For each kind, what writes a key and what removes it."""


def emptied(tmp_path: Path, kind: str, key: sb.Key) -> sb.Settings:
    """A job whose first batch has a key, whose second has none any more, and one more that changes nothing."""
    settings = sb.Settings(job="fleet", primary=f"file://{tmp_path}/primary", persist_delay_s=0.0, local=())

    async def run() -> None:
        async with sb.open_backend(settings) as backend:
            for batch_id, act in enumerate((*CELLS[kind], lambda *_: None)):
                act(backend, key)
                await backend.checkpoint(10 + batch_id, source=sb.SourceMark("query", batch_id))

    anyio.run(run)
    return settings


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", CELLS)
def test_the_feed_of_an_emptied_state_is_planned_by_its_changes(tmp_path: Path, kind: str, key: sb.Key) -> None:
    """From the start, and as a stream from now on, whose first tasks have nothing to read."""
    settings = emptied(tmp_path, kind, key)
    options: dict[str, Any] = {"readChangeFeed": True}
    if isinstance(key, tuple):
        options["keyColumns"] = "name,number"
    feed = source_of(settings, changeStartBatchId=0, **options)
    rows = rows_of(feed)
    assert [row["change_type"] for row in rows] == ["update" if kind != "list" else "append", "delete"]
    first = rows[0]["key"]
    assert all(row["key"] == first for row in rows)
    assert list(first) == (["name", "number"] if isinstance(key, tuple) else ["value"])
    stream = source_of(settings, **options)
    assert stream.schema()["key"].dataType == feed.schema()["key"].dataType


@pytest.mark.parametrize("kind", CELLS)
def test_an_emptied_state_whose_key_has_named_parts_has_no_rows(tmp_path: Path, kind: str) -> None:
    """What its keys were is not known, but how many parts they have."""
    source = source_of(emptied(tmp_path, kind, ("a", 7)), keyColumns="name,number")
    assert source.schema()["key"].dataType.names == ["name", "number"]
    assert rows_of(source) == []


def test_a_feed_that_ends_before_a_transformation_is_read_behind_it(tmp_path: Path) -> None:
    """What tells the type of its keys is what it has asked for, and no later commit, which may be no change."""
    settings = emptied(tmp_path, "value", "a")
    anyio.run(partial(sb.transform, settings, "legs", lambda key, value: [(key, value)]))
    feed = source_of(settings, readChangeFeed=True, changeStartBatchId=0, changeEndBatchId=1)
    assert [row["change_type"] for row in rows_of(feed)] == ["update", "delete"]
