"""A follower of a job whose state is made by owners of ranges, as on executors: in several parts, later in others."""

import random
from typing import Any

import pytest

import statebackend as sb
from statebackend._ranges.range_owners import open_range_owners
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.ranges.parts import Model, open_run
from tests.rewrite.jobs import settings_of

BATCHES = 24


@pytest.mark.parametrize(
    "changed",
    [{}, {"inline_bytes_max": 0}, {"materialize_handles_max": 3}, {"materialize_fan_in": 2}],
    ids=("inline", "segments", "bases", "merged"),
)
def test_a_follower_of_owners_is_of_one_commit_of_all_of_them(changed: dict[str, Any]) -> None:
    """Within an epoch nothing is read anew, whatever is merged or written as bases. Then an heir has all of it."""

    @run_virtual
    async def go() -> None:
        settings, store, clock = settings_of(12, **changed), MemoryStore(), VirtualClock()
        model, chance = Model(), random.Random(7)

        async def run_batches(parts: int, follower: sb.StateFollower) -> None:
            async with open_run(settings, parts, store) as run, open_range_owners(store=store, clock=clock) as owners:
                for number in range(BATCHES):
                    changes = [(key, chance.randrange(100)) for key in chance.sample(range(40), chance.randrange(12))]
                    await run.batch(owners, changes)
                    model.apply(changes)
                    assert run.coordinator.base is not None
                    await follower.wait_for(checkpoint_id=run.coordinator.base.checkpoint_id)
                    rows, sums = follower.list_state("rows", int), follower.value_state("sum", int)
                    assert dict(rows) == model.rows
                    assert dict(sums) == {key: sum(numbers) for key, numbers in model.rows.items()}
                    if number == 0:
                        before = follower.position.jumps
                assert follower.position.jumps == before

        async with sb.open_backend(settings, store=store, clock=clock) as backend:
            await backend.checkpoint(1)
        async with sb.follow(settings, store=store, clock=clock) as follower:
            for parts in (3, 2, 4):
                await run_batches(parts, follower)
            heir = await follower.promote()
            heir.value_state("sum", int)[0] = 1 + sum(model.rows.get(0, []))
            heir.list_state("rows", int)[0].append(1)
            model.apply([(0, 1)])
            await heir.checkpoint(heir.next_checkpoint_id)
        await model.check(settings, store)

    go()
