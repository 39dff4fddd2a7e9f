"""The log of commit objects: `commits/<sequence>` in the primary, created once each and never changed.

Creating the next one is the only way to change what a restore sees. Of two writers that stand on the same commit only
one can create it; the other finds the winner there and is fenced. The newest commit is found from a hint object by
probing forward; the hint may be old or absent, never wrong, since it only says where to begin.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import anyio

from statebackend._codec.commit import Claim, Commit, decode_entry, encode_entry
from statebackend._retry import RetryPolicy
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    FencedError,
    MissingObjectError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from statebackend.ids import CheckpointId, CommitSequence

PREFIX: Final = "commits/"
HINT_KEY: Final = "newest"
HINT_EVERY: Final = 16
"""Commits between two writes of the hint: a restore probes at most this many objects beyond it."""


def commit_key(sequence: int) -> str:
    """Key of a commit object; keys sort as their sequences do."""
    return f"{PREFIX}{sequence:012d}"


class CommitLog:
    """The commits of one job in its primary."""

    def __init__(self, store: ObjectStore, job: str, *, policy: RetryPolicy, timeout_s: float) -> None:
        self._store = store
        self._job = job
        self._policy = policy
        self._timeout_s = timeout_s

    async def newest(self) -> Commit | None:
        """The newest commit, `None` for a job that never committed."""
        sequence = await self.newest_sequence()
        return None if sequence is None else await self.load(sequence)

    async def load(self, sequence: CommitSequence) -> Commit:
        """One commit, verified. Raises `MissingObjectError`, `CorruptCommitError` or `WrongJobError`."""
        key = commit_key(sequence)
        try:
            data = await self._store.get(key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("a commit object is gone", object=key) from error
        entry = decode_entry(data, key, job=self._job)
        if isinstance(entry, Claim):
            raise CorruptCommitError("a claim where a commit should be", object=key, offset=0)
        return entry

    async def ancestors(self, commit: Commit) -> AsyncIterator[Commit]:
        """`commit`, its parent, and so on to the first one."""
        current: Commit | None = commit
        while current is not None:
            yield current
            current = None if current.parent is None else await self.load(current.parent)

    async def readable(self, sequence: CommitSequence) -> Commit | None:
        """The commit at `sequence`, or the nearest before it that is not damaged."""
        for candidate in range(sequence, -1, -1):
            with contextlib.suppress(CorruptCommitError):
                return await self.load(CommitSequence(candidate))
        return None

    async def find(self, newest_sequence: CommitSequence | None, checkpoint_id: CheckpointId) -> Commit:
        """The commit with that checkpoint id, on any branch. Raises `CheckpointNotFoundError`.

        Damaged commits are passed over: going back behind them is what this is for.
        """
        low, high = 0, -1 if newest_sequence is None else newest_sequence
        while low <= high:  # ids grow with the sequence
            middle = (low + high) // 2
            commit = await self.readable(CommitSequence(middle))
            if commit is not None and commit.checkpoint_id == checkpoint_id:
                return commit
            if commit is None or commit.checkpoint_id < checkpoint_id:
                low = middle + 1
            else:
                high = commit.sequence - 1
        raise CheckpointNotFoundError("no commit has that checkpoint id", checkpoint_id=checkpoint_id)

    async def append(self, commit: Commit) -> int:
        """Create the commit object, and return its size: the moment at which a checkpoint begins to exist.

        Raises `FencedError` where another writer was first, `OutcomeUnknownError` where the store gave no usable
        answer within `commit_timeout_s`. A cancelled call leaves its outcome open: call it within `finish`.
        """
        body = (encode_entry(commit, commit_key(commit.sequence)).body,)
        with anyio.move_on_after(self._timeout_s) as bounded:
            await self._create(commit, body)
        if bounded.cancelled_caught:
            raise OutcomeUnknownError(
                "no answer to a commit in time", sequence=commit.sequence, timeout_s=self._timeout_s
            )
        if commit.sequence % HINT_EVERY == 0:
            await self._write_hint(commit.sequence)
        return len(body[0])

    async def _create(self, commit: Commit, body: tuple[bytes]) -> None:
        attempt = 1
        while True:
            try:
                return await self._store.put_if_absent(commit_key(commit.sequence), body)
            except ObjectExistsError as error:
                return await self._resolve(commit, error)
            except StoreUnavailableError as error:
                # Asking again is safe: it is the same object with the same stamp, whoever of the requests made it.
                pause_s = self._policy.pause_s(attempt, error)
                if pause_s is None:
                    raise OutcomeUnknownError("a commit got no answer", sequence=commit.sequence) from error
                attempt += 1
                await anyio.sleep(pause_s)
            except StoreError as error:  # refused, it says: but the object may have been made before that was said
                return await self._resolve(commit, error)

    async def _resolve(self, commit: Commit, cause: StoreError) -> None:
        """Look what lies there: our commit, by a request whose answer was lost, somebody else's, or none."""
        try:
            found = await self.load(commit.sequence)
        except MissingObjectError as error:
            if not isinstance(cause, ObjectExistsError):
                raise cause from None  # nothing was made: the refusal is the truth
            raise OutcomeUnknownError("a commit cannot be read back", sequence=commit.sequence) from error
        except StoreError as error:
            raise OutcomeUnknownError("a commit cannot be read back", sequence=commit.sequence) from error
        if found.stamp != commit.stamp:
            raise FencedError(
                "another writer has committed to this job: stop this one",
                sequence=commit.sequence,
                epoch_mine=commit.epoch,
                epoch_found=found.epoch,
            ) from cause

    async def _write_hint(self, sequence: CommitSequence) -> None:
        """An older hint, or none, costs a restore some probes and nothing else: no error here."""
        with anyio.move_on_after(self._timeout_s), contextlib.suppress(StoreError):
            await self._store.put(HINT_KEY, (str(sequence).encode(),))

    async def newest_sequence(self) -> CommitSequence | None:
        """Where the log ends, by the hint and by probing. The commit there is not looked at."""
        start = await self._read_hint()
        if start is None or await self._store.head(commit_key(start)) is None:
            start = await self._list_newest()
        if start is None:
            return None
        while await self._store.head(commit_key(start + 1)) is not None:
            start += 1
        return CommitSequence(start)

    async def _read_hint(self) -> int | None:
        try:
            text = await self._store.get(HINT_KEY)
        except ObjectNotFoundError:
            return None
        return int(text) if text.isdigit() else None

    async def _list_newest(self) -> int | None:
        if Capability.LIST not in self._store.capabilities:
            return 0 if await self._store.head(commit_key(0)) is not None else None
        newest = None
        async for info in self._store.list(PREFIX):
            number = info.key.removeprefix(PREFIX)
            newest = int(number) if number.isdigit() else newest
        return newest
