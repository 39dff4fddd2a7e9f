"""The cost of proving a value when it is written: the same writes with the proof and without it.

Envelope. The proof is one decode and one encode more, a few tenths of a microsecond for a small struct. Beside the rest
of a write (a hash of the key, two dictionaries) that should stay below twice the time, and below one and a half times
for a whole batch, which also reads each value and logs it.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.contest import Line, Report, ratio
from statebackend import ValueState
from statebackend._codec.change_sets.changes import change_set
from statebackend._codec.frame import frame_chunks
from statebackend._codec.serializers import MsgspecSerializer
from statebackend._state.values import Values
from statebackend._tables.heap import ValueTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import SequenceNumber, all_key_groups

KEYS = [f"N{number:06d}" for number in range(20_000)]


class Leg(msgspec.Struct):
    """A small struct, as states have them."""

    airport: str
    arrived: str
    flights: int
    delay: float


class _Unproved(MsgspecSerializer[Any]):
    """The same serializer without its proof."""

    def encode(self, value: Any) -> bytes:
        return self._encode(value)


def run(report: Report) -> None:
    """Ratios of a write with and without the proof, alone and within a batch."""
    leg = Leg("EWR", "2013-01-01 05:15", 17, 3.5)
    for name, action, limit in (("a write", _write, 2.0), ("a batch", _batch, 1.5)):
        samples = report.contest(
            f"{name} of a struct",
            "s",
            {
                "proved": _timed(action, MsgspecSerializer(Leg), leg),
                "unproved": _timed(action, _Unproved(Leg), leg),
            },
            rounds=9,
        )
        overhead = ratio(samples["proved"], samples["unproved"])
        report.add(
            Line(
                f"{name} of a struct of 4 fields with its proof, over the same without",
                f"at most {limit}x",
                overhead.median,
                "x",
                limit,
                detail=f"ns a key: proved {samples['proved']}, unproved {samples['unproved']}",
            )
        )


def _timed(
    action: Callable[[ValueState[Any], object], None], serializer: MsgspecSerializer[Any], value: object
) -> Callable[[], float]:
    def measure() -> float:
        state: ValueState[Any] = ValueState("legs", ValueTable(), OwnedKeys(all_key_groups(128), 128))
        values: Values[Any] = Values(Leg)
        values.encode = serializer.encode
        state.declare(values)
        begun = time.thread_time()
        action(state, value)
        return (time.thread_time() - begun) / len(KEYS) * 1e9

    return measure


def _write(state: ValueState[Any], value: object) -> None:
    for key in KEYS:
        state[key] = value


def _batch(state: ValueState[Any], value: object) -> None:
    for key in KEYS:
        state.get(key)
        state[key] = value
    frame_chunks(change_set("log", SequenceNumber(0), list(state.drain(0))), "zstd")
