"""Savepoints: names under which commits are kept until the name is dropped; and how far the rest of the log was swept.

A savepoint is a marker, an object whose key has the name and the commit it keeps (`names.SavepointMarker`). The marker
is made *before* the commit, which it knows by its place in the log and by the stamp of the attempt to commit. So here
too the commit is the only moment at which anything comes to exist: with it the savepoint is there, without it there is
none, whatever is killed in between. A marker whose commit was not made means nothing, and a sweep removes it.

A commit that exists gets a marker later by other means, since a sweep may be about to delete it:

    pin -> look for the name -> look for the floor -> marker -> look for the pin -> delete the pin

A sweep raises its floor, then looks for pins and markers, then deletes. So either the floor is seen here, or the pin is
seen there. A pin alone is no savepoint: a process that dies before it has looked leaves no name of a broken commit.
"""

import math
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager, suppress

import anyio
import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.log_reader import LogReader
from statebackend._log.milestones import NONE, Milestone, milestones_in
from statebackend._log.names import (
    FLOORS,
    SAVEPOINTS,
    Erasure,
    SavepointMarker,
    SavepointPin,
    SavepointStart,
    beside_marker,
    check_savepoint_name,
    entry_key,
    erasure_of,
    floor_key,
    floor_of,
    marker_of,
)
from statebackend._tasks import foreign
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    InputError,
    MissingObjectError,
    ObjectNotFoundError,
    SavepointExistsError,
    SavepointNotFoundError,
    StoreUnavailableError,
)
from statebackend.ids import CheckpointId, CommitSequence, Epoch, SourceMark


class SavepointInfo(msgspec.Struct, frozen=True):
    """A savepoint: its name, and the checkpoint that it keeps.

    `source`: the newest batch of Spark in that state, if it has one. A stream that starts from there goes on with the
    batch after it.
    """

    name: str
    checkpoint_id: CheckpointId
    sequence: CommitSequence
    committed_at_s: float
    source: SourceMark | None = None

    @classmethod
    def of(cls, name: str, commit: Commit) -> "SavepointInfo":
        """The savepoint `name` of that commit."""
        return cls(name, commit.checkpoint_id, commit.sequence, commit.committed_at_s, commit.summary.newest_mark)


