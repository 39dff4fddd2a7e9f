"""Setting and getting a million values, one by one and in bulk, beside a dictionary of the same encoded bytes.

Envelope. Bare: an encode and a decode of some 0.15 µs each, and a dictionary's set and get. Ours comes with a Python
call for each (0.1 µs), with the proof that the value comes back (a decode and an encode more), the key's group (a hash
of 0.3 µs) and a second dictionary of what is dirty. That makes 1.5 to 2 µs beside 0.5: three to four times. In bulk the
calls and most of the proof go away and the hash stays: about twice for the writing, no more than bare for the reading.
"""

from collections.abc import Sequence

import msgspec

from benchmarks.contest import Line, Report, ratio
from benchmarks.state.parts import Leg, keys, legs, new_states, seconds

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Leg).decode


def run(report: Report) -> None:
    """Ratios of both together, and of each half in bulk."""
    each, values = keys(), legs()
    one_by_one = report.contest(
        "one by one", "s", {"ours": lambda: sum(_ours(each, values)), "bare": lambda: sum(_bare(each, values))}
    )
    overhead = ratio(one_by_one["ours"], one_by_one["bare"])
    report.add(
        Line(
            "1,000,000 x `state[key] = value`, then `state[key]`, over a dict of the same bytes",
            "at most 6x",
            overhead.median,
            "x",
            6.0,
            detail=f"seconds: ours {one_by_one['ours']}, bare {one_by_one['bare']}; ratio {overhead}",
        )
    )
    halves: dict[str, list[float]] = {"put": [], "get": [], "bare put": [], "bare get": []}

    def bulk() -> float:
        put, get = _bulk(each, values)
        halves["put"].append(put)
        halves["get"].append(get)
        return put + get

    def bare() -> float:
        put, get = _bare_bulk(each, values)
        halves["bare put"].append(put)
        halves["bare get"].append(get)
        return put + get

    in_bulk = report.contest("in bulk", "s", {"ours": bulk, "bare": bare})
    overhead = ratio(in_bulk["ours"], in_bulk["bare"])
    report.add(
        Line(
            "`put_many` and `get_many` of 1,000,000, over a bare encode and decode of each",
            "at most 2x",
            overhead.median,
            "x",
            2.0,
            detail=f"seconds: ours {in_bulk['ours']}, bare {in_bulk['bare']}; ratio {overhead}",
        )
    )
    for name in ("put", "get"):
        ratios = sorted(one / other for one, other in zip(halves[name], halves[f"bare {name}"], strict=True))
        report.add(
            Line(
                f"of that `{name}_many` alone, over its bare half",
                "at most 2x",
                ratios[len(ratios) // 2],
                "x",
                2.0,
            )
        )


def _ours(each: Sequence[str], values: Sequence[Leg]) -> tuple[float, float]:
    state = new_states().value_state("legs", Leg)

    def put() -> None:
        for key, value in zip(each, values, strict=True):
            state[key] = value

    def get() -> None:
        for key in each:
            state[key]

    return seconds(put), seconds(get)


def _bare(each: Sequence[str], values: Sequence[Leg]) -> tuple[float, float]:
    table: dict[str, bytes] = {}

    def put() -> None:
        for key, value in zip(each, values, strict=True):
            table[key] = _encode(value)

    def get() -> None:
        for key in each:
            _decode(table[key])

    return seconds(put), seconds(get)


def _bulk(each: Sequence[str], values: Sequence[Leg]) -> tuple[float, float]:
    state = new_states().value_state("legs", Leg)
    return seconds(lambda: state.put_many(each, values)), seconds(lambda: state.get_many(each))


def _bare_bulk(each: Sequence[str], values: Sequence[Leg]) -> tuple[float, float]:
    table: dict[str, bytes] = {}
    return (
        seconds(lambda: table.update(zip(each, map(_encode, values), strict=True))),
        seconds(lambda: [_decode(table[key]) for key in each]),
    )
