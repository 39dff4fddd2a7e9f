"""Uploaders written by hand, and the few lines that put a scheduler and writers together for a test."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio
import numpy as np
from anyio.abc import TaskGroup

from statebackend._backend.assembly import upload_scheduler
from statebackend._backend.stores import threads_of
from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._codec.change_sets.changes import GROUP, ChangeSet
from statebackend._codec.change_sets.keyed_changes import SET, KeyedChanges
from statebackend._codec.segment import decode_segment
from statebackend._tasks import open_tasks
from statebackend.abc import Observer, Segment, StateChangeUploader, UploadedSegment
from statebackend.errors import StoreUnavailableError
from statebackend.ids import Handle, SequenceNumber
from statebackend.settings import Settings
from statebackend.testing.virtual_time import VirtualClock
from tests.changes import rows_of
from tests.knobs import settings_with

FOREVER_S = 1e9
"""A persist delay that never passes in a test."""

ChangeSetName = tuple[str, int]
"""Log id and sequence number."""


class Uploader:
    """Keeps segments in a dictionary. `attempts` are all segments it was given, `discarded` the names taken back.

    A failed or cancelled upload leaves nothing. Subclasses say in `store` how an attempt goes.
    """

    def __init__(self, *, local: bool = False, dropped: str | None = None) -> None:
        self.attempts: list[Segment] = []
        self.stored: dict[str, bytes] = {}
        self.discarded: list[str] = []
        self.local = local
        self.dropped = dropped

    async def upload(self, segment: Segment) -> UploadedSegment:
        self.attempts.append(segment)
        await self.store(len(self.attempts), segment)
        self.stored[segment.name] = b"".join(segment.body)
        handle = Handle(segment.name, 0, segment.size_bytes, segment.checksum)
        return UploadedSegment(handle, handle if self.local else None, self.dropped)

    async def discard(self, uploaded: UploadedSegment) -> None:
        self.discarded.append(uploaded.primary.key)
        del self.stored[uploaded.primary.key]

    async def store(self, number: int, segment: Segment) -> None:
        """Attempt number `number` of all is under way: return when it is durable, or raise."""

    @property
    def sent(self) -> list[list[ChangeSetName]]:
        """The change sets of every attempt."""
        return [_names(b"".join(segment.body)) for segment in self.attempts]


class HeldUploader(Uploader):
    """Attempts wait until they are told how to end, by their number, counted from 1."""

    def __init__(self, *, local: bool = False) -> None:
        super().__init__(local=local)
        self._ends: dict[int, tuple[anyio.Event, list[BaseException]]] = {}

    async def store(self, number: int, segment: Segment) -> None:
        end, errors = self._end_of(number)
        await end.wait()
        for error in errors:
            raise error

    def complete(self, number: int) -> None:
        """Let the attempt succeed."""
        self._end_of(number)[0].set()

    def fail(self, number: int, error: BaseException) -> None:
        """Let the attempt fail."""
        self._end_of(number)[1].append(error)
        self._end_of(number)[0].set()

    def _end_of(self, number: int) -> tuple[anyio.Event, list[BaseException]]:
        return self._ends.setdefault(number, (anyio.Event(), []))


class FailingUploader(Uploader):
    """The first `failures` attempts raise `error`, an I/O error by default."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        super().__init__()
        self._failures = failures
        self._error = error or StoreUnavailableError("no answer")

    async def store(self, number: int, segment: Segment) -> None:
        if number <= self._failures:
            raise self._error


