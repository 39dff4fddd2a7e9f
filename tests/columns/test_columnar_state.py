"""A columnar state on its table: merges, rows, the mapping, time-to-live, and all that is refused."""

import contextlib
import datetime as dt
import itertools
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import TimeToLive
from statebackend._state.columnar import expiring_rows, rows_ahead
from statebackend._state.columnar.columnar_state import ColumnarState
from statebackend._state.time.ttl import SWEEP_KEYS
from statebackend.errors import InputError, KeyGroupError, KeyTypeError, ValueDecodeError, ValueEncodeError
from statebackend.ids import KeyGroupRange
from tests.columns.states import columnar, restored
from tests.examples import name_of

SCHEMA = pa.schema({"n": pa.int64(), "total": pa.int64(), "name": pa.string()})
HOW: Any = {"n": "count", "total": ("sum", "amount"), "name": ("last", "name")}
BATCH = pa.table({"k": ["a", "b", "a"], "amount": [1, 2, 3], "name": ["x", "y", "z"]})


def fleet(**options: Any) -> ColumnarState:
    return columnar(options.pop("schema", SCHEMA), pa.string(), **options)


def test_merge_returns_the_changed_rows() -> None:
    """Key column first, named as in `on`; then all columns of the state, those not in `how` too."""
    state = fleet()
    state["c"] = {"n": 9, "total": 9, "name": "old"}
    changed = state.merge(BATCH, on="k", how={"n": "count", "total": ("sum", "amount")})
    assert changed.to_pydict() == {"k": ["a", "b"], "n": [2, 1], "total": [4, 2], "name": [None, None]}
    assert changed.schema.types == [pa.string(), *SCHEMA.types]
    more = pa.table({"k": ["c", "d"], "amount": [1, None]})
    changed = state.merge(more, on="k", how={"total": ("sum", "amount")})
    assert changed.to_pylist() == [
        {"k": "c", "n": 9, "total": 10, "name": "old"},
        {"k": "d", "n": None, "total": None, "name": None},
    ]
    assert dict(state) == {row.pop("k"): row for row in changed.to_pylist()} | {
        "a": {"n": 2, "total": 4, "name": None},
        "b": {"n": 1, "total": 2, "name": None},
    }


@pytest.mark.parametrize("make", [pa.table, pa.record_batch, pd.DataFrame], ids=["table", "batch", "pandas"])
def test_a_batch_comes_in_any_arrow(make: Callable[[Any], Any]) -> None:
    """A table, a batch, or what has Arrow's stream interface."""
    state = fleet()
    state.merge(make({"k": ["a"], "amount": [1]}), on="k", how={"total": ("sum", "amount")})
    assert state["a"]["total"] == 1


def test_batches_may_have_other_columns_than_the_last() -> None:
    """And other types, as long as they fit; and no rows."""
    state = fleet()
    state.merge(BATCH, on="k", how=HOW)
    other = pa.table({"amount": pa.array([5], pa.int16()), "id": pa.array(["a"]).dictionary_encode()})
    state.merge(other, on="id", how={"total": ("sum", "amount")})
    empty = state.merge(BATCH.slice(0, 0), on="k", how=HOW)
    assert (empty.num_rows, empty.schema.names) == (0, ["k", *SCHEMA.names])
    assert state["a"] == {"n": 2, "total": 9, "name": "z"}


