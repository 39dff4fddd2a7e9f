"""Every N-th file operation in a directory fails: run one of them, or all.

Of the local roots: the job goes on with its primary alone. Of the directory of the tables, and of a primary that is a
directory: it goes on, or fails with an error that says what to do, and comes back.
"""

import errno
import logging
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

import statebackend as sb
from statebackend.errors import StateBackendError
from statebackend.objectstore import LocalStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle
from tests.faults.file_calls import Call, watched
from tests.faults.job import IMPATIENT, Job, check_known
from tests.faults.operations import WAIT_S_MAX
from tests.faults.scenarios import BASES

PLACES: Final = ("local", "tables", "primary")
_NOT_BY_A_FULL_DISK: Final = frozenset({"unlink", "remove", "rmdir"})
_NOT_BY_RIGHTS: Final = frozenset({"write", "writev", "sendfile", "fsync", "fdatasync"})
POSSIBLE: Final[Mapping[int, Callable[[Call], bool]]] = {
    errno.EIO: lambda call: True,
    errno.ENOSPC: lambda call: call.changes and call.name not in _NOT_BY_A_FULL_DISK,
    errno.EROFS: lambda call: call.changes and call.name not in _NOT_BY_RIGHTS,
}
"""Which calls fail with which error."""


@dataclass(frozen=True)
class FileCase:
    """One row of the table."""

    place: str
    table: str
    number: int
    onwards: bool

    def __str__(self) -> str:
        return f"{self.place}, {self.table}, {errno.errorcode[self.number]} {'for ever' if self.onwards else 'once'}"


def file_cases() -> Iterator[FileCase]:
    """Every one. Tables in memory have no directory."""
    for place in PLACES:
        for table in ("rocksdb",) if place == "tables" else ("heap", "rocksdb"):
            for number in POSSIBLE:
                for onwards in (False, True):
                    yield FileCase(place, table, number, onwards)


class FailingDisk:
    """A watcher that fails the `nth` call that can fail so, or all from that one on. A write has half happened.

    `only`: of these calls.
    """

    def __init__(self, number: int, nth: int, *, onwards: bool, only: Callable[[Call], bool] = lambda _: True) -> None:
        self.matched = 0
        self.failed: list[str] = []
        self._number, self._nth, self._onwards, self._only = number, nth, onwards, only
        self._turn = threading.Lock()

    def __call__(self, call: Call, really: Callable[[], Any]) -> Any:
        if not (POSSIBLE[self._number](call) and self._only(call)):
            return really()
        with self._turn:
            self.matched += 1
            struck = self.matched == self._nth or (self._onwards and self.matched > self._nth)
        if not struck:
            return really()
        self.failed.append(f"{call.name} {call.path}")
        if call.name in ("write", "writev"):
            assert call.descriptor is not None
            really()
            os.ftruncate(call.descriptor, os.fstat(call.descriptor).st_size // 2)
        raise OSError(self._number, os.strerror(self._number), call.path)


@contextmanager
def logged() -> Generator[list[logging.LogRecord]]:
    """The warnings of the library."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("statebackend")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


@contextmanager
def said_once(place: str) -> Generator[None]:
    """What a local root does to each file is said once in a run, for each reason."""
    with logged() as records:
        yield
    if place == "local":
        said = Counter(re.sub(r"(key|name|path)=\S+", "", record.getMessage()) for record in records)
        assert max(said.values(), default=1) == 1, [record.getMessage() for record in records]


async def work(job: Job, store: sb.ObjectStore, place: str) -> None:
    """Two runs of a job, with everything that a run does with files."""
    for batches in (3, 1):
        with said_once(place):
            async with job.open(store=store) as backend:
                for _ in range(batches):
                    await job.commit(backend)
                    await settle()
        with said_once(place):
            await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)


@run_virtual
async def run_file_case(
    case: FileCase, nth: int, directory: Path, *, only: Callable[[Call], bool] = lambda _: True
) -> str:
    """As `operations.run`, of the `nth` file operation in that place. `only`: of these."""
    job = Job(directory, table=case.table, copies=case.place == "local", **IMPATIENT, **BASES)
    if case.place == "primary":
        job.well = LocalStore(directory / "primary")
    async with job.open(store=job.well) as backend:
        for _ in range(2):
            await job.commit(backend)
            await settle()
    disk = FailingDisk(case.number, nth, onwards=case.onwards, only=only)
    outcome, begun = "success", anyio.current_time()
    with watched(directory, _in_place(directory, case.place, disk)):
        try:
            await work(job, job.well, case.place)
        except StateBackendError as error:
            if case.place == "local":
                raise
            check_known(error)
            outcome = type(error).__name__
    assert anyio.current_time() - begun < WAIT_S_MAX, "it has waited for too long"
    try:
        if case.place == "local":
            assert job.acknowledged == 6
        await job.recover()
    except BaseException as error:
        error.add_note(f"failed: {disk.failed[:20]}")
        raise
    return outcome if disk.matched >= nth else ""


def _in_place(directory: Path, place: str, disk: FailingDisk) -> Callable[[Call, Callable[[], Any]], Any]:
    below = f"{directory}/{place}"
    return lambda call, really: disk(call, really) if call.path.startswith(below) else really()


def run_file_cases(case: FileCase, *, first: int = 1, step: int = 1) -> Counter[str]:
    """As `operations.run_case`."""
    outcomes = Counter[str]()
    nth = first
    while True:
        with tempfile.TemporaryDirectory(prefix="faults-") as directory:
            try:
                outcome = run_file_case(case, nth, Path(directory))
            except BaseException as error:
                error.add_note(f"file operation {nth} of: {case}")
                raise
        if not outcome:
            return outcomes
        outcomes[outcome] += 1
        nth += step
