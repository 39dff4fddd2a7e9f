"""The local copy against a primary that is 30 ms away: the time it saves, by the number of files.

Envelope. A restore fetches 16 files at a time, so `n` files cost at least `n / 16` round trips of 30 ms. 1,000 files of
100 keys: 1.9 s from the primary, and a millisecond each from the local copy, for some hops to threads, a checksum and
the changes: 0.4 to 0.8 s. 256 files with a commit's changes in each take half a second of waiting, and a tenth of work.
A million keys in 20 files wait twice 30 ms, and take 0.8 s of work wherever they come from: no copy can be five times
faster than that, and this line is here to say so. Only latency is counted, as if every byte came at once.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import msgspec

import statebackend as sb
from benchmarks.contest import Line, Report, ratio
from benchmarks.restore.parts import directory, settings_of, write
from statebackend.objectstore import LocalStore
from statebackend.testing import FaultyStore, Slow

LATENCY_S = 0.030
SHAPES = ((100_000, 1_000), (25_600, 256), (1_000_000, 20))  # keys, files


def run(report: Report) -> None:
    """How many times as long the primary takes, on the clock."""
    for keys, files in SHAPES:
        with directory() as parent:
            settings = settings_of(parent)
            anyio.run(partial(write, settings, keys=keys, checkpoints=files))
            samples = report.contest(
                "a restore",
                "s",
                {"local": _seconds(settings, files), "primary": _seconds(_far(settings), files)},
                keys=keys,
                files=files,
            )
        gain = ratio(samples["primary"], samples["local"])
        report.add(
            Line(
                f"restore of {keys:,} keys in {files:,} files: primary {LATENCY_S * 1000:.0f} ms away over local copy",
                "at least 5x",
                gain.median,
                "x",
                5.0,
                at_least=True,
                detail=f"seconds: primary {samples['primary']}, local {samples['local']}; ratio {gain}",
            )
        )


def _far(settings: sb.Settings) -> sb.Settings:
    return msgspec.structs.replace(settings, local=())


def _seconds(settings: sb.Settings, files: int) -> Callable[[], float]:
    async def restore() -> float:
        root = settings.primary.removeprefix("file://")
        primary = FaultyStore(LocalStore(Path(root)), [Slow(seconds=LATENCY_S)])
        async with sb.open_backend(settings, store=primary, read_only=True) as backend:
            assert backend.restored is not None
            assert files == (backend.restored.files_local or backend.restored.files_primary)
            return backend.restored.seconds

    return lambda: anyio.run(restore)
