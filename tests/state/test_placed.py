"""Entries placed for a base: as bytes, which are put in order by numpy, they are what they are as objects."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.cells import framed
from statebackend._tables import placed
from statebackend._tables.heap import CHUNK_BYTES, ListTable, ValueTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import Placed, WantedEntries, placed_as_bytes, placed_as_objects
from statebackend.ids import Key, KeyGroupRange
from tests.changes import rows_of

OWNED = OwnedKeys(KeyGroupRange(0, 15), 16)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
KEYS: Sequence[st.SearchStrategy[Any]] = [
    st.text(max_size=40),
    st.binary(max_size=40),
    NUMBERS,
    st.tuples(st.text(max_size=3), NUMBERS),
]
"""Of one kind each, as keys of a state mostly are."""


def is_live(cell: bytes) -> bool:
    """A third of the cells has expired."""
    return len(cell) % 3 != 0


def changes(found: Placed | None) -> list[Any]:
    """All changes, group by group."""
    assert found is not None
    return [row for group in range(16) for row in rows_of(found.changes(KeyGroupRange(group, group)))]


def table_of(kind: type[ValueTable] | type[ListTable], entries: dict[Key, bytes]) -> ValueTable | ListTable:
    """A table with these cells; in lists each as the only element, or none for an empty one."""
    if kind is ValueTable:
        return ValueTable(dict(entries))
    table = ListTable()
    for key, cell in entries.items():
        table.replace(key, framed(cell))
    return table


@pytest.mark.parametrize("kind", [ValueTable, ListTable])
@pytest.mark.parametrize("keys", KEYS)
@given(data=st.data())
def test_bytes_and_objects_are_the_same_changes(
    kind: type[ValueTable] | type[ListTable], keys: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """For keys of every kind, some groups or all, with cells that have expired, whatever is taken at once."""
    entries = data.draw(st.dictionaries(keys, st.binary(max_size=40)))
    groups = sorted(data.draw(st.sets(st.integers(0, 20))))
    wanted = WantedEntries(3, OWNED, groups, data.draw(st.sampled_from([None, is_live])))
    table = table_of(kind, entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placed, "PLACED_AT_ONCE", data.draw(st.integers(1, 5)))
        patch.setattr(placed, "GATHERED_AT_ONCE", data.draw(st.integers(1, 5)))
        found = changes(placed_as_bytes(table.entries, table.set_data, wanted))
    expected = changes(placed_as_objects(table.entries, table.rebuilding, wanted))
    assert list(map(repr, found)) == list(map(repr, expected))


@pytest.mark.parametrize(
    "entries",
    [
        {"a": b"x", 1: b"x"},
        {("a", 1): b"x", ("a",): b"x"},
        {"a": bytes(placed.COPIED_BYTES_MAX + 9)},
    ],
    ids=["keys of two types", "tuples of two lengths", "large entries"],
)
def test_others_are_placed_as_objects(entries: dict[Key, bytes]) -> None:
    """Large ones would be in memory twice for as long as the base is written."""
    wanted = WantedEntries(0, OWNED, range(16))
    table = ValueTable(entries)
    assert placed_as_bytes(table.entries, table.set_data, wanted) is None
    assert {row.key: row.data for row in changes(table.placed(wanted))} == entries


def test_a_list_of_several_chunks_is_placed_as_objects() -> None:
    """It takes several changes, because one must fit into a frame."""
    table = ListTable({"long": bytearray(CHUNK_BYTES + 1), "short": bytearray(1)})
    wanted = WantedEntries(0, OWNED, range(16))
    assert placed_as_bytes(table.entries, table.set_data, wanted) is None
    assert [len(row.data) for row in changes(table.placed(wanted)) if row.key == "long"] == [CHUNK_BYTES, 1]


def test_whoever_waits_may_go_first_while_entries_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two steps."""
    monkeypatch.setattr(placed, "PLACED_AT_ONCE", 10)
    paused: list[None] = []
    pause: Callable[[], None] = lambda: paused.append(None)  # noqa: E731  # a name for its type
    table = ValueTable(dict.fromkeys(range(100), b"x"))
    table.placed(WantedEntries(0, OWNED, range(16), pause=pause))
    assert len(paused) == 10 + 2 + 1  # ten at a time; the keys and the data are joined; then all are put in order
