"""Merges against plain Python, and what they refuse before anything is changed."""

import datetime as dt
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._columns.batch.merge_plan import GroupedColumns, How
from statebackend._columns.batch.numbered_keys import grouped
from statebackend._columns.batch.user_keys import FEW, keys_from, keys_of
from statebackend._columns.keys import HashedKeys, plain_keys
from statebackend.errors import InputError, KeyTypeError
from tests.columns.merges import Merged, hashed_keys, plain_merge
from tests.examples import name_of

UTC = dt.UTC
INSTANTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**40), 2**40),
    pa.int8(): st.integers(-3, 3),
    pa.uint64(): st.integers(0, 2**40) | st.just(2**59),
    pa.float64(): st.sampled_from([0.0, -1.5, 2.25, 1e300, float("nan"), float("inf")]),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): INSTANTS,
    pa.timestamp("ns"): st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)),  # noqa: DTZ001
    pa.duration("us"): st.timedeltas(dt.timedelta(-9), dt.timedelta(9)),
    pa.decimal128(38, 2): st.decimals(-(10**20), 10**20, places=2),
    pa.decimal128(12, 2): st.decimals(-(10**6), 10**6, places=2),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=2),
    pa.binary(2): st.binary(min_size=2, max_size=2),
}
"""Values whose sums fit, by type."""
HAVE = {
    "sum": [pa.int64(), pa.uint64(), pa.float64(), pa.duration("us"), pa.decimal128(38, 2), pa.decimal128(12, 2)],
    "mean": [pa.int64(), pa.float64(), pa.decimal128(12, 2)],
    "any": [pa.bool_()],
    "all": [pa.bool_()],
    "min": [type_ for type_ in VALUES if type_ != pa.bool_()],
    "max": [type_ for type_ in VALUES if type_ != pa.bool_()],
    "first": [*VALUES],
    "last": [*VALUES],
    "count": [*VALUES],
}
EVERY = [(kind, type_) for kind, types in HAVE.items() for type_ in types]


@given(st.data(), st.sampled_from(EVERY))
def test_batches_merge_as_row_by_row(data: st.DataObject, case: tuple[str, Any]) -> None:
    """Every aggregate of every type that has it: of several batches, with nulls, slices and several chunks."""
    kind, type_ = case
    values = st.none() | VALUES[type_] if data.draw(st.booleans()) else VALUES[type_]
    result = pa.int64() if kind == "count" else pa.float64() if kind == "mean" else type_
    schema = pa.schema({"x": result, "x_sum": type_, "x_count": pa.int32()})
    merged, expected = Merged(schema), {}
    for _ in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.lists(st.tuples(st.sampled_from("abcd"), values), max_size=6))
        keys, column = pa.array([key for key, _ in rows], pa.string()), pa.array([value for _, value in rows], type_)
        cut = data.draw(st.integers(0, len(rows)))
        batch = pa.concat_tables([pa.table({"key": keys, "v": column}).slice(*part) for part in ((0, cut), (cut,))])
        merged.merge(batch, {"x": (kind, "v")})
        plain = [{"key": row["key"], "v": row["v"]} for row in batch.to_pylist()]
        plain_merge(expected, schema.names, plain, {"x": (kind, "v")})
        assert list(merged.rows) == list(expected)
        for key, row in merged.rows.items():
            assert all(map(_is_same, row.values(), expected[key].values())), (row, expected[key])


def _is_same(one: Any, other: Any) -> bool:
    return one == (pytest.approx(other, nan_ok=True) if isinstance(other, float) else other)


NUMBERS = pa.schema({"n": pa.int64(), "total": pa.int64(), "last": pa.timestamp("us", "UTC")})


