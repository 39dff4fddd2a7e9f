"""The log of a job: entries at `commits/<sequence>` in the primary, created once each and never changed.

Two kinds of entries: commits, and claims. A writer's first entry is a claim, and from then on the log's next place is
his: whoever was at work before finds it taken by the claim, and is fenced. Creating the next entry is the only way to
change what a restore sees. The newest commit is the entry at the end, or the one that a claim there names.

The end is found from a hint object by probing forward; the hint may be old or absent, never wrong, since it only says
where to begin. A sweep removes the oldest entries, so what is missing at the low end is not retained. Above the oldest
there is no gap.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, TypeVar

import anyio
import msgspec

from statebackend._codec.commit import Claim, Commit, EncodedEntry, Entry, decode_entry, encode_entry
from statebackend._log.names import COMMITS, HINT_KEY, Hint, entry_key, hint_of, parse_hint, sequence_of
from statebackend._retry import RetryPolicy
from statebackend.abc import Capability, Clock, ObjectStore
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
from statebackend.ids import CheckpointId, CommitSequence, Epoch

E = TypeVar("E", Commit, Claim)

HINT_EVERY: Final = 64
"""Entries between two writes of the hint. After a crash an open probes for at most so many beyond it, in log time."""
LOG_CONTACT_MAX_S: Final = 1800.0
"""A writer who has not known the end of the log for longer looks again before it believes that it has appended.

