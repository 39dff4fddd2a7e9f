"""Two checkpoints are compared key by key: what is equal in the states is no difference."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend import errors
from statebackend._codec.commit import Commit
from statebackend._reading import differences as differing
from statebackend.ids import StateDescriptor, StateSize, all_key_groups
from statebackend.objectstore import MemoryStore
from statebackend.settings import KiB, MiB
from tests.reading.states import table_of, values_of
from tests.reading.test_asked import commit_of, handle
from tests.reading.test_beside import CountingBytes
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


@pytest.mark.parametrize(
    ("before", "after", "is_changed"),
    [
        (0.0, -0.0, False),
        (-0.0, 0.0, False),
        (float("nan"), float("nan"), False),
        (float("nan"), 0.0, True),
        (float("inf"), -float("inf"), True),
        (0.0, 5e-324, True),
    ],
)
async def test_floats_differ_as_numbers_do(before: float, after: float, is_changed: bool) -> None:
    """By themselves, in a list, in a map and in a column: 0.0 and -0.0 are equal, and NaN is as it was."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        value, lists = backend.value_state("value", float), backend.list_state("list", float)
        maps = backend.map_state("map", str, list[float])
        rows = backend.columnar_state("rows", pa.schema({"x": pa.float64()}), key=pa.string())
        for checkpoint_id, number in enumerate((before, after)):
            value["k"], lists["k"], maps["k"], rows["k"] = number, [1.0, number], {"e": [number]}, {"x": number}
            await backend.checkpoint(checkpoint_id)
    states = [("list", "k"), ("map", "k"), ("rows", "k"), ("value", "k")]
    assert await differences(store, 0, 1) == (dict.fromkeys(states, "changed") if is_changed else {})


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
    with pytest.raises(errors.InputError, match="by the name of the state"):
        await differences(store, 5, 6, migrate=upcasts)
    with pytest.raises(errors.InputError, match="there are: n"):
        await differences(store, 5, 6, migrate={"m": upcasts})
    with pytest.raises(errors.InputError, match="in a list"):
        await differences(store, 5, 6, states="n")


class Leg(msgspec.Struct):
    miles: int
    carrier: str = "?"


class LaterLeg(msgspec.Struct):
    miles: int
    at: int = 0


async def test_keys_that_nobody_wrote_are_no_difference_after_the_type_has_changed() -> None:
    """A field has gone and another one come, a column is wider. Whichever checkpoint is named first."""
    store = MemoryStore()
    columns = [pa.schema({"n": pa.int32(), "gone": pa.int64()}), pa.schema({"n": pa.int64(), "more": pa.int64()})]
    for number, (type_, schema) in enumerate(zip((Leg, LaterLeg), columns, strict=True)):
        async with sb.open_backend(SETTINGS, store=store) as backend:
            legs, hops = backend.value_state("legs", type_), backend.list_state("hops", type_)
            rows = backend.columnar_state("rows", schema, key=pa.string(), defaults={"more": 7} if number else None)
            for key in ("a", "b") if number == 0 else ("b",):
                legs[key] = type_(number)
                hops[key] = [type_(number)]
                rows[key] = {"n": number}
            await backend.checkpoint(number)
    changed = {(state, "b"): "changed" for state in ("legs", "hops", "rows")}
    assert await differences(store, 0, 1) == await differences(store, 1, 0) == changed
    (found,) = [each async for each in sb.diff(SETTINGS, 0, 1, states=["legs"], store=store)]
    assert (found.before, found.after) == ({"miles": 0, "at": None}, {"miles": 1, "at": 0})


async def test_two_versions_are_compared_as_they_are_or_by_the_upcasts() -> None:
    """Without upcasts each value is shown as its own checkpoint has it: then all that were written anew differ."""
    store = MemoryStore()
    for number, (type_, upcasts) in enumerate(((int, []), (str, [str]))):
        async with sb.open_backend(SETTINGS, store=store) as backend:
            state = backend.value_state("n", type_, migrate=upcasts)
            state["a"], state["b"] = type_(7), type_(number)
            await backend.checkpoint(number)
    assert await differences(store, 0, 1) == {("n", "a"): "changed", ("n", "b"): "changed"}
    assert await differences(store, 0, 1, migrate={"n": str}) == {("n", "b"): "changed"}


async def test_both_checkpoints_are_read_once_where_the_values_of_one_fit() -> None:
    """By the sizes in the commit: 12 MiB are one part. What the two share is read for each of them."""
    store, keys = CountingBytes(), 12 * MiB // (64 * KiB)
    settings = settings_of(4, compression="none", inline_bytes_max=0, materialize_changelog_ratio=0)
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.value_state("n", str)
        state.update({f"key {number}": "x" * 64 * KiB for number in range(keys)})
        await backend.checkpoint(1)
        state["key 1"] = "y"
        await backend.checkpoint(2)
    stored_bytes = sum([info.size_bytes async for info in store.list("") if "/segments/" in info.key])
    store.read_bytes = 0
    assert [each.key async for each in sb.diff(settings, 1, 2, store=store)] == ["key 1"]
    assert store.read_bytes < 2 * stored_bytes


