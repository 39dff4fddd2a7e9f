"""A process that keeps committing batches, with some owners and some tables, until it is killed.

What it finds when it starts, it compares with what the batches up to the committed one come to when each is applied
once. Every batch follows from its number, so every process knows them all.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Literal

import statebackend as sb
from statebackend.testing import Fault, FaultyStore
from tests.models.contents import Contents, Pairs
from tests.models.crew import MAX_PARALLELISM, Crew, Plan
from tests.models.invariants import joined
from tests.models.kinds import draw_operation
from tests.models.places import OnDisk
from tests.runs.heavy_rows import heavy_rows
from tests.runs.ranges import always_by_ranges

OPERATIONS_MAX = 30


@dataclass(frozen=True)
class Death:
    """At the nth request of a kind to the primary, before or after its effect; `None`: somebody else sees to it."""

    nth: int | None
    operation: Literal["put", "put_if_absent"] | None = None
    """Of any kind if `None`; a restore makes many that only read."""
    moment: Literal["before", "after"] = "before"


@dataclass(frozen=True)
class Said:
    """`opened`: what is committed, equal to what it should be; then `begun` and `acknowledged` for each batch."""

    what: Literal["opened", "begun", "acknowledged", "wrong"]
    batch: int
    details: Mapping[str, Any]


@dataclass(kw_only=True, eq=False)
class Suicide(Fault):
    """SIGKILL for this process."""

    async def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Deadly(FaultyStore):
    """A primary that may be the end of this process; look-ups do not count."""

    @asynccontextmanager
    async def apart(self) -> AsyncGenerator[sb.ObjectStore]:
        yield self._store


def settings_in(directory: Path) -> sb.Settings:
    """The job, without what differs from life to life."""
    return sb.Settings(
        job="killed",
        primary=f"file://{directory}/primary",
        max_parallelism=MAX_PARALLELISM,
        checkpoints_retained=2,
        persist_delay_s=0.001,
        materialize_interval_s=0.0,
        materialize_retry_delay_s=0.0,
        secondary_grace_s=60.0,  # a slow machine must not cost a local copy
        cache_dir=f"{directory}/scratch",
    )


def operations_of(batch: int) -> list[tuple[str, Pairs]]:
    """What batch number `batch` does: the same in every process. Nothing in it depends on the owners."""
    chance = Random(batch)
    drawn = [draw_operation(chance) for _ in range(chance.randrange(OPERATIONS_MAX))]
    return [(name, pairs) for name, pairs in drawn if name != "merge"]


def contents_after(batch: int) -> Contents:
    """What there is when every batch up to this one was applied once. A batch takes a second of the states' clock."""
    contents = Contents()
    for number in range(batch + 1):
        for name, pairs in operations_of(number):
            getattr(contents, name)(pairs, float(number))
        contents.ring(float(number))
    return contents


async def live(directory: Path, plan: Plan, death: Death, parent: Connection) -> None:
    places, now = OnDisk(root=directory), 0.0
    faults = [] if death.nth is None else [Suicide(nth=death.nth, operation=death.operation, moment=death.moment)]
    crew = Crew(places, settings_in(directory), plan, Deadly(places.primary(), faults), lambda: now)
    await crew.open()
    newest = crew.newest
    batch = -1 if newest is None or newest.source is None else newest.source.batch_id
    clocks = {owner.backend.clock_s for owner in crew.owners}
    now = float(batch)
    contents = contents_after(batch)
    equal = clocks == {max(now, 0.0)} and joined(crew.visible()) == contents.visible(now)
    parent.send(Said("opened" if equal else "wrong", batch, crew.sources()))
    checkpoint_id = -1 if newest is None else newest.checkpoint_id
    while True:
        batch, checkpoint_id = batch + 1, checkpoint_id + 1
        now = float(batch)
        for name, pairs in operations_of(batch):
            crew.apply(name, pairs)
            getattr(contents, name)(pairs, now)
        crew.ring(contents)
        parent.send(Said("begun", batch, {}))
        await crew.checkpoint(checkpoint_id, source=sb.SourceMark("killed", batch))
        parent.send(Said("acknowledged", batch, {}))


def main(directory: Path, plan: Plan, death: Death, parent: Connection) -> None:
    """What a process of its own does."""
    with always_by_ranges(), heavy_rows():  # where local copies are lost; and a few rows outgrow a limit
        asyncio.run(live(directory, plan, death, parent))
