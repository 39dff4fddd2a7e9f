"""A job that knows persons, whose names are found in the bytes of what it stores."""

from typing import Any

import statebackend as sb
from statebackend.objectstore import MemoryStore
from tests.log.swept import HOUR_S, HandClock
from tests.rewrite.jobs import JOB, KINDS, Write, objects_of, read, settings_of, work

ADA, BOB = "Ada Lovelace", "Bob"
BOTH: dict[str, Any] = {"compression": "none", "inline_bytes_max": 0, "checkpoints_retained": 3}
SETTINGS = settings_of(16, **BOTH)
CARRIED = settings_of(16, compression="none", checkpoints_retained=3)
ERASED = (ADA, repr(ADA))
"""The name, and the key that it has in columns: see `States.write`."""


def writes(number: int, *persons: str) -> list[Write]:
    """Something of every kind of state, about each of them."""
    return [(kind, person, number) for kind in KINDS[:-1] for person in persons]


def without(found: dict[str, Any]) -> dict[str, Any]:
    """What was read, without Ada."""
    return {
        name: {key: value for key, value in state.items() if key not in ERASED} if isinstance(state, dict) else state
        for name, state in found.items()
    }


class Job:
    """One job in memory, whose time is set by hand."""

    def __init__(self, settings: sb.Settings = SETTINGS) -> None:
        self.clock = HandClock()
        self.store = MemoryStore(clock=self.clock)
        self.settings = settings

    async def with_changes(self) -> dict[str, Any]:
        """Both persons, in three commits of changes; return what can be read."""
        return await work(self.settings, self.store, writes(1, ADA, BOB), writes(2, BOB), writes(3, ADA, BOB))

    async def with_old_changes(self) -> dict[str, Any]:
        """Both persons, of whom the last commit has only one."""
        return await work(self.settings, self.store, writes(1, ADA, BOB), writes(2, BOB))

    async def with_bases(self) -> dict[str, Any]:
        """Both persons in bases, and a commit of changes behind them."""
        await self.with_changes()
        await sb.rewrite(settings_of(32, **BOTH), store=self.store)
        self.settings = settings_of(32, **BOTH)
        return await work(self.settings, self.store, writes(4, ADA, BOB))

    async def erase(self, **options: Any) -> sb.reports.EraseReport:
        return await sb.erase(self.settings, ERASED, store=self.store, clock=self.clock, **options)

    async def sweep_later(self) -> sb.reports.SweepReport:
        """After a day and an hour, which no difference of clocks explains."""
        self.clock.now_s += 25 * HOUR_S
        return await sb.sweep(self.settings, dry_run=False, store=self.store, clock=self.clock)

    async def read(self, **options: Any) -> dict[str, Any]:
        return await read(self.settings, self.store, **options)

    async def names_stored(self) -> list[str]:
        """The objects in whose bytes Ada is named: nothing is compressed."""
        return [key for key, body in (await objects_of(self.store)).items() if ADA.encode() in body]


__all__ = ["ADA", "BOB", "BOTH", "CARRIED", "ERASED", "JOB", "SETTINGS", "Job", "without", "writes"]
