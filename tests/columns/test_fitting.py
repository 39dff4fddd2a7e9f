"""A type fits another one exactly if that holds each of its values: the ends of its range, and its finest ones."""

import datetime as dt
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebackend._columns.fitting import fits, fitted
from statebackend.errors import InputError

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float32(), pa.float64()]
DECIMALS = [
    pa.decimal128(*each) for each in ((1, 0), (3, 0), (3, 1), (4, 1), (4, 2), (5, 2), (18, 9), (38, 0), (38, 2))
]
TIMES = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "America/New_York")]
DURATIONS = [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]


def extremes(type_: Any) -> list[Any]:
    """The values that a narrower type loses first, as exact numbers."""
    if pa.types.is_integer(type_):
        info = np.iinfo(type_.to_pandas_dtype())
        return [int(info.min), int(info.max), int(info.max) - 1]
    if pa.types.is_decimal(type_):
        most = Fraction(10**type_.precision - 1, 10**type_.scale)
        return [most, -most]
    info = np.finfo(type_.to_pandas_dtype())
    return [float(info.max), float(info.min), float(info.smallest_subnormal), 1 + float(info.eps)]


def holds(type_: Any, value: Any) -> bool:
    """True if the type has a value that equals it."""
    if pa.types.is_floating(type_):
        with np.errstate(over="ignore"):
            return bool(type_.to_pandas_dtype()(value).astype(object) == value)
    if pa.types.is_integer(type_):
        info = np.iinfo(type_.to_pandas_dtype())
        return value == int(value) and int(info.min) <= int(value) <= int(info.max)
    unscaled = value * 10**type_.scale
    return unscaled == int(unscaled) and abs(int(unscaled)) < 10**type_.precision


@pytest.mark.parametrize(
    ("sources", "targets"),
    [(INTEGERS, INTEGERS), (INTEGERS, FLOATS), (FLOATS, FLOATS), (FLOATS, INTEGERS), (DECIMALS, DECIMALS)],
    ids=["integers", "integers in floats", "floats", "floats in integers", "decimals"],
)
def test_numbers_fit_where_each_of_them_is_held(sources: list[Any], targets: list[Any]) -> None:
    """The largest, the smallest and the finest ones: these come out as they were."""
    for source, target in product(sources, targets):
        assert fits(source, target) == all(holds(target, value) for value in extremes(source)), (source, target)
        if fits(source, target) and pa.types.is_integer(source):
            values = extremes(source)
            assert list(map(int, fitted(pa.array(values, source), target, "x").to_pylist())) == values


def test_times_fit_finer_units_of_the_same_kind() -> None:
    """With a zone or without as the target; not a duration for a time. One out of the finer unit's range is refused."""
    for source, target in product(TIMES, TIMES):
        units = ["s", "ms", "us", "ns"]
        is_finer = units.index(source.unit) <= units.index(target.unit)
        assert fits(source, target) == (is_finer and (source.tz is None) == (target.tz is None)), (source, target)
    for source, target in product(DURATIONS, DURATIONS):
        assert fits(source, target) == (DURATIONS.index(source) <= DURATIONS.index(target))
    assert not any(fits(*pair) or fits(*pair[::-1]) for pair in product(TIMES, DURATIONS))
    late = pa.array([dt.datetime(9999, 1, 1)], pa.timestamp("s"))  # noqa: DTZ001  # as the column, it has no zone
    assert fitted(late, pa.timestamp("us"), "at").cast(pa.timestamp("s")).equals(late)
    with pytest.raises(InputError, match="does not fit") as caught:
        fitted(late, pa.timestamp("ns"), "at")
    assert caught.value.facts == {"column": "at", "type": "timestamp[ns]"}