def fails(old: Any, grouped: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("batch", "how", "error"),
    [
        (BATCH, {**HOW, "none": "count"}, InputError),
        (BATCH, {**HOW, "total": ("sum", "name")}, InputError),
        (BATCH, {"n": "count", "total": fails}, ZeroDivisionError),
        (BATCH, {"n": "count", "total": lambda old, grouped: [1]}, InputError),
        (pa.table({"k": ["a", "new"], "amount": [2**63 - 1, 2**63 - 1]}), {"total": ("sum", "amount")}, InputError),
        (pa.table({"k": ["a", None]}), {"n": "count"}, InputError),
        (pa.table({"k": [1]}), {"n": "count"}, KeyTypeError),
        (pa.table({"j": ["a"]}), {"n": "count"}, InputError),
        (pa.table([["a"], ["b"]], names=["k", "k"]), {"n": "count"}, InputError),
        ([{"k": "a"}], {"n": "count"}, InputError),
    ],
    ids=range(10),
)
def test_an_error_leaves_the_state_as_it_was(batch: Any, how: Any, error: type[Exception]) -> None:
    """New keys too: none of them is there, nor in the changes."""
    state = fleet()
    state.merge(BATCH, on="k", how=HOW)
    before = dict(state)
    list(state.drain(0))
    with pytest.raises(error):
        state.merge(batch, on="k", how=how)
    assert (dict(state), len(state), "new" in state) == (before, 2, False)
    assert list(state.drain(0)) == []


def test_a_key_column_needs_a_name_of_its_own() -> None:
    """It is returned beside the columns of the state."""
    batch = pa.table({"n": ["a"], "k": ["a"]})
    with pytest.raises(InputError, match="rename"):
        fleet().merge(batch, on="n", how={"total": ("count", "k")})


def test_tuples_are_keys() -> None:
    """On several columns; as a mapping, tuples."""
    key = pa.struct([("carrier", pa.string()), ("day", pa.int64())])
    state = columnar(pa.schema({"n": pa.int64()}), key)
    batch = pa.table({"c": ["x", "x", "y"], "d": [1, 1, 1]})
    changed = state.merge(batch, on=["c", "d"], how={"n": "count"})
    assert changed.to_pydict() == {"c": ["x", "y"], "d": [1, 1], "n": [2, 1]}
    assert dict(state) == {("x", 1): {"n": 2}, ("y", 1): {"n": 1}}
    assert state.rows([("y", 1), ("y", 2)]).gather().to_pydict() == {"n": [1, None]}
    del state["x", 1]
    assert state.to_arrow().to_pylist() == [{"key": {"carrier": "y", "day": 1}, "n": 1}]


def test_a_tuple_of_one_part_is_returned_as_it_was_named() -> None:
    """By a list of one column; a column of structs is named as text."""
    key = pa.struct([("carrier", pa.string())])
    state = columnar(pa.schema({"n": pa.int64()}), key)
    assert state.merge(pa.table({"c": ["x"]}), on=["c"], how={"n": "count"}).to_pydict() == {"c": ["x"], "n": [1]}
    tuples = pa.array([{"carrier": "x"}], key)
    changed = state.merge(pa.table({"k": tuples}), on="k", how={"n": "count"})
    assert changed.to_pydict() == {"k": [{"carrier": "x"}], "n": [2]}


# ------------------------------------------------------------------------------------------------------------ rows


def test_rows_are_gathered_and_scattered() -> None:
    """In the order of the keys; new keys are added by the first write, with nulls where nothing was written."""
    state = fleet()
    state.merge(BATCH, on="k", how=HOW)
    rows = state.rows(pa.chunked_array([["b"], ["new", "a"]]))
    assert (rows.is_new.tolist(), len(rows)) == ([False, True, False], 3)
    assert rows.gather(["total"]).to_pydict() == {"total": [2, None, 4]}
    assert "new" not in state
    rows.scatter({"total": pc.add(pc.fill_null(rows.gather().column("total"), 0), 1)})
    rows.scatter(pa.record_batch({"n": pa.array([7, 8, 9])}))
    rows.scatter({"n": np.array([7, 8, 10])})
    assert rows.gather().to_pydict() == {"n": [7, 8, 10], "total": [3, 1, 5], "name": ["y", None, "z"]}
    assert rows.is_new.tolist() == [False, True, False]
    assert state.rows([]).gather().num_rows == 0


def test_rows_follow_keys_that_come_and_go() -> None:
    """Up to the next checkpoint."""
    state = fleet()
    rows = state.rows(["a", "b"])
    state.merge(BATCH, on="k", how=HOW)
    assert rows.gather(["n"]).to_pydict() == {"n": [2, 1]}
    del state["a"]
    assert rows.gather(["n"]).to_pydict() == {"n": [None, 1]}
    rows.scatter({"n": [5, 6]})
    assert state["a"] == {"n": 5, "total": None, "name": None}
    rows.drop()
    rows.drop()
    assert len(state) == 0
    assert state.rows(["a", "a"]).gather(["n"]).to_pydict() == {"n": [None, None]}


