"""Readers at their borders: what is told where there is nothing to name, and how many rows make a batch."""

from typing import Any

import pytest

import statebackend as sb
from statebackend._codec.change_sets.state_change import Operation
from statebackend._reading.asked_of_state import check_known
from statebackend._reading.batches import BATCH_ROWS_MIN
from statebackend._reading.changed import _change_list, _change_map
from statebackend.errors import InputError
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.rewrite.jobs import settings_of


@pytest.mark.parametrize(
    ("names", "known", "said"),
    [
        (["a"], [], "there are: none"),
        (["zzz"], ["legs", "seen"], "there are: legs, seen"),
        (["lges"], ["legs", "seen"], "did you mean 'legs'"),
        (["legs", "legs"], ["legs"], "named twice"),
        (["legs", "seen", "legs"], ["legs", "seen"], "named twice"),
        (["seen", "legs", "legs"], ["legs", "seen"], "named twice"),
    ],
)
def test_a_name_that_cannot_be_asked_for_is_told_with_those_that_can(
    names: list[str], known: list[str], said: str
) -> None:
    """Also where there is none, and wherever the name stands."""
    with pytest.raises(InputError, match=said):
        check_known("state", names, known)
    check_known("state", known, known)


@pytest.mark.parametrize(
    ("rows", "batches"),
    [
        ([BATCH_ROWS_MIN // 2] * 4, [BATCH_ROWS_MIN] * 2),
        ([BATCH_ROWS_MIN] * 2, [BATCH_ROWS_MIN] * 2),
        ([BATCH_ROWS_MIN - 1, BATCH_ROWS_MIN], [2 * BATCH_ROWS_MIN - 1]),
        ([1], [1]),
    ],
)
@run_virtual
async def test_small_batches_are_put_together_until_they_are_no_longer_small(
    rows: list[int], batches: list[int]
) -> None:
    """Exactly so many rows are enough. The newest checkpoint comes first, and its batch is followed by older ones."""
    settings, store = settings_of(4, materialize_interval_s=0.0, materialize_fan_in=0), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        state, first = backend.value_state("n", int), 0
        for checkpoint_id, count in enumerate(reversed(rows)):
            state.put_many(range(first, first + count), [7] * count)
            first += count
            await backend.checkpoint(checkpoint_id)
    async with sb.read_batches(settings, "n", store=store) as found:
        assert [batch.num_rows async for batch in found] == batches


SET, ADD, CLEAR = Operation.SET, Operation.ADD, Operation.CLEAR


@pytest.mark.parametrize(
    ("changes", "effects"),
    [
        ([(ADD, b"a"), (ADD, b"b")], {"append": b"ab"}),
        ([(SET, b"a"), (ADD, b"b")], {"update": b"ab"}),
        ([(ADD, b"a"), (SET, b"b")], {"update": b"b"}),
        ([(ADD, b"a"), (CLEAR, b"")], {"delete": None}),
        ([(CLEAR, b""), (ADD, b"a")], {"update": b"a"}),
        ([(CLEAR, b""), (ADD, b"a"), (ADD, b"b")], {"update": b"ab"}),
        ([(SET, b"a"), (CLEAR, b""), (ADD, b"b"), (CLEAR, b"")], {"delete": None}),
    ],
)
def test_changes_of_a_list_come_to_one(changes: list[tuple[int, bytes]], effects: dict[str, bytes | None]) -> None:
    """What is appended to a list that is new, or was set anew, is that list."""
    found: dict[str, bytes | None] = {}
    for operation, data in changes:
        _change_list(found, operation, data)
    assert found == effects


def put(name: bytes, value: bytes) -> tuple[int, bytes]:
    return Operation.PUT, bytes([len(name)]) + name + bytes([len(value)]) + value


def remove(name: bytes) -> tuple[int, bytes]:
    return Operation.REMOVE, name


@pytest.mark.parametrize(
    ("changes", "updated", "removed"),
    [
        ([put(b"a", b"1"), put(b"a", b"2")], {b"a": b"2"}, {}),
        ([put(b"a", b"1"), remove(b"a")], {}, {b"a": None}),
        ([remove(b"a"), put(b"a", b"1")], {b"a": b"1"}, {}),
        ([remove(b"a"), remove(b"b"), put(b"a", b"1")], {b"a": b"1"}, {b"b": None}),
        ([put(b"a", b"1"), (CLEAR, b"")], {}, None),
        ([(CLEAR, b""), put(b"a", b"1"), remove(b"b")], {b"a": b"1"}, None),
    ],
)
def test_changes_of_a_map_come_to_one_of_each_name(
    changes: list[tuple[int, bytes]], updated: dict[bytes, bytes], removed: dict[bytes, None] | None
) -> None:
    """The last one counts. Where all entries went, none is named: `None`."""
    found: dict[str, dict[bytes, bytes | None] | None] = {}
    for operation, data in changes:
        _change_map(found, operation, data)
    assert (found.get("update") or {}, found.get("delete", {})) == (updated, removed)


@run_virtual
async def test_the_checkpoint_zero_is_one_like_any_other() -> None:
    """Asked for by its id, or kept by a name that says so: it is not the newest, nor none."""
    settings, store = settings_of(4), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        for checkpoint_id in range(3):
            backend.value_state("n", int)["k"] = checkpoint_id
            await backend.checkpoint(checkpoint_id)
    assert (await sb.savepoint(settings, "first", checkpoint_id=0, store=store)).checkpoint_id == 0
    asked: tuple[dict[str, Any], ...] = ({"checkpoint_id": 0}, {"savepoint": "first"})
    for options in asked:
        async with sb.read_rows(settings, store=store, **options) as rows:
            assert [row.value for row in rows] == [0]
        async with sb.read_batches(settings, "n", store=store, **options) as batches:
            assert (batches.checkpoint_id, [batch["value"].to_pylist() async for batch in batches]) == (0, [[0]])
        async with sb.open_backend(settings, store=store, read_only=True, **options) as backend:
            assert backend.value_state("n", int)["k"] == 0
    assert [(each.before, each.after) async for each in sb.diff(settings, 0, 2, store=store)] == [(0, 2)]
