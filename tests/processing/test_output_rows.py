"""Output rows that do not fit `output_schema` fail the batch: nothing of it is committed."""

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._processing.output_rows import checked_nulls
from statebackend._processing.processor import KeyedProcessor
from statebackend.errors import InputError, SettingsError
from statebackend.testing import ProcessorTester

SURE = pa.field("sure", pa.int64(), nullable=False)
NESTED: dict[str, tuple[Any, str, Any, Any]] = {
    "itself": (SURE, "sure", 1, None),
    "list": (pa.field("x", pa.list_(SURE)), "x.sure", [1], [1, None]),
    "large list": (pa.field("x", pa.large_list(SURE)), "x.sure", None, [None]),
    "list of a size": (pa.field("x", pa.list_(SURE, 2)), "x.sure", [1, 2], [1, None]),
    "struct": (pa.field("x", pa.struct([SURE])), "x.sure", {"sure": 1}, {"sure": None}),
    "no struct": (pa.field("x", pa.struct([SURE])), "x.sure", None, {"sure": None}),
    "map": (pa.field("x", pa.map_(pa.string(), SURE)), "x.sure", [("a", 1)], [("a", None)]),
    "struct in a list": (pa.field("x", pa.list_(pa.struct([SURE]))), "x.item.sure", [None], [{"sure": None}]),
    "list in a map": (
        pa.field("x", pa.map_(pa.string(), pa.list_(SURE))), "x.value.sure", [("a", None)], [("a", [None])],
    ),
}  # fmt: skip


class Putting(KeyedProcessor):
    """Puts out `row` for each key, and counts it."""

    def __init__(self, field: Any, row: Any) -> None:
        self.output_schema = pa.schema([field])
        self._row = row

    def open(self, context: Any) -> None:
        self.counts = context.value_state("counts", int)

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        self.counts[key] = len(rows)
        yield self._row


class PuttingOneRow(KeyedProcessor):
    """Yields one dictionary again and again, and changes it and what it holds in between."""

    output_schema = pa.schema(
        {
            "n": pa.int64(),
            "seen": pa.list_(pa.struct({"n": pa.int64()})),
            "pairs": pa.map_(pa.string(), pa.list_(pa.int64())),
            "octets": pa.binary(),
            "numbers": pa.list_(pa.int64()),
        }
    )

    def open(self, context: Any) -> None:
        """It has no state."""

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        out: dict[str, Any] = {
            "n": 0,
            "seen": [],
            "pairs": [("all", [])],
            "octets": bytearray(),
            "numbers": np.zeros(1, np.int64),
        }
        for row in rows:
            out["n"] += row["n"]
            out["seen"].append({"n": row["n"]})
            out["pairs"][0][1].append(row["n"])
            out["octets"] += bytes([row["n"]])
            out["numbers"] += row["n"]
            yield out
        out["seen"][0]["n"] = out["n"] = -1


class PuttingOneRowLater(PuttingOneRow):
    """The same, asynchronous."""

    async def process(self, key: Any, rows: Any, context: Any) -> Any:
        for row in super().process(key, rows, context):
            yield row


@pytest.mark.parametrize("class_", [PuttingOneRow, PuttingOneRowLater])
def test_a_row_is_put_out_as_it_was_when_it_was_yielded(class_: Any) -> None:
    """All rows of a key were as the last one."""
    one, two = {"n": 1}, {"n": 2}
    with ProcessorTester(class_(), key="key") as tester:
        put_out = tester.batch([{"key": "a"} | one, {"key": "a"} | two])
    assert put_out == [
        {"n": 1, "seen": [one], "pairs": [("all", [1])], "octets": b"\x01", "numbers": [1]},
        {"n": 3, "seen": [one, two], "pairs": [("all", [1, 2])], "octets": b"\x01\x02", "numbers": [3]},
    ]


class PuttingTable(Putting):
    """The same as a table, whose own schema allows any null."""

    process = KeyedProcessor.process

    def process_table(self, table: Any, context: Any) -> Any:
        self.counts["a"] = 1
        return self._row if isinstance(self._row, pa.Table) else pa.table(self._row)


