"""Drivers in processes of their own, on clusters of their own, and the ways to end parts of them."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pyspark

import statebackend as sb
from tests.spark.cluster_child import Plan, settings_of
from tests.spark.retail import PROCESSORS, Day, in_one_pass

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("cluster_child.py")
MARKS = {"worker": "pyspark.daemon", "executor": "CoarseGrainedExecutorBackend"}
"""What the command lines of an executor's processes have in them."""
HUNG_S = 3600
"""How long a driver may run before it counts as hung, and is killed."""


class Driver:
    """A running driver. Leaving the context kills what still runs of it and of its executors."""

    def __init__(self, plan: Plan) -> None:
        self.folder = Path(plan.folder)
        self._errors = (self.folder / "errors").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), msgspec.json.encode(plan).decode()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "SPARK_HOME": str(_home_in(self.folder)),
            },
            start_new_session=True,
        )
        self._hung = threading.Timer(HUNG_S, self.kill)
        self._hung.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hung.cancel()
        self._end(self._descendants())
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def told(self) -> Iterator[tuple[str, str]]:
        """The events it reports, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"@ "):
                what, _, value = line.decode().removeprefix("@ ").rstrip().rpartition(" ")
                yield what, value

    def kill(self) -> None:
        """Send SIGKILL to the driver, Python and JVM. Executors and tasks live on until they notice that it is gone."""
        self._end([pid for pid in self._descendants() if not any(mark in _command(pid) for mark in MARKS.values())])
        self._process.wait()

    def kill_one(self, kind: str, rng: random.Random) -> bool:
        """Send SIGKILL to a Python worker, or to the JVM of an executor. True if there was one."""
        victims = [pid for pid in self._descendants() if MARKS[kind] in _command(pid)]
        self._end(rng.sample(victims, min(1, len(victims))))
        return bool(victims)

    def halt(self, go_on: bool = False) -> None:
        """Stop the driver's processes where they are, as on a suspended machine; or let them continue."""
        for pid in sorted(self._descendants(), reverse=not go_on):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if go_on else signal.SIGSTOP)

    @property
    def status(self) -> int:
        """The exit status. Waits for the end."""
        return self._process.wait()

    def _end(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _descendants(self) -> list[int]:
        """The driver and all that it has started, as far as their parents live."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(entry.name))
        found = [self._process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found


def _home_in(folder: Path) -> Path:
    """A SPARK_HOME whose executors leave their files there, and not beside the installed package."""
    home = folder / "home"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            if entry.name != "work":
                (home / entry.name).symlink_to(entry)
    return home


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def days_of_batches(folder: Path, days: Sequence[Day]) -> list[Day]:
    """The days in each of Spark's batches: mostly one day. Every day is in one batch.

    The file source logs a file before the query logs the batch that it is meant for. A driver killed in between leaves
    one more file, and the next batch has both.
    """
    logged = folder / "checkpoint" / "offsets"
    numbers = sorted(int(path.name) for path in logged.iterdir() if path.name.isdigit())
    assert numbers == list(range(len(numbers)))
    ends = [json.loads((logged / str(number)).read_text().splitlines()[-1])["logOffset"] + 1 for number in numbers]
    assert ends[-1] == len(days)
    return [list(chain.from_iterable(days[start:end])) for start, end in pairwise([0, *ends])]


def assert_equals_one_pass(plan: Plan, days: Sequence[Day]) -> None:
    """The state, each batch's rows, and the batch ids are those of a single pass over the same days."""
    in_batches = days_of_batches(Path(plan.folder), days)
    state, put_out = in_one_pass(in_batches, plan.which)

    async def read() -> tuple[dict[str, Any], list[int]]:
        settings = msgspec.structs.replace(settings_of(plan), local=(), table="heap")
        async with sb.open_backend(settings, read_only=True) as backend:
            state = backend.value_state("totals", PROCESSORS[plan.which].type_)
            sources = [summary.source async for summary in backend.history()]
            return dict(state.items()), [source.batch_id for source in sources if source is not None]

    found, batches = asyncio.run(read())
    numbers = range(len(in_batches))
    assert batches == list(reversed(numbers))
    assert found == state
    published = [json.loads((Path(plan.folder) / "published" / str(number)).read_text()) for number in numbers]
    assert published == put_out
