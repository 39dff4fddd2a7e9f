"""A job on real files whose stores fail on command, and what becomes of files that are watched."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

import statebackend as sb
from statebackend._codec.commit import Claim, Commit, Entry, decode_entry
from statebackend._tasks import open_tasks
from statebackend.objectstore import LocalStore
from statebackend.testing import Fault, FaultyStore
from statebackend.testing.virtual_time import VirtualClock
from statebackend.uploaders import DuplicatingUploader
from tests.knobs import settings_with
from tests.ownership.table import Fate

JOB = "fleet"


class Watch:
    """Files that are there when the watch begins. All of them must meet the same fate."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._before = {path: path.read_bytes() for path in paths}
        assert self._before, "nothing to watch"

    def fate(self) -> Fate:
        """What became of the files."""
        (fate,) = {_fate(content, path) for path, content in self._before.items()}
        return fate


def _fate(before: bytes, path: Path) -> Fate:
    if not path.exists():
        return "gone"
    return "stays" if path.read_bytes() == before else "replaced"


class Disk:
    """The directory of a job: `primary/`, and local roots beside it."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.directory = directory
        self.primary = FaultyStore(LocalStore(directory / "primary"))
        self.changes = changes

    def settings(self, roots: int = 1, **changes: Any) -> sb.Settings:
        return settings_with(
            job=JOB,
            primary=f"file://{self.directory}/primary",
            local=tuple(f"{self.directory}/local{number}" for number in range(roots)),
            persist_delay_s=0.0,
            upload__primary_outage_s=0.0,
            **{"inline_bytes_max": 0, **self.changes, **changes},
        )

    @asynccontextmanager
    async def backend(
        self,
        *,
        secondary: Iterable[Fault] | None = None,
        checkpoint_id: int | None = None,
        key_groups: sb.owners.KeyGroupRange | None = None,
        **changes: Any,
    ) -> AsyncGenerator[sb.StateBackend]:
        """The job, opened. With `secondary`, the store of its local copies meets these faults."""
        settings = self.settings(**changes)
        async with open_tasks() as tasks:

            def uploader(primary: sb.ObjectStore, local: sb.ObjectStore | None) -> sb.StateChangeUploader:
                assert local is not None
                return DuplicatingUploader(
                    primary,
                    FaultyStore(local, secondary or ()),
                    secondary_grace_s=settings.secondary_grace_s,
                    dropped=lambda *_: None,
                    tasks=tasks,
                )

            async with sb.open_backend(
                settings,
                store=self.primary,
                uploader=uploader if secondary is not None else None,
                clock=VirtualClock(),
                checkpoint_id=checkpoint_id,
                key_groups=key_groups,
            ) as backend:
                yield backend

    async def reopen(self, **options: Any) -> sb.RestoreReport | None:
        """Open the job and leave it again."""
        async with self.backend(**options) as backend:
            return backend.restored

    @property
    def segments(self) -> set[Path]:
        """The primary's copies."""
        return set(self.directory.glob(f"primary/{JOB}/segments/[!.]*"))

    @property
    def copies(self) -> set[Path]:
        """The local copies in all roots."""
        return set(self.directory.glob(f"local*/job_{JOB}/taskowned/segments/[!.]*"))

    @property
    def commit_copies(self) -> set[Path]:
        """The local copies of commits."""
        return set(self.directory.glob(f"local*/job_{JOB}/taskowned/commits/[!.]*"))

    @property
    def both(self) -> set[Path]:
        """All copies of segments."""
        return self.segments | self.copies

    @property
    def commits(self) -> set[Path]:
        """The commit objects."""
        return {path for path, entry in self._log() if isinstance(entry, Commit)}

    @property
    def claims(self) -> set[Path]:
        """The other entries of the log."""
        return {path for path, entry in self._log() if isinstance(entry, Claim)}

    def _log(self) -> list[tuple[Path, Entry]]:
        paths = self.directory.glob(f"primary/{JOB}/commits/[!.]*")
        return [(path, decode_entry(path.read_bytes(), path.name, job=JOB)) for path in paths]

    @property
    def temporaries(self) -> set[Path]:
        """Files on their way, in all directories."""
        return set(self.directory.rglob(".*.tmp"))


async def commit(backend: sb.StateBackend, checkpoint_id: int) -> None:
    """A change, committed."""
    backend.value_state("n", int)["k"] = checkpoint_id
    await backend.checkpoint(checkpoint_id)


async def settle() -> None:
    """Let all that goes on come to rest, threads included. Takes a minute, and no time."""
    await anyio.sleep(60.0)
