"""Types that checkers infer from a declaration. They fail on a wrong line here; at run time it only has to run."""

import operator
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import assert_type

import msgspec

from statebackend import (
    AggregatingState,
    Key,
    ListState,
    MapState,
    ReducingState,
    Serializer,
    StateBackend,
    Timers,
    ValueState,
)
from statebackend._processing.processor import ProcessorContext
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.list_state import ListView
from statebackend._state.kinds.map_state import MapView
from statebackend.ids import all_key_groups
from tests.aggregates import Mean


class Leg(msgspec.Struct):
    origin: str


class ComplexSerializer:
    """A class that msgspec cannot encode."""

    schema = "complex"

    def encode(self, value: complex) -> bytes:
        return repr(value).encode()

    def decode(self, data: bytes | bytearray | memoryview) -> complex:
        return complex(bytes(data).decode())


def declared(backend: StateBackend, serializer: Serializer[complex]) -> None:
    """By every declaring method of the backend. Never called: it is for those who read types."""
    assert_type(backend.value_state("legs", Leg), ValueState[Leg])
    assert_type(backend.value_state("counts", int, default=0), ValueState[int])
    assert_type(backend.value_state("numbers", serializer), ValueState[complex])
    assert_type(backend.list_state("hops", str), ListState[str])
    assert_type(backend.map_state("seen", str, int), MapState[str, int])
    assert_type(backend.reducing_state("total", int, operator.add), ReducingState[int])
    assert_type(backend.aggregating_state("mean", Mean()), AggregatingState[int, float])


def test_what_is_read_and_written_has_its_type() -> None:
    """Values, views, bulk, and iteration."""
    states = KeyedStates(all_key_groups(128), 128)
    legs = states.value_state("legs", Leg)
    legs["a"] = Leg("EWR")
    assert_type(legs["a"], Leg)
    assert_type(legs.get("none"), Leg | None)
    assert_type(legs.pop("none", None), Leg | None)
    assert_type(legs.get_many(["a"]), list[Leg | None])
    assert_type(legs.get_many(["a"], Leg("none")), list[Leg])
    assert_type(legs.get_many(["a"], 0), list[Leg | int])
    assert_type(iter(legs), Iterator[Key])
    mapping: MutableMapping[Key, Leg] = legs
    assert mapping is legs
    hops = states.list_state("hops", str)
    assert_type(hops["a"], ListView[str])
    hops["a"].append("x")
    hops["b"] = ["y"]
    sequence: Sequence[str] = hops["a"]
    assert_type(sequence[0], str)
    assert_type(hops.get_many(["a"]), list[list[str]])
    lists: Mapping[Key, Sequence[str]] = hops
    assert lists is hops
    seen = states.map_state("seen", str, int)
    assert_type(seen["a"], MapView[str, int])
    seen["a"]["x"] = 1
    entries: MutableMapping[str, int] = seen["a"]
    assert_type(entries["x"], int)
    assert_type(seen.get_many(["a"]), list[dict[str, int]])
    total = states.reducing_state("total", int, operator.add)
    total.add("a", 1)
    assert_type(total["a"], int)
    assert_type(total.get_many(["a"], 0), list[int])
    mean = states.aggregating_state("mean", Mean())
    mean.add("a", 1)
    assert_type(mean["a"], float)
    assert_type(mean.get_many(["a"], 0.0), list[float])
    numbers = states.value_state("numbers", ComplexSerializer())
    numbers["a"] = 1j
    assert_type(numbers["a"], complex)
    assert_type(states.timers("timers").due(1), Iterator[tuple[float, Key]])


def wrong(backend: StateBackend) -> None:
    """Lines that type checkers refuse: an ignore that is not needed is an error of its own. Never called."""
    backend.value_state("legs", Leg)["a"] = "EWR"  # type: ignore[assignment]  # pyright: ignore[reportArgumentType]
    backend.list_state("hops", str)["a"].append(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    backend.map_state("seen", str, int)["a"][1] = 1  # type: ignore[index]  # pyright: ignore[reportArgumentType]
    backend.reducing_state("total", int, operator.add).add("a", "b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    backend.aggregating_state("mean", Mean()).add("a", "b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def types_of_context(context: ProcessorContext) -> None:
    """Checked, not run: a processor's context declares states as a backend does, and tells the time."""
    assert_type(context.value_state("legs", Leg), ValueState[Leg])
    assert_type(context.map_state("seen", str, int), MapState[str, int])
    assert_type(context.timers("idle"), Timers)
    assert_type(context.clock_s, float | None)


def types_of_backend(backend: StateBackend) -> None:
    """Checked, not run."""
    assert_type([(timer.at, timer.key, timer.name) for timer in backend.due_timers()], list[tuple[float, Key, str]])
    assert_type(backend.clock_before_s, float | None)
