"""A state of a closed backend can be read on, and refuses to be changed: nobody would ever commit it."""

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import BackendClosedError
from statebackend.owners import KeyGroupRange
from statebackend.settings import TableKind
from tests.aggregates import Mean
from tests.knobs import settings_with

pytest.importorskip("rocksdict", reason="the extra rocksdb")

SCHEMA = pa.schema({"n": pa.int64()})
ROW = {"n": 2}
ROWS = pa.table({"key": ["a"]})
Change = Callable[[Any], object]
CHANGES: Mapping[str, Sequence[Change]] = {
    "value": (
        lambda state: state.__setitem__("a", 2),
        lambda state: state.__setitem__("new", 2),
        lambda state: state.update(a=2),
        lambda state: state.setdefault("new", 2),
        lambda state: state.__delitem__("a"),
        lambda state: state.pop("a"),
        lambda state: state.popitem(),
        lambda state: state.clear(),
        lambda state: state.put_many(["a"], [2]),
        lambda state: state.update_many(["a"], [2], operator.add),
    ),
    "list": (
        lambda state: state["a"].append(2),
        lambda state: state["a"].extend([2]),
        lambda state: state["a"].clear(),
        lambda state: state.__setitem__("new", [2]),
        lambda state: state.__delitem__("a"),
        lambda state: state.clear(),
        lambda state: state.put_many(["a"], [[2]]),
        lambda state: state.append_many(["a"], [2]),
        lambda state: state.extend_many(["new"], [[2]]),
    ),
    "map": (
        lambda state: state["a"].update(x=2),
        lambda state: state["a"].pop("x"),
        lambda state: state["a"].popitem(),
        lambda state: state["a"].clear(),
        lambda state: state.__setitem__("new", {"x": 2}),
        lambda state: state.__delitem__("a"),
        lambda state: state.clear(),
        lambda state: state.put_many(["a"], [{"x": 2}]),
        lambda state: state.update_many(["new"], [{"x": 2}]),
    ),
    "reducing": (
        lambda state: state.add("a", 2),
        lambda state: state.add_many(["new"], [2]),
        lambda state: state.__delitem__("a"),
        lambda state: state.clear(),
    ),
    "aggregating": (
        lambda state: state.add("a", 2),
        lambda state: state.add_many(["new"], [2]),
        lambda state: state.merge("new", ["a"]),
        lambda state: state.__delitem__("a"),
    ),
    "timers": (
        lambda state: state.register("a", 2.0),
        lambda state: state.register_many(["new"], [2.0]),
        lambda state: state.delete("a", 1.0),
        lambda state: list(state.due(3.0)),
        lambda state: state.clear(),
    ),
    "columns": (
        lambda state: state.__setitem__("a", ROW),
        lambda state: state.__setitem__("new", ROW),
        lambda state: state.__delitem__("a"),
        lambda state: state.popitem(),
        lambda state: state.clear(),
        lambda state: state.rows(["a"]).scatter({"n": [2]}),
        lambda state: state.rows(["a"]).drop(),
        lambda state: state.merge(ROWS, on="key", how={"n": "count"}),
    ),
    "operator": (
        lambda state: state.append(2),
        lambda state: state.extend([2]),
        lambda state: state.replace([2]),
        lambda state: state.clear(),
    ),
}
READ: Mapping[str, Callable[[Any], object]] = {
    "list": lambda state: {key: list(view) for key, view in state.items()},
    "map": lambda state: {key: dict(view) for key, view in state.items()},
    "timers": lambda state: {key: state.registered(key) for key in state},
    "operator": list,
    "columns": lambda state: state.to_arrow().to_pylist(),
}


def declared(backend: Any, ttl: sb.TimeToLive | None = None) -> Mapping[str, Any]:
    """A state of each kind, with a key."""
    states: dict[str, Any] = {
        "value": backend.value_state("value", int, ttl=ttl),
        "list": backend.list_state("list", int, ttl=ttl),
        "map": backend.map_state("map", str, int, ttl=ttl),
        "reducing": backend.reducing_state("reducing", int, operator.add, ttl=ttl),
        "aggregating": backend.aggregating_state("aggregating", Mean(), ttl=ttl),
        "timers": backend.timers("timers"),
        "columns": backend.columnar_state("columns", SCHEMA, key=pa.string(), ttl=ttl),
        "operator": backend.operator_state("operator", int),
    }
    states["value"]["a"] = 1
    states["list"]["a"].append(1)
    states["map"]["a"]["x"] = 1
    states["reducing"].add("a", 1)
    states["aggregating"].add("a", 1)
    states["timers"].register("a", 1.0)
    states["columns"]["a"] = {"n": 1}
    states["operator"].append(1)
    return states


def shown(states: Mapping[str, Any]) -> Mapping[str, object]:
    return {name: READ.get(name, dict)(state) for name, state in states.items()}


def changes_taken(states: Mapping[str, Any]) -> Sequence[str]:
    """Those that are not refused."""
    every = [(name, number, change) for name, changes in CHANGES.items() for number, change in enumerate(changes)]
    return [f"{name} {number}" for name, number, change in every if not is_refused(change, states[name])]


def is_refused(change: Change, state: Any) -> bool:
    try:
        change(state)
    except BackendClosedError:
        return True
    return False


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("table", ["heap", "rocksdb", "runs"])
async def test_a_change_after_the_end_is_refused(table: TableKind, is_committed: bool, tmp_path: Path) -> None:
    """Whatever it is, and whether there were others before. In memory all is read as before."""
    settings = settings_with(job="fleet", primary="memory://closed", table=table, table_dir=str(tmp_path))
    async with sb.open_backend(settings) as backend:
        states = declared(backend)
        if is_committed:
            await backend.checkpoint(backend.next_checkpoint_id)
        before = shown(states)
    assert changes_taken(states) == []
    if table == "heap":
        assert shown(states) == before


async def test_nor_does_an_owner_take_changes_after_its_end() -> None:
    async with sb.open_backend(
        settings_with(job="fleet", primary="memory://owner"),
        key_groups=KeyGroupRange(0, 127),
        owners=[KeyGroupRange(0, 127)],
    ) as owner:
        states = declared(owner)
    assert changes_taken(states) == []


async def test_a_read_after_the_end_prolongs_nothing() -> None:
    """Where a read counts as a use it would be a change; it is a read, and stays one."""
    now_s = [0.0]
    async with sb.open_backend(settings_with(job="fleet", primary="memory://prolonged")) as backend:
        states = declared(backend, sb.TimeToLive(10.0, lambda: now_s[0], on_read=True))
        before = shown(states)
    now_s[0] = 6.0
    assert shown(states) == before
    now_s[0] = 12.0
    expiring = {name: state for name, state in states.items() if name not in ("timers", "operator")}
    assert {name: len(state) for name, state in expiring.items()} == dict.fromkeys(expiring, 0)


async def test_a_default_of_another_type_declares_nothing() -> None:
    """It was refused, and left a state that the next checkpoint fell over."""
    async with sb.open_backend(settings_with(job="fleet", primary="memory://default")) as backend:
        with pytest.raises(sb.errors.ValueEncodeError):
            backend.value_state("legs", int, default="none")  # type: ignore[type-var]  # that is the slip
        await backend.checkpoint(0)
        backend.value_state("legs", str, default="none")