@pytest.mark.parametrize(("field", "place", "good", "bad"), NESTED.values(), ids=NESTED)
def test_a_null_that_the_schema_rules_out_is_refused(field: Any, place: str, good: Any, bad: Any) -> None:
    """At any depth; it would be committed, and could never be published as a frame."""
    with ProcessorTester(Putting(field, {field.name: good}), key="key") as tester:
        assert len(tester.batch([{"key": "a"}])) == 1
    with ProcessorTester(Putting(field, {field.name: bad}), key="key") as tester:
        with pytest.raises(InputError, match=f"a null.*field='{place}'"):
            tester.batch([{"key": "a"}])
        assert not tester.backend().value_state("counts", int)


@pytest.mark.parametrize("row", [{"sure": [1, None]}, {"x": [[1, None]]}], ids=["itself", "list"])
def test_so_it_is_in_a_table(row: Any) -> None:
    """Of a processor that puts out tables."""
    field = SURE if "sure" in row else pa.field("x", pa.list_(SURE))
    with ProcessorTester(PuttingTable(field, row), key="key") as tester:
        with pytest.raises(InputError, match="null"):
            tester.batch([{"key": "a"}])
        assert not tester.backend().value_state("counts", int)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_so_it_is_in_any_chunk_of_a_table(at: int) -> None:
    """A table that was put together from parts has several."""
    chunks: list[Any] = [[[1], [2]], [[3]], [[4]]]
    chunks[at].append([5, None])
    parts = pa.table({"x": pa.chunked_array(chunks, pa.list_(pa.int64()))})
    with ProcessorTester(PuttingTable(pa.field("x", pa.list_(SURE)), parts), key="key") as tester:
        with pytest.raises(InputError, match=r"a null.*field='x\.sure'"):
            tester.batch([{"key": "a"}])
        assert not tester.backend().value_state("counts", int)