class SlowUploader(Uploader):
    """Attempt number n takes `seconds[n - 1]`, and none at all where the list ends. Infinity hangs for ever."""

    def __init__(self, *seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self.cancelled: list[str] = []

    async def store(self, number: int, segment: Segment) -> None:
        try:
            if number <= len(self._seconds):
                await anyio.sleep(self._seconds[number - 1])
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(segment.name)
            raise


@dataclass
class Watcher(Observer):
    """Remembers what it was told."""

    uploaded: list[tuple[str, int, float]] = field(default_factory=list)
    failed: list[tuple[int, BaseException]] = field(default_factory=list)

    def segment_uploaded(self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float) -> None:
        self.uploaded.append((segment.name, attempt, seconds))

    def upload_failed(self, segment: Segment, error: BaseException, *, attempt: int) -> None:
        self.failed.append((attempt, error))


def set_of(size_bytes: int, *, log: str = "a", number: int = 0, key: object = "key") -> ChangeSet:
    """A change set of one change, which counts as `size_bytes`."""
    made = change(bytes(size_bytes), key=key)
    return ChangeSet(log, SequenceNumber(number), [made], made.span, size_bytes)


def sets_of(sizes: Sequence[int], *, log: str = "a") -> list[ChangeSet]:
    """Change sets of these sizes, numbered from 0."""
    return [set_of(size, log=log, number=number) for number, size in enumerate(sizes)]


def change(data: bytes = b"x" * 10, *, key_group: int = 0, key: object = "key") -> KeyedChanges:
    """One change, a `SET`."""
    return KeyedChanges(0, np.array([key_group], dtype=GROUP), SET, [key], [data])  # type: ignore[list-item]


def settings_of(**changed: Any) -> Settings:
    """Settings without delay, size threshold, retries or compression, but for what is changed."""
    plain: dict[str, Any] = {
        "persist_delay_s": 0,
        "persist_size_threshold_bytes": 0,
        "upload__attempts_max": 1,
        "upload__timeout_s": 0,
        "upload__retry_delay_s": 0,
        "upload__primary_outage_s": 0,
        "compression": "none",
    }
    return settings_with(job="test", primary="memory://test", **(plain | changed))


def scheduler_of(
    uploader: StateChangeUploader, tasks: TaskGroup, observer: Observer | None = None, **changed: Any
) -> UploadScheduler:
    names = count(1)
    settings = settings_of(**changed)
    return upload_scheduler(
        settings,
        uploader,
        threads=threads_of(settings),
        tasks=tasks,
        clock=VirtualClock(),
        observer=observer or Observer(),
        new_name=lambda: f"segment-{next(names)}",
    )


@asynccontextmanager
async def open_scheduler(
    uploader: StateChangeUploader, observer: Observer | None = None, **changed: Any
) -> AsyncGenerator[UploadScheduler]:
    """A scheduler. When the block ends, its uploads are waited for; nothing may be in flight then."""
    ended = False
    async with anyio.create_task_group() as tasks:
        scheduler = scheduler_of(uploader, tasks, observer, **changed)
        yield scheduler
        ended = True
    assert ended, "a task has cut the block short, and the group says nothing of it"
    assert scheduler.in_flight_bytes == 0


@dataclass
class Log:
    """A writer with what it stands on."""

    writer: ChangelogWriter
    scheduler: UploadScheduler
    tasks: TaskGroup


@asynccontextmanager
async def open_log(
    uploader: StateChangeUploader, *, threshold_bytes: int = 1_000_000, company: bool = False, **changed: Any
) -> AsyncGenerator[Log]:
    """A writer of log "a" on a scheduler of its own. What is still at work when the block ends is cancelled.

    With `company` there is another writer, which never comes: a persist waits for it as long as the delay lasts.
    """
    async with open_tasks() as tasks:
        scheduler = scheduler_of(uploader, tasks, **changed)
        if company:
            writer_on(scheduler, tasks, log="never comes")
        yield Log(writer_on(scheduler, tasks, threshold_bytes=threshold_bytes), scheduler, tasks)


def writer_on(
    scheduler: UploadScheduler, tasks: TaskGroup, *, log: str = "a", threshold_bytes: int = 1_000_000
) -> ChangelogWriter:
    return ChangelogWriter(log, scheduler, tasks=tasks, preemptive_persist_threshold_bytes=threshold_bytes)


def contents(uploader: Uploader, name: str) -> list[bytes]:
    """The data of every change in a stored segment, in order."""
    return [row.data for _, changes in decode_segment(uploader.stored[name], name) for row in rows_of(changes)]


def _names(body: bytes) -> list[ChangeSetName]:
    return [(header.log_id, header.sequence_number) for header, _ in decode_segment(body, "")]
