"""Savepoints: names for commits that are kept until the name is dropped; and how far the others were swept.

    mark  := "savepoints/" name "/" sequence "-" stamp         an object of no bytes; sequence of 12 digits
    floor := "swept/" sequence                                 an object of no bytes

A mark is made *before* the commit that it names, which it knows by its place in the log and by the stamp of its
attempt. So the commit is the only moment at which anything comes to exist, here too: with it the savepoint is there,
without it there is none, whatever is killed in between. A mark whose commit was not made means nothing, and a sweep
removes it.
"""

import math
from collections.abc import AsyncIterator

import anyio
import msgspec

from statebackend._codec.commit import Commit, decode_entry
from statebackend._log.names import (
    FLOORS,
    SAVEPOINTS,
    SavepointMarker,
    check_savepoint_name,
    entry_key,
    floor_of,
    marker_of,
)
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import (
    InputError,
    ObjectNotFoundError,
    SavepointExistsError,
    SavepointNotFoundError,
    StoreUnavailableError,
)
from statebackend.ids import CheckpointId, CommitSequence


class SavepointInfo(msgspec.Struct, frozen=True):
    """A savepoint: its name, and the checkpoint that it keeps."""

    name: str
    checkpoint_id: CheckpointId
    sequence: CommitSequence
    committed_at_s: float


class Savepoints:
    """The savepoints of one job in its primary. Everything here needs `Capability.LIST`.

    `timeout_s`: how long a commit that is to be a savepoint waits for its marker.
    """

    def __init__(self, store: ObjectStore, job: str, *, timeout_s: float = math.inf) -> None:
        self._store = store
        self._job = job
        self._timeout_s = timeout_s

    async def mark(self, name: str, commit: Commit) -> None:
        """Say that `commit`, which is about to be made, is the savepoint `name`. Called once per attempt to commit.

        Raises `InputError`, or `SavepointExistsError` where the name is taken, `StoreUnavailableError` without an
        answer in time; the commit is then not to be made. A failed or cancelled call may have left a mark that means
        nothing.
        """
        with anyio.move_on_after(self._timeout_s) as bounded:
            if await self._find(check_savepoint_name(name)) is not None:
                raise SavepointExistsError("there is a savepoint of that name: drop it, or use another", name=name)
            await self._store.put(SavepointMarker(name, commit.sequence, commit.stamp).key, ())
        if bounded.cancelled_caught:
            raise StoreUnavailableError("no answer to the mark of a savepoint in time", name=name)

    async def find(self, name: str) -> Commit:
        """The commit that the savepoint keeps. Raises `SavepointNotFoundError`, `InputError`, `CorruptCommitError`."""
        if (found := await self._find(check_savepoint_name(name))) is None:
            raise SavepointNotFoundError("the job has no savepoint of that name", name=name)
        return found

    async def floor(self) -> int:
        """The entry below which a sweep may have deleted what commits need, unless they are savepoints.

        A sweep raises it before it looks who has claimed the job, and deletes after that. So who asks after his claim
        knows what no sweep will touch. 0 where nothing was swept, or nothing can be.
        """
        if Capability.LIST not in self._store.capabilities:
            return 0
        return max([floor_of(info.key) or 0 async for info in self._store.list(FLOORS)], default=0)

    async def with_id(self, checkpoint_id: CheckpointId) -> Commit | None:
        """The commit of that id if it is a savepoint. Where nothing can be listed there are none."""
        if Capability.LIST in self._store.capabilities:
            async for marker in self._markers(SAVEPOINTS):
                commit = await self.commit_of(marker)
                if commit is not None and commit.checkpoint_id == checkpoint_id:
                    return commit
        return None

    async def all(self) -> list[SavepointInfo]:
        """Every savepoint, in the order of their commits."""
        infos = [
            SavepointInfo(marker.name, commit.checkpoint_id, commit.sequence, commit.committed_at_s)
            async for marker in self._markers(SAVEPOINTS)
            if (commit := await self.commit_of(marker)) is not None
        ]
        return sorted(infos, key=lambda info: (info.sequence, info.name))

    async def drop(self, name: str) -> None:
        """Let go of a savepoint: from the next sweep on, its checkpoint is kept or not as if it had never had a name.

        Raises `SavepointNotFoundError`. A failed or cancelled call has dropped it, or not: call again. The commit is
        not looked at, so a savepoint that is damaged can be dropped.
        """
        dropped = [marker async for marker in self._markers(f"{SAVEPOINTS}{check_savepoint_name(name)}/")]
        for marker in dropped:
            await self._store.delete(marker.key)
        if not dropped:
            raise SavepointNotFoundError("the job has no savepoint of that name", name=name)

    async def commit_of(self, marker: SavepointMarker) -> Commit | None:
        """The commit that was made after this marker, `None` where none was. Raises as `decode_entry`."""
        key = entry_key(marker.sequence)
        try:
            entry = decode_entry(await self._store.get(key), key, job=self._job)
        except ObjectNotFoundError:
            return None
        return entry if isinstance(entry, Commit) and marker.names(entry) else None

    async def _find(self, name: str) -> Commit | None:
        async for marker in self._markers(f"{SAVEPOINTS}{name}/"):
            if (commit := await self.commit_of(marker)) is not None:
                return commit
        return None

    async def _markers(self, prefix: str) -> AsyncIterator[SavepointMarker]:
        if Capability.LIST not in self._store.capabilities:
            raise InputError("savepoints need a primary that can list its objects", needs=Capability.LIST.value)
        found = [marker_of(info.key) async for info in self._store.list(prefix)]
        for marker in filter(None, found):
            yield marker
