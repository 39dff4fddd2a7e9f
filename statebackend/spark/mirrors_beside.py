"""`mirrors=`: tables that are kept at the newest commit beside a sink, on the process's event loop."""

from collections.abc import Sequence
from typing import Any, Final

import anyio

from statebackend._mirroring.keeping_up import run_mirror
from statebackend._mirroring.mirrors import Mirror
from statebackend._portal import Call, Portal
from statebackend.abc import ObjectStore, Observer
from statebackend.settings import Settings
from statebackend.spark.bridge import process_portal

CLOSE_S: Final = 10.0
"""How long a sink that closes waits for its mirrors to carry over the last commits."""


class MirrorsBeside:
    """The mirrors of one sink. They run from its first batch on. Pickles as some that have not begun."""

    def __init__(
        self, settings: Settings, mirrors: Sequence[Mirror], *, store: ObjectStore | None, observer: Observer | None
    ) -> None:
        self._settings = settings
        self._mirrors = mirrors
        self._store = store
        self._observer = observer
        self._portal: Portal | None = None
        self._running: list[tuple[Call[None], _Running]] = []

    def begin(self) -> None:
        """Begin, unless they have begun in this process. Returns at once; no error of a mirror reaches the stream."""
        portal = process_portal()
        if self._portal is portal or not self._mirrors:
            return
        self._portal, self._running = portal, []
        for mirror in self._mirrors:
            running = _Running(self._settings, mirror, self._store, self._observer)
            self._running.append((portal.start(running.run), running))

    def close(self) -> None:
        """Have them carry over what was committed, within ten seconds, and end. Twice is fine."""
        portal, running = self._portal, self._running
        self._portal, self._running = None, []
        if (
            portal is None or portal is not process_portal()
        ):  # after a fork it may be the parent's, whose thread is not here
            return
        for _, one in running:
            portal.post(one.end)
        for call, _ in running:
            if not call.wait(CLOSE_S):
                call.unwind(1.0)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_portal": None, "_running": []}


class _Running:
    """One mirror that runs. `run` and `end` are called on the loop."""

    def __init__(
        self, settings: Settings, mirror: Mirror, store: ObjectStore | None, observer: Observer | None
    ) -> None:
        self._given = (settings, mirror)
        self._store = store
        self._observer = observer
        self._ended: anyio.Event | None = None

    async def run(self) -> None:
        self._ended = anyio.Event()
        settings, mirror = self._given
        await run_mirror(settings, mirror, self._ended, store=self._store, observer=self._observer)

    def end(self) -> None:
        if self._ended is not None:
            self._ended.set()