A sweep keeps entries at least twice as long. So a place that was free at the last look, was taken since, and is free
again because it was swept, can only be found by a writer who looks again.
"""


class LogEnd(msgspec.Struct, frozen=True):
    """The last entry of a log; `entry` is `None` where that is damaged."""

    sequence: CommitSequence
    entry: Entry | None

    @property
    def newest(self) -> CommitSequence | None:
        """Where the newest commit lies, or what may be it and is damaged. `None`: nobody has committed."""
        return self.entry.newest if isinstance(self.entry, Claim) else self.sequence


class CommitLog:
    """The log of one job in its primary, as one reader or writer sees it."""

    def __init__(self, store: ObjectStore, job: str, *, policy: RetryPolicy, timeout_s: float, clock: Clock) -> None:
        self._store = store
        self._job = job
        self._policy = policy
        self._timeout_s = timeout_s
        self._clock = clock
        self._contact = self._now()  # when it was known last where the log ends
        self._hint_due: Entry | None = None
        self._last_read: tuple[str, bytes] | None = None

    # --------------------------------------------------------------------------------------------------- reading

    async def load(self, sequence: CommitSequence) -> Entry:
        """One entry, verified. Raises `MissingObjectError`, `CorruptCommitError` or `WrongJobError`."""
        key = entry_key(sequence)
        try:
            data = await self._store.get(key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("an entry of the commit log is gone", object=key) from error
        entry = decode_entry(data, key, job=self._job)
        if isinstance(entry, Commit):
            self._last_read = (key, data)
        return entry

    def take_body(self, commit: Commit) -> Mapping[str, bytes]:
        """The object of `commit` by its key, if it was the last commit to be read, and then only once."""
        last_read, self._last_read = self._last_read, None
        return dict([last_read]) if last_read is not None and last_read[0] == entry_key(commit.sequence) else {}

    async def load_commit(self, sequence: CommitSequence) -> Commit:
        """As `load`, of an entry that has to be a commit."""
        entry = await self.load(sequence)
        if isinstance(entry, Claim):
            raise CorruptCommitError("a claim where a commit should be", object=entry_key(sequence), offset=0)
        return entry

    async def newest(self, end: LogEnd | None) -> Commit | None:
        """The newest commit of a log with that end, `None` for a job that never committed. Raises as `load`."""
        if end is None or end.newest is None:
            return None
        return end.entry if isinstance(end.entry, Commit) else await self.load_commit(end.newest)

    async def ancestors(self, commit: Commit) -> AsyncIterator[Commit]:
        """`commit`, its parent, and so on to the first one, or to the oldest that is retained."""
        yield commit
        with contextlib.suppress(MissingObjectError):
            while commit.parent is not None:
                commit = await self.load_commit(commit.parent)
                yield commit

    async def readable(self, sequence: CommitSequence) -> Commit | None:
        """The newest commit at or before `sequence` that is not damaged, `None` where no such one is retained."""
        candidate: int | None = sequence
        while candidate is not None and candidate >= 0:
            try:
                entry = await self.load(CommitSequence(candidate))
            except MissingObjectError:
                return None
            except CorruptCommitError:
                candidate -= 1
            else:
                if isinstance(entry, Commit):
                    return entry
                candidate = entry.newest
        return None

    async def find(self, end: LogEnd | None, checkpoint_id: CheckpointId) -> Commit:
        """The commit with that checkpoint id, on any branch. Raises `CheckpointNotFoundError`.

        Damaged entries are passed over: going back behind them is what this is for.
        """
        if end is not None:
            low, high = 0, int(end.sequence)
            while low <= high:  # ids grow with the sequence; what is not retained is older than all that is
                middle = (low + high) // 2
                commit = await self.readable(CommitSequence(middle))
                if commit is None or commit.checkpoint_id < checkpoint_id or await self._is_stray(commit, end):
                    low = middle + 1
                elif commit.checkpoint_id == checkpoint_id:
                    return commit
                else:
                    high = commit.sequence - 1
        raise CheckpointNotFoundError("no retained commit has that checkpoint id", checkpoint_id=checkpoint_id)

    async def end(self) -> LogEnd | None:
        """Where the log ends, by the hint and by probing; `None` for a job without entries."""
        self._contact = self._now()  # before the first request: what is found was the end at some moment after it
        if (hint := await self._read_hint()) is not None:
            sequence = await self._probe(hint.sequence)
            with contextlib.suppress(MissingObjectError):
                found = await self._end_at(sequence)
                # Alone where the hint says, a stray can lie in place of what was swept: not what the hint was for.
                if sequence > hint.sequence or (found.entry is not None and hint.names(found.entry)):
                    return found
        last = await self._list_last()
        return None if last is None else await self._end_at(await self._probe(last))

    async def _end_at(self, sequence: CommitSequence) -> LogEnd:
        try:
            return LogEnd(sequence, await self.load(sequence))
        except CorruptCommitError:
            return LogEnd(sequence, None)

    async def _probe(self, begin: CommitSequence) -> CommitSequence:
        """The last entry of those that follow `begin` without a gap: galloping, then by halves."""
        last, step = int(begin), 1
        while await self._exists(last + step):
            last, step = last + step, 2 * step
        beyond = last + step
        while beyond - last > 1:
            middle = (last + beyond) // 2
            if await self._exists(middle):
                last = middle
            else:
                beyond = middle
        return CommitSequence(last)

    async def _exists(self, sequence: int) -> bool:
        return await self._store.head(entry_key(sequence)) is not None

    async def _read_hint(self) -> Hint | None:
        try:
            return parse_hint(await self._store.get(HINT_KEY))
        except ObjectNotFoundError:
            return None

    async def _list_last(self) -> CommitSequence | None:
        if Capability.LIST not in self._store.capabilities:  # nor can such a store be swept: its log begins at 0
            return CommitSequence(0) if await self._exists(0) else None
        last = None
        async for info in self._store.list(COMMITS):
            last = last if (sequence := sequence_of(info.key)) is None else CommitSequence(sequence)
        return last

    async def _is_stray(self, commit: Commit, end: LogEnd) -> bool:
        """Whether the commit is not of the log: made late by a fenced writer, where an entry had been swept.

        What had been there was the claim that fenced its writer. So what follows tells: a commit of the same epoch,
        or a claim that names this one, and nothing else, follows a commit of the log.
        """
        if commit.sequence == end.sequence:
            return False
        try:
            following = await self.load(CommitSequence(commit.sequence + 1))
        except MissingObjectError:
            return True
        except CorruptCommitError:
            return False
        if isinstance(following, Claim):
            return following.newest != commit.sequence
        return following.epoch != commit.epoch

    # --------------------------------------------------------------------------------------------------- writing

    async def claim(
        self, end: LogEnd | None, *, stamp: str, release: str, base: CommitSequence | None = None
    ) -> Claim | None:
        """Begin a epoch behind `end`: no older writer can append from now on. `None` where somebody was first.

        `base` is the commit to be continued, the newest by default. Another one has to be looked for *after* the claim:
        until then a sweep may not know that it is wanted.

        Then look for the end again. Raises `StoreUnavailableError` where the store gave no usable answer. A failed or
        cancelled call may have made a claim, which fences older writers and does no other harm.
        """
        if end is None:
            sequence, epoch = 0, 1
        else:  # an epoch takes an entry: it is never above the sequence by more than one
            sequence, epoch = end.sequence + 1, (end.sequence + 1 if end.entry is None else end.entry.epoch) + 1
        claim = Claim(
            job=self._job,
            sequence=CommitSequence(sequence),
            epoch=Epoch(epoch),
            stamp=stamp,
            newest=None if end is None else end.newest,
            claimed_at_s=self._clock.time(),
            release=release,
            base=None if end is None or base == end.newest else base,
        )
        try:
            await self.append(claim)
        except FencedError:
            return None
        except OutcomeUnknownError as error:
            raise StoreUnavailableError("the job could not be claimed: open it again", sequence=sequence) from error
        return claim

    async def append(self, entry: E, inline: Sequence[bytes] = ()) -> EncodedEntry[E]:
        """Encode the entry and create it. Raises `InputError` for one that cannot be encoded, and as `create`."""
        encoded = encode_entry(entry, entry_key(entry.sequence), inline)
        await self.create(entry, encoded.body)
        return encoded

    async def create(self, entry: Entry, body: bytes) -> None:
        """Create the entry, encoded: of a commit this is the moment at which a checkpoint begins to exist.

        Raises `FencedError` where another writer was first, `OutcomeUnknownError` where the store gave no usable
        answer within `commit_timeout_s`. A cancelled call leaves its outcome open: call it within `finish`.
        """
        sent = self._now()
        with anyio.move_on_after(self._timeout_s) as bounded:
            await self._create(entry, (body,))
            if self._since(self._contact) > LOG_CONTACT_MAX_S:
                await self._check_is_ours(entry)
        if bounded.cancelled_caught:
            raise OutcomeUnknownError(
                "no answer to a commit in time", sequence=entry.sequence, timeout_s=self._timeout_s
            )
        self._contact = sent
        self._hint_due = entry
        if entry.sequence % HINT_EVERY == 0:
            await self.write_hint()

    async def check_epoch(self, last: Entry) -> None:
        """Raise `FencedError` where somebody has appended behind `last`, the own last entry. Usually one request.

        What is done after this may still be done after somebody else's claim: it has to be such that this harms nobody.
        Raises `StoreError` where the store does not answer.
        """
        looked = self._now()
        if self._since(self._contact) <= LOG_CONTACT_MAX_S:
            if await self._exists(last.sequence + 1):
                raise _fenced(last, await self.load(CommitSequence(last.sequence + 1)))
        else:  # a claim may have come and been swept
            end = await self.end()
            if end is None or end.entry is None or end.entry.stamp != last.stamp:
                raise _fenced(last, None if end is None else end.entry)
        self._contact = looked

    async def write_hint(self) -> None:
        """Say where the own last entry lies, if it has not been said. No error: an older hint costs some probes.

        Only while that entry was the end not long ago. Later a sweep may have removed what followed it, and who begins
        to search there would take it for the end.
        """
        if (entry := self._hint_due) is not None and self._since(self._contact) <= LOG_CONTACT_MAX_S:
            with anyio.move_on_after(self._timeout_s), contextlib.suppress(Exception):
                await self._store.put(HINT_KEY, (hint_of(entry),))
                self._hint_due = None

    async def _create(self, entry: Entry, body: tuple[bytes]) -> None:
        attempt, begun = 1, anyio.current_time()
        while True:
            try:
                return await self._store.put_if_absent(entry_key(entry.sequence), body)
            except ObjectExistsError as error:
                return await self._resolve(entry, error)
            except StoreUnavailableError as error:
                # Asking again is safe: it is the same object with the same stamp, whoever of the requests made it.
                pause_s = self._policy.pause_s(attempt, error, anyio.current_time() - begun)
                if pause_s is None:
                    raise OutcomeUnknownError("a commit got no answer", sequence=entry.sequence) from error
                attempt += 1
                await anyio.sleep(pause_s)
            except StoreError as error:  # refused, it says: but the object may have been made before that was said
                return await self._resolve(entry, error)

    async def _resolve(self, entry: Entry, cause: StoreError) -> None:
        """Look what lies there: our entry, by a request whose answer was lost, somebody else's, or none."""
        try:
            found = await self.load(entry.sequence)
        except MissingObjectError as error:
            if not isinstance(cause, ObjectExistsError):
                raise cause from None  # nothing was made: the refusal is the truth
            raise OutcomeUnknownError("a commit cannot be read back", sequence=entry.sequence) from error
        except StoreError as error:
            raise OutcomeUnknownError("a commit cannot be read back", sequence=entry.sequence) from error
        if found.stamp != entry.stamp:
            raise _fenced(entry, found) from cause

    async def _check_is_ours(self, entry: Entry) -> None:
        """Whether what was appended, long after the last look, is part of the log. Raises `FencedError` if not."""
        try:
            end = await self.end()
            fenced = end is None or (
                await self._is_stray(entry, end) if isinstance(entry, Commit) else end.sequence != entry.sequence
            )
        except StoreError as error:
            raise OutcomeUnknownError("a late commit cannot be looked up", sequence=entry.sequence) from error
        if fenced:
            raise _fenced(entry, None if end is None else end.entry)

    def _now(self) -> tuple[float, float]:
        return self._clock.monotonic(), self._clock.time()

    def _since(self, moment: tuple[float, float]) -> float:
        """Seconds by that clock which says more: one may stand still while the machine sleeps, the other may be set."""
        return max(now - then for now, then in zip(self._now(), moment, strict=True))


def _fenced(entry: Entry, found: Entry | None) -> FencedError:
    return FencedError(
        "another writer has opened this job: stop this one",
        sequence=entry.sequence,
        epoch_mine=entry.epoch,
        epoch_found=None if found is None else found.epoch,
    )
