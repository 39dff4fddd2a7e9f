"""Values encoded once and put together in any order: the bytes are those that MessagePack gives the values."""

from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.change_sets.encoded_items import EncodedItems

LENGTHS = st.sampled_from([0, 1, 31, 32, 255, 256, 65_535, 65_536])
"""On both sides of each border between two kinds of heads."""
TEXTS = LENGTHS.map("x".__mul__) | st.text(max_size=40)
BINARIES = LENGTHS.map(b"x".__mul__) | st.binary(max_size=40)
EDGES = [sign * (1 << bits) + by for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62) for sign in (1, -1) for by in (-1, 0, 1)]
NUMBERS = st.sampled_from([*EDGES, -(1 << 63), (1 << 63) - 1]) | st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.sampled_from([TEXTS, BINARIES, BINARIES.map(bytearray), NUMBERS]).flatmap(st.lists), st.randoms())
def test_an_array_of_any_items_is_what_messagepack_makes_of_them(values: list[Any], chance: Any) -> None:
    """Whichever are taken, and in which order; however they were added."""
    items, half = EncodedItems(), len(values) // 2
    assert items.append(values[:half])
    assert items.append(values[half:])
    places = [place for place in range(len(values)) if chance.random() < 0.7]
    chance.shuffle(places)
    expected = msgspec.msgpack.encode([values[place] for place in places])
    assert items.array(np.array(places, np.int64)) == expected


def test_an_array_may_be_longer_than_any_head_but_the_longest_can_say() -> None:
    """More than 65,535 items, and 16 to 65,535."""
    for count in (15, 16, 65_535, 65_536):
        items = EncodedItems()
        assert items.append(list(range(count)))
        assert items.array(np.arange(count)) == msgspec.msgpack.encode(list(range(count)))


def test_values_of_several_types_are_left_out() -> None:
    """And nothing of them is added: True is no int, and what exceeds 64 bits has another form."""
    items = EncodedItems()
    assert items.append([7])
    for others in ([1, "1"], [1, True], [b"x", "x"], [1 << 63], [("tuple",)], [None], [1.0]):
        assert not items.append(others)
    assert items.array(np.array([0])) == msgspec.msgpack.encode([7])
