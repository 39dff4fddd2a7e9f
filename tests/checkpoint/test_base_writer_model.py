"""Random lives of a job that writes bases, on a memory store in virtual time, against a dictionary.

Bases begin, are held back, fail, are refused and are killed half-way, between any two checkpoints; the job is reopened
as a whole and in parts. The state is always the dictionary's, and every commit ever made is whole.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._tables.key_groups import key_group
from statebackend.errors import InputError, MaterializationError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle
from tests import invariants
from tests.checkpoint.bases import JOB, Job
from tests.mortal_store import MortalStore

KEYS = st.sampled_from(["a", "b", "c", "", 7, -1, ("x", 1), b"k"])
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.integers(-3, 3)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(
        st.sampled_from(
            ["checkpoint", "hold", "let go", "fail", "mend", "refused", "cancelled", "leave", "kill", "read parts"]
        )
    ),
    st.tuples(st.sampled_from(["checkpoint", "checkpoint", "let go"])),
    st.tuples(st.just("go back"), st.integers(0, 100)),
)
LIVES = st.lists(OPERATIONS, max_size=40)
TUNINGS = st.fixed_dictionaries(
    {
        "materialize_handles_max": st.sampled_from([0, 1, 2, 4, 9]),
        "materialize_fan_in": st.sampled_from([0, 2, 3]),
        "materialize_failures_max": st.sampled_from([0, 2, 1000]),
        "max_parallelism": st.sampled_from([1, 4, 16]),
        "in_flight_bytes_max": st.sampled_from([4, 10**6]),
    }
)


class Life:
    """The job, and what its state has to be."""

    def __init__(self, tuning: dict[str, Any]) -> None:
        self.job = Job(**tuning)
        self.local = MemoryStore()
        self.committed: dict[sb.Key, int] = {}
        self.current: dict[sb.Key, int] = {}
        self.history: list[tuple[int, dict[sb.Key, int]]] = []
        self.stack = AsyncExitStack()
        self.with_bases = 0

    async def open(self, checkpoint_id: int | None = None) -> None:
        self.process = MortalStore(self.job.store, "")
        opened = self.job.open(store=self.process, local_stores=[self.local], checkpoint_id=checkpoint_id)
        self.backend = await self.stack.enter_async_context(opened)
        self.state = self.backend.value_state("n", int)
        self.job.watcher.failed.clear()
        self.current = dict(self.committed)
        assert dict(self.state) == self.committed

    async def leave(self) -> None:
        await self.stack.aclose()

    async def run(self, operations: Sequence[tuple[Any, ...]]) -> None:
        await self.open()
        try:
            for name, *arguments in operations:
                await getattr(self, f"do_{name.replace(' ', '_')}")(*arguments)
                assert dict(self.state) == self.current
        finally:
            await self.leave()
        await self.do_read_parts()
        await self.check_commits()

    async def do_put(self, key: sb.Key, value: int) -> None:
        self.state[key] = self.current[key] = value

    async def do_delete(self, key: sb.Key) -> None:
        assert self.state.pop(key, None) == self.current.pop(key, None)

    async def do_checkpoint(self) -> None:
        checkpoint_id = self.backend.next_checkpoint_id
        try:
            await self.backend.checkpoint(checkpoint_id)
        except MaterializationError:
            assert len(self.job.watcher.failed) > self.job.settings.materialize_failures_max
            await self._reopen()
            return
        self.committed = dict(self.current)
        self.history.append((checkpoint_id, self.committed))
        await settle()

    async def do_hold(self) -> None:
        self.job.uploader.held = True

    async def do_let_go(self) -> None:
        self.job.uploader.release()
        await settle()

    async def do_fail(self) -> None:
        self.job.uploader.error = StoreUnavailableError("made to fail by a test")

    async def do_mend(self) -> None:
        self.job.uploader.error = None

    async def do_refused(self) -> None:
        try:
            with pytest.raises(InputError):
                await self.backend.checkpoint(10**6, source=sb.SourceMark("q", "no number"))  # type: ignore[arg-type]
        except MaterializationError:
            await self._reopen()

    async def do_cancelled(self) -> None:
        """Whether it was committed or not, the backend knows."""
        checkpoint_id = self.backend.next_checkpoint_id
        try:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await self.backend.checkpoint(checkpoint_id)
        except MaterializationError:
            await self._reopen()
            return
        if self.backend.newest is not None and self.backend.newest.checkpoint_id == checkpoint_id:
            self.committed = dict(self.current)
            self.history.append((checkpoint_id, self.committed))

    async def do_leave(self) -> None:
        await self._reopen()

    async def do_kill(self) -> None:
        self.process.dead = True
        await self._reopen()

    async def do_go_back(self, which: int) -> None:
        if self.history:
            checkpoint_id, self.committed = self.history[which % len(self.history)]
            await self.leave()
            await self.open(checkpoint_id)
            await self.do_checkpoint()

    async def do_read_parts(self) -> None:
        """Owners of a part each, by reading only: they have exactly what is theirs."""
        groups = self.job.settings.max_parallelism
        for first, last in {(0, 0), (0, groups // 2), (groups // 3, groups - 1)}:
            part = sb.owners.KeyGroupRange(first, last)
            async with sb.open_backend(
                self.job.settings, store=self.job.store, key_groups=part, read_only=True
            ) as reader:
                owned = {key: value for key, value in self.committed.items() if key_group(key, groups) in part}
                assert dict(reader.value_state("n", int)) == owned

    async def check_commits(self) -> None:
        """Every commit ever made is whole, and what it holds is what was committed."""
        infos = [info async for info in self.job.store.list(f"{JOB}/")]
        objects = {info.key.removeprefix(f"{JOB}/"): await self.job.store.get(info.key) for info in infos}
        expected = dict(self.history)
        for commit in await self.job.commits():
            invariants.assert_commit_is_whole(commit, objects)
            contents = invariants.read_contents(commit, objects)
            assert {key: value for (_, key), value in contents.items()} == expected[commit.checkpoint_id]
            self.with_bases += bool(commit.ranges[0].bases)

    async def _reopen(self) -> None:
        await self.leave()
        await self.open()


@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TUNINGS, LIVES)
@run_virtual
async def test_the_state_is_the_dictionary_whatever_becomes_of_the_bases(
    tuning: dict[str, Any], operations: list[tuple[Any, ...]]
) -> None:
    """And every commit restores to what was committed, in whole and in parts."""
    await Life(tuning).run(operations)


@run_virtual
async def test_the_lives_above_do_commit_bases() -> None:
    """What the model looks at is there to be looked at."""
    life = Life({"materialize_handles_max": 1})
    await life.run([("put", "a", 1), ("checkpoint",), ("hold",), ("put", "b", 1), ("checkpoint",), ("kill",)])
    assert life.with_bases == 1
