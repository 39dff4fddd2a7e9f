"""Shared by the measurements: changes to write, a log to write them to, a store that takes its time."""

import random
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import anyio
import numpy as np
from anyio.abc import TaskGroup

from statebackend import Clock, ObjectStore, Observer, Settings, StateChangeUploader
from statebackend._backend.assembly import upload_scheduler
from statebackend._backend.stores import threads_of
from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._codec.change_sets.changes import GROUP, KeyGroups
from statebackend._codec.change_sets.keyed_changes import SET, KeyedChanges
from statebackend._tasks import open_tasks
from statebackend.abc import Body
from statebackend.abc.clock import SystemClock
from statebackend.objectstore.scoped import ScopedStore

KEY_BYTES, VALUE_BYTES = 16, 64


def settings(**changes: object) -> Settings:
    """Default settings of a job, changed where a measurement wants it."""
    return Settings.from_mapping({"job": "bench", "primary": "memory://bench", **changes})


def made_up(number: int, *, seed: int = 1) -> Sequence[tuple[int, bytes, bytes]]:
    """Key group, key and value of that many changes: half of each value is random, as in records with ids in them."""
    chance = random.Random(seed)
    noise = chance.randbytes(number * (KEY_BYTES + VALUE_BYTES // 2))
    step = KEY_BYTES + VALUE_BYTES // 2
    filler = b"\x00" * (VALUE_BYTES - VALUE_BYTES // 2)
    return [
        (index % 128, noise[at : at + KEY_BYTES], noise[at + KEY_BYTES : at + step] + filler)
        for index, at in zip(range(number), range(0, number * step, step), strict=True)
    ]


Columns = tuple[KeyGroups, Sequence[bytes], Sequence[bytes]]
"""Key groups, keys and values."""


def columns_of(changes: Sequence[tuple[int, bytes, bytes]]) -> Columns:
    """The changes in columns, as a state drains them."""
    groups, keys, values = zip(*changes, strict=True)
    return np.array(groups, dtype=GROUP), keys, values


def sets_of(columns: Columns) -> KeyedChanges:
    """Logged writes."""
    groups, keys, values = columns
    return KeyedChanges(0, groups, SET * len(groups), keys, values)


@asynccontextmanager
async def open_log(
    job: Settings,
    open_uploader: Callable[[TaskGroup], StateChangeUploader],
    *,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[Callable[[str], ChangelogWriter], None]:
    """A scheduler; call what is yielded for a writer on it."""
    names = count()
    async with open_tasks() as tasks:
        scheduler = upload_scheduler(
            job,
            open_uploader(tasks),
            threads=threads_of(job),
            tasks=tasks,
            clock=clock or SystemClock(),
            observer=observer or Observer(),
            new_name=lambda: f"{next(names):08d}",
        )
        yield lambda log_id: ChangelogWriter(
            log_id,
            scheduler,
            tasks=tasks,
            preemptive_persist_threshold_bytes=job.preemptive_persist_threshold_bytes,
        )


@contextmanager
def directory() -> Generator[Path, None, None]:
    """A directory for one round."""
    with tempfile.TemporaryDirectory(prefix="statebackend-bench-") as path:
        yield Path(path)


class LateStore(ScopedStore):
    """A store that answers a put `latency_s` later than it could."""

    def __init__(self, store: ObjectStore, latency_s: float) -> None:
        super().__init__(store, "")
        self._latency_s = latency_s

    async def put(self, key: str, body: Body) -> None:
        """As the store inside, later."""
        await anyio.sleep(self._latency_s)
        await super().put(key, body)
