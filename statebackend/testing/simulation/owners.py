"""Owners of parts of the key groups at work on one host: they share its disk, and a coordinator commits for them."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from statebackend._backend.coordinating import open_coordinator
from statebackend._backend.opening import open_backend
from statebackend._checkpoint.owner_backend import OwnerBackend
from statebackend.abc import Clock, ObjectStore
from statebackend.ids import KeyGroupRange, SnapshotResult, SourceMark
from statebackend.settings import Settings
from statebackend.testing import invariants
from statebackend.testing.simulation.job import JOB, SimulatedJob
from statebackend.testing.simulation.states import assert_part, owned_by, states_of, value_in
from statebackend.testing.simulation.store import Place


async def commit_in_parts(
    job: SimulatedJob,
    settings: Settings,
    parts: Sequence[KeyGroupRange],
    disk: Place,
    *,
    connect: Callable[[Place, str], ObjectStore],
    clock: Clock,
) -> None:
    """Make one checkpoint of all `parts`. Each opens while the changes of those before it are in no commit yet.

    Asserts that each has the state of its part, and that the disk has all of a checkpoint that is called local.
    """
    groups, contents = settings.max_parallelism, dict(job.contents_at(job.newest))
    owners: list[OwnerBackend] = []
    snapshots: list[SnapshotResult] = []
    async with AsyncExitStack() as stack:
        primary = connect(job.primary, "coordinator")
        coordinator = await stack.enter_async_context(open_coordinator(settings, store=primary, clock=clock))
        checkpoint_id = coordinator.next_checkpoint_id
        for part in parts:
            primary, local = (connect(place, f"owner {part}") for place in (job.primary, disk))
            opening = open_backend(settings, key_groups=part, store=primary, local_stores=[local], clock=clock)
            owners.append(await stack.enter_async_context(opening))
            assert_part(owners[-1], contents, part, groups)
            states = states_of(owners[-1])
            for name, key in owned_by(part, contents, groups):
                states[name][key] = contents[name, key] = value_in(name, f"of {part}")
            snapshots.append(await owners[-1].snapshot(checkpoint_id))
        attempt = job.attempt(checkpoint_id, contents)
        source = SourceMark(JOB, attempt.number)
        commit = (await coordinator.commit(checkpoint_id, snapshots, source=source)).commit
        job.acknowledge(attempt, commit)
        for owner in owners:
            await owner.notify_complete(checkpoint_id)
    if all(snapshot.local for snapshot in snapshots):
        invariants.assert_local_copy_is_complete(commit, disk.objects, job.objects)
