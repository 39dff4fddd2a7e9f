"""Killed at any request, or with any answer lost, a state is as it was or transformed, and a second call ends it."""

import pytest

import statebackend as sb
from statebackend.testing import Moment, run_virtual
from tests.killed_operations import Operation, kill_at_every_request, lose_every_answer
from tests.rewrite.jobs import newest_commit, read, settings_of, work
from tests.transform.test_transform import moved, renamed

SETTINGS = settings_of(16, upload__attempts_max=1, inline_bytes_max=0, checkpoints_retained=1)


class Transformation(Operation):
    requests_min = 8

    async def prepare(self, store: sb.ObjectStore) -> None:
        self.before = await work(SETTINGS, store)

    async def run(self, store: sb.ObjectStore) -> None:
        await sb.transform(SETTINGS, "list", renamed, store=store)

    async def has_happened(self, store: sb.ObjectStore) -> bool:
        """True with other keys in one state."""
        await newest_commit(store)
        found = await read(SETTINGS, store)
        if found == self.before:
            return False
        assert found == {**self.before, "list": {moved(key): value for key, value in self.before["list"].items()}}
        return True

    async def complete(self, store: sb.ObjectStore, *, has_happened: bool) -> None:
        if not has_happened:
            await self.run(store)


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """A sweep then deletes what the killed one left, and nothing else."""
    await kill_at_every_request(Transformation(SETTINGS))


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """It may fail, and a second call completes it if it has not happened."""
    await lose_every_answer(Transformation(SETTINGS), moment)
