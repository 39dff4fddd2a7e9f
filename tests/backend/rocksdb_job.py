"""A job whose tables lie in RocksDB and whose every commit is followed by a base, on real files. Time is virtual."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import statebackend as sb
from statebackend._codec.commit import Commit, decode_entry
from statebackend._tables.key_groups import key_group
from statebackend.ids import RocksDBBase
from statebackend.objectstore import LocalStore
from statebackend.testing import FaultyStore
from statebackend.testing.virtual_time import VirtualClock, settle
from tests.checkpoint.bases import Watcher
from tests.knobs import replaced, settings_with

JOB = "fleet"
MAX_PARALLELISM = 12


@dataclass
class RocksDBWatcher(Watcher):
    """Also of local copies."""

    dropped: list[str] = field(default_factory=list[str])

    def local_copy_dropped(self, name: str, reason: str) -> None:
        self.dropped.append(reason)


class RocksDBJob:
    """The job in `directory`, opened again and again, by one owner or by several."""

    def __init__(self, directory: Path, *, roots: int = 1, **changes: Any) -> None:
        self.directory = directory
        self.primary = FaultyStore(LocalStore(directory / "primary"))
        self.watcher = RocksDBWatcher()
        self.settings = settings_with(
            job=JOB,
            primary=f"file://{directory}/primary",
            local=tuple(f"{directory}/local{number}" for number in range(roots)),
            **{
                "max_parallelism": MAX_PARALLELISM,
                "table": "rocksdb",
                "table_memory_bytes": 4 << 20,
                "table_dir": f"{directory}/tables",
                "materialize_handles_max": 1,
                "materialize_interval_s": 0,
                "materialize_retry_delay_s": 0,
                "persist_delay_s": 0,
                "upload__retry_delay_s": 0,
                "upload__attempts_max": 1,
                "upload__primary_outage_s": 0,
                "inline_bytes_max": 0,
                **changes,
            },
        )

    @asynccontextmanager
    async def open(
        self, *, changes: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncGenerator[sb.StateBackend]:
        settings = replaced(self.settings, **(changes or {}))
        options = {"store": self.primary, "clock": VirtualClock(), "observer": self.watcher} | options
        async with sb.open_backend(settings, **options) as backend:
            yield backend

    @asynccontextmanager
    async def open_parts(self, *parts: sb.owners.KeyGroupRange, **options: Any) -> AsyncGenerator["Parts"]:
        async with AsyncExitStack() as stack:
            coordinator = await stack.enter_async_context(
                sb.owners.open_coordinator(self.settings, store=self.primary, clock=VirtualClock())
            )
            owners = [
                await stack.enter_async_context(self.open(key_groups=part, owners=parts, **options)) for part in parts
            ]
            yield Parts(coordinator, owners)

    def commits(self) -> list[Commit]:
        """Every commit, oldest first."""
        paths = sorted(self.directory.glob(f"primary/{JOB}/commits/[!.]*"))
        entries = [decode_entry(path.read_bytes(), path.name, job=JOB) for path in paths]
        return [entry for entry in entries if isinstance(entry, Commit)]

    def newest_base(self) -> RocksDBBase:
        """The RocksDB base of the newest commit, which has one."""
        (part,) = self.commits()[-1].ranges
        (base,) = part.rocksdb
        return base

    def newest_of_all(self) -> RocksDBBase:
        """The RocksDB base of the newest commit, in however many parts."""
        return next(base for part in self.commits()[-1].ranges for base in part.rocksdb)

    @property
    def objects(self) -> set[str]:
        """The keys of all segments and files in the primary."""
        return {f"segments/{path.name}" for path in self.directory.glob(f"primary/{JOB}/segments/[!.]*")}

    @property
    def copies(self) -> list[Path]:
        """The directories of RocksDB bases in all local roots."""
        return sorted(self.directory.glob(f"local*/job_{JOB}/op_*/chk_*"))

    @property
    def scratch(self) -> list[Path]:
        """The directories of live backends."""
        return [path for path in self.directory.glob("tables/*") if path.is_dir()]


class Parts:
    """Owners of parts, and who commits for them."""

    def __init__(self, coordinator: sb.owners.CheckpointCoordinator, owners: list[sb.StateBackend]) -> None:
        self.coordinator = coordinator
        self.owners = owners

    async def checkpoint(self, changes: Mapping[str, int]) -> None:
        """One checkpoint of all with these changes."""
        checkpoint_id = self.coordinator.next_checkpoint_id
        for owner in self.owners:
            owned = {
                key: value for key, value in changes.items() if key_group(key, MAX_PARALLELISM) in owner.key_groups
            }
            owner.value_state("n", int).update(owned)
        await self.coordinator.commit(checkpoint_id, [await owner.snapshot(checkpoint_id) for owner in self.owners])
        for owner in self.owners:
            await owner.notify_complete(checkpoint_id)

    @property
    def contents(self) -> dict[sb.Key, int]:
        return {key: value for owner in self.owners for key, value in owner.value_state("n", int).items()}


def numbered(numbers: Iterator[int] | range, value: int) -> dict[str, int]:
    return {f"key {number}": value for number in numbers}


async def commit(backend: sb.StateBackend, changes: Mapping[str, int] | None = None) -> sb.CheckpointInfo:
    """One checkpoint with these changes, and everything that follows from it."""
    backend.value_state("n", int).update(changes or {})
    info = await backend.checkpoint(backend.next_checkpoint_id)
    await settle()
    return info


def contents(backend: sb.StateBackend) -> dict[sb.Key, int]:
    return dict(backend.value_state("n", int))
