"""Cells of many values at once: the same as one by one, and in no more memory than they need."""

import sys
import tracemalloc
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import TimeToLive
from statebackend._codec.serializers import TRIMMED_BYTES_MAX
from statebackend._state.values import Values


class Total(msgspec.Struct, array_like=True):
    n: int
    name: str = ""


def kinds() -> list[Values[Any]]:
    """Plain ones, some with a version, some with a time, and some with both."""
    ttl = TimeToLive(5.0, lambda: 7.0)
    return [
        Values(Total),
        Values(Total, migrate=lambda old: old),
        Values(Total, ttl=ttl),
        Values(Total, ttl=ttl, migrate=lambda old: old),
    ]


@settings(deadline=None, max_examples=40)
@given(
    many=st.lists(st.builds(Total, st.integers(-(2**63), 2**64 - 1), st.text(max_size=50)), max_size=7),
    large=st.booleans(),
)
def test_cells_of_many_are_those_of_each(many: list[Total], large: bool) -> None:
    """Also of more than are encoded at once, and beside one that is larger than what is trimmed."""
    if large:
        many.append(Total(1, "x" * TRIMMED_BYTES_MAX))
    for values in kinds():
        one_by_one = [values.encode(each) for each in many]
        assert list(values.encode_to_keep(many)) == values.encode_many(many) == one_by_one
        assert values.decode_many(one_by_one) == [values.decode(cell) for cell in one_by_one] == many


def test_all_have_the_time_at_which_they_were_begun() -> None:
    """Though the clock goes on while they are encoded: what was written together expires together."""
    clock = iter(range(1000))
    values = Values(int, ttl=TimeToLive(5.0, lambda: float(next(clock))))
    assert len(set(values.encode_to_keep([1] * 5))) == 1


def test_cells_to_keep_have_no_room_left_behind_them() -> None:
    """As msgspec leaves it: 80 bytes for three integers, and not 48."""
    values = Values(Total)
    many = [Total(number, "name") for number in range(2000)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        cells = list(values.encode_to_keep(many))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before <= sum(map(sys.getsizeof, cells)) + sys.getsizeof(cells) + 2000
