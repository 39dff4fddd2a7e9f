"""Appending to lists and putting into maps, beside dictionaries of lists and of dictionaries of the same bytes.

Envelope. As for a single value a write costs some 1.5 µs beside a bare 0.3, and a view for each write and the framing
of an element half as much again: six to eight times. Reading a list of ten splits it in Python and decodes it in one
go: three times. `dict` of a map asks for each entry by its key, which is encoded for it: eight times.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from benchmarks.contest import Line, Report, ratio
from benchmarks.state.parts import Leg, keys, legs, new_states, seconds

KEYS = 20_000
NAMES = [f"name {number}" for number in range(10)]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Leg).decode

Writes = Callable[[Sequence[str], Sequence[Leg]], Any]
Reads = Callable[[Any], object]


def run(report: Report) -> None:
    """Ratios of writing and of reading, for both kinds."""
    each, values = keys(KEYS), legs(KEYS)
    contests: list[
        tuple[str, Writes, Writes, Callable[[Any], object] | None, Callable[[Any], object] | None, float]
    ] = [
        ("`hops[key].append(element)`, ten each", _append, _append_bare, None, None, 8.0),
        ("`list(hops[key])`", _append, _append_bare, _read_lists, _read_bare_lists, 3.0),
        ("`seen[key][name] = value`, ten each", _put, _put_bare, None, None, 8.0),
        ("`dict(seen[key])`", _put, _put_bare, _read_maps, _read_bare_maps, 8.0),
    ]
    for claim, write, write_bare, read, read_bare, limit in contests:
        samples = report.contest(
            f"{claim}",
            "s",
            {
                "ours": lambda write=write, read=read: _measured(write, read, each, values),  # type: ignore[misc]
                "bare": lambda write=write_bare, read=read_bare: _measured(write, read, each, values),  # type: ignore[misc]
            },
        )
        overhead = ratio(samples["ours"], samples["bare"])
        report.add(
            Line(
                f"{claim}, over bare dictionaries of the same bytes",
                f"at most {limit:g}x",
                overhead.median,
                "x",
                limit,
                detail=f"seconds: ours {samples['ours']}, bare {samples['bare']}",
            )
        )


def _measured(write: Writes, read: Reads | None, each: Sequence[str], values: Sequence[Leg]) -> float:
    """Seconds of the reading, or of the writing where nothing is read."""
    written: list[Any] = []
    writing = seconds(lambda: written.append(write(each, values)))
    return writing if read is None else seconds(lambda: read(written[0]))


def _append(each: Sequence[str], values: Sequence[Leg]) -> Any:
    hops = new_states().list_state("hops", Leg)
    for key, value in zip(each, values, strict=True):
        for _ in NAMES:
            hops[key].append(value)
    return hops


def _append_bare(each: Sequence[str], values: Sequence[Leg]) -> Any:
    hops: dict[str, list[bytes]] = {}
    for key, value in zip(each, values, strict=True):
        for _ in NAMES:
            hops.setdefault(key, []).append(_encode(value))
    return hops


def _put(each: Sequence[str], values: Sequence[Leg]) -> Any:
    seen = new_states().map_state("seen", str, Leg)
    for key, value in zip(each, values, strict=True):
        for name in NAMES:
            seen[key][name] = value
    return seen


def _put_bare(each: Sequence[str], values: Sequence[Leg]) -> Any:
    seen: dict[str, dict[str, bytes]] = {}
    for key, value in zip(each, values, strict=True):
        for name in NAMES:
            seen.setdefault(key, {})[name] = _encode(value)
    return seen


def _read_lists(hops: Any) -> None:
    for key in list(hops):
        list(hops[key])


def _read_bare_lists(hops: Any) -> None:
    for found in hops.values():
        list(map(_decode, found))


def _read_maps(seen: Any) -> None:
    for key in list(seen):
        dict(seen[key])


def _read_bare_maps(seen: Any) -> None:
    for found in seen.values():
        {name: _decode(cell) for name, cell in found.items()}  # it is what is measured
