"""Random lives of a job whose bases are RocksDB, on real files in virtual time, against a dictionary.

It changes its table and its owners, is killed, goes back to older checkpoints, loses and finds damaged what this host
has; uploads fail. The state is always the dictionary's, and every commit ever made is whole.

`STATEBACKEND_ROCKSDB_LIVES` says how many lives there are.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend.testing import Fail, run_virtual
from statebackend.testing.virtual_time import settle
from tests import invariants
from tests.backend.rocksdb_job import JOB, MAX_PARALLELISM, RocksDBJob, commit, contents
from tests.mortal_store import MortalStore

pytest.importorskip("rocksdict", reason="the extra rocksdb")

LIVES_MAX = int(os.environ.get("STATEBACKEND_ROCKSDB_LIVES", "5"))
KEYS = st.integers(0, 9).map("key {}".format)
NUMBERS = st.integers(0, 2**16)
OPERATIONS = st.one_of(
    st.tuples(st.just("commit"), st.dictionaries(KEYS, st.none() | st.integers(-3, 3), max_size=4)),
    st.tuples(st.just("commit"), st.dictionaries(KEYS, st.none() | st.integers(-3, 3), max_size=4)),
    st.tuples(st.sampled_from(["leave", "kill", "lose", "fail", "switch"])),
    st.tuples(st.just("damage"), NUMBERS, NUMBERS),
    st.tuples(
        st.just("part"), st.integers(1, MAX_PARALLELISM - 1), st.dictionaries(KEYS, st.integers(-3, 3), max_size=3)
    ),
    st.tuples(st.just("go_back"), NUMBERS),
)


class Life:
    """The job, and what its state has to be."""

    def __init__(self, directory: Path) -> None:
        self.job = RocksDBJob(directory, roots=2, materialize_failures_max=1000)
        self.table = "rocksdb"
        self.state: dict[sb.Key, int] = {}
        self.history: list[tuple[int, dict[sb.Key, int]]] = []
        self.stack = AsyncExitStack()

    async def run(self, operations: Sequence[tuple[Any, ...]]) -> None:
        await self.open()
        try:
            for name, *arguments in operations:
                await getattr(self, name)(*arguments)
                assert contents(self.backend) == self.state
        finally:
            await self.stack.aclose()
        await self.check()

    async def open(self, checkpoint_id: int | None = None) -> None:
        await self.stack.aclose()
        self.process = MortalStore(self.job.primary, "")
        opened = self.job.open(changes={"table": self.table}, store=self.process, checkpoint_id=checkpoint_id)
        self.backend = await self.stack.enter_async_context(opened)
        self.job.watcher.failed.clear()

    async def commit(self, changes: dict[str, int | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.backend.value_state("n", int).pop(key, None)
                self.state.pop(key, None)
            else:
                self.backend.value_state("n", int)[key] = self.state[key] = value
        info = await commit(self.backend)
        self.job.primary.plan.clear()
        self.history.append((info.checkpoint_id, dict(self.state)))

    async def leave(self) -> None:
        await self.open()

    async def kill(self) -> None:
        self.process.dead = True
        await self.open()

    async def switch(self) -> None:
        self.table = "heap" if self.table == "rocksdb" else "rocksdb"
        await self.open()

    async def lose(self) -> None:
        await self.stack.aclose()
        for root in self.job.settings.local:
            shutil.rmtree(root, ignore_errors=True)
        await self.open()

    async def damage(self, which: int, position: int) -> None:
        """By numbers, taken modulo: names differ from run to run."""
        await self.stack.aclose()
        files = sorted(path for each in self.job.copies for path in each.iterdir())
        if files:
            path = files[which % len(files)]
            content = bytearray(path.read_bytes())
            content[position % len(content)] ^= 1 << which % 8
            path.write_bytes(content)
        await self.open()

    async def fail(self) -> None:
        """The third file of the next base, if there is one, is refused. A checkpoint's own changes are not."""
        self.job.primary.plan.append(Fail(operation="put", key="*/segments/*", nth=3))

    async def go_back(self, which: int) -> None:
        if self.history:
            checkpoint_id, state = self.history[which % len(self.history)]
            self.state = dict(state)
            await self.open(checkpoint_id)
            assert contents(self.backend) == state
            await self.commit({})

    async def part(self, border: int, changes: dict[str, int]) -> None:
        """A checkpoint by two owners. One of all key groups would claim the job for itself."""
        await self.stack.aclose()
        parts = [sb.owners.KeyGroupRange(0, border - 1), sb.owners.KeyGroupRange(border, MAX_PARALLELISM - 1)]
        async with self.job.open_parts(*parts, changes={"table": self.table}) as owners:
            assert owners.contents == self.state
            await owners.checkpoint(changes)
            self.state.update(changes)
            await settle()
        self.history.append((self.job.commits()[-1].checkpoint_id, dict(self.state)))
        await self.open()

    async def check(self) -> None:
        """Every commit ever made is whole, and the newest can be opened from the primary alone."""
        prefix = f"{JOB}/"
        infos = [info async for info in self.job.primary.list(prefix)]
        objects = {info.key.removeprefix(prefix): await self.job.primary.get(info.key) for info in infos}
        for each in self.job.commits():
            invariants.assert_commit_is_whole(each, objects)
        async with self.job.open(changes={"local": ()}, read_only=True) as backend:
            assert contents(backend) == self.state


@given(st.lists(OPERATIONS, min_size=4, max_size=14))
@hypothesis_settings(max_examples=LIVES_MAX, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_state_is_the_dictionary_whatever_happens(operations: Sequence[tuple[Any, ...]]) -> None:
    """And every commit is whole."""

    @run_virtual
    async def live() -> None:
        with tempfile.TemporaryDirectory() as directory:
            await Life(Path(directory)).run(operations)

    live()