HALF_AN_HOUR = dt.timedelta(minutes=30)
NAIVE = dt.datetime(2013, 1, 1)  # noqa: DTZ001
TWICE = dt.datetime(2024, 10, 27, 1, 30, tzinfo=dt.UTC)
OTHER_VALUES: dict[str, tuple[Any, Any]] = {
    "a whole number cut from a float": (pa.int64(), 1.5),
    "a whole number cut from a decimal": (pa.int32(), Decimal("1.5")),
    "seconds cut from a time": (pa.timestamp("s"), dt.datetime(2013, 1, 1, 0, 0, 0, 5)),  # noqa: DTZ001
    "seconds cut from a duration": (pa.duration("s"), dt.timedelta(microseconds=5)),
    "seconds cut from a time of day": (pa.time32("s"), dt.time(1, 1, 1, 5)),
    "a day cut from a time": (pa.date32(), dt.datetime(2013, 1, 1, 5)),  # noqa: DTZ001
    "a time from seconds since 1970": (pa.timestamp("us"), 1_700_000_000),
    "text from bytes": (pa.string(), b"x"),
    "an instant from a time without a zone": (pa.timestamp("us", "UTC"), NAIVE),
    "a time from an instant": (pa.timestamp("us"), TWICE),
    "seconds from an instant": (pa.timestamp("s"), TWICE),
    "a time from an instant in a list": (pa.list_(pa.timestamp("us")), [TWICE]),
    "in a list": (pa.list_(pa.int64()), [1, 1.5]),
    "in a map": (pa.map_(pa.string(), pa.int64()), {"a": 1.5}),
    "in a struct": (pa.struct([("a", pa.int64())]), {"a": 1.5}),
    "a field that the struct lacks": (pa.struct([("a", pa.int64())]), {"a": 1, "b": 1}),
}
SAME_VALUES: dict[str, tuple[Any, Any, Any]] = {
    "a whole float": (pa.int64(), 2.0, 2),
    "a decimal with fewer digits": (pa.decimal128(5, 2), Decimal(1), Decimal("1.00")),
    "a float that has no such float32": (pa.float32(), 0.5000000001, 0.5),
    "not a number": (pa.list_(pa.float64()), [float("inf")], [float("inf")]),
    "a time without a zone in a column without": (pa.timestamp("us"), NAIVE, NAIVE),
    "one of the hours that are there twice": (pa.timestamp("us", "Europe/Berlin"), TWICE, TWICE),
    "a time of another zone": (
        pa.timestamp("us", "UTC"),
        dt.datetime(2013, 1, 1, tzinfo=dt.timezone(HALF_AN_HOUR)),
        dt.datetime(2013, 1, 1, tzinfo=dt.UTC) - HALF_AN_HOUR,
    ),
    "a tuple": (pa.list_(pa.int64()), (1, 2), [1, 2]),
    "an array of numpy": (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
    "a dictionary": (pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
    "pairs": (pa.map_(pa.string(), pa.list_(pa.int64())), [("a", (1,))], [("a", [1])]),
    "a struct without a field": (pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1}, {"a": 1, "b": None}),
    "null": (pa.int64(), None, None),
}  # fmt: skip


@pytest.mark.parametrize(("type_", "value"), OTHER_VALUES.values(), ids=OTHER_VALUES)
def test_a_value_that_would_become_another_one_is_refused(type_: Any, value: Any) -> None:
    """Arrow takes it, cuts it, and says nothing."""
    with ProcessorTester(Putting(pa.field("x", type_), {"x": value}), key="key") as tester:
        with pytest.raises(InputError, match=r"would become another.*column='x'"):
            tester.batch([{"key": "a"}])
        assert not tester.backend().value_state("counts", int)


@pytest.mark.parametrize(("type_", "value", "put_out"), SAME_VALUES.values(), ids=SAME_VALUES)
def test_a_value_that_is_only_written_in_another_way_is_put_out(type_: Any, value: Any, put_out: Any) -> None:
    """A float is the next one that its column has; a time without a zone is one of UTC."""
    with ProcessorTester(Putting(pa.field("x", type_), {"x": value}), key="key") as tester:
        assert tester.batch([{"key": "a"}]) == [{"x": put_out}]


@pytest.mark.parametrize("row", [None, ("sure", 1), msgspec.defstruct("Row", [("sure", int)])(1)])
def test_what_is_no_mapping_is_refused(row: Any) -> None:
    """Whatever it is."""
    with ProcessorTester(Putting(SURE, row), key="key") as tester, pytest.raises(InputError, match="must be a mapping"):
        tester.batch([{"key": "a"}])


@pytest.mark.parametrize("row", [("sure", "sure"), ("sure", "sure", "more"), ("sure", "more")])
def test_a_table_with_a_name_twice_is_refused(row: Any) -> None:
    """In our words, also where the names would be those of the schema if each counted once."""
    putting = PuttingTable(SURE, pa.table([pa.array([1])] * len(row), names=list(row)))
    with ProcessorTester(putting, key="key") as tester:
        with pytest.raises(InputError, match="exactly the columns of output_schema"):
            tester.batch([{"key": "a"}])
        assert not tester.backend().value_state("counts", int)


def test_a_schema_with_a_name_twice_is_refused_at_once() -> None:
    """No row could fit it."""
    putting = Putting(SURE, {"sure": 1})
    putting.output_schema = pa.schema([SURE, SURE])
    with pytest.raises(SettingsError, match="names a column twice"):
        ProcessorTester(putting, key="key")


@pytest.mark.parametrize("class_", [Putting, PuttingTable])
def test_a_batch_with_a_name_twice_does_not_reach_the_processor(class_: Any) -> None:
    """One of the two values would be lost, as that of `price` after a join of two frames that both have it."""
    table = pa.table([["a"], [1], [2]], names=["key", "price", "price"])
    with ProcessorTester(class_(SURE, {"sure": [1]}), key="key") as tester:
        with pytest.raises(InputError, match=r"columns share a name.*columns=\['price'\]"):
            tester.batch(table)
        assert not tester.backend().value_state("counts", int)


class PuttingElsewhere(Putting):
    """Puts the row out in a method that puts nothing out, by `yield` or by `return`."""

    def __init__(self, method: str, *, yields: bool) -> None:
        super().__init__(SURE, {"sure": 1})
        self._method, self._yields = method, yields

    def _put(self, method: str) -> Any:
        if method == self._method:
            return iter([self._row]) if self._yields else [self._row]
        return None

    def open(self, context: Any) -> Any:
        super().open(context)
        return self._put("open")

    def open_batch(self, context: Any) -> Any:
        return self._put("open_batch")

    def close_batch(self, context: Any) -> Any:
        return self._put("close_batch")


@pytest.mark.parametrize("yields", [True, False])
@pytest.mark.parametrize("method", ["open", "open_batch", "close_batch"])
def test_rows_of_a_method_that_puts_nothing_out_are_refused(method: str, *, yields: bool) -> None:
    """They would be nowhere; and of a method with a `yield` not even the first line would have run."""
    with ProcessorTester(PuttingElsewhere(method, yields=yields), key="key") as tester:
        with pytest.raises(InputError, match=f"puts nothing out.*method='{method}'"):
            tester.batch([{"key": "a"}])
        assert not tester.backend().value_state("counts", int)


numbers = st.one_of(st.none(), st.integers(0, 9))


@given(rows=st.lists(st.one_of(st.none(), st.dictionaries(st.sampled_from("ab"), numbers))), ends=st.data())
def test_only_the_rows_of_a_slice_count(rows: Any, ends: Any) -> None:
    """Arrow keeps what lies before and behind them."""
    begin = ends.draw(st.integers(0, len(rows)))
    end = ends.draw(st.integers(begin, len(rows)))
    array = pa.array([row and list(row.items()) for row in rows], pa.map_(pa.string(), SURE))
    table = pa.table([array[begin:end]], schema=pa.schema([pa.field("x", array.type)]))
    if any(None in row.values() for row in rows[begin:end] if row):
        with pytest.raises(InputError):
            checked_nulls(table)
    else:
        assert checked_nulls(table) is table


def test_a_union_is_taken_as_it_is() -> None:
    """It has one field and no `flatten`."""
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    table = pa.table({"x": union})
    assert checked_nulls(table) is table


def test_columns_may_be_named_by_anything_that_yields_names() -> None:
    """As the keys of a dictionary."""
    putting = Putting(SURE, {"sure": 1})
    with ProcessorTester(putting, key={"key": 0}.keys()) as tester:  # type: ignore[arg-type]
        assert len(tester.batch([{"key": "a"}])) == 1


INSTANT, TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    "around",
    [
        lambda type_: type_,
        pa.list_,
        lambda type_: pa.struct([("n", pa.int64()), ("at", type_)]),
        lambda type_: pa.map_(type_, pa.int64()),
        lambda type_: pa.map_(pa.string(), pa.list_(type_)),
    ],
    ids=["column", "list", "struct", "map", "list in a map"],
)
@pytest.mark.parametrize(("given", "declared"), [(INSTANT, TIME), (TIME, INSTANT)], ids=["drops", "takes"])
def test_a_table_keeps_its_zones(given: Any, declared: Any, around: Any) -> None:
    """Arrow casts an instant to the time that it is in UTC, and back, and says nothing."""
    kept, other = (pa.table({"x": pa.array([None], around(type_))}) for type_ in (declared, given))
    field = pa.field("x", around(declared))
    with ProcessorTester(PuttingTable(field, kept), key="key") as tester:
        assert len(tester.batch([{"key": "a"}])) == 1
    with ProcessorTester(PuttingTable(field, other), key="key") as tester:
        with pytest.raises(InputError, match=r"zone.*column='x'"):
            tester.batch([{"key": "a"}])
        assert not tester.backend().value_state("counts", int)
