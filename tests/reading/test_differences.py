"""Two checkpoints are compared key by key: what is equal in the states is no difference."""

from typing import Any

import statebackend as sb
from statebackend.objectstore import MemoryStore
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
