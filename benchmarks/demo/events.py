"""Reports of a child process to its parent: one JSON object per line of standard output; other lines are noise."""

import os
import time

import msgspec

import statebackend as sb


class Ready(msgspec.Struct, tag="ready"):
    """Spark has started."""

    seconds: float


class Restored(msgspec.Struct, tag="restored"):
    """The state has been restored."""

    report: sb.RestoreReport


class Begun(msgspec.Struct, tag="begun"):
    """The user's function was called with a batch."""

    batch: int


class Delivered(msgspec.Struct, tag="delivered"):
    """Spark has delivered a batch to be processed on executors. It may be committed already."""

    batch: int


class Committed(msgspec.Struct, tag="committed"):
    """The state of a batch is durable, and Spark does not know it yet."""

    batch: int
    rows: int
    changelog_bytes: int
    info: sb.CheckpointInfo
    at_s: float = msgspec.field(default_factory=time.monotonic)


class Finished(msgspec.Struct, tag="finished"):
    """The stream has seen all days."""


class Known(msgspec.Struct):
    """One aircraft for the table at the end."""

    tail_number: str
    last_airport: str
    last_arrival: str
    flights: int
    delay_minutes: int
    jumps: int


class Verified(msgspec.Struct, tag="verified"):
    """The result of the comparison: how many aircraft differ, with a sentence for each of the first ones."""

    aircraft: int
    flights: int
    delay_minutes: int
    jumps: int
    different: int
    differences: list[str]
    busiest: list[Known]
    query_seconds: float
    open_seconds: float
    restored: sb.RestoreReport | None


Event = Ready | Restored | Begun | Delivered | Committed | Finished | Verified

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def tell(event: Event) -> None:
    """Write `event` at once, past Python's buffers, so that it arrives even if the process is killed right after."""
    os.write(1, _encode(event) + b"\n")


def understand(line: bytes) -> Event | None:
    """The event in a line, `None` for noise."""
    if not line.startswith(b'{"type":'):
        return None
    return _decoder.decode(line)