@pytest.mark.parametrize("columnar", [False, True])
async def test_parts_of_a_state_differ_as_the_whole_does(columnar: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is added, changed or removed once, with its values, in one part or in one for each key group."""
    store, old, new = MemoryStore(), range(40), range(20, 60)
    async with sb.open_backend(SETTINGS, store=store) as backend:
        values = backend.value_state("n", int)
        rows = backend.columnar_state("rows", pa.schema({"n": pa.int64()}), key=pa.int64())
        for checkpoint_id, numbers, sign in ((1, old, 1), (2, new, -1)):
            for number in {*old, *new}:
                values.pop(number, None)
                rows.pop(number, None)
                if number in numbers:
                    values[number] = number if number % 2 else sign * number
                    rows[number] = {"n": values[number]}
            await backend.checkpoint(checkpoint_id)
    state = "rows" if columnar else "n"

    def shown(value: int) -> Any:
        return {"n": value} if columnar else value

    expected = [
        *(sb.reports.Difference(state, "removed", key, shown(key), None) for key in range(20)),
        *(sb.reports.Difference(state, "changed", key, shown(key), shown(-key)) for key in range(20, 40, 2)),
        *(sb.reports.Difference(state, "added", key, None, shown(key if key % 2 else -key)) for key in range(40, 60)),
    ]
    held_bytes = 40 * differing.HELD_KEY_BYTES  # of the keys of one checkpoint
    for held_bytes_max in (differing.HELD_BYTES_MAX, held_bytes, held_bytes // 2, 1):
        monkeypatch.setattr(differing, "HELD_BYTES_MAX", held_bytes_max)
        found = [each async for each in sb.diff(SETTINGS, 1, 2, states=[state], store=store)]
        assert sorted(found, key=lambda each: each.key) == expected


def commit_with(keys: int | None, size_bytes: int, handle_bytes: int, max_parallelism: int = 10) -> Commit:
    """A commit with a state of so many keys and bytes, `None` where it does not know; and that many bytes of files."""
    commit = commit_of(handle(0, 7, stored_bytes=handle_bytes))
    (part,) = commit.ranges
    sizes = msgspec.UNSET if keys is None else (StateSize((0,), keys, size_bytes),)
    segment = msgspec.structs.replace(part.changelog[0].segment, length=handle_bytes)
    changelog = (msgspec.structs.replace(part.changelog[0], segment=segment),)
    groups = all_key_groups(max_parallelism)
    return msgspec.structs.replace(
        commit,
        max_parallelism=max_parallelism,
        ranges=(msgspec.structs.replace(part, key_groups=groups, sizes=sizes, changelog=changelog),),
        states=(StateDescriptor(0, "n", "value", '"int"'),),
    )


@pytest.mark.parametrize(
    ("keys", "size_bytes", "handle_bytes", "parts"),
    [
        (0, 0, 0, 1),
        (MiB - 1, 0, 0, 1),
        (MiB, 0, 0, 2),
        (0, 128 * MiB - 1, 0, 1),
        (0, 128 * MiB, 0, 2),
        (MiB, 128 * MiB, 0, 3),
        (2 * MiB, 0, 0, 3),
        (1000 * MiB, 0, 0, 10),
        (None, 0, 64 * MiB - 1, 1),
        (None, 0, 64 * MiB, 2),
    ],
)
def test_what_is_held_of_a_checkpoint_is_bounded(
    keys: int | None, size_bytes: int, handle_bytes: int, parts: int
) -> None:
    """By its keys and by its values, which are 256 MiB with 256 bytes for each key and text twice as long as stored.

    Where its size is not known it is by its files. The larger of the two checkpoints counts. No part lacks a group.
    """
    small, large = commit_with(0, 0, 0), commit_with(keys, size_bytes, handle_bytes)
    for commits in ((small, large), (large, small)):
        found = list(differing._parts(commits, "n"))
        assert len(found) == parts
        assert [group for part in found for group in part] == list(range(10))


async def test_differences_come_in_the_order_of_their_keys() -> None:
    """Of each part: what was added, changed or removed does not come by itself."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        state = backend.value_state("n", str)
        state.update({f"k{number}": "old" for number in range(0, 30, 2)})
        await backend.checkpoint(1)
        state.clear()
        state.update({f"k{number}": "new" for number in range(0, 30, 3)})
        await backend.checkpoint(2)
    found = [each async for each in sb.diff(SETTINGS, 1, 2, store=store)]
    assert [each.key for each in found] == sorted(each.key for each in found)
    assert {each.change for each in found} == {"added", "changed", "removed"}
    for each in found:
        expected = {"added": (None, "new"), "changed": ("old", "new"), "removed": ("old", None)}
        assert (each.before, each.after) == expected[each.change]
