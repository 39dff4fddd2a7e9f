"""Drivers that are killed or put to sleep while a follower looks on in another process, which then takes the job over.

A few of them here; `nox -s models` has the long form, 300 drivers by `STATEBACKEND_HEIRS=300`, which prints what they
had come to.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

import statebackend as sb
from statebackend.errors import FencedError
from statebackend.testing.kits.cancellation import turns
from tests.backend.killed_child import apply, batch_changes, live, settings_in, state_of
from tests.mortals import FORKED, Report

DRIVERS: Final = int(os.environ.get("STATEBACKEND_HEIRS", "8"))
WAYS: Final = ("both", "bases", "columns", "native")
FENCED: Final = -2
"""Reported by a driver that was fenced."""
DEATHS: Final = ("at work", "at a commit of which it never hears", "while the heir takes over", "asleep")


def live_until_fenced(report: Report, directory: Path, way: str, **death: Any) -> None:
    """As `live`, and report when it is fenced."""
    try:
        live(report, directory, way, **death)
    except FencedError:
        report(FENCED)


class Driver:
    """A driver in a process of its own."""

    def __init__(self, process: BaseProcess, said: Connection) -> None:
        self.process: Final = process
        self.acknowledged = -1
        self.was_fenced = False
        self._said = said

    async def hear(self, words: int | None = None) -> None:
        """Hear so many reports, or all that it will ever make."""
        for _ in range(words or 1 << 30):
            try:
                word = await anyio.to_thread.run_sync(self._said.recv)
            except EOFError:
                return
            if word == FENCED:
                self.was_fenced = True
            else:
                self.acknowledged = word

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


@contextmanager
def driving(directory: Path, way: str, **death: Any) -> Generator[Driver]:
    """A driver at work, which is killed in the end if it lives still."""
    ours, its = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=live_until_fenced, args=(its.send, directory, way), kwargs=death)
    process.start()
    its.close()
    with ours:
        try:
            yield Driver(process, ours)
        finally:
            process.kill()
            process.join()


async def survive(directory: Path, way: str, death: str, chance: random.Random) -> str:
    """One driver and its heir: nothing that was acknowledged is lost, and no batch is there twice. What came of it."""
    settings = settings_in(directory, way)
    at_commit = {"operation": "put_if_absent", "key": "killed/commits/*", "nth": chance.randrange(2, 6)}
    dying = at_commit | {"moment": "after"} if death == DEATHS[1] else {}
    with driving(directory, way, **dying) as driver:
        async with sb.follow(settings, every_s=0.01, wait=True) as follower:
            if dying:
                await driver.hear()
            else:
                await driver.hear(chance.randrange(1, 6))
            if death == "at work":
                driver.send(signal.SIGKILL)
                await driver.hear()
            if death == "asleep":
                driver.send(signal.SIGSTOP)
            async with anyio.create_task_group() as tasks:
                if death == "while the heir takes over":

                    async def kill() -> None:
                        await turns(chance.randrange(60))
                        driver.send(signal.SIGKILL)
                        await driver.hear()

                    tasks.start_soon(kill)
                heir = await follower.promote()
            if death == "asleep":
                driver.send(signal.SIGCONT)
                await driver.hear()
                assert driver.was_fenced, "the old driver was not fenced"
            committed = -1 if heir.newest is None or heir.newest.source is None else heir.newest.source.batch_id
            assert committed >= driver.acknowledged, "an acknowledged batch is lost"
            expected: dict[sb.Key, int] = {}
            for batch in range(committed + 1):
                apply(expected, batch_changes(batch))
            state = state_of(heir, way)
            assert dict(state) == expected, "a batch is lost, or was applied twice"
            apply(state, batch_changes(committed + 1))
            await heir.checkpoint(heir.next_checkpoint_id, source=sb.SourceMark("q", committed + 1))
    if driver.was_fenced:
        return f"{death}: fenced"
    return f"{death}: {'all was acknowledged' if committed == driver.acknowledged else 'one more was committed'}"


@pytest.mark.parametrize("way", WAYS)
async def test_an_heir_has_all_that_was_acknowledged_and_nothing_twice(tmp_path: Path, way: str) -> None:
    """Each heir leaves the job to the next driver. Those that were killed were so at whatever they were at."""
    chance, counted = random.Random(way), Counter[str]()
    for nth in range(-(-DRIVERS // len(WAYS))):
        death = DEATHS[(WAYS.index(way) + 3 * nth) % len(DEATHS)]
        counted[await survive(tmp_path, way, death, chance)] += 1
    print(f"{way}: {dict(counted)}")
