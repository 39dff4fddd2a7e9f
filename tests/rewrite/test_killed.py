"""Killed at any of its requests, or with any of their answers lost, a rewrite has happened as a whole or not at all."""

from typing import Any

import pytest

import statebackend as sb
from statebackend.testing import Moment, run_virtual
from tests.killed_operations import Operation, kill_at_every_request, lose_every_answer
from tests.rewrite.jobs import SAMPLE, Write, assert_placed, newest_commit, read, settings_of, work

SMALL: dict[str, Any] = {
    "in_flight_bytes_max": 4,
    "persist_size_threshold_bytes": 0,
    "upload__attempts_max": 1,
    "inline_bytes_max": 0,
    "checkpoints_retained": 1,
}
LARGE: list[Write] = [("value", f"{number} {'x' * 1000}", number) for number in range(250)]
"""Enough for several bases, each in a segment of its own; no upload is tried twice."""
BEFORE, AFTER = settings_of(16, **SMALL), settings_of(48, **SMALL)


class Rewrite(Operation):
    async def prepare(self, store: sb.ObjectStore) -> None:
        self.before = await work(BEFORE, store, SAMPLE, LARGE)

    async def run(self, store: sb.ObjectStore) -> None:
        await sb.rewrite(AFTER, store=store)

    async def has_happened(self, store: sb.ObjectStore) -> bool:
        """Nothing that can be read differs."""
        commit = await newest_commit(store)
        done = commit.max_parallelism == AFTER.max_parallelism
        assert await read(AFTER if done else BEFORE, store) == self.before
        if done:
            await assert_placed(store, AFTER.max_parallelism)
            assert len(commit.segments()) > 2
        return done


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """Another run has the same result, and a sweep then deletes what the killed one left, and nothing else."""
    await kill_at_every_request(Rewrite(AFTER))


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """The rewrite may fail, and a second run completes it."""
    await lose_every_answer(Rewrite(AFTER), moment)
