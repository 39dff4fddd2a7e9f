"""Jobs on this machine's disk, primary and local copy, called from synchronous code: several can be open at a time."""

import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from anyio.from_thread import BlockingPortal, start_blocking_portal

import statebackend as sb
from benchmarks.totals import ColumnTotals, ValueTotals


@dataclass(frozen=True)
class Kind:
    """A way of keeping the totals."""

    totals: Callable[[Any], Any]
    table: str = "heap"


KINDS: Final[Mapping[str, Kind]] = {
    "heap": Kind(ValueTotals),
    "RocksDB": Kind(ValueTotals, table="rocksdb"),
    "columns": Kind(ColumnTotals),
}
"""Value states in a dictionary and in RocksDB, and columns."""


class Bases(sb.Observer):
    """Knows whether bases are being written."""

    in_progress = False

    def materialization_begun(self, key_groups: int) -> None:
        self.in_progress = True

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self.in_progress = False

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        raise SystemExit(f"a base could not be written: {error}")

    def wait(self) -> None:
        """Wait until none are being written: in another's turn they would be in its way."""
        while self.in_progress:
            time.sleep(0.002)


@dataclass(frozen=True)
class Job:
    """An open backend, whose loop runs on a thread of its own."""

    portal: BlockingPortal
    backend: sb.StateBackend
    totals: Any
    bases: Bases

    def checkpoint(self) -> sb.CheckpointInfo:
        """Commit."""
        return self.portal.call(self.backend.checkpoint, self.backend.next_checkpoint_id)


@contextmanager
def open_job(folder: Path, kind: str, bases: Bases | None = None, /, **changes: Any) -> Generator[Job]:
    """Open the job in `folder`, by default settings but for `changes`. `bases`: an observer that knows more."""
    bases = Bases() if bases is None else bases
    backend = sb.open_backend(settings_of(folder, kind, **changes), observer=bases)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(backend) as opened:
        yield Job(portal, opened, KINDS[kind].totals(opened), bases)


def read_totals(folder: Path, kind: str, **changes: Any) -> Any:
    """All totals of a job that nobody has open."""
    reading = sb.open_backend(settings_of(folder, kind, **changes), read_only=True)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(reading) as opened:
        return KINDS[kind].totals(opened).table()


def settings_of(folder: Path, kind: str, **changes: Any) -> sb.Settings:
    """Both copies in `folder`, and what is given; all else as it comes."""
    values = {"job": "bench", "primary": f"file://{folder}/primary", "local": (f"{folder}/local",)}
    return sb.Settings(**values | {"table": KINDS[kind].table} | changes)


@contextmanager
def directory() -> Generator[Path]:
    """A directory for one measurement. Not in `/tmp` where that is memory: set `TMPDIR`."""
    with tempfile.TemporaryDirectory(prefix="statebackend-bench-") as path:
        yield Path(path)
