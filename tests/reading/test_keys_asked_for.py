"""Keys may be asked for in whatever form a reader hands them out, and one that no key of the state is like is told."""

import json
from collections.abc import Mapping

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend import errors
from statebackend.objectstore import MemoryStore
from tests.reading.states import table_of
from tests.rewrite.jobs import opened, settings_of

SHOWN: Mapping[str, sb.Key] = {
    "text": "a",
    "number": 7,
    "octets": b"\x00\xff",
    "one": ("a",),
    "parts": ("a", 7, b"\xff"),
    "nested": ("a", (7, ("b", b""))),
}
"""A key of each form."""


@pytest.mark.parametrize("form", SHOWN)
@pytest.mark.parametrize("kind", ["value", "list", "map", "timers"])
async def test_a_key_is_asked_for_as_it_is_shown(form: str, kind: str) -> None:
    """By Arrow, in Python and in pandas, by the rows in plain values, and as JSON by commands and files."""
    settings, store, key = settings_of(1), MemoryStore(), SHOWN[form]
    async with opened(settings, store) as (backend, _):
        match kind:
            case "value":
                backend.value_state("n", int)[key] = 1
            case "list":
                backend.list_state("n", int)[key].append(1)
            case "map":
                backend.map_state("n", str, int).put(key, "a", 1)
            case _:
                backend.timers("n").register(key, 1.0)
        await backend.checkpoint(1)
    table = await table_of(settings, "n", store=store)
    async with sb.read_rows(settings, states=["n"], store=store) as rows:
        plain = [row.key for row in rows]
    as_json = (await table_of(settings, "n", store=store, key_as_json=True))["key"].to_pylist()
    shown = [key, *table["key"], *table["key"].to_pylist(), *plain, *map(json.loads, as_json)]
    if table.schema.field("key").type == pa.int64():
        shown.extend(table["key"].to_numpy())
    assert len(shown) in (5, 6)
    for each in shown:
        assert (await table_of(settings, "n", store=store, keys=[each])).equals(table)
        async with sb.read_rows(settings, states=["n"], key=each, store=store) as rows:
            assert [row.key for row in rows] == plain


@pytest.mark.parametrize("kind", ["value", "list"])
@pytest.mark.parametrize("strange", [7, b"a", ("a", 1), ("a", "b", "c"), (1, 2)])
async def test_a_key_of_a_strange_form_is_told_in_any_company(kind: str, strange: sb.Key) -> None:
    """Whichever comes first in the set of those asked for. Of keys of several forms each is found, as text."""
    settings, store = settings_of(1), MemoryStore()
    own: dict[str, sb.Key] = {"texts": "a", "pairs": ("a", "b")}
    async with opened(settings, store) as (backend, _):
        for name, key in [*own.items(), *(("mixed", each) for each in (*own.values(), strange))]:
            if kind == "value":
                backend.value_state(name, int)[key] = 1
            else:
                backend.list_state(name, int)[key].append(1)
        await backend.checkpoint(1)
    for name, key in own.items():
        others = ["b", "c", "d"] if name == "texts" else [("b", "c"), ("d", "e")]
        for keys in ([key, strange], [strange, key, *others], [strange]):
            with pytest.raises(errors.KeyTypeError, match="another type"):
                await table_of(settings, name, store=store, keys=keys)
        assert (await table_of(settings, name, store=store, keys=[key, *others])).num_rows == 1
        keys = [*own.values(), strange]
        assert (await table_of(settings, name, store=store, keys=keys, key_as_json=True)).num_rows == 1
        assert (await table_of(settings, "mixed", store=store, keys=[key])).num_rows == 1
    assert (
        await table_of(settings, "mixed", store=store, keys=[*own.values(), strange], key_as_json=True)
    ).num_rows == 3
