"""A state that was dropped says so, whatever is done with it: it never passes for an empty one."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import BackendClosedError, InputError
from tests.aggregates import Mean
from tests.knobs import settings_with

ROW = {"n": 1}
USES: Mapping[str, list[Callable[[Any], object]]] = {
    "value": [
        lambda state: state["k"],
        lambda state: state.get("k"),
        lambda state: state.get_many(["k"]),
        lambda state: state.put_many(["k"], [1]),
        lambda state: state.__setitem__("k", 1),
        lambda state: state.__setitem__(7, 1),
        lambda state: state.pop("k", None),
    ],
    "list": [lambda state: list(state["k"]), lambda state: state["k"].append(1), lambda state: state.remove("k")],
    "map": [lambda state: dict(state["k"]), lambda state: state["k"].update(a=1), lambda state: state.get_many(["k"])],
    "reducing": [lambda state: state["k"], lambda state: state.add("k", 1)],
    "aggregating": [lambda state: state["k"], lambda state: state.add("k", 1)],
    "timers": [
        lambda state: state.register("k", 1.0),
        lambda state: list(state.due(2.0)),
        lambda state: state.next_at(),
    ],
    "columns": [
        lambda state: state["k"],
        lambda state: state.__setitem__("k", ROW),
        lambda state: state.to_arrow(),
        lambda state: state.rows(["k"]),
        lambda state: state.merge(pa.table({"key": ["k"]}), on="key", how={"n": "count"}),
    ],
}
OF_ALL: list[Callable[[Any], object]] = [len, list, lambda state: "k" in state, lambda state: state.clear()]


def declared(backend: sb.StateBackend) -> Mapping[str, Any]:
    """A state of each kind, with a key; and views on what they hold."""
    states: dict[str, Any] = {
        "value": backend.value_state("value", int),
        "list": backend.list_state("list", int),
        "map": backend.map_state("map", str, int),
        "reducing": backend.reducing_state("reducing", int, operator.add),
        "aggregating": backend.aggregating_state("aggregating", Mean()),
        "timers": backend.timers("timers"),
        "columns": backend.columnar_state("columns", pa.schema({"n": pa.int64()}), key=pa.string()),
    }
    states["value"]["k"] = 1
    states["list"]["k"].append(1)
    states["map"]["k"]["a"] = 1
    states["reducing"].add("k", 1)
    states["aggregating"].add("k", 1)
    states["timers"].register("k", 1.0)
    states["columns"]["k"] = ROW
    return states


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
async def test_a_state_that_was_dropped_says_so(table: Any, tmp_path: Any) -> None:
    """Each kind, on the heap and in RocksDB, and the views and rows that somebody still holds."""
    settings = settings_with(job="fleet", primary=f"memory://dropped-{table}", table=table, table_dir=str(tmp_path))
    async with sb.open_backend(settings) as backend:
        states = declared(backend)
        views = [states["list"]["k"], states["map"]["k"], states["columns"].rows(["k"])]
    entries = [states[name]._entries for name in USES if name != "columns"]
    for _ in range(2):
        backend.forget()
    assert table == "rocksdb" or not any(entries)
    for name, uses in USES.items():
        for use in [*uses, *OF_ALL]:
            with pytest.raises(BackendClosedError):
                use(states[name])
        assert states[name].name == name
    *views, rows = views
    for view in views:
        with pytest.raises(BackendClosedError):
            list(view)
    with pytest.raises(InputError):  # as after a checkpoint
        rows.gather()


async def test_the_states_of_an_open_backend_are_not_dropped() -> None:
    """It may drain them yet."""
    async with sb.open_backend(settings_with(job="fleet", primary="memory://open")) as backend:
        with pytest.raises(AssertionError):
            backend.forget()