def test_rows_are_of_no_use_after_a_checkpoint() -> None:
    """Every method says so."""
    state = fleet()
    state.merge(BATCH, on="k", how=HOW)
    rows = state.rows(["a"])
    list(state.drain(0))
    for use in (rows.gather, rows.drop, lambda: rows.scatter({"n": [1]})):
        with pytest.raises(InputError, match="checkpoint"):
            use()
    assert state["a"]["n"] == 2


@pytest.mark.parametrize(
    "columns",
    [
        {"n": [1]},
        {"n": [1, 2, 3]},
        {"n": [1.5, 2]},
        {"n": ["1", "2"]},
        {"n": pa.array([1.0, 2.0])},
        {"n": [2**63, 1]},
        {"none": [1, 2]},
        {"__written__": [1.0, 2.0]},
        {"n": 1},
        {"n": "ab"},
        [1, 2],
        pa.table([[1, 2], [1, 2]], names=["n", "n"]),
        {"n": [1, 2], "total": [1]},
    ],
    ids=range(13),
)
def test_columns_that_do_not_fit_are_not_scattered(columns: Any) -> None:
    """Not even the part of them that would."""
    state = fleet()
    with pytest.raises(InputError):
        state.rows(["a", "b"]).scatter(columns)
    assert len(state) == 0


def test_a_key_is_written_once_only() -> None:
    """New or not; reading it twice is fine."""
    state = fleet()
    state.merge(BATCH, on="k", how=HOW)
    assert state.rows(["a", "a"]).gather(["n"]).to_pydict() == {"n": [2, 2]}
    for keys in (["a", "a"], ["new", "new"]):
        with pytest.raises(InputError, match="twice"):
            state.rows(keys).scatter({"n": [1, 2]})
    assert len(state) == 2


def test_columns_to_gather_are_there_once() -> None:
    for names in (["none"], ["n", "n"], ["__written__"]):
        with pytest.raises(InputError, match="no column"):
            fleet().rows(["a"]).gather(names)
        with pytest.raises(InputError, match="no column"):
            fleet().to_arrow(names)


# ------------------------------------------------------------------------------------------------------ as a mapping


def test_a_mapping_of_rows() -> None:
    """Every method of `MutableMapping`; a row is a copy."""
    state = fleet()
    state["a"] = {"n": 1, "total": 2, "name": "x"}
    state["b"] = {"n": 5}
    row = state["a"]
    row["n"] = 100
    assert state["a"] == {"n": 1, "total": 2, "name": "x"}
    assert state["b"] == {"n": 5, "total": None, "name": None}
    assert (state.get("none"), "b" in state, "none" in state, len(state)) == (None, True, False, 2)
    assert sorted(state.keys()) == ["a", "b"]
    state["a"] |= {"n": 3}  # type: ignore[operator]
    assert state.pop("a") == {"n": 3, "total": 2, "name": "x"}
    for operation in (lambda: state["a"], lambda: state.__delitem__("a"), lambda: state.pop("a")):
        with pytest.raises(KeyError):
            operation()
    state.clear()
    assert (dict(state), len(state)) == ({}, 0)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"none": 1}, InputError),
        ({"__written__": 1.0}, InputError),
        (7, InputError),
        ({"n": 1.5}, ValueEncodeError),
        ({"n": "1"}, ValueEncodeError),
        ({"n": True}, ValueEncodeError),
        ({"n": 2**63}, ValueEncodeError),
        ({"name": b"x"}, ValueEncodeError),
        ({"name": "\ud800"}, ValueEncodeError),
    ],
    ids=range(9),
)
def test_a_row_that_does_not_fit_is_refused(row: Any, error: type[Exception]) -> None:
    """Arrow alone would cut 1.5 to 1, and take bytes for text."""
    state = fleet()
    with pytest.raises(error):
        state["a"] = row
    assert len(state) == 0


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_in_the_hour_that_clocks_repeat_is_a_time(zone: str, fold: int) -> None:
    """Given in any zone: to Python, such a time equals none of another zone."""
    state = fleet(schema=pa.schema({"at": pa.timestamp("us", zone)}))
    local = dt.datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
    utc = dt.datetime(2024, 10, 27, fold, 30, tzinfo=dt.UTC)
    state.update({"local": {"at": local}, "utc": {"at": utc}})
    assert [state[key]["at"].astimezone(dt.UTC) for key in ("local", "utc")] == [utc, utc]