def batch(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_the_example_of_the_documentation() -> None:
    """Rows are counted, a column summed, and the newest time kept."""
    at = [dt.datetime(2026, 1, day, tzinfo=UTC) for day in (1, 3, 2)]
    fleet = Merged(NUMBERS)
    how: How = {"n": "count", "total": ("sum", "amount"), "last": ("max", "at")}
    times = pa.array(at, pa.timestamp("us", "UTC"))
    fleet.merge(batch(key=["a", "b", "a"], amount=[1, 2, 3], at=times), how)
    assert fleet.rows == {"a": {"n": 2, "total": 4, "last": at[2]}, "b": {"n": 1, "total": 2, "last": at[1]}}


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int64(), [2**63 - 1, 1]),
        (pa.int64(), [-(2**63), -1]),
        (pa.int8(), [127, 1]),
        (pa.uint64(), [2**64 - 1, 1]),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1)]),
        (pa.decimal128(3, 1), [Decimal("99.9"), Decimal("0.1")]),
        (pa.duration("us"), pa.array([2**63 - 1, 1]).view(pa.duration("us"))),
    ],
)
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_sum_that_overflows_is_refused(type_: Any, values: list[Any], in_one_batch: bool) -> None:
    """Within a batch and with what the state has. Never does it wrap, and the state is as before."""
    state = Merged(pa.schema({"s": type_}))
    values = pa.array(values, type_)
    halves = [values] if in_one_batch else [values[:1], values[1:]]
    for half in halves[:-1]:
        state.merge(batch(key=["a"] * len(half), v=half), {"s": ("sum", "v")})
    before = dict(state.rows)
    with pytest.raises(InputError, match="widen"):
        state.merge(batch(key=["a"] * len(halves[-1]), v=halves[-1]), {"s": ("sum", "v")})
    assert state.rows == before


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int64(), [2**62, 2**62 - 1]),
        (pa.int64(), [-(2**62), -(2**62)]),
        (pa.uint64(), [2**63, 2**63 - 1]),
        (pa.int8(), [100, 27]),
        (pa.int8(), [-100, -28]),
        (pa.decimal128(3, 1), [Decimal("99.8"), Decimal("0.1")]),
        (pa.decimal128(38, 0), [-(10**37), 1 - 9 * 10**37]),
    ],
    ids=name_of,
)
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_sum_may_reach_the_end_of_its_type(type_: Any, values: list[Any], in_one_batch: bool) -> None:
    """Exactly there it fits, and one more does not: within a batch, and with what the state has."""
    step = 1 if values[0] > 0 else -1
    step = Decimal(step).scaleb(-type_.scale) if pa.types.is_decimal(type_) else step
    for last, fits in ((values[1], True), (values[1] + step, False)):
        state = Merged(pa.schema({"s": type_}))
        *before, rest = [[values[0], last]] if in_one_batch else [[values[0]], [last]]
        for some in before:
            state.merge(batch(key=["a"], v=pa.array(some, type_)), {"s": ("sum", "v")})
        rows = batch(key=["a"] * len(rest), v=pa.array(rest, type_))
        if fits:
            state.merge(rows, {"s": ("sum", "v")})
            assert state.rows["a"]["s"] == sum(values)
        else:
            with pytest.raises(InputError, match="widen"):
                state.merge(rows, {"s": ("sum", "v")})


def test_the_key_and_the_number_that_do_not_fit_are_named() -> None:
    """Of several keys that at fault, and what it would have come to."""
    state = Merged(pa.schema({"s": pa.int8()}))
    state.merge(batch(key=["b"], v=pa.array([100], pa.int8())), {"s": ("sum", "v")})
    with pytest.raises(InputError) as caught:
        state.merge(batch(key=["a", "b", "c"], v=pa.array([1, 100, 3], pa.int8())), {"s": ("sum", "v")})
    assert {"column": "s", "type": "int8", "key": "b", "number": 200}.items() <= caught.value.facts.items()


def test_a_sum_may_leave_the_type_on_its_way() -> None:
    """Only the outcome has to fit."""
    state = Merged(pa.schema({"s": pa.int64()}))
    state.merge(batch(key=["a"] * 3, v=[2**63 - 1, 2**63 - 1, -(2**63)]), {"s": ("sum", "v")})
    state.merge(batch(key=["a"] * 3, v=[2**63 - 1, -(2**62), -(2**63)]), {"s": ("sum", "v")})
    assert state.rows["a"]["s"] == 3 * (2**63 - 1) - 2**64 - 2**62


def test_a_count_that_overflows_is_refused() -> None:
    """It names the key."""
    state = Merged(pa.schema({"n": pa.int8()}))
    with pytest.raises(InputError) as refused:
        state.merge(batch(key=["a", *["b"] * 128]), {"n": "count"})
    assert refused.value.facts["key"] == "b"


