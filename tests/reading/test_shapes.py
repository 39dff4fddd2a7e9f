"""Each declared type has columns of its own, and every value that it allows is in them."""

import datetime as dt
import decimal
import enum
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebackend as sb
from statebackend.objectstore import MemoryStore
from tests.reading.states import table_of
from tests.rewrite.jobs import settings_of


class Leg(msgspec.Struct, frozen=True):
    origin: str
    miles: int | None = None


class Car(msgspec.Struct, frozen=True, tag=True):
    wheels: int


class Boat(msgspec.Struct, frozen=True, tag=True):
    name: str


class Node(msgspec.Struct, frozen=True):
    number: int
    following: "Node | None" = None


class Stop(msgspec.Struct, frozen=True, tag=True):
    code: str


class Fork(msgspec.Struct, frozen=True, tag=True):
    left: "Fork | Stop"
    rest: "list[Fork | Stop]" = []


class Folder(msgspec.Struct, frozen=True):
    files: dict[Leg, int]
    within: "tuple[Folder, ...]" = ()


class Idle(msgspec.Struct, frozen=True, tag=True):
    pass


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


DAY = dt.date(2013, 5, 1)
NOON = dt.datetime(2013, 5, 1, 12, 0, 0, 7, tzinfo=dt.UTC)
UUID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("declared", "values", "type_", "shown"),
    [
        (dt.date, [DAY], pa.date32(), [DAY]),
        (dt.datetime, [NOON], pa.timestamp("us", "UTC"), [NOON]),
        (dt.timedelta, [dt.timedelta(seconds=3)], pa.duration("us"), [dt.timedelta(seconds=3)]),
        (decimal.Decimal, [decimal.Decimal("1.50")], pa.string(), ["1.50"]),
        (uuid.UUID, [UUID], pa.string(), [str(UUID)]),
        (Color, [Color.RED, Color.BLUE], pa.string(), ["red", "blue"]),
        (Literal[1, 2], [2, 1], pa.int64(), [2, 1]),
        (int | None, [1, None], pa.int64(), [1, None]),
        (
            int | str,
            [1, "one"],
            pa.struct([("int", pa.int64()), ("str", pa.string())]),
            [{"int": 1, "str": None}, {"int": None, "str": "one"}],
        ),
        (
            int | str | None,
            [1, None, "one"],
            pa.struct([("int", pa.int64()), ("str", pa.string())]),
            [{"int": 1, "str": None}, None, {"int": None, "str": "one"}],
        ),
        (Annotated[int, msgspec.Meta(ge=0)], [2**64 - 1, 0], pa.uint64(), [2**64 - 1, 0]),
        (Annotated[int, msgspec.Meta(gt=0)], [2**64 - 1, 1], pa.uint64(), [2**64 - 1, 1]),
        (Annotated[int, msgspec.Meta(ge=-1)], [2**63 - 1, -1], pa.int64(), [2**63 - 1, -1]),
        (
            Car | Boat,
            [Car(4), Boat("Argo")],
            pa.struct([("Boat", pa.struct([("name", pa.string())])), ("Car", pa.struct([("wheels", pa.int64())]))]),
            [{"Boat": None, "Car": {"wheels": 4}}, {"Boat": {"name": "Argo"}, "Car": None}],
        ),
        (
            list[Leg],
            [[Leg("SFO", 5), Leg("JFK")], []],
            pa.list_(pa.struct([("miles", pa.int64()), ("origin", pa.string())])),  # in the order of their names
            [[{"origin": "SFO", "miles": 5}, {"origin": "JFK", "miles": None}], []],
        ),
        (
            tuple[int, str],
            [(1, "a")],
            pa.struct([("_1", pa.int64()), ("_2", pa.string())]),
            [{"_1": 1, "_2": "a"}],
        ),
        (dict[str, float], [{"a": 0.5}], pa.map_(pa.string(), pa.float64()), [[("a", 0.5)]]),
        (frozenset[int], [frozenset([3])], pa.list_(pa.int64()), [[3]]),
        (Literal[1, "a"] | float, [1, "a", 0.5], pa.string(), ["1", '"a"', "0.5"]),
        (
            dict[str | None, int],
            [{"b": 1, None: 2, "a": 3}, {}],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())])),
            [[{"key": "a", "value": 3}, {"key": "b", "value": 1}, {"key": None, "value": 2}], []],
        ),
        (
            dict[Any, int],
            [{None: 1, "a": 2, (1, 2): 3}],
            pa.map_(pa.string(), pa.int64()),
            [[("null", 1), ('"a"', 2), ("[1,2]", 3)]],
        ),
        (
            dict[Leg, int],
            [{Leg("SFO"): 1}],
            pa.map_(pa.struct([("miles", pa.int64()), ("origin", pa.string())]), pa.int64()),
            [[({"miles": None, "origin": "SFO"}, 1)]],
        ),
        (
            Car | Idle,
            [Car(4), Idle()],
            pa.struct([("Car", pa.struct([("wheels", pa.int64())])), ("Idle", pa.bool_())]),
            [{"Car": {"wheels": 4}, "Idle": None}, {"Car": None, "Idle": True}],
        ),
        (tuple[()], [()], pa.bool_(), [True]),
    ],
    ids=[
        "date",
        "datetime",
        "timedelta",
        "decimal",
        "uuid",
        "enum",
        "literal",
        "optional",
        "union",
        "optional union",
        "from 0 on",
        "above 0",
        "from -1 on",
        "tagged union",
        "list of records",
        "tuple",
        "dict",
        "frozenset",
        "union with a mixed literal",
        "dict with none",
        "dict with any",
        "dict with records",
        "union with a record without fields",
        "tuple of nothing",
    ],
)
async def test_a_declared_type_has_columns(
    declared: Any, values: list[Any], type_: pa.DataType, shown: list[Any], tmp_path: Path
) -> None:
    """In memory and in Parquet."""
    settings, store = settings_of(4), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("state", declared).update(dict(enumerate(values)))
        await backend.checkpoint(1)
        table = await table_of(settings, "state", store=store)
    await sb.export(settings, "state", tmp_path / "state.parquet", store=store)
    assert table.schema.field("value").type == type_
    for each in (table, pq.read_table(tmp_path / "state.parquet")):
        rows = {row["key"]: row["value"] for row in each.to_pylist()}
        assert [rows[key] for key in range(len(values))] == shown


