"""A cell gives back what it was made of; one that is damaged is told, and no value is taken for a mark."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.cells import HEADER, Cell, count, count_small, framed, joined, pack, split, stamp_of, unpack
from statebackend.errors import ValueDecodeError

VALUES = st.binary(max_size=20) | st.binary(max_size=20).map(lambda data: b"\xc1" + data)
VERSIONS = st.just(0) | st.integers(0, 2**32 - 1)
STAMPS = st.none() | st.floats(allow_nan=False)


@given(VALUES, VERSIONS, STAMPS)
def test_cell_comes_back(value: bytes, version: int, stamp: float | None) -> None:
    """Whatever the value begins with."""
    cell = pack(value, version, stamp)
    assert unpack(cell) == Cell(value, version, stamp)
    assert stamp_of(cell) == stamp


def test_value_without_a_mark_is_its_own_cell() -> None:
    """As all are that msgspec encodes: it costs nothing."""
    for value in (None, 0, -1, "", "x" * 300, [], {}, 1.5, b"\xc1"):
        data = msgspec.msgpack.encode(value)
        assert pack(data) is data


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (pack(b"v", 1), "c1 01 01000000 76"),
        (pack(b"v", 0, 1.0), "c1 02 000000000000f03f 76"),
        (pack(b"v", 258, -2.0), "c1 03 02010000 00000000000000c0 76"),
        (pack(b"\xc1v"), "c1 00 c1 76"),
    ],
)
def test_bytes_are_those_of_the_page(cell: bytes, text: str) -> None:
    """Little-endian, in this order."""
    assert cell == bytes.fromhex(text)


@pytest.mark.parametrize("cell", [pack(b"", 1), pack(b"", 0, 1.0), pack(b"", 7, 1.0), pack(b"\xc1")[:2]], ids=bytes.hex)
def test_mark_that_is_cut_off_is_told(cell: bytes) -> None:
    """At every byte."""
    for length in range(1, len(cell) if cell[1] else 2):
        with pytest.raises(ValueDecodeError):
            unpack(cell[:length])


@pytest.mark.parametrize("flags", [4, 7, 0x80, 0xFF])
def test_mark_of_a_newer_release_is_told(flags: int) -> None:
    """It says something that this one does not understand."""
    with pytest.raises(ValueDecodeError):
        unpack(HEADER + bytes((flags,)) + bytes(20))


@given(st.lists(st.binary(max_size=5) | st.binary(min_size=250, max_size=260), max_size=5))
def test_framed_elements_come_back(parts: list[bytes]) -> None:
    """In order, with lengths on both sides of what fits into one byte."""
    row = b"".join(map(framed, parts))
    assert split(row) == parts
    assert count(row) == len(parts)
    assert len(row) == sum(len(part) + (1 if len(part) < 255 else 5) for part in parts)


@given(
    st.lists(st.binary(max_size=2), max_size=4)
    | st.integers(0, 260).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=4))
)
def test_what_is_joined_at_once_is_what_is_split(parts: list[bytes]) -> None:
    """Where it can be: as it is where all are short and equally long. And a cut row never can."""
    row = b"".join(map(framed, parts))
    at_once = joined(row)
    assert at_once in (None, (len(parts), b"".join(parts)))
    if len(set(map(len, parts))) == 1 and len(parts[0]) < 255:
        assert at_once is not None
    for length in range(1, len(row)):
        if joined(row[:length]) is not None:
            split(row[:length])  # raises where it is cut within an element


@given(st.lists(st.binary(max_size=3) | st.binary(min_size=126, max_size=129), max_size=5))
def test_small_elements_are_counted_and_a_length_that_is_no_small_integer_is_not_taken_for_one(
    parts: list[bytes],
) -> None:
    """As all of them are if each has less than 128 bytes; and none of a row that is cut off."""
    row = b"".join(map(framed, parts))
    assert count_small(row) == (len(parts) if all(len(part) < 128 for part in parts) else 0)
    if parts and parts[-1]:
        assert count_small(row[:-1]) == 0


def test_row_that_is_cut_off_is_told() -> None:
    """At every byte that is not between two elements."""
    row = framed(b"abc") + framed(b"x" * 300)
    for length in range(1, len(row)):
        if length != 4:
            for read in (split, count):
                with pytest.raises(ValueDecodeError):
                    read(row[:length])
