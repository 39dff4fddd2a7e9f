"""Drivers killed with SIGKILL while a follower looks on in another process, which then takes the job over."""

import random
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

import statebackend as sb
from tests.backend.killed_child import apply, batch_changes, live, settings_in, state_of
from tests.mortals import last_word


@pytest.mark.parametrize("way", ["both", "bases"])
async def test_an_heir_has_all_that_was_acknowledged_and_nothing_twice(tmp_path: Path, way: str) -> None:
    """Again and again: killed wherever it is, or at a commit of which it never heard; the heir goes on by one batch."""
    chance = random.Random(way)
    acknowledged = -1
    for nth in range(2):
        commit = {"operation": "put_if_absent", "key": "killed/commits/*", "nth": 3, "moment": "after"}
        killed = commit if nth % 2 else {"words": chance.randrange(2, 9)}
        dying = partial(last_word, live, tmp_path, way, **killed)
        settings = settings_in(tmp_path, way)
        if acknowledged < 0:  # there has to be a job to follow
            acknowledged = await anyio.to_thread.run_sync(dying)
        async with sb.follow(settings, every_s=0.01) as follower:
            acknowledged = max(acknowledged, await anyio.to_thread.run_sync(dying))
            heir = await follower.promote()
            newest = heir.newest
            assert newest is not None
            assert newest.source is not None
            committed = newest.source.batch_id
            assert committed >= acknowledged
            expected: dict[sb.Key, int] = {}
            for batch in range(committed + 1):
                apply(expected, batch_changes(batch))
            state = state_of(heir, way)
            assert dict(state) == expected
            apply(state, batch_changes(committed + 1))
            await heir.checkpoint(heir.next_checkpoint_id, source=sb.SourceMark("q", committed + 1))
            acknowledged = committed + 1
