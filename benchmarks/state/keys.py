"""Texts, integers and tuples as keys: setting and getting one by one, beside a dictionary of the same encoded bytes.

    python -m benchmarks state.keys --sizes keys=5000     in seconds

Envelope. Bare, a set is an encode and a dictionary's set, 0.25 µs, and a get the other way, 0.2 µs; of a tuple both are
half as much again. Ours adds the proof that the value comes back (a decode and an encode) and a call: 0.45 µs for an
integer, which is hashed when it is drained; 0.3 µs more for the hash of a text, and 1 µs for the parts of a tuple, each
of which is looked at. So a set is three, five and nine times bare; a get is two to three, and as much for a tuple.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.state.parts import Leg, legs, new_states, seconds

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Leg).decode
KINDS: Final[Mapping[str, tuple[Callable[[int], Any], float, float]]] = {
    "int": (lambda number: number, 3.0, 3.0),
    "text": (lambda number: f"N{number:07d}", 5.0, 3.0),
    "tuple": (lambda number: ("EWR", number), 9.0, 9.0),
}
"""How a key is made, and at most how many times as long a set and a get may take."""


def run(report: Report, *, keys: int = 300_000, rounds: int = 5) -> None:
    """Ratios of each kind of key, and nanoseconds. Half a minute."""
    values = legs(keys)
    for kind, (make, set_limit, get_limit) in KINDS.items():
        each = [make(number) for number in range(keys)]
        gets: dict[str, list[float]] = {"ours": [], "bare": []}
        sets = report.contest(
            f"sets, {kind} keys",
            "ns",
            {
                "ours": partial(_measure, new_states, each, values, gets["ours"]),
                "bare": partial(_measure, None, each, values, gets["bare"]),
            },
            rounds=rounds,
        )
        _report(report, f"a set, {kind} keys", sets, set_limit)
        _report(report, f"a get, {kind} keys", {name: Sample(figures) for name, figures in gets.items()}, get_limit)


def _measure(states: Callable[[], Any] | None, each: Sequence[Any], values: Sequence[Leg], gets: list[float]) -> float:
    """Nanoseconds of a set; those of a get go to `gets`."""
    table: Any = {} if states is None else states().value_state("legs", Leg)
    set_all, get_all = (_set_bare, _get_bare) if states is None else (_set, _get)
    setting = seconds(lambda: set_all(table, each, values))
    gets.append(seconds(lambda: get_all(table, each)) / len(each) * 1e9)
    return setting / len(each) * 1e9


def _set(table: Any, each: Sequence[Any], values: Sequence[Leg]) -> None:
    for key, value in zip(each, values, strict=True):
        table[key] = value


def _get(table: Any, each: Sequence[Any]) -> None:
    for key in each:
        table[key]


def _set_bare(table: Any, each: Sequence[Any], values: Sequence[Leg]) -> None:
    for key, value in zip(each, values, strict=True):
        table[key] = _encode(value)


def _get_bare(table: Any, each: Sequence[Any]) -> None:
    for key in each:
        _decode(table[key])


def _report(report: Report, claim: str, samples: Mapping[str, Sample], limit: float) -> None:
    overhead = ratio(samples["ours"], samples["bare"])
    report.add(
        Line(
            f"{claim}, over a dict of the same bytes",
            f"at most {limit:g}x",
            overhead.median,
            "x",
            limit,
            detail=f"ns: ours {samples['ours']}, bare {samples['bare']}",
        )
    )