class Savepoints:
    """The savepoints of one job in its primary, whose log `log` reads. Most of this needs `Capability.LIST`.

    `timeout_s`: how long a commit that is to be a savepoint waits for its marker, and `keep` for its name, then for it.
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
        with self._in_time(name):
            await self._check_free(check_savepoint_name(name))
            marker = SavepointMarker(name, commit.sequence, commit.stamp)
            await self._store.put(marker.key, ())
            # Of two commits with one name only one gets the next place in the log; the other's marker means nothing.
            # But `keep` needs no place. It looks after its pin, and this after the marker: so one sees the other.
            await self._check_free(name)

    async def keep(self, name: str, commit: Commit, *, random: str) -> SavepointInfo:
        """Make `commit`, which exists, the savepoint `name`, beside writers and sweeps. `random`: of no other call.

        Raises `InputError`, `SavepointExistsError`, `CheckpointNotFoundError` if the commit is not retained any more,
        or `StoreError`, also without an answer in time. A failed or cancelled call may have made the savepoint: look
        for it, or drop it.
        """
        marker = SavepointMarker(check_savepoint_name(name), commit.sequence, commit.stamp)
        pin = SavepointPin(marker, random)
        with self._in_time(name):
            await self._check_free(name)
        try:
            with self._in_time(name):
                await self._store.put(pin.key, ())
                floor = await self.floor()
                await self._check_free(name, own=pin, floor=floor)
                await self._check_retained(commit, floor)
                await self._store.put(marker.key, ())
                if await self._store.head(pin.key) is None:  # a sweep took it for one that was left behind
                    await self._store.delete(marker.key)
                    raise StoreUnavailableError("the savepoint took too long to make: make it again", name=name)
        finally:
            with anyio.move_on_after(self._timeout_s, shield=True), suppress(Exception):
                await foreign(self._store.delete(pin.key))
        return SavepointInfo.of(name, commit)

    async def find(self, name: str) -> Commit:
        """The commit that the savepoint keeps. Raises `SavepointNotFoundError`, `InputError`, or as `commit_of`."""
        if (found := await self._find(check_savepoint_name(name))) is None:
            raise SavepointNotFoundError(
                "the job has no savepoint of that name: `statebackend savepoints` lists them", name=name
            )
        return found

    async def floor(self) -> int:
        """The sweep floor: below this entry, only savepoints still have all they need. 0 if nothing was ever swept.

        A sweep raises the floor, then looks for claims, then deletes. So a writer that asks after its claim knows what
        no sweep will touch: either it sees the floor, or the sweep sees its claim.

        A commit that erases keys is a floor from the moment it exists: what is older would bring them back.
        """
        if Capability.LIST not in self._store.capabilities:
            return 0
        keys = [info.key async for info in self._store.list(FLOORS)]
        floor = max((floor_of(key) or 0 for key in keys), default=0)
        for erasure in sorted(filter(None, map(erasure_of, keys)), key=lambda each: each.sequence, reverse=True):
            if erasure.sequence > floor and await self.is_made(erasure):
                return erasure.sequence
        return floor

    async def milestones(self) -> tuple[int, Mapping[int, Milestone]]:
        """The sweep floor, and the commits below it that are kept for their age, by sequence.

        Raises `CorruptObjectError`.
        """
        while True:
            floor = await self.floor()
            try:
                return floor, milestones_in(await self._store.get(floor_key(floor)), floor_key(floor))
            except ObjectNotFoundError:  # it is not there: nothing was swept, or a commit that erases keys is the floor
                if await self.floor() == floor:
                    return floor, NONE

    async def is_milestone(self, commit: Commit) -> bool:
        """True if the commit is kept for its age. Raises `CorruptObjectError`."""
        _, milestones = await self.milestones()
        found = milestones.get(commit.sequence)
        return found is not None and found.names(commit)

    async def is_made(self, erasure: Erasure) -> bool:
        """True if the commit that was to erase keys exists, or lies there damaged. Raises as `LogReader.load`."""
        try:
            entry = await self._log.load(erasure.sequence)
        except MissingObjectError:
            return False
        except CorruptCommitError:
            return True
        return isinstance(entry, Commit) and entry.epoch == erasure.epoch

    async def with_id(self, checkpoint_id: CheckpointId) -> Commit | None:
        """Return the commit with that id if it is a savepoint or a milestone. A store that cannot list has none."""
        if Capability.LIST in self._store.capabilities:
            async for marker in self._markers(SAVEPOINTS):
                with suppress(CorruptCommitError):  # of another savepoint, for all we know: it hides none beside it
                    commit = await self.commit_of(marker)
                    if commit is not None and commit.checkpoint_id == checkpoint_id:
                        return commit
            _, milestones = await self.milestones()
            for milestone in milestones.values():
                if milestone.checkpoint_id == checkpoint_id:
                    return await self.commit_of(milestone)
        return None

    async def all(self) -> list[SavepointInfo]:
        """Every savepoint, in the order of their commits. Raises `CorruptCommitError`, naming the savepoint to drop."""
        infos: list[SavepointInfo] = []
        async for marker in self._markers(SAVEPOINTS):
            try:
                commit = await self.commit_of(marker)
            except CorruptCommitError as error:
                raise CorruptCommitError(
                    "the commit of a savepoint is damaged: repair it, or drop the savepoint",
                    savepoint=marker.name,
                    object=entry_key(marker.sequence),
                ) from error
            if commit is not None:
                infos.append(SavepointInfo.of(marker.name, commit))
        return sorted(infos, key=lambda info: (info.sequence, info.name))

    async def drop(self, name: str) -> None:
        """Drop a savepoint: the next sweep treats its checkpoint as if it had never had a name.

        Raises `SavepointNotFoundError`. A failed or cancelled call has dropped it, or not: call again. The commit is
        not read, so a savepoint whose commit is damaged can be dropped.
        """
        keys = await self._keys(f"{SAVEPOINTS}{check_savepoint_name(name)}/")
        dropped = [key for key in keys if marker_of(key)]  # first: what lies beside a marker means nothing without it
        dropped += [key for key in keys if beside_marker(key)]
        for key in dropped:
            await self._store.delete(key)
        if not dropped:
            raise SavepointNotFoundError(
                "the job has no savepoint of that name: `statebackend savepoints` lists them", name=name
            )

    async def begin(self, name: str, epoch: Epoch) -> None:
        """Record that `epoch` goes on from the savepoint. Call it before the first commit. Raises as `find`."""
        commit = await self.find(name)
        marker = SavepointMarker(name, commit.sequence, commit.stamp)
        await self._store.put(SavepointStart(marker, epoch).key, ())

    async def is_begun(self, name: str, commit: Commit, newest: Epoch) -> bool:
        """True if an epoch up to `newest`, that of the newest commit, goes on from `commit`, which is the savepoint."""
        beside = map(beside_marker, await self._keys(f"{SAVEPOINTS}{check_savepoint_name(name)}/"))
        starts = (each for each in beside if isinstance(each, SavepointStart))
        return any(start.marker.names(commit) and start.epoch <= newest for start in starts)

    async def commit_of(self, marker: SavepointMarker | Milestone) -> Commit | None:
        """Return the commit that it keeps, `None` if there is none. Raises as `LogReader.load`."""
        try:
            entry = await self._log.load(marker.sequence)
        except MissingObjectError:
            return None
        return entry if isinstance(entry, Commit) and marker.names(entry) else None

    @contextmanager
    def _in_time(self, name: str) -> Generator[None]:
        """Raise `StoreUnavailableError` if what is awaited within takes longer than the timeout."""
        with anyio.move_on_after(self._timeout_s) as bounded:
            yield
        if bounded.cancelled_caught:
            raise StoreUnavailableError("no answer to the marker of a savepoint in time", name=name)

    async def _find(self, name: str) -> Commit | None:
        async for marker in self._markers(f"{SAVEPOINTS}{name}/"):
            if (commit := await self.commit_of(marker)) is not None:
                return commit
        return None

    async def _check_free(self, name: str, *, own: SavepointPin | None = None, floor: int | None = None) -> None:
        """Raise `SavepointExistsError` if the name is taken, or another call is giving it to a commit that exists.

        With `floor`, that of the sweeps: or to a commit that is about to be made.
        """
        keys = await self._keys(f"{SAVEPOINTS}{name}/")
        given = any(isinstance(each, SavepointPin) and each != own for each in map(beside_marker, keys))
        for marker in filter(None, map(marker_of, keys)):
            if (commit := await self.commit_of(marker)) is not None:
                raise SavepointExistsError(
                    "there is a savepoint of that name: drop it, or use another name",
                    name=name,
                    checkpoint_id=commit.checkpoint_id,
                )
            # From the floor on, only what comes after the end of the log is not there.
            given |= floor is not None and marker.sequence >= floor and not await self._log.exists(marker.sequence)
        if given:
            raise SavepointExistsError(
                "the name is being given to another checkpoint, or a process died at that: use another, or drop it",
                name=name,
            )

    async def _check_retained(self, commit: Commit, floor: int) -> None:
        """Raise `CheckpointNotFoundError` if a sweep that has not seen the pin of `commit` may delete it.

        `floor`: as it was after the pin was made.
        """
        if commit.sequence >= floor:
            return
        async for marker in self._markers(SAVEPOINTS):
            if marker.names(commit):  # every sweep that began before now has seen it, each that begins later the pin
                return
        if await self.is_milestone(commit):  # until a sweep says otherwise, which looks for the pin then
            return
        raise CheckpointNotFoundError(
            "that checkpoint is not retained any more: name a newer one", checkpoint_id=commit.checkpoint_id
        )

    async def _markers(self, prefix: str) -> AsyncIterator[SavepointMarker]:
        for marker in filter(None, map(marker_of, await self._keys(prefix))):
            yield marker

    async def _keys(self, prefix: str) -> list[str]:
        if Capability.LIST not in self._store.capabilities:
            raise InputError("savepoints need a primary that can list its objects", needs=Capability.LIST.value)
        return [info.key async for info in self._store.list(prefix)]
