"""A job with the states of `odd_states.py` on real files, in either table, of one owner or of several."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend import cli
from statebackend._tables.key_groups import key_group
from statebackend._upkeep.job_primary import open_job_primary
from tests.knobs import settings_with
from tests.reading.odd_states import OPERATOR, Written

GROUPS = 6


class Job:
    """The job of so many owners on real files, and what it has to hold."""

    def __init__(self, directory: Path, table: str, owners: int, bases: str) -> None:
        """`bases`: "none" are written, or they have "all" of the newest checkpoint, or "some" of it."""
        self.directory = directory
        self._bases = bases
        self.parts = [
            sb.owners.KeyGroupRange(GROUPS * at // owners, GROUPS * (at + 1) // owners - 1) for at in range(owners)
        ]
        self.settings = settings_with(
            job="fleet",
            primary=f"file://{directory}/primary",
            max_parallelism=GROUPS,
            table=table,
            table_dir=f"{directory}/tables",
            table_memory_bytes=4 << 20,
            checkpoints_retained=9,
            materialize_handles_max=int(bases != "none"),
            materialize_interval_s=0.0,
            materialize_changelog_ratio=0,
            persist_delay_s=0.0,
        )
        self.written = Written(f"{table} {owners} {bases}")

    async def work(self) -> None:
        """Checkpoints 1 to 3 with something drawn in each, and one more where all of it is to lie in bases."""
        async with self._opened() as (coordinator, owners):
            for checkpoint_id in (1, 2, 3):
                settle = self._bases == "all" or checkpoint_id == 1
                self.written.write(owners, self._owner_of)
                for place, owner in enumerate(owners):
                    for mode in OPERATOR:
                        state = owner.operator_state(mode, int, mode=mode)
                        state.replace([7, 8] if mode == "broadcast" else [place, checkpoint_id])
                await self._commit(coordinator, owners, checkpoint_id, settle=settle)
            if self._bases == "all":
                await self._commit(coordinator, owners, 4, settle=False)
        await self._check_place()

    def operator(self, mode: str) -> list[int]:
        """The elements that one owner of everything would have."""
        return [7, 8] if mode == "broadcast" else [number for place in range(len(self.parts)) for number in (place, 3)]

    def run(self, capsys: pytest.CaptureFixture[str], command: str, *options: str) -> list[Any]:
        """The rows that a command prints."""
        capsys.readouterr()
        assert cli.main([command, *options, "--primary", self.settings.primary, "--job", "fleet"]) == cli.OK
        return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]

    @property
    def newest(self) -> int:
        """The id of the newest checkpoint."""
        return max(self.written.at)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[tuple[Any, Sequence[sb.StateBackend]]]:
        async with AsyncExitStack() as stack:
            if len(self.parts) == 1:
                yield None, [await stack.enter_async_context(sb.open_backend(self.settings))]
                return
            coordinator = await stack.enter_async_context(sb.owners.open_coordinator(self.settings))
            openings = [sb.open_backend(self.settings, key_groups=part, owners=self.parts) for part in self.parts]
            yield coordinator, [await stack.enter_async_context(opening) for opening in openings]

    def _owner_of(self, key: sb.Key) -> int:
        return next(place for place, part in enumerate(self.parts) if key_group(key, GROUPS) in part)

    async def _commit(
        self, coordinator: Any, owners: Sequence[sb.StateBackend], checkpoint_id: int, *, settle: bool
    ) -> None:
        if coordinator is None:
            await owners[0].checkpoint(checkpoint_id)
        else:
            await coordinator.commit(checkpoint_id, [await owner.snapshot(checkpoint_id) for owner in owners])
            for owner in owners:
                await owner.notify_complete(checkpoint_id)
        if settle:
            for owner in owners:
                await owner._base_writer.settled()
        self.written.committed(checkpoint_id)

    async def _check_place(self) -> None:
        """The state lies as was asked for."""
        async with open_job_primary(self.settings, None) as primary:
            commit = await primary.log.newest(await primary.log.end())
        assert commit is not None
        assert [part.key_groups for part in commit.ranges] == self.parts
        for part in commit.ranges:
            assert bool(part.changelog) == (self._bases != "all")
            assert bool(part.all_bases) == (self._bases != "none")
            assert bool(part.rocksdb) == (bool(part.all_bases) and self.settings.table == "rocksdb")


def written_job(directory: Path, table: str, owners: int, bases: str) -> Job:
    """The job, which has done its work, and whose state lies as was asked for."""
    job = Job(directory, table, owners, bases)
    anyio.run(job.work)
    return job