def test_last_by_a_column_knows_rows_that_come_late() -> None:
    """In a batch and between batches: the state keeps how far it is. Rows without an order are passed over."""
    how: How = {"at": ("max", "at"), "place": ("last", "place"), "from": ("min", "at"), "origin": ("first", "place")}
    state = Merged(pa.schema({"at": pa.int64(), "place": pa.string(), "from": pa.int64(), "origin": pa.string()}))
    rows = [
        (["a", "a", "b"], [5, 7, None], ["x", "y", "z"]),
        (["a", "b"], [6, 1], ["late", "w"]),
        (["a", "a"], [7, 7], ["tie", None]),
        (["a"], [3], ["earliest"]),
    ]
    for keys, at, places in rows:
        state.merge(batch(key=keys, at=pa.array(at, pa.int64()), place=places), how, order_by="at")
    assert state.rows == {
        "a": {"at": 7, "place": None, "from": 3, "origin": "earliest"},
        "b": {"at": 1, "place": "w", "from": 1, "origin": "w"},
    }


def test_order_by_text_decimals_and_floats() -> None:
    """Any type that has an order; NaN comes last."""
    for values, type_ in (
        (["a", "ü", "b"], pa.string()),
        ([Decimal(-1), Decimal(10**30), Decimal(2)], pa.decimal128(38, 0)),
        ([-0.5, float("nan"), float("inf")], pa.float64()),
        ([-2, 2**63 - 1, -(2**63)], pa.int64()),
    ):
        state = Merged(pa.schema({"at": type_, "v": pa.int64()}))
        how: How = {"at": ("max", "at"), "v": ("last", "v")}
        state.merge(batch(key=["a"] * 3, at=pa.array(values, type_), v=[0, 1, 2]), how, order_by="at")
        state.merge(batch(key=["a"], at=pa.array(values[:1], type_), v=[3]), how, order_by="at")
        assert state.rows["a"]["v"] == 1


@pytest.mark.parametrize("kind", ["first", "last"])
@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("zeros", [[0.0, -0.0], [-0.0, 0.0], [float("nan"), -float("nan")]], ids=name_of)
def test_floats_that_are_equal_have_one_place_in_the_order(zeros: list[float], in_one_batch: bool, kind: str) -> None:
    """So the row that arrived last is the last one, and the first the first: for 0.0 and -0.0, and for any two NaN."""
    state = Merged(pa.schema({"at": pa.float64(), "v": pa.int64()}))
    how: How = {"at": ("max" if kind == "last" else "min", "at"), "v": (kind, "v")}
    for some in [[0, 1]] if in_one_batch else [[0], [1]]:
        rows = batch(key=["a"] * len(some), at=[zeros[place] for place in some], v=some)
        state.merge(rows, how, order_by="at")
    assert state.rows["a"]["v"] == (1 if kind == "last" else 0)


@pytest.mark.parametrize("keys", [["a", "b", "c"], ["a", "a", "c"]])
def test_a_row_without_an_order_is_passed_over(keys: list[str]) -> None:
    """The first of a batch too, whether or not a key comes twice."""
    for type_, one, other in ((pa.int64(), 3, 5), (pa.string(), "x", "y"), (pa.float64(), -1.0, 2.0)):
        state = Merged(pa.schema({"at": type_, "v": pa.int64()}))
        how: How = {"at": ("max", "at"), "v": ("last", "v")}
        state.merge(batch(key=["a"], at=pa.array([one], type_), v=[7]), how, order_by="at")
        state.merge(batch(key=keys, at=pa.array([None, one, other], type_), v=[1, 2, 3]), how, order_by="at")
        expected = {"a": {"at": one, "v": 2 if keys[1] == "a" else 7}, "c": {"at": other, "v": 3}}
        assert state.rows == (expected | {"b": {"at": one, "v": 2}} if keys[1] == "b" else expected)


