"""Shared by the measurements: a job with a primary and a local copy in a directory, and state in it."""

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

import statebackend as sb
from statebackend.settings import UploadSettings

JOB = "restore"


class Leg(msgspec.Struct, gc=False):
    """A small struct, as states have them."""

    airport: str
    flights: int
    delay: float


@contextmanager
def directory() -> Generator[Path]:
    """A directory for one job."""
    with tempfile.TemporaryDirectory(prefix="statebackend-bench-") as path:
        yield Path(path)


def settings_of(parent: Path, **changes: Any) -> sb.Settings:
    """A job with both copies below `parent`, and no bases unless a measurement wants them."""
    values: dict[str, Any] = {
        "job": JOB,
        "primary": f"file://{parent}/primary",
        "local": (f"{parent}/local",),
        "cache_dir": f"{parent}/cache",
        "persist_delay_s": 0.0,
        "inline_bytes_max": 0,
        "upload": UploadSettings(timeout_s=0.0),
        "secondary_grace_s": 60.0,
        "materialize_interval_s": 0,
        "materialize_changelog_ratio": 0,
        "materialize_handles_max": 0,
    }
    return sb.Settings(**values | changes)


async def write(settings: sb.Settings, *, keys: int, checkpoints: int, store: sb.ObjectStore | None = None) -> None:
    """Write a struct for each of `keys`, divided equally among that many checkpoints."""
    async with sb.open_backend(settings, store=store) as backend:
        legs = backend.value_state("legs", Leg)
        for checkpoint, numbers in enumerate(_parts(keys, checkpoints)):
            legs.put_many(map(_name_of, numbers), [Leg("EWR", number, number / 2) for number in numbers])
            info = await backend.checkpoint(checkpoint)
            assert info.local or not settings.local, "the local copy is measured"


async def write_texts(settings: sb.Settings, *, keys: int, text_bytes: int) -> None:
    """Write a text of that length for each of `keys`, in 32 checkpoints."""
    async with sb.open_backend(settings) as backend:
        texts = backend.value_state("texts", str)
        for checkpoint, numbers in enumerate(_parts(keys, 32)):
            texts.put_many(map(_name_of, numbers), [f"{number:0{text_bytes}d}" for number in numbers])
            await backend.checkpoint(checkpoint)


async def write_bases(settings: sb.Settings) -> None:
    """Write bases of the whole state, and a checkpoint that needs nothing else."""
    waiting = _Waiting()
    wanting = msgspec.structs.replace(settings, materialize_handles_max=1)
    async with sb.open_backend(wanting, observer=waiting) as backend:
        await backend.checkpoint(backend.next_checkpoint_id)
        await waiting.written.wait()
        await backend.checkpoint(backend.next_checkpoint_id)


def _parts(total: int, parts: int) -> Sequence[range]:
    each = total // parts
    return [range(first, first + each) for first in range(0, total, each)]


def _name_of(number: int) -> str:
    """A tail number."""
    return f"N{number:07d}"


class _Waiting(sb.Observer):
    """Waits for bases to be written."""

    def __init__(self) -> None:
        self.written = anyio.Event()

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self.written.set()
