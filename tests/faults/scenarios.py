"""The operations of which every N-th request to the primary fails: what was there before, and what is done then."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import statebackend as sb
from statebackend._ranges.range_owners import open_range_owners
from statebackend.testing.virtual_time import settle
from tests.faults.job import Job
from tests.ranges.parts import open_run

Act = Callable[[Job], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """`prepare` is done on a well store; of `act` every N-th request fails."""

    prepare: Act
    act: Act
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def two_batches(job: Job) -> None:
    async with job.open(store=job.well) as backend:
        for _ in range(2):
            await job.commit(backend)


async def nothing(job: Job) -> None:
    """A new job."""


async def opening(job: Job) -> None:
    async with job.open():
        pass


async def checkpoints(job: Job) -> None:
    async with job.open() as backend:
        for _ in range(3):
            await job.commit(backend)
            await settle()


async def savepoint(job: Job) -> None:
    job.kept |= {"beside": job.acknowledged, "within": job.acknowledged}
    await sb.savepoint(job.settings, "beside", store=job.store)
    job.named.add("beside")
    async with job.open() as backend:
        await backend.savepoint("within")
        job.kept["with"] = job.acknowledged + 1
        await job.commit(backend, savepoint="with")
    await sb.drop_savepoint(job.settings, "within", store=job.store)


async def old_batches(job: Job) -> None:
    async with job.open(store=job.well) as backend:
        for _ in range(4):
            await job.commit(backend)
            await settle()
    await job.aged()
    await two_batches(job)


async def sweep(job: Job) -> None:
    await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=job.store, clock=job.clock)


async def rewrite(job: Job) -> None:
    await job.rewrite(8, job.store)


async def outbox(job: Job) -> None:
    async with job.open() as backend:
        await job.publish(backend)
        for _ in range(2):
            batch = job.begun + 1
            await job.commit(backend, output=sb.Output(b"s", 1, (job.rows(batch),)))
            await job.publish(backend)


async def first_output(job: Job) -> None:
    job.expects_output = True
    async with job.open(store=job.well) as backend:
        await job.commit(backend, output=sb.Output(b"s", 1, (job.rows(1),)))


async def contribute(job: Job) -> None:
    async with open_run(job.settings, 2, job.store) as run, open_range_owners(store=job.store) as owners:
        for _ in range(2):
            await job.commit_parts(run, owners, job.acknowledged + 1)


BASES: Final = {"materialize_handles_max": 1, "materialize_interval_s": 0.0}

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "open a new job": Scenario(nothing, opening),
    "open": Scenario(two_batches, opening),
    "checkpoint": Scenario(two_batches, checkpoints),
    "checkpoint inline": Scenario(two_batches, checkpoints, {"inline_bytes_max": 10_000}),
    "merge": Scenario(two_batches, checkpoints, {"materialize_handles_max": 0, "materialize_fan_in": 2}),
    "base": Scenario(two_batches, checkpoints, BASES),
    "savepoint": Scenario(two_batches, savepoint, BASES),
    "sweep": Scenario(old_batches, sweep, BASES),
    "rewrite": Scenario(two_batches, rewrite),
    "outbox": Scenario(first_output, outbox),
    "contribute": Scenario(two_batches, contribute, {"materialize_handles_max": 2, "materialize_interval_s": 0.0}),
}