def test_functions_see_old_and_grouped_columns() -> None:
    """One makes a column, one makes two; the old row of a new key is null."""

    def decayed(old: pa.RecordBatch, grouped: GroupedColumns) -> pa.Array:
        before = pc.fill_null(old.column("score"), 0.0)
        return pc.add(pc.multiply(before, 0.5), grouped.aggregate("sum", "v"))

    def spread(old: pa.RecordBatch, grouped: GroupedColumns) -> dict[str, Any]:
        low, high = pc.min_element_wise, pc.max_element_wise
        assert grouped.is_new.tolist() == [value is None for value in old.column("low").to_pylist()]
        return {
            "low": low(old.column("low"), grouped.aggregate("min", "v")),
            "high": high(old.column("high"), grouped.aggregate("max", "v")),
        }

    def longest(old: pa.RecordBatch, grouped: GroupedColumns) -> Any:
        return np.maximum(pc.fill_null(old.column("n"), 0).to_numpy(), pc.list_value_length(grouped.lists("v")))

    schema = pa.schema({"score": pa.float64(), "low": pa.float64(), "high": pa.float64(), "n": pa.int64()})
    state = Merged(schema)
    how: How = {"score": decayed, ("low", "high"): spread, "n": longest}
    state.merge(batch(key=["a", "b", "a"], v=[1.0, 2.0, 3.0]), how)
    state.merge(batch(key=["a", "c"], v=[8.0, 1.0]), how)
    assert state.rows == {
        "a": {"score": 10.0, "low": 1.0, "high": 8.0, "n": 2},
        "b": {"score": 2.0, "low": 2.0, "high": 2.0, "n": 1},
        "c": {"score": 1.0, "low": 1.0, "high": 1.0, "n": 1},
    }


@pytest.mark.parametrize("count", [0, 1, 16, 17, 1000])
@pytest.mark.parametrize("keys", ["a", "abc"])
def test_lists_have_the_values_in_order_of_arrival(keys: str, count: int) -> None:
    """However many there are: a sort that is not stable keeps the order of up to 16."""
    rows = [(keys[number * number % len(keys)], number) for number in range(count)]
    column = pa.chunked_array([[value for _, value in rows[:7]], [value for _, value in rows[7:]]], pa.int64())
    found = GroupedColumns(
        grouped(pa.array([key for key, _ in rows], pa.string()), hashed_keys), pa.table({"v": column}), np.empty(0, "?")
    )
    lists = dict(zip(found.keys.to_pylist(), found.lists("v").to_pylist(), strict=True))
    assert lists == {key: [value for other, value in rows if other == key] for key, _ in rows}


@pytest.mark.parametrize(
    "made",
    [[1], [1, 2, 3], ["a", "b"], pa.array([1.5, 2.5]), {"n": [1, 2]}, [2**63, 0], 7, None],
    ids=name_of,
)
def test_a_function_that_makes_another_column_is_refused(made: Any) -> None:
    """Of another length or type."""
    state = Merged(NUMBERS)
    with pytest.raises(InputError):
        state.merge(batch(key=["a", "b"]), {"n": lambda old, grouped: made})
    assert state.rows == {}


def test_a_function_that_makes_other_columns_is_refused() -> None:
    """Exactly those that it stands for."""
    for made in ({"n": [1]}, {"n": [1], "total": [1], "more": [1]}, [1]):
        with pytest.raises(InputError, match="exactly"):
            Merged(NUMBERS).merge(batch(key=["a"]), {("n", "total"): lambda old, grouped, made=made: made})


DAY = pa.array([dt.date(2026, 1, 1)])


@pytest.mark.parametrize(
    ("how", "order_by"),
    [
        ({}, None),
        ("count", None),
        ({"none": "count"}, None),
        ({"n": "sum"}, None),
        ({"n": ("sum",)}, None),
        ({"n": ("median", "v")}, None),
        ({"n": ("sum", "none")}, None),
        ({"n": ("sum", "twice")}, None),
        ({"n": ("sum", 7)}, None),
        ({"n": ("sum", "text")}, None),
        ({"n": ("max", "at")}, None),
        ({"n": ("last", "v")}, "none"),
        ({"n": ("last", "v")}, "at"),
        ({"n": ("first", "v"), "last": ("max", "at")}, "at"),
        ({"last": ("sum", "at")}, None),
        ({"last": "count"}, None),
        ({"flag": ("sum", "v")}, None),
        ({"flag": ("min", "flag")}, None),
        ({"n": ("any", "v")}, None),
        ({"text": ("sum", "text")}, None),
        ({"text": ("mean", "v")}, None),
        ({"narrow": ("sum", "v")}, None),
        ({"n": ("sum", "real")}, None),
        ({"n": ("mean", "v")}, None),
        ({"avg": ("mean", "text")}, None),
        ({"avg": ("mean", "v"), "avg_count": "count"}, None),
        ({("n", "total"): "count"}, None),
        ({("n", "n"): lambda old, grouped: 0}, None),
        ({"local": ("max", "at")}, None),
    ],
    ids=name_of,
)
def test_how_is_checked_before_anything_is_touched(how: Any, order_by: str | None) -> None:
    """Against the schemas of the state and of the batch."""
    state = Merged(
        pa.schema(
            {"n": pa.int64(), "total": pa.int64(), "narrow": pa.int32(), "last": pa.timestamp("us", "UTC")}
            | {"flag": pa.bool_(), "text": pa.string(), "local": pa.timestamp("us")}
            | {"avg": pa.float64(), "avg_sum": pa.int64(), "avg_count": pa.int64()}
        )
    )
    at = pa.array([0], pa.timestamp("us", "UTC"))
    columns = {"key": ["a"], "v": [1], "at": at, "text": ["t"], "flag": [True], "real": [0.5], "one": [1], "two": [1]}
    table = pa.table(columns).rename_columns([*[*columns][:-2], "twice", "twice"])
    with pytest.raises(InputError):
        state.merge(table, how, order_by=order_by)
    assert state.rows == {}


