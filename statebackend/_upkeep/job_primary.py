"""Opens a job's primary to work on the job from outside. The job itself is not opened, and nobody is fenced."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from statebackend._backend.stores import open_store, open_threads, readable_copies
from statebackend._log.log_reader import LogReader
from statebackend._log.moments import Moment, moment_s
from statebackend._log.position import FoundCommit, Pin, Positions, check_asked
from statebackend._threads import WorkerThreads
from statebackend._upkeep.arguments import check_settings
from statebackend.abc import ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import InputError
from statebackend.objectstore.scoped import ScopedStore
from statebackend.settings import Settings


class JobPrimary(msgspec.Struct, frozen=True):
    """A job's part of its primary, where the job stands there, and the worker threads of the call that looks at it."""

    settings: Settings
    store: ScopedStore
    positions: Positions
    threads: WorkerThreads

    @property
    def log(self) -> LogReader:
        """The log of the job."""
        return self.positions.log

    async def find(
        self,
        *,
        checkpoint_id: int | None = None,
        savepoint: str | None = None,
        at: Moment | None = None,
        pin: Pin | None = None,
        at_least: int | None = None,
    ) -> FoundCommit:
        """The newest commit, that of `checkpoint_id`, of `savepoint` or of `at`; or one found before, by its pin.

        `at_least`: of the newest alone, as for `LogReader.end`.

        Raises `InputError` if the job has no checkpoint, and as `Positions.look` and `Positions.find_pinned`.
        """
        check_asked(checkpoint_id, savepoint, at)
        asked = savepoint if checkpoint_id is None else checkpoint_id
        if pin is not None:
            return await self.positions.find_pinned(pin)
        if asked is not None:
            return (await self.positions.find_each([asked]))[0]
        if at is not None:
            return await self.find_at(at)
        if (found := await self.positions.find_newest(at_least=at_least)) is not None:
            return found
        raise InputError(
            "the job has no checkpoint yet: wait for one, or correct job or primary",
            job=self.settings.job,
            primary=self.settings.primary,
        )

    async def find_at(self, at: Moment) -> FoundCommit:
        """The newest commit not later than that moment. Raises `InputError`, and as `Positions.find_at`."""
        at_s = moment_s(at, now_s=SystemClock().time())
        commit = await self.positions.find_at(await self.log.end(), at_s)
        return FoundCommit(commit, self.log.take_body(commit))


@asynccontextmanager
async def open_job_primary(
    settings: Settings, store: ObjectStore | None, *, reads_copies: bool = True
) -> AsyncGenerator[JobPrimary]:
    """Open the job's primary, or use `store`, which its caller closes.

    Not by `open_primary`: it counts requests for an observer, and nobody observes this. `reads_copies`: take a local
    copy where a commit is damaged or gone. A sweep also looks at the store inside, whose temporary files it removes if
    it is a `LocalStore`.
    """
    check_settings(settings)
    async with (
        open_threads(settings) as threads,
        open_store(settings, threads, commits=False, instead=store) as opened,
    ):
        scoped = ScopedStore(opened, f"{settings.job}/")
        positions = Positions(
            scoped,
            LogReader(scoped, settings.job, threads),
            fall_back_to_older=settings.fall_back_to_older,
            timeout_s=settings.commit_timeout_s,
            copies=partial(readable_copies, settings, None, threads) if reads_copies else None,
        )
        yield JobPrimary(settings, scoped, positions, threads)


def check_exists(settings: Settings, found: Collection[object]) -> None:
    """Raise `InputError` unless something was found under the job's name."""
    if not found:
        raise InputError(
            "the primary has no job of that name: correct job or primary", job=settings.job, primary=settings.primary
        )
