"""Strings in one array are moved and compared as if one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.columns import Fixed, Strings, are_equal, gathered, joined

LENGTHS = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 100, 127, 128, 129, 200])
STRINGS = st.lists(LENGTHS.flatmap(lambda length: st.binary(min_size=length, max_size=length)), max_size=12)


def packed(strings: list[bytes], gap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The strings in one array with gaps between them, and their starts and lengths."""
    lengths = np.array([len(each) for each in strings], np.int64)
    starts = np.cumsum(lengths + gap) - lengths
    return np.frombuffer(b"".join(b"-" * gap + each for each in strings), np.uint8), starts, lengths


@settings(max_examples=50)
@given(STRINGS, st.integers(0, 9), st.randoms())
def test_strings_are_gathered_in_any_order(strings: list[bytes], gap: int, chance) -> None:
    """Whatever lies between them."""
    data, starts, lengths = packed(strings, gap)
    order = list(range(len(strings)))
    chance.shuffle(order)
    found = gathered(data, starts[order], lengths[order]).tobytes()
    assert found == b"".join(strings[number] for number in order)


@settings(max_examples=50)
@given(STRINGS, st.integers(0, 9), st.integers(0, 9), st.data())
def test_strings_are_compared_byte_by_byte(strings: list[bytes], gap: int, other_gap: int, draw: st.DataObject) -> None:
    """One other byte anywhere is found, and what is around a string does not matter."""
    others = list(strings)
    for number, string in enumerate(strings):
        if string and draw.draw(st.booleans()):
            at = draw.draw(st.integers(0, len(string) - 1))
            others[number] = string[:at] + bytes([string[at] ^ 1 << draw.draw(st.integers(0, 7))]) + string[at + 1 :]
    data, starts, lengths = packed(strings, gap)
    other_data, other_starts, _ = packed(others, other_gap)
    found = are_equal(data, starts, other_data, other_starts, lengths)
    assert found.tolist() == [one == other for one, other in zip(strings, others, strict=True)]


@pytest.mark.parametrize("length", [*range(1, 25), 63, 64, 65, 127, 128, 129])
def test_the_last_string_ends_with_the_array(length: int) -> None:
    """Nothing behind the end is read, and nothing of the string is left out."""
    string = bytes(range(length))
    data, starts, lengths = packed([string], 3)
    for at in range(length):
        other, other_starts, _ = packed([string[:at] + b"\xff" + string[at + 1 :]], 0)
        assert not are_equal(data, starts, other, other_starts, lengths)[0]
    assert are_equal(data, starts, *packed([string], 0)).all()


@settings(max_examples=50)
@given(st.lists(STRINGS, min_size=1, max_size=4), st.sampled_from([0, 3, 5000]), st.data())
def test_strings_of_several_arrays_are_joined(pieces: list[list[bytes]], gap: int, draw: st.DataObject) -> None:
    """Arrays that have little else are joined as they are, of others the strings; a null stays one."""
    columns, expected = list[Strings](), list[tuple[bytes, bool]]()
    for strings in pieces:
        data, starts, lengths = packed(strings, gap)
        valid = draw.draw(st.none() | st.just([number % 2 == 0 for number in range(len(strings))]))
        columns.append(Strings(data, starts, lengths, None if valid is None else np.array(valid, np.bool_)))
        expected += zip(strings, valid or [True] * len(strings), strict=True)
    found = joined(columns)
    assert isinstance(found, Strings)
    places = zip(found.starts.tolist(), found.lengths.tolist(), strict=True)
    valid = [True] * len(expected) if found.valid is None else found.valid.tolist()
    plain = [found.data[start : start + length].tobytes() for start, length in places]
    assert [*zip(plain, valid, strict=True)] == expected
    if gap == 5000 and len(pieces) > 1:
        assert len(found.data) == sum(len(each) for strings in pieces for each in strings)


def test_numbers_of_several_arrays_are_joined() -> None:
    """With their nulls."""
    found = joined([Fixed(np.array([1, 2])), Fixed(np.array([0, 4]), np.array([False, True]))])
    assert isinstance(found, Fixed)
    assert found.values.tolist() == [1, 2, 0, 4]
    assert found.valid is not None
    assert found.valid.tolist() == [True, True, False, True]