def test_a_time_that_is_none_in_utc_is_refused() -> None:
    """As any other that cannot be kept."""
    state = fleet(schema=pa.schema({"at": pa.timestamp("us", "UTC")}))
    with pytest.raises(ValueEncodeError):
        state["a"] = {"at": dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))}


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_time_with_a_zone_is_none_without_one(zone: str | None) -> None:
    """Nor the other way round: it would become another time wherever the column is read."""
    state = fleet(schema=pa.schema({"at": pa.timestamp("us", zone)}))
    for tzinfo in (None, dt.UTC, ZoneInfo("Europe/Berlin")):
        if (tzinfo is None) != (zone is None):
            with pytest.raises(ValueEncodeError):
                state["a"] = {"at": dt.datetime(2024, 10, 27, 2, 30, tzinfo=tzinfo)}
    assert dict(state) == {}


def test_a_value_that_python_has_not_is_told() -> None:
    """By a read of one row; as columns it is read. Of the year 10,000; of nanoseconds it is so without pandas."""
    state = fleet(schema=pa.schema({"at": pa.timestamp("s")}))
    at = pa.array([253402300800], pa.timestamp("s"))
    state.merge(pa.table({"k": ["a"], "at": at}), on="k", how={"at": ("max", "at")})
    for read in (lambda: state["a"], lambda: dict(state)):
        with pytest.raises(ValueDecodeError, match="as columns"):
            read()
    assert state.rows(["a"]).gather()["at"].equals(at)


@pytest.mark.parametrize("key", [1, 1.5, None, b"a", True, ("a",), "\ud800"], ids=name_of)
def test_a_key_of_another_type_is_refused(key: Any) -> None:
    """By everything that takes one."""
    state = fleet()
    for operation in (
        lambda: state[key],
        lambda: state.get(key),
        lambda: key in state,
        lambda: state.__setitem__(key, {"n": 1}),
        lambda: state.__delitem__(key),
        lambda: state.rows([key]),
    ):
        with pytest.raises(KeyTypeError):
            operation()
    with pytest.raises(KeyTypeError):
        columnar(SCHEMA, pa.int64())[2**63]


def test_keys_of_other_owners_are_refused() -> None:
    """By everything, and none of a batch is taken."""
    state = columnar(SCHEMA, pa.string(), key_groups=KeyGroupRange(0, 63))
    whole = fleet()
    keys = pa.array([f"k{number}" for number in range(50)])
    whole.merge(pa.table({"k": keys}), on="k", how={"n": "count"})
    (theirs,) = whole.scan(range(64, 128))
    foreign = theirs["key"][0].as_py()
    for operation in (
        lambda: state[foreign],
        lambda: foreign in state,
        lambda: state.rows(keys),
        lambda: state.merge(pa.table({"k": keys}), on="k", how={"n": "count"}),
    ):
        with pytest.raises(KeyGroupError):
            operation()
    assert len(state) == 0


