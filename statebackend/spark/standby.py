"""`standby=True`: the state of the next driver, kept warm by following the job until the first batch takes it over.

The follower lives in a task of the process's event loop. The first batch promotes it, which claims the job as opening
it would; from then on its backend is the sink's. What cannot be promoted is opened as ever.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import anyio

from statebackend._backend.asked_to_open import BeforeClaim
from statebackend._backend.copy_writers import OpenUploader
from statebackend._checkpoint.backend import StateBackend
from statebackend._following.follower import StateFollower, follow
from statebackend._portal import Call, Portal
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.errors import StateBackendError
from statebackend.settings import Settings
from statebackend.spark.bridge import process_portal

RETRY_S: Final = 10.0
"""Seconds until a follower that could not be opened is tried again."""
CLOSE_S: Final = 10.0

_logger = logging.getLogger(__name__)


class Standby:
    """Follows the job from `begin` on. Pickles as one that has not begun."""

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Observer | None,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._store = store
        self._uploader = uploader
        self._portal: Portal | None = None
        self._call: Call[None] | None = None
        self._follower: StateFollower | None = None
        self._failure: Exception | None = None

    def begin(self) -> None:
        """Begin to follow, also a job that has no commit yet. Returns at once."""
        self._released, self._ended = anyio.Event(), anyio.Event()
        self._portal = process_portal()
        self._call = self._portal.start(self._follow, on_close=self._leave)

    def close(self) -> None:
        """Follow no more. Twice is fine. A backend that it has become is closed by its own context."""
        call, self._call = self._call, None
        if call is not None and self._portal is process_portal():  # after a fork it may be the parent's
            call.unwind(CLOSE_S)

    @asynccontextmanager
    async def opened(
        self, cold: AbstractAsyncContextManager[StateBackend], *, is_newest: bool, before_claim: BeforeClaim
    ) -> AsyncGenerator[StateBackend]:
        """The backend that the follower becomes, once; else that of `cold`. To be entered on the loop.

        `is_newest`: the newest commit is asked for. `before_claim`, and what is raised: as for `StateFollower.promote`.
        Then the follower goes on.
        """
        follower = self._follower if self._call is not None and is_newest else None
        backend = (
            None if follower is None else await follower.promote(uploader=self._uploader, before_claim=before_claim)
        )
        call, self._call = self._call, None
        try:
            if backend is not None:
                yield backend
        finally:
            if call is not None:
                self._leave(call)
                await self._ended.wait()
        if backend is None:
            async with cold as backend:
                yield backend
        elif self._failure is not None:
            raise self._failure

    async def _follow(self) -> None:
        try:
            while not self._released.is_set():
                try:
                    async with follow(
                        self._settings, wait=True, store=self._store, observer=self._observer
                    ) as self._follower:
                        await self._released.wait()
                except StateBackendError as error:
                    if self._released.is_set():
                        self._failure = error
                    else:
                        _logger.warning("cannot stand by for job %s: %s", self._settings.job, error)
                        await anyio.sleep(RETRY_S)
                finally:
                    self._follower = None
        finally:
            self._ended.set()

    def _leave(self, call: Call[None]) -> None:
        if self._follower is None:  # it is being opened
            call.cancel_on_loop()
        self._released.set()

    def __getstate__(self) -> dict[str, Any]:
        running = {"_portal": None, "_call": None, "_follower": None, "_failure": None}
        return {name: value for name, value in vars(self).items() if name not in ("_released", "_ended")} | running
