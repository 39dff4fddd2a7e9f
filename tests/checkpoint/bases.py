"""A job whose bases can be held back, failed and watched. Time is virtual."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

import statebackend as sb
from statebackend._checkpoint.materialization.bases import LOG_ID
from statebackend._codec.commit import Commit, decode_entry
from statebackend._log.names import COMMITS
from statebackend._tables.key_groups import key_group
from statebackend.abc import Segment, UploadedSegment
from statebackend.objectstore import MemoryStore
from statebackend.testing.virtual_time import VirtualClock, settle
from statebackend.uploaders import PrimaryUploader
from tests.knobs import settings_with

JOB = "fleet"
OFF: dict[str, Any] = {
    "materialize_interval_s": 0,
    "materialize_changelog_ratio": 0,
    "materialize_handles_max": 0,
    "materialize_retry_delay_s": 0,
}
"""No bases are written, but for what is changed."""


def settings_of(**changed: Any) -> sb.Settings:
    plain: dict[str, Any] = {
        "max_parallelism": 16,
        "persist_delay_s": 0,
        "upload__retry_delay_s": 0,
        "upload__attempts_max": 1,
    }
    plain |= {"persist_size_threshold_bytes": 0, "upload__primary_outage_s": 0}
    return settings_with(job=JOB, primary="memory://unused", **(plain | OFF | changed))


@dataclass
class Watcher(sb.Observer):
    """What was said of bases."""

    begun: list[int] = field(default_factory=list[int])
    written: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    failed: list[Exception] = field(default_factory=list[Exception])
    in_flight: list[int] = field(default_factory=list[int])

    def materialization_begun(self, key_groups: int) -> None:
        self.begun.append(key_groups)

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self.written.append((key_groups, segments))

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        assert failures == len(self.failed) + 1
        self.failed.append(error)

    def in_flight_changed(self, in_flight_bytes: int) -> None:
        self.in_flight.append(in_flight_bytes)


class BaseUploader(PrimaryUploader):
    """Holds bases back while `held`, and fails them with `error`. Everything else goes through."""

    def __init__(self, store: sb.ObjectStore) -> None:
        super().__init__(store)
        self.held = False
        self.error: Exception | None = None
        self.bases: list[UploadedSegment] = []
        self.discarded: list[UploadedSegment] = []
        self._let_go = anyio.Event()

    async def upload(self, segment: Segment) -> UploadedSegment:
        if segment.log_ids != (LOG_ID,):
            return await super().upload(segment)
        if self.held:
            await self._let_go.wait()
        if self.error is not None:
            raise self.error
        uploaded = await super().upload(segment)
        self.bases.append(uploaded)
        return uploaded

    async def discard(self, uploaded: UploadedSegment) -> None:
        self.discarded.append(uploaded)
        await super().discard(uploaded)

    def release(self) -> None:
        self.held = False
        self._let_go.set()
        self._let_go = anyio.Event()


class Job:
    """One job on a memory store, opened again and again."""

    def __init__(self, **changed: Any) -> None:
        self.settings = settings_of(**changed)
        self.store = MemoryStore()
        self.watcher = Watcher()
        self.uploader: BaseUploader

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncGenerator[sb.StateBackend]:
        def open_uploader(primary: sb.ObjectStore, _: sb.ObjectStore | None) -> BaseUploader:
            self.uploader = BaseUploader(primary)
            return self.uploader

        options = {"store": self.store, "uploader": open_uploader, "observer": self.watcher} | options
        async with sb.open_backend(self.settings, clock=VirtualClock(), **options) as backend:
            yield backend

    async def commits(self) -> list[Commit]:
        """Every commit, oldest first."""
        entries = [
            decode_entry(await self.store.get(info.key), info.key.removeprefix(f"{JOB}/"), job=JOB)
            async for info in self.store.list(f"{JOB}/{COMMITS}")
        ]
        return [entry for entry in entries if isinstance(entry, Commit)]

    async def newest(self) -> Commit:
        return (await self.commits())[-1]

    async def segments(self) -> set[str]:
        """The keys of all segments that are stored."""
        return {info.key.removeprefix(f"{JOB}/") async for info in self.store.list(f"{JOB}/segments/")}


async def checkpoint(backend: sb.StateBackend, **changes: int) -> None:
    """One checkpoint with these changes, and everything that follows from it at this moment."""
    backend.value_state("n", int).update(changes)
    await backend.checkpoint(backend.next_checkpoint_id)
    await settle()


def shape(commit: Commit) -> tuple[int, int]:
    """Handles in the changelog, and bases, of a commit of one range."""
    (part,) = commit.ranges
    return len(part.changelog), len(part.bases)


def keys_in(group: int, count: int, max_parallelism: int = 16) -> list[str]:
    """Keys of one key group."""
    found = (f"key {number}" for number in range(10**6))
    wanted = (key for key in found if key_group(key, max_parallelism) == group)
    return [next(wanted) for _ in range(count)]