def test_a_state_is_scanned_by_key_groups() -> None:
    """Every row is in one key group; columns may be chosen."""
    state = fleet()
    keys = [f"k{number}" for number in range(300)]
    state.merge(pa.table({"k": keys, "amount": range(300)}), on="k", how={"n": "count", "total": ("sum", "amount")})
    halves = [
        pa.Table.from_batches(state.scan(part, columns=["total"])) for part in (KeyGroupRange(0, 63), range(64, 128))
    ]
    assert [half.schema.names for half in halves] == [["key", "total"]] * 2
    assert all(half.num_rows > 100 for half in halves)
    together = pa.concat_tables(halves).sort_by("total")
    assert together["key"].to_pylist() == keys
    assert state.to_arrow(["total"], key="k").sort_by("total").schema.names == ["k", "total"]
    with pytest.raises(InputError, match="rename"):
        state.to_arrow(key="n")


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.merge(pa.table({"k": ["k0"]}), on="k", how={"n": "count"}),
        lambda state: state.rows(["k0"]).scatter({"n": [1]}),
        lambda state: state.update({"k0": {"n": 1}}),
    ],
    ids=["merge", "scatter", "set"],
)
def test_known_keys_may_be_written_while_a_state_is_scanned(
    write: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many chunks there are. A key that comes or goes ends the scan with an error."""
    monkeypatch.setattr(expiring_rows, "READ_AT_ONCE", 2)
    state = fleet()
    keys = [f"k{number}" for number in range(5)]
    state.merge(pa.table({"k": keys}), on="k", how={"n": "count"})
    for scan in (state.scan, state.__iter__):
        assert len([write(state) for _ in scan()]) in (3, 5)
        for change in (lambda: state.update(new={"n": 1}), lambda: state.pop("new")):
            found = scan()
            next(found)
            change()
            with pytest.raises(InputError, match="read all of it first"):
                list(found)


# ------------------------------------------------------------------------------------------------------ time-to-live


class Clock:
    """As a batch tells the time."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.merge(BATCH, on="k", how=HOW),
        lambda state: state.rows(["a"]).scatter({"n": [1]}),
        lambda state: state.update({"a": {"n": 1}}),
    ],
    ids=["merge", "scatter", "set"],
)
def test_a_write_that_fails_by_its_clock_adds_no_key(write: Callable[[Any], Any]) -> None:
    """A row of nulls, without a time, would be left, and would never expire."""
    clock = Clock()
    state = fleet(ttl=TimeToLive(10, clock))
    clock.now = float("nan")
    with pytest.raises(InputError, match="clock"):
        write(state)
    clock.now = 100
    assert dict(state) == {}
    assert list(state.drain(0)) == []


def test_expired_rows_are_not_there() -> None:
    """To the second, by everything that reads."""
    clock = Clock()
    state = fleet(ttl=TimeToLive(10, clock))
    state.merge(BATCH, on="k", how=HOW)
    clock.now = 105
    state.merge(BATCH.slice(1, 1), on="k", how=HOW)
    clock.now = 109.9
    assert (len(state), state["a"]["n"], sorted(state)) == (2, 2, ["a", "b"])
    clock.now = 110
    assert (len(state), state.get("a"), "a" in state, list(state)) == (1, None, False, ["b"])
    assert state.to_arrow().to_pydict() == {"key": ["b"], "n": [2], "total": [4], "name": ["y"]}
    rows = state.rows(["a", "b"])
    assert (rows.is_new.tolist(), rows.gather(["n"]).to_pydict()) == ([True, False], {"n": [None, 2]})
    with pytest.raises(KeyError):
        del state["a"]


def test_an_expired_row_begins_anew() -> None:
    """By a merge, also in the columns that are not merged; by a scatter; by setting it."""
    for write in (
        lambda state: state.merge(BATCH.slice(0, 1), on="k", how={"n": "count"}),
        lambda state: state.rows(["a"]).scatter({"n": [1]}),
        lambda state: state.__setitem__("a", {"n": 1}),
    ):
        clock = Clock()
        state = fleet(ttl=TimeToLive(10, clock))
        state.merge(BATCH, on="k", how=HOW)
        clock.now = 110
        write(state)
        assert state["a"] == {"n": 1, "total": None, "name": None}
        assert dict(restored(state, ttl=TimeToLive(10, clock))) == dict(state)


def test_first_of_an_expired_row_is_that_of_the_batch() -> None:
    clock = Clock()
    state = fleet(ttl=TimeToLive(10, clock))
    state.merge(BATCH, on="k", how={"name": ("first", "name")})
    clock.now = 110
    state.merge(BATCH.slice(2), on="k", how={"name": ("first", "name")})
    assert state["a"]["name"] == "z"


