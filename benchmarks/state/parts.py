"""Shared by the benchmarks of states: a million keys, a small struct for each, and a clock of CPU time."""

import time
from collections.abc import Callable, Sequence

import msgspec

from statebackend._state.declared import KeyedStates
from statebackend.ids import all_key_groups

KEYS_TOTAL = 1_000_000


class Leg(msgspec.Struct, gc=False):
    """A small struct, as states have them."""

    airport: str
    flights: int
    delay: float


def keys(total: int = KEYS_TOTAL) -> Sequence[str]:
    """Tail numbers, as many as asked for."""
    return [f"N{number:07d}" for number in range(total)]


def legs(total: int = KEYS_TOTAL) -> Sequence[Leg]:
    """A different one for each key."""
    return [Leg("EWR", number, number / 2) for number in range(total)]


def new_states() -> KeyedStates:
    """The states of an owner of everything."""
    return KeyedStates(all_key_groups(128), 128)


def seconds(action: Callable[[], object]) -> float:
    """CPU time of this thread: others may have the core meanwhile."""
    begun = time.thread_time()
    action()
    return time.thread_time() - begun
