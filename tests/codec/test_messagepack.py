"""MessagePack is decoded without a type as msgspec does, and also where a key of a map is a map."""

import datetime as dt
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.messagepack import _value, decode_any

AROUND = [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536]
"""Lengths before and after which MessagePack has another form."""
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from(
        [sign * (1 << bits) - less for bits in (5, 7, 8, 15, 16, 31, 32) for sign in (1, -1) for less in (0, 1)]
    ),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=20),
    st.datetimes(timezones=st.just(dt.UTC)),
)


@given(
    st.recursive(
        LEAVES, lambda each: st.lists(each, max_size=20) | st.dictionaries(st.text(max_size=3), each, max_size=20)
    )
)
def test_each_form_is_decoded_as_msgspec_does(value: Any) -> None:
    """To its last byte, and not beyond."""
    data = msgspec.msgpack.encode(value)
    assert _value(data + b"x", 0) == (msgspec.msgpack.decode(data), len(data))


@pytest.mark.parametrize("length", AROUND)
def test_each_length_has_its_form(length: int) -> None:
    """Texts, bytes, extensions, arrays and maps, short and long."""
    for value in (
        "x" * length,
        b"x" * length,
        msgspec.msgpack.Ext(5, b"x" * length),
        [None] * length,
        dict.fromkeys(range(length)),
    ):
        data = msgspec.msgpack.encode(value)
        assert _value(data + b"x", 0) == (msgspec.msgpack.decode(data), len(data))


def test_a_map_with_a_map_among_its_keys_is_pairs() -> None:
    """At any depth; the maps around it stay dicts."""
    keyed = b"\x82" + msgspec.msgpack.encode({"a": 1}) + b"\x05" + msgspec.msgpack.encode("b") + b"\x06"
    assert decode_any(keyed) == [({"a": 1}, 5), ("b", 6)]
    assert decode_any(b"\x81\xa1k\x92" + keyed + b"\xc0") == {"k": [[({"a": 1}, 5), ("b", 6)], None]}


@pytest.mark.parametrize("data", [b"", b"\x81", b"\x81\x80", b"\x81\x80\x01\x00", b"\xc1", b"\x81\x80\xa5a"])
def test_what_is_no_messagepack_is_an_error(data: bytes) -> None:
    """Cut off, too long, or with a byte that stands for nothing."""
    with pytest.raises(ValueError, match=r"truncated|malformed"):
        decode_any(data)