@pytest.mark.parametrize(
    "read",
    [
        lambda state: [state[key] for key in ("a", "b", "c")],
        lambda state: [state.get(key) for key in ("c", "b", "a")],
        lambda state: [state[key] for key in state],
        lambda state: list(state.items()),
        lambda state: list(state.values()),
        dict,
        lambda state: state.rows(["a", "b", "c"]).gather(["n"]),
        lambda state: state.to_arrow(),
        lambda state: list(state.scan(columns=["name"])),
    ],
    ids=["[]", "get", "loop", "items", "values", "dict", "gather", "to_arrow", "scan"],
)
def test_reads_count_where_it_is_asked_for(read: Callable[[Any], Any]) -> None:
    """In whichever way rows are read; the time goes into the changes. Looking which keys there are is no read."""
    clock = Clock()
    ttl = TimeToLive(10, clock, on_read=True)
    state = fleet(ttl=ttl)
    state.merge(pa.table({"k": ["a", "b", "c"]}), on="k", how={"n": "count"})
    list(state.drain(0))
    clock.now = 105
    assert ("c" in state, len(state), len(list(state))) == (True, 3, 3)
    assert sum(each.records for each in state.drain(0)) == 0
    read(state)
    assert sum(each.records for each in state.drain(0)) == 3
    clock.now = 114.9
    assert sorted(state) == ["a", "b", "c"]
    clock.now = 115
    assert sorted(state) == []


@pytest.mark.parametrize("ttl", [None, TimeToLive(10, lambda: 0.0)], ids=["for ever", "for a while"])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["", "read", "set", "drop", "add", "drain"]), st.integers(0, 9)), max_size=30
    )
)
@settings(max_examples=25)
def test_what_is_read_ahead_is_what_is_there(ttl: TimeToLive | None, steps: list[tuple[str, int]]) -> None:
    """Of any key, in the midst of an iteration and behind it, whatever is written, dropped or committed meanwhile."""
    state, plain = fleet(ttl=ttl), dict[str, Any]()

    def put(number: int, value: int) -> None:
        state[f"k{number}"] = {"n": value}
        plain[f"k{number}"] = {"n": value, "total": None, "name": None}

    for number in range(8):
        put(number, number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_ahead, "AHEAD_MAX", 4)
        keys, remaining = iter(state), iter(steps)
        with contextlib.suppress(InputError):  # "the state's keys changed while it was read"
            for key in keys:
                assert state.get(key) == plain.get(key)
                for does, number in itertools.islice(remaining, 3):
                    other = f"k{number}"
                    if does == "set" and other in plain:
                        put(number, plain[other]["n"] + 100)
                    elif does == "add":
                        put(number, 7)
                    elif does == "drop" and plain.pop(other, None):
                        del state[other]
                    elif does == "drain":
                        list(state.drain(0))
                    assert state.get(other) == plain.get(other)
        assert dict(state) == dict(state.items()) == plain
        assert [state[key] for key in reversed(list(state))] == [plain[key] for key in reversed(list(state))]


