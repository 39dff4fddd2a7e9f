"""Every type of a column, with values of it as plain data; and every type of keys."""

from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    """All integers of so many bits."""
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """All decimals of so many digits."""
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda value: Decimal(f"{value}E-{scale}"))


SHORT = st.text(st.characters(codec="utf-8"), max_size=20)
LONG_OR_SHORT = st.binary(max_size=20) | st.binary(min_size=300, max_size=400)

TYPES: dict[pa.DataType, st.SearchStrategy[object]] = {
    **{getattr(pa, f"int{bits}")(): integers(bits) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): integers(bits, signed=False) for bits in (8, 16, 32, 64)},
    pa.float16(): st.sampled_from([0.0, -1.5, 65504.0]),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.date32(): integers(32),
    pa.date64(): integers(32).map(lambda day: day * 86_400_000),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.timestamp("us"): integers(64),
    pa.timestamp("ns", "Europe/Berlin"): integers(64),
    pa.duration("ms"): integers(64),
    pa.decimal128(38, 10): decimals(38, 10),
    pa.decimal128(5, 0): decimals(5, 0),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.string(): SHORT,
    pa.large_string(): SHORT,
    pa.binary(): LONG_OR_SHORT,
    pa.large_binary(): LONG_OR_SHORT,
}
KEYS: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=3),
    pa.int64(): st.integers(-3, 3) | integers(64),
    pa.binary(): st.binary(max_size=2) | st.binary(min_size=126, max_size=130),
    pa.struct({"a": pa.string(), "b": pa.int64()}): st.fixed_dictionaries(
        {"a": st.sampled_from(["", "x", "EWR"]), "b": st.integers(0, 5)}
    ),
    pa.struct({"a": pa.string(), "b": pa.string()}): st.fixed_dictionaries(
        {"a": st.sampled_from(["", "x", "EWR"]), "b": st.sampled_from(["", "x", "EWR"])}
    ),
    pa.struct({"a": pa.int64(), "b": pa.int64()}): st.fixed_dictionaries({"a": st.integers(0, 3), "b": integers(64)}),
    pa.struct({"one": pa.binary()}): st.fixed_dictionaries({"one": st.binary(max_size=1)}),
}


def array(values: list[object], type_: pa.DataType) -> pa.Array:
    """An array of these plain values: integers for times."""
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    return pa.array(values, type_)