@pytest.mark.parametrize(
    ("keys", "key_type"),
    [
        (pa.array(["a", "b", "a"]), pa.string()),
        (pa.array(["a", "b", "a"]).dictionary_encode(), pa.string()),
        (pa.array(["a", "b", "a"], pa.large_string()), pa.string()),
        (pa.array([1, -2, 1], pa.int32()), pa.int64()),
        (pa.array([b"a", b"", b"a"]), pa.binary()),
    ],
    ids=name_of,
)
def test_keys_fit_however_they_are_laid_out(keys: Any, key_type: Any) -> None:
    """Text is text; an int32 is an int64."""
    taken = keys_of(pa.table({"key": keys}), "key", key_type)
    found = grouped(taken, hashed_keys)
    assert (found.keys.type, found.keys.to_pylist()) == (key_type, keys.to_pylist()[:2])
    assert found.counts().tolist() == [2, 1]


@given(st.lists(st.tuples(st.text("ab", max_size=2), st.integers(0, 2))), st.booleans())
def test_keys_are_grouped_in_the_order_in_which_they_first_occur(rows: list[tuple[str, int]], collide: bool) -> None:
    """Also if all of them have the same hash: equal hashes are not equal keys."""
    keys = pa.StructArray.from_arrays(
        [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int64())],
        fields=list(PAIR),
    )
    hashed = hashed_keys if not collide else lambda keys: HashedKeys(hashed_keys(keys).parts, np.zeros(len(keys), "u8"))
    found, distinct = grouped(keys, hashed), list(dict.fromkeys(rows))
    assert [tuple(key.values()) for key in found.keys.to_pylist()] == distinct
    codes = range(len(rows)) if found.codes is None else found.codes.tolist()
    assert [distinct[code] for code in codes] == rows
    assert (found.codes is None) == (len(distinct) == len(rows))
    expected = hashed(found.keys)
    assert found.hashed.hashes.tolist() == expected.hashes.tolist()
    assert [*plain_keys(found.hashed.parts)] == [*plain_keys(expected.parts)]


PAIR = pa.struct([("carrier", pa.string()), ("day", pa.int64())])


def test_composite_keys() -> None:
    """Several columns, or a struct, whatever its fields are called."""
    days = pa.array([1, 1, 2, 1], pa.int16())
    columns = pa.table({"c": ["x", "y", "x", "x"], "d": days, "v": [1, 2, 3, 4]})
    state = Merged(pa.schema({"s": pa.int64()}), PAIR)
    state.merge(columns, {"s": ("sum", "v")}, on=["c", "d"])
    expected = {("x", 1): {"s": 5}, ("y", 1): {"s": 2}, ("x", 2): {"s": 3}}
    assert state.rows == expected
    other = Merged(pa.schema({"s": pa.int64()}), PAIR)
    struct = pa.StructArray.from_arrays([columns["c"].chunk(0), columns["d"].chunk(0)], ["c", "d"])
    other.merge(pa.table({"k": struct, "v": columns["v"]}), {"s": ("sum", "v")}, on="k")
    assert other.rows == expected


