"""Starts a process, listens to it and kills it. Each process has its own process group, which includes its Java."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

from benchmarks.demo.events import Event, understand
from benchmarks.demo.places import Places


class Child:
    """A running `python -m module WORKDIR`. Leaving the context kills what still runs in its group."""

    def __init__(self, module: str, places: Places) -> None:
        self.started_s = time.monotonic()
        self._log = places.log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(places.workdir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.wait()
        self._stdout.close()
        self._log.close()

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def events(self) -> Iterator[Event]:
        """The events that it reports, until no process of its group is left to report any."""
        for line in self._stdout:
            event = understand(line)
            if event is None:
                self._log.write(line)
            else:
                yield event

    def kill(self) -> None:
        """Send SIGKILL to the whole group: Python and Java die at once. Does nothing if they are gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit status of the process itself, negative if a signal ended it."""
        return self._process.wait()
