"""Two checkpoints are compared key by key: what is equal in the states is no difference."""

from typing import Any

import pytest

import statebackend as sb
from statebackend import errors
from statebackend.objectstore import MemoryStore
from tests.reading.states import table_of, values_of
from tests.rewrite.jobs import settings_of

SETTINGS = settings_of(4, checkpoints_retained=9)


async def differences(store: MemoryStore, before: int, after: int, **options: Any) -> dict[tuple[str, Any], str]:
    """The change by state and key."""
    found = [each async for each in sb.diff(SETTINGS, before, after, store=store, **options)]
    return {(each.state, each.key): each.change for each in found}


async def test_equal_values_are_no_difference_however_they_came_about() -> None:
    """A dict, a set and a map state have no order; in a list and in text the order counts."""
    store, words = MemoryStore(), ["aaa", "bbb", "ccc", "ddd", "eee"]
    async with sb.open_backend(SETTINGS, store=store) as backend:
        carts, lists = backend.map_state("carts", str, dict[str, int]), backend.value_state("lists", list[str])
        counts = backend.value_state("counts", dict[tuple[int, int], list[dict[str, float]]])
        tags, pairs = backend.value_state("tags", set[int]), backend.value_state("pairs", set[tuple[int, str | None]])
        anything = backend.value_state("anything", Any)  # type: ignore[arg-type,var-annotated]

        def write(words: list[str], numbers: list[int]) -> None:
            for word in words:
                carts["k"][word] = {str(number): number for number in numbers}
            counts["k"] = {(number, 1): [{word: float("nan") for word in words}] for number in numbers}
            tags["k"] = set[int]()
            for number in numbers:
                tags["k"] = {*tags["k"], 8 * number}  # all of one slot of the set's table: they lie as they came
            pairs["k"] = {(1, word if number else None) for word in words for number in numbers}
            anything["k"] = {word: {str(number): number for number in numbers} for word in words}

        write(words, [0, 1, 2])
        lists["k"] = words
        await backend.checkpoint(1)
        del carts["k"]
        await backend.checkpoint(2)
        write(words[::-1], [2, 1, 0])
        lists["k"] = words[::-1]
        await backend.checkpoint(3)
        assert await differences(store, 1, 3) == {("lists", "k"): "changed"}
        carts["k"]["aaa"] = {"0": 1}
        counts["k"] = {(0, 1): []}
        anything["k"] = {}
        tags["k"] = {8}
        await backend.checkpoint(4)
    changed = ("anything", "carts", "counts", "tags")
    assert await differences(store, 3, 4) == {(state, "k"): "changed" for state in changed}


async def test_values_of_earlier_versions_are_compared_by_the_upcasts() -> None:
    """A checkpoint of an earlier version takes the first of them, and one key has changed in each second one."""
    store = MemoryStore()
    upcasts: list[Any] = [str, lambda text: [text]]
    declared: list[tuple[Any, list[Any]]] = [(int, [7, 8]), (str, ["7", "8"]), (list[str], [["7"], ["8"]])]
    for version, (type_, (value, other)) in enumerate(declared):
        async with sb.open_backend(SETTINGS, store=store) as backend:
            state = backend.value_state("n", type_, migrate=upcasts[:version])
            state[f"of {version}"] = state["changed"] = value
            await backend.checkpoint(2 * version + 1)
            state["changed"] = other
            await backend.checkpoint(2 * version + 2)
    for before in (1, 3, 5):
        found = await differences(store, before, before + 1, migrate={"n": upcasts})
        assert found == {("n", "changed"): "changed"}
    table = await table_of(SETTINGS, "n", store=store, checkpoint_id=3, migrate=upcasts)
    assert values_of(table) == {"of 0": "7", "of 1": "7", "changed": "7"}
    with pytest.raises(errors.ValueDecodeError, match="get and dump show it as it was written"):
        await differences(store, 5, 6, migrate={"n": upcasts[:1]})
    with pytest.raises(errors.InputError, match="there are: n"):
        await differences(store, 5, 6, migrate={"m": upcasts})