@pytest.mark.parametrize(
    ("keys", "on", "key_type", "error"),
    [
        ({"key": ["a", None]}, "key", pa.string(), InputError),
        ({"key": ["a"]}, "none", pa.string(), InputError),
        ({"key": ["a"]}, "key", pa.int64(), KeyTypeError),
        ({"key": [1]}, "key", pa.string(), KeyTypeError),
        ({"key": [1.5]}, "key", pa.int64(), KeyTypeError),
        ({"key": ["a"]}, "key", PAIR, KeyTypeError),
        ({"a": ["a"], "b": ["b"]}, ["a", "b"], pa.string(), KeyTypeError),
        ({"a": ["a"], "b": ["b"]}, ["a"], PAIR, KeyTypeError),
        ({"a": ["a"], "b": [None]}, ["a", "b"], PAIR, InputError),
    ],
    ids=name_of,
)
def test_keys_that_do_not_fit_are_refused(keys: Any, on: Any, key_type: Any, error: type[Exception]) -> None:
    """Null, missing, or of another type than the state's."""
    with pytest.raises(error):
        keys_of(pa.table(keys), on, key_type)


def test_a_null_within_a_key_is_refused() -> None:
    """Not only a null key."""
    keys = pa.array([{"carrier": "x", "day": None}], PAIR)
    with pytest.raises(InputError, match="null"):
        keys_of(pa.table({"key": keys}), "key", PAIR)


@pytest.mark.parametrize(("keys", "nulls"), [(["a", None, "b", None], 2), ([None] * 3, 3)])
def test_the_rows_without_a_key_are_counted(keys: list[str | None], nulls: int) -> None:
    """In a key of one column, and in each part of one of several."""
    with pytest.raises(InputError) as caught:
        keys_of(pa.table({"key": pa.array(keys, pa.string())}), "key", pa.string())
    assert caught.value.facts == {"column": "key", "rows": nulls}
    days = pa.array([None if key is None else 1 for key in keys], pa.int64())
    with pytest.raises(InputError) as caught:
        keys_of(pa.table({"c": ["x"] * len(keys), "d": days}), ["c", "d"], PAIR)
    assert caught.value.facts == {"column": "d", "rows": nulls}


def test_distinct_values_are_counted_by_sketch() -> None:
    """Over batches; nulls are skipped. Small numbers are exact."""
    pytest.importorskip("datasketches")
    state = Merged(pa.schema({"users": pa.int64(), "users_sketch": pa.binary()}))
    how: How = {"users": ("count_distinct", "user")}
    state.merge(batch(key=["a", "a", "b", "a"], user=["x", "y", "x", None]), how)
    state.merge(batch(key=["a"] * 1000, user=[f"u{number}" for number in range(1000)]), how)
    assert state.rows["a"]["users"] == pytest.approx(1002, rel=0.05)
    assert state.rows["b"]["users"] == 1
    for wrong in ({"users": ("count_distinct", "real")}, {"users_sketch": ("count_distinct", "user")}):
        with pytest.raises(InputError):
            state.merge(batch(key=["a"], user=["x"], real=[0.5]), wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type_", "values"), [(pa.string_view(), ["p", "q"]), (pa.binary_view(), [b"p", b"q"])], ids=name_of
)
def test_views_are_text_and_bytes_to_a_function(type_: pa.DataType, values: list[Any]) -> None:
    """As polars gives them, though Arrow takes no rows of them."""
    column = pa.large_string() if type_ == pa.string_view() else pa.large_binary()
    state = Merged(pa.schema({"n": pa.int64()} | dict.fromkeys(("first", "last", "max"), column)))
    table = pa.table({"key": ["a", "a"], "v": pa.array(values, type_)})
    how: How = {kind: lambda _, grouped, kind=kind: grouped.aggregate(kind, "v") for kind in ("first", "last", "max")}
    state.merge(table, how | {"n": lambda _, grouped: pc.list_value_length(grouped.lists("v"))})
    assert state.rows["a"] == {"n": 2, "first": values[0], "last": values[1], "max": values[1]}


def test_a_dictionary_of_views_is_text() -> None:
    """As polars gives its categories: a key, and a value."""
    index = pa.array([0, 1, 0], pa.uint32())
    column = pa.DictionaryArray.from_arrays(index, pa.array(["p", "q"], pa.string_view()))
    state = Merged(pa.schema({"n": pa.int64(), "last": pa.string()}))
    state.merge(pa.table({"key": column, "v": column}), {"n": "count", "last": ("last", "v")})
    assert {key: dict(state.rows[key]) for key in "pq"} == {"p": {"n": 2, "last": "p"}, "q": {"n": 1, "last": "q"}}


