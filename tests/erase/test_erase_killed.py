"""Killed at any of its requests, or with any answer lost, an erasure has happened as a whole or not at all."""

import pytest

import statebackend as sb
from statebackend.errors import CheckpointNotFoundError
from statebackend.testing import Moment, run_virtual
from tests.erase.persons import ADA, BOB, BOTH, ERASED, without, writes
from tests.killed_operations import Operation, kill_at_every_request, lose_every_answer
from tests.rewrite.jobs import newest_commit, read, settings_of, work

SETTINGS = settings_of(16, upload__attempts_max=1, **{**BOTH, "checkpoints_retained": 1})


class Erasure(Operation):
    async def prepare(self, store: sb.ObjectStore) -> None:
        self.before = await work(SETTINGS, store, writes(1, ADA, BOB), writes(2, BOB), writes(3, ADA))

    async def run(self, store: sb.ObjectStore) -> None:
        await sb.erase(SETTINGS, ERASED, store=store)

    async def has_happened(self, store: sb.ObjectStore) -> bool:
        """True without the key. Then nothing older can be opened."""
        await newest_commit(store)
        found = await read(SETTINGS, store)
        if found == self.before:
            return False
        assert found == without(self.before)
        with pytest.raises(CheckpointNotFoundError):
            await read(SETTINGS, store, checkpoint_id=1)
        return True


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """Another call completes it, and a sweep then deletes what the killed one left, and nothing else."""
    await kill_at_every_request(Erasure(SETTINGS))


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """The erasure may fail, and a second call completes it."""
    await lose_every_answer(Erasure(SETTINGS), moment)
