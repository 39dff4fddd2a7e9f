"""Savepoints: names for commits that are kept until the name is dropped; and how far the others were swept.

    mark  := "savepoints/" name "/" sequence "-" stamp         an object of no bytes; sequence of 12 digits
    floor := "swept/" sequence                                 an object of no bytes

A mark is made *before* the commit that it names, which it knows by its place in the log and by the stamp of its
attempt. So the commit is the only moment at which anything comes to exist, here too: with it the savepoint is there,
without it there is none, whatever is killed in between. A mark whose commit was not made means nothing, and a sweep
removes it.
"""

import math
import re
from collections.abc import AsyncIterator
from typing import Final

import anyio
import msgspec

from statebackend._codec.commit import Commit, decode_entry
from statebackend._log.commits import commit_key
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import (
    InputError,
    ObjectNotFoundError,
    SavepointExistsError,
    SavepointNotFoundError,
    StoreUnavailableError,
)
from statebackend.ids import CheckpointId, CommitSequence

PREFIX: Final = "savepoints/"
FLOORS: Final = "swept/"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MARK: Final = re.compile(r"savepoints/([A-Za-z0-9][A-Za-z0-9._-]{0,99})/(\d{12,})-([A-Za-z0-9]{1,64})")


class Mark(msgspec.Struct, frozen=True):
    """What a mark's key says."""

    name: str
    sequence: CommitSequence
    stamp: str

    @property
    def key(self) -> str:
        """Where it lies. No two attempts to commit have the same."""
        return f"{PREFIX}{self.name}/{self.sequence:012d}-{self.stamp}"

    def names(self, commit: Commit) -> bool:
        """Whether `commit` is the one that was made after this mark."""
        return (commit.sequence, commit.stamp) == (self.sequence, self.stamp)


class SavepointInfo(msgspec.Struct, frozen=True):
    """A savepoint: its name, and the checkpoint that it keeps."""

    name: str
    checkpoint_id: CheckpointId
    sequence: CommitSequence
    committed_at_s: float


def mark_of(key: str) -> Mark | None:
    """What the key of a mark says, `None` for what is no mark."""
    match = _MARK.fullmatch(key)
    mark = match and Mark(match[1], CommitSequence(int(match[2])), match[3])
    return mark if mark and mark.key == key else None


def floor_key(sequence: int) -> str:
    """Key of the mark that says: below this entry only savepoints can be opened."""
    return f"{FLOORS}{sequence:012d}"


def floor_of(key: str) -> int | None:
    """What the key of such a mark says, `None` for what is none."""
    number = key.removeprefix(FLOORS)
    return int(number) if number.isdigit() and floor_key(int(number)) == key else None


def check_name(name: object) -> str:
    """Return `name`, or raise `InputError` for one that no savepoint can have. Callers may be untyped."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError("a savepoint's name is 1 to 100 letters, digits, '.', '_' or '-'", name=name)
    return name


class Savepoints:
    """The savepoints of one job in its primary. Everything here needs `Capability.LIST`.

    `timeout_s`: how long a commit that is to be a savepoint waits for its mark.
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
            if await self._find(check_name(name)) is not None:
                raise SavepointExistsError("there is a savepoint of that name: drop it, or use another", name=name)
            await self._store.put(Mark(name, commit.sequence, commit.stamp).key, ())
        if bounded.cancelled_caught:
            raise StoreUnavailableError("no answer to the mark of a savepoint in time", name=name)

    async def find(self, name: str) -> Commit:
        """The commit that the savepoint keeps. Raises `SavepointNotFoundError`, `InputError`, `CorruptCommitError`."""
        if (found := await self._find(check_name(name))) is None:
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
            async for mark in self._marks(PREFIX):
                commit = await self.commit_of(mark)
                if commit is not None and commit.checkpoint_id == checkpoint_id:
                    return commit
        return None

    async def all(self) -> list[SavepointInfo]:
        """Every savepoint, in the order of their commits."""
        found = [(mark, commit) async for mark in self._marks(PREFIX) if (commit := await self.commit_of(mark))]
        infos = [
            SavepointInfo(mark.name, commit.checkpoint_id, commit.sequence, commit.committed_at_s)
            for mark, commit in found
        ]
        return sorted(infos, key=lambda info: (info.sequence, info.name))

    async def drop(self, name: str) -> None:
        """Let go of a savepoint: from the next sweep on, its checkpoint is kept or not as if it had never had a name.

        Raises `SavepointNotFoundError`. A failed or cancelled call has dropped it, or not: call again. The commit is
        not looked at, so a savepoint that is damaged can be dropped.
        """
        dropped = [mark async for mark in self._marks(f"{PREFIX}{check_name(name)}/")]
        for mark in dropped:
            await self._store.delete(mark.key)
        if not dropped:
            raise SavepointNotFoundError("the job has no savepoint of that name", name=name)

    async def commit_of(self, mark: Mark) -> Commit | None:
        """The commit that was made after this mark, `None` where none was. Raises as `decode_entry`."""
        key = commit_key(mark.sequence)
        try:
            entry = decode_entry(await self._store.get(key), key, job=self._job)
        except ObjectNotFoundError:
            return None
        return entry if isinstance(entry, Commit) and mark.names(entry) else None

    async def _find(self, name: str) -> Commit | None:
        async for mark in self._marks(f"{PREFIX}{name}/"):
            if (commit := await self.commit_of(mark)) is not None:
                return commit
        return None

    async def _marks(self, prefix: str) -> AsyncIterator[Mark]:
        if Capability.LIST not in self._store.capabilities:
            raise InputError("savepoints need a primary that can list its objects", needs=Capability.LIST.value)
        found = [mark_of(info.key) async for info in self._store.list(prefix)]
        for mark in filter(None, found):
            yield mark