async def test_a_type_that_holds_itself_is_text_where_it_does() -> None:
    """Arrow has no such type."""
    settings, store = settings_of(4), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("state", Node)["k"] = Node(1, Node(2))
        await backend.checkpoint(1)
        (row,) = (await table_of(settings, "state", store=store)).to_pylist()
    assert row["value"]["number"] == 1
    assert msgspec.json.decode(row["value"]["following"])["number"] == 2


async def test_a_union_of_types_that_hold_it_is_text_where_it_does() -> None:
    """Which of its choices a value within is, no column could tell."""
    settings, store = settings_of(4), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.value_state("state", Fork | Stop)
        state["k"], state["l"] = Fork(Fork(Stop("SFO")), [Stop("JFK")]), Stop("EWR")
        await backend.checkpoint(1)
        rows = {row["key"]: row["value"] for row in (await table_of(settings, "state", store=store)).to_pylist()}
    assert rows["l"] == {"Fork": None, "Stop": {"code": "EWR"}}
    assert rows["k"]["Stop"] is None
    assert msgspec.json.decode(rows["k"]["Fork"]["left"])["left"] == {"type": "Stop", "code": "SFO"}
    assert [msgspec.json.decode(each) for each in rows["k"]["Fork"]["rest"]] == [{"type": "Stop", "code": "JFK"}]


async def test_keys_within_a_map_are_as_many_as_the_map_has() -> None:
    """Also those that Python takes for equal, or cannot hash; and a record as a key within what is text."""
    settings, store = settings_of(4), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        zeros, dicts = backend.map_state("zeros", float, int), backend.map_state("dicts", dict[str, int], int)
        zeros["k"].update({0.0: 1})
        zeros["k"].update({-0.0: 2})
        dicts.put("k", {"a": 1}, 3)
        backend.value_state("folders", Folder)["k"] = Folder({Leg("SFO"): 1}, (Folder({Leg("JFK", 2): 3}),))
        await backend.checkpoint(1)
        rows = {
            name: (await table_of(settings, name, store=store)).to_pylist() for name in ("zeros", "dicts", "folders")
        }
    assert repr(rows["zeros"][0]["value"]) == "[(0.0, 1), (-0.0, 2)]"
    assert rows["dicts"][0]["value"] == [{"key": [("a", 1)], "value": 3}]
    assert rows["folders"][0]["value"]["files"] == [({"miles": None, "origin": "SFO"}, 1)]
    (within,) = rows["folders"][0]["value"]["within"]
    assert msgspec.json.decode(within)["files"] == [[{"origin": "JFK", "miles": 2}, 3]]
