"""Savepoints: names under which commits are kept until the name is dropped; and how far the rest of the log was swept.

A savepoint is a marker, an object whose key has the name and the commit it keeps (`names.SavepointMarker`). The marker
is made *before* the commit, which it knows by its place in the log and by the stamp of the attempt to commit. So here
too the commit is the only moment at which anything comes to exist: with it the savepoint is there, without it there is
none, whatever is killed in between. A marker whose commit was not made means nothing, and a sweep removes it.
"""

import math
from collections.abc import AsyncIterator

import anyio
import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.names import (
    FLOORS,
    SAVEPOINTS,
    SavepointMarker,
    check_savepoint_name,
    floor_of,
    marker_of,
)
from statebackend._log.reader import LogReader
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import (
    InputError,
    MissingObjectError,
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
    """The savepoints of one job in its primary, whose log `log` reads. Most of this needs `Capability.LIST`.

    `timeout_s`: how long a commit that is to be a savepoint waits for its marker.
    """

    def __init__(self, store: ObjectStore, log: LogReader, *, timeout_s: float = math.inf) -> None:
        self._store = store
        self._log = log
        self._timeout_s = timeout_s

    async def mark(self, name: str, commit: Commit) -> None:
        """Make the marker of the savepoint `name` for `commit`, which is made next. Call once per attempt to commit.

        Raises `InputError`, `SavepointExistsError` if the name is taken, or `StoreUnavailableError` without an answer
        in time: then do not make the commit. A failed or cancelled call may leave a marker that means nothing.
        """
        with anyio.move_on_after(self._timeout_s) as bounded:
            # Another process may take the name at the same moment; but it needs the next place in the log too, and only
            # one of the two commits gets that. The other marker then means nothing.
            if await self._find(check_savepoint_name(name)) is not None:
                raise SavepointExistsError("there is a savepoint of that name: drop it, or use another", name=name)
            await self._store.put(SavepointMarker(name, commit.sequence, commit.stamp).key, ())
        if bounded.cancelled_caught:
            raise StoreUnavailableError("no answer to the marker of a savepoint in time", name=name)

    async def find(self, name: str) -> Commit:
        """The commit that the savepoint keeps. Raises `SavepointNotFoundError`, `InputError`, or as `commit_of`."""
        if (found := await self._find(check_savepoint_name(name))) is None:
            raise SavepointNotFoundError("the job has no savepoint of that name", name=name)
        return found

    async def floor(self) -> int:
        """The sweep floor: below this entry, only savepoints still have all they need. 0 if nothing was ever swept.

        A sweep raises the floor, then looks for claims, then deletes. So a writer that asks after its claim knows what
        no sweep will touch: either it sees the floor, or the sweep sees its claim.
        """
        if Capability.LIST not in self._store.capabilities:
            return 0
        return max([floor_of(info.key) or 0 async for info in self._store.list(FLOORS)], default=0)

    async def with_id(self, checkpoint_id: CheckpointId) -> Commit | None:
        """Return the commit with that id if it is a savepoint. A store that cannot list has none."""
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
        """Drop a savepoint: the next sweep treats its checkpoint as if it had never had a name.

        Raises `SavepointNotFoundError`. A failed or cancelled call has dropped it, or not: call again. The commit is
        not read, so a savepoint whose commit is damaged can be dropped.
        """
        dropped = [marker async for marker in self._markers(f"{SAVEPOINTS}{check_savepoint_name(name)}/")]
        for marker in dropped:
            await self._store.delete(marker.key)
        if not dropped:
            raise SavepointNotFoundError("the job has no savepoint of that name", name=name)

    async def commit_of(self, marker: SavepointMarker) -> Commit | None:
        """Return the commit that was made after this marker, `None` if there is none. Raises as `LogReader.load`."""
        try:
            entry = await self._log.load(marker.sequence)
        except MissingObjectError:
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
