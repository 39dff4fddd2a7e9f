"""An operation on a job that is killed at each of its requests, or does not get the answer to one of them.

It has happened as a whole or not at all. Another call completes it, and a sweep deletes what the first one left, and
nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

import statebackend as sb
from statebackend.errors import StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import CrashStore, Fail, FaultyStore, Moment
from tests import invariants
from tests.rewrite.jobs import JOB, objects_of


class Operation(ABC):
    """The operation, and what holds before and after it. `requests_min`: it has more."""

    requests_min = 10

    def __init__(self, settings: sb.Settings) -> None:
        """`settings`: of the job as it is afterwards."""
        self.settings = settings

    @abstractmethod
    async def prepare(self, store: sb.ObjectStore) -> None:
        """Make the job as it is before."""

    @abstractmethod
    async def run(self, store: sb.ObjectStore) -> None:
        """The operation."""

    @abstractmethod
    async def has_happened(self, store: sb.ObjectStore) -> bool:
        """Check that the job is as it was, or as it is to be; true if that."""

    async def complete(self, store: sb.ObjectStore, *, has_happened: bool) -> None:
        """Another call, by another process."""
        await self.run(store)

    async def sweep(self, store: sb.ObjectStore) -> None:
        """Sweep, and check what is left."""
        await sb.sweep(self.settings, dry_run=False, min_age_s=0.0, store=store)
        objects = await objects_of(store)
        commits = invariants.commits_of(invariants.read_log(objects, JOB))
        invariants.assert_nothing_is_left_over([key for key in objects if key.startswith("segments/")], commits)


async def kill_at_every_request(operation: Operation) -> None:
    """Processes that die at their first request, at the second, and so on."""
    number, outcomes, has_ended = 0, set[bool](), False
    while not has_ended:
        number += 1
        world = CrashStore(seed=number)
        await operation.prepare(world.open())
        has_ended = await _ends(operation, world.open(crash_at=number))
        outcomes.add(await _completed(operation, world.open))
    assert outcomes == {True, False}
    assert number > operation.requests_min


async def lose_every_answer(operation: Operation, moment: Moment) -> None:
    """One request fails, before it takes effect or after that; the operation may fail with it."""
    number, has_ended = 0, False
    while not has_ended:
        number += 1
        store = MemoryStore()
        fault = Fail(nth=number, moment=moment)
        await operation.prepare(store)
        await _ends(operation, FaultyStore(store, [fault]))
        await _completed(operation, lambda store=store: store)
        has_ended = fault.matched < number
    assert number > operation.requests_min


async def _ends(operation: Operation, store: sb.ObjectStore) -> bool:
    with suppress(StateBackendError):
        await operation.run(store)
        return True
    return False


async def _completed(operation: Operation, open_: Callable[[], sb.ObjectStore]) -> bool:
    """True if it has happened before it is completed. `open_`: the store, for another process."""
    had_happened = await operation.has_happened(open_())
    await operation.complete(open_(), has_happened=had_happened)
    assert await operation.has_happened(open_())
    await operation.sweep(open_())
    assert await operation.has_happened(open_())
    return had_happened