def test_the_empty_text_is_a_distinct_value() -> None:
    """Though DataSketches leaves it out."""
    pytest.importorskip("datasketches")
    state = Merged(pa.schema({"users": pa.int64(), "users_sketch": pa.binary()}))
    for _ in range(2):
        state.merge(batch(key=["a", "a", "b"], user=["", "x", ""]), {"users": ("count_distinct", "user")})
    assert (state.rows["a"]["users"], state.rows["b"]["users"]) == (2, 1)


@pytest.mark.parametrize(
    "encoded",
    [lambda array: array.dictionary_encode(null_encoding="encode"), pc.run_end_encode],
    ids=["dictionary", "runs"],
)
def test_nulls_among_encoded_values_are_nulls(encoded: Callable[[Any], Any]) -> None:
    """They are not in the array itself, so its own count of nulls is 0."""
    state = Merged(pa.schema({"n": pa.int64()}))
    plain = pa.array([10, None, None, 10], pa.int64())
    state.merge(pa.table({"key": ["a", "a", "b", "b"], "v": encoded(plain)}), {"n": ("count", "v")})
    assert state.rows == {"a": {"n": 1}, "b": {"n": 1}}


def test_a_mean_leaves_out_nulls_among_the_values_of_a_dictionary() -> None:
    """Else it would be too small, with a sum that is right."""
    state = Merged(pa.schema({"avg": pa.float64(), "avg_sum": pa.int64(), "avg_count": pa.int64()}))
    speeds = pa.array([10, None, None], pa.int64()).dictionary_encode(null_encoding="encode")
    state.merge(pa.table({"key": ["a"] * 3, "v": speeds}), {"avg": ("mean", "v")})
    assert state.rows["a"] == {"avg": 10.0, "avg_sum": 10, "avg_count": 1}


def test_a_few_keys_do_not_import_pandas() -> None:
    """It takes half a second, which the first lookup after a restart would wait for."""
    program = (
        "import sys, pyarrow as pa\n"
        "from statebackend._columns.batch.user_keys import keys_from\n"
        "for keys, type_ in ((['a', 'ä'], pa.string()), ([1, -1], pa.int64()), ([b'', b'x'], pa.binary())):\n"
        "    assert keys_from(keys, type_).to_pylist() == keys\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_merges_rows_and_writes_do_not_import_pandas() -> None:
    """Nor do the arrays that are made on the way, with and without a time-to-live, for plain keys and for tuples."""
    program = """
import sys
from collections.abc import Callable
import numpy as np, pyarrow as pa
from statebackend import TimeToLive
from statebackend._columns.arrow import array_from
from statebackend._columns.batch.user_keys import keys_from
from tests.columns.states import columnar

rows = pa.table({"k": keys_from(["a", "b", "a"], pa.string()), "n": array_from(np.arange(3))})
valid = np.array([True, False, True])
rows = rows.append_column("number", rows["n"]).append_column("x", array_from(np.ones(3), valid))
rows = rows.append_column("at", rows["n"].cast(pa.timestamp("us")))
how = {"n": "count", "x": ("sum", "x"), "at": ("max", "at"), "last": ("last", "k")}
schema = pa.schema({"n": pa.int64(), "x": pa.float64(), "at": pa.timestamp("us"), "last": pa.string()})
tuples = pa.struct({"a": pa.string(), "b": pa.int64()})
for key, on in ((pa.string(), "k"), (tuples, ["k", "number"])):
    for ttl in (None, TimeToLive(10, lambda: 1.0)):
        state = columnar(schema, key, ttl=ttl)
        for _ in range(2):
            state.merge(rows, on=on, how=how)
            state.merge(rows, on=on, how={"n": ("first", "n"), "at": ("min", "at")})
        if on == "k":
            found = state.rows(keys_from(["new", "a"], pa.string()))
            assert found.gather()["n"].null_count == 1
            found.scatter({"n": np.arange(2), "x": np.ones(2)})
        list(state.drain(0))
assert 'pandas' not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("keys", [[], ["a", "", "ä"], ["k"] * (FEW + 1)], ids=len)
def test_texts_become_an_array_however_many_there_are(keys: list[str]) -> None:
    """Few take another way than many."""
    found = keys_from(keys, pa.string())
    found.validate(full=True)
    assert (found.type, found.to_pylist()) == (pa.string(), keys)
    found = keys_from([key.encode() for key in keys], pa.binary())
    found.validate(full=True)
    assert found.to_pylist() == [key.encode() for key in keys]