@pytest.mark.parametrize("read", [dict, lambda state: list(state.items()), lambda state: list(state.values())])
def test_all_rows_are_read_many_at_a_time(read: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Though they are asked for key by key: each look-up costs as much as some fifty rows together."""
    state, reads = fleet(), list[int]()
    state.rows([f"k{number}" for number in range(5000)]).scatter({"n": list(range(5000))})
    gather = expiring_rows.ExpiringRows.gather

    def counted(self: Any, rows: Any, *rest: Any) -> Any:
        reads.append(len(rows))
        return gather(self, rows, *rest)

    monkeypatch.setattr(expiring_rows.ExpiringRows, "gather", counted)
    assert len(read(state)) == sum(reads) == 5000
    assert len(reads) < 20


def test_a_row_that_was_read_ahead_is_a_copy() -> None:
    """Changing it changes nothing, in the state or in what is read next."""
    state = fleet()
    state.update({"a": {"n": 1}, "b": {"n": 2}})
    for key in state:
        state[key]["n"] = 99
        assert state[key]["n"] in (1, 2)


def test_a_key_of_another_type_is_refused_also_where_rows_are_read_ahead() -> None:
    """True equals 1, and is no key."""
    state, pairs = (columnar(SCHEMA, type_) for type_ in (pa.int64(), pa.struct({"x": pa.int64()})))
    state.update({1: {"n": 1}, 2: {"n": 2}})
    pairs.update({(1,): {"n": 1}})
    for of, key in ((state, True), (state, 1.0), (pairs, (True,))):
        assert len(list(of)) == len(of)
        with pytest.raises(KeyTypeError):
            of[key]  # type: ignore[index]


def test_popping_takes_each_key_once() -> None:
    """And says that there is none left."""
    state, plain = fleet(), {f"k{number}": {"n": number, "total": None, "name": None} for number in range(20)}
    state.update(plain)
    assert dict(state.popitem() for _ in range(20)) == plain
    assert len(state) == 0
    with pytest.raises(KeyError):
        state.popitem()


def test_a_drain_drops_expired_rows_in_passing() -> None:
    """More the more was written: never all of a large state at once, in the end all of them."""
    clock = Clock()
    state = fleet(ttl=TimeToLive(10, clock))
    state.merge(pa.table({"k": [f"k{number}" for number in range(5000)]}), on="k", how={"n": "count"})
    list(state.drain(0))
    clock.now = 110
    state.merge(pa.table({"k": ["k7", "new"]}), on="k", how={"n": "count"})
    dropped = [sum(each.drops for each in state.drain(0)) for _ in range(8)]  # type: ignore[attr-defined]
    assert max(dropped) <= 1002
    assert sum(dropped) == 4999
    assert dict(state) == {key: {"n": 1, "total": None, "name": None} for key in ("k7", "new")}


@pytest.mark.parametrize("written", [0, 1, 1500])
def test_a_drain_looks_at_more_rows_the_more_was_written(written: int) -> None:
    """One for each, beside those that it always looks at: expired rows never far outnumber those that come."""
    clock = Clock()
    state = fleet(ttl=TimeToLive(10, clock))
    state.merge(pa.table({"k": [f"k{number}" for number in range(4000)]}), on="k", how={"n": "count"})
    list(state.drain(0))
    clock.now = 110
    state.merge(pa.table({"k": [f"new{number}" for number in range(written)]}), on="k", how={"n": "count"})
    assert sum(each.drops for each in state.drain(0)) == SWEEP_KEYS + written  # type: ignore[attr-defined]


def test_a_dropped_row_may_come_back_before_the_sweep_reaches_it() -> None:
    """The rows to be checked are a list of an earlier time."""
    clock = Clock()
    state = fleet(ttl=TimeToLive(10, clock))
    state.merge(pa.table({"k": [f"k{number}" for number in range(3000)]}), on="k", how={"n": "count"})
    list(state.drain(0))
    state.rows([f"k{number}" for number in range(3000)]).drop()
    list(state.drain(0))
    state.merge(pa.table({"k": ["new"]}), on="k", how={"n": "count"})
    clock.now = 109
    for _ in range(4):
        list(state.drain(0))
    assert dict(state).keys() == {"new"}


def test_a_state_restored_is_the_same() -> None:
    """By its changes: every type, nulls, and keys that were dropped."""
    types = [pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(10, 2), pa.bool_(), pa.float32(), pa.binary(2)]
    schema = pa.schema({f"c{number}": type_ for number, type_ in enumerate(types)} | {"text": pa.large_string()})
    state = columnar(schema, pa.int64())
    state[1] = {"c0": dt.date(2026, 1, 1), "c3": True, "c4": 0.5, "c5": b"ab", "text": "ü"}
    state[2] = {"c1": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    state[3] = {}
    other = restored(state)
    del state[3]
    assert dict(restored(state, onto=other)) == dict(state)
    assert len(other) == 2
