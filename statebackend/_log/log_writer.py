"""Appends to the log of a job: first a claim, which fences every older writer, then commits.

Creating `commits/<sequence>` by put-if-absent is the only way to change what a restore sees. A writer's first entry is
a claim, and the place behind it is this writer's own: an older writer finds the place it wants taken by the claim, and
is fenced. Nobody asks for permission, and no lock outlives its owner.

A put-if-absent whose answer was lost is settled by reading back. Each attempt to append has a stamp of its own, so what
lies there is ours, somebody else's, or it cannot be known; the last is an error of its own, and never taken for either.
"""

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio
from msgspec import UNSET

from statebackend._codec.commit import Claim, Commit, Entry, encode_entry
from statebackend._log.log_end import LogEnd
from statebackend._log.log_reader import LogReader
from statebackend._log.names import HINT_KEY, entry_key, hint_of
from statebackend._retry import RetryPolicy
from statebackend._tasks import foreign
from statebackend.abc import Clock, ObjectStore
from statebackend.errors import (
    FencedError,
    MissingObjectError,
    ObjectExistsError,
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
)
from statebackend.ids import (
    CheckpointId,
    ClockMark,
    CommitSequence,
    Epoch,
    RangeState,
    SourceMark,
    StagedOutput,
    StateDescriptor,
)

E = TypeVar("E", Commit, Claim)

HINT_EVERY: Final = 64
"""Entries between two writes of the hint. After a crash, opening probes past at most that many, in log time."""
LOST_MAX: Final = 1024
"""Places of lost entries that a writer fills with claims. More are missing where a whole store was put back."""
LOG_CONTACT_MAX_S: Final = 1800.0
"""A writer that has not known the end of the log for longer looks again before it believes that it has appended.

A sweep keeps entries at least twice as long. So if a place was free at the last look, was taken since, and is free
again because it was swept, the writer that finds it so is one that looks again.
"""


class LogWriter:
    """Appends to one job's log as one writer. `log` reads the same log, in the same `store`.

    `timeout_s`: how long an append may take in all. `new_stamp` makes stamps that no other attempt has. `release` is
    the version of the library, for people to read.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: LogReader,
        *,
        policy: RetryPolicy,
        timeout_s: float,
        clock: Clock,
        new_stamp: Callable[[], str],
        release: str,
    ) -> None:
        self.log: Final = log
        self.last: Entry | None = None
        """The newest entry that this writer has appended: its claim, then its commits."""
        self._store = store
        self._policy = policy
        self._timeout_s = timeout_s
        self._clock = clock
        self._new_stamp = new_stamp
        self._release = release
        self._contact = self._now()  # when the end of the log was last known
        self._is_hint_due = False

    @property
    def epoch(self) -> Epoch:
        """The epoch that this writer has begun; 0 before its claim."""
        return Epoch(0) if self.last is None else self.last.epoch

    async def find_end(self) -> LogEnd | None:
        """As `LogReader.end`, for a claim to go behind."""
        self._contact = self._now()  # before the first request: what is found was the end at some moment after it
        return await self.log.end()

    async def claim(self, end: LogEnd | None, *, base: CommitSequence | None = None) -> Claim | None:
        """Begin an epoch behind `end`: no older writer can append from now on. `None` if another entry was first.

        `base` is the commit to continue from, by default the newest. Look for any other one again *after* the claim: a
        sweep that has not seen the claim does not know that it is wanted, and may delete it until then.

        Where the entry that the hint names is lost, claims fill its place and those before it: the writer of the lost
        entry may be alive and append behind it, and the log must have no gap.

        After `None`, find the end again. Raises `StoreFullError` if the store has no room for a claim,
        `StoreUnavailableError` if it gave no usable answer, and `MissingObjectError` if too many entries are lost to
        fill their places. A failed or cancelled call may have made a claim, which fences older writers and does no
        other harm.
        """
        lost = None if end is None else end.lost
        if end is not None and lost is not None and lost.sequence - end.sequence > LOST_MAX:
            end.check()
        while True:
            claim = await self._claim(end, base)
            if claim is None or lost is None or claim.sequence > lost.sequence:
                return claim
            end = LogEnd(claim.sequence, claim)

    async def _claim(self, end: LogEnd | None, base: CommitSequence | None) -> Claim | None:
        """Append one claim behind `end`; `None` if another entry was first."""
        if end is None:
            sequence, epoch = 0, 1
        else:  # the epoch of a damaged entry is unknown; but each takes an entry, so none is above its sequence + 1
            sequence, epoch = end.sequence + 1, (end.sequence + 1 if end.entry is None else end.entry.epoch) + 1
        claim = Claim(
            job=self.log.job,
            sequence=CommitSequence(sequence),
            epoch=Epoch(epoch),
            stamp=self._new_stamp(),
            newest=None if end is None else end.newest,
            claimed_at_s=self._clock.time(),
            release=self._release,
            base=None if end is None or base == end.newest else base,
            newest_stamp=UNSET if end is None else end.newest_stamp,
        )
        try:
            await self.append(claim)
        except FencedError:
            return None
        except OutcomeUnknownError as error:
            raise StoreUnavailableError("the job could not be claimed: open it again", sequence=sequence) from error
        return claim

    def next_commit(
        self,
        *,
        checkpoint_id: CheckpointId,
        parent: CommitSequence | None,
        max_parallelism: int,
        ranges: tuple[RangeState, ...],
        states: tuple[StateDescriptor, ...],
        source: SourceMark | None,
        marks: tuple[SourceMark, ...] | None,
        outbox: tuple[StagedOutput, ...],
        clock: ClockMark | None,
        starts_from: Any = None,
        transformed: tuple[str, ...] = (),
    ) -> Commit:
        """Make a commit of this content, to be created behind our last entry. Needs a claim; nothing is sent yet."""
        assert self.last is not None, "nothing was claimed"
        return Commit(
            job=self.log.job,
            sequence=CommitSequence(self.last.sequence + 1),
            checkpoint_id=checkpoint_id,
            epoch=self.last.epoch,
            parent=parent,
            stamp=self._new_stamp(),
            max_parallelism=max_parallelism,
            ranges=ranges,
            states=states,
            source=source,
            committed_at_s=self._clock.time(),
            release=self._release,
            outbox=outbox,
            clock=clock,
            starts_from=starts_from,
            transformed=transformed,
            marks=marks,
        )

    async def append(self, entry: E) -> None:
        """Encode an entry that carries nothing, and `create` it."""
        await self.create(entry, encode_entry(entry, entry_key(entry.sequence)).body)

    async def create(self, entry: Entry, body: bytes) -> None:
        """Append the entry that `body` encodes. When this returns it exists, and is part of the log.

        Raises `FencedError` if another writer was first, `StoreFullError` if the store has no room and the entry is not
        there, `OutcomeUnknownError` if the store gave no usable answer within `timeout_s`. A cancelled call leaves its
        outcome open: call it within `finish`.
        """
        sent = self._now()
        with anyio.move_on_after(self._timeout_s) as bounded:
            await self._create(entry, (body,))
            if self._since(self._contact) > LOG_CONTACT_MAX_S:
                await self._check_is_part_of_log(entry)
        if bounded.cancelled_caught:
            raise OutcomeUnknownError(
                "no answer to a commit in time", sequence=entry.sequence, timeout_s=self._timeout_s
            )
        self._contact = sent
        self.last, self._is_hint_due = entry, True
        if entry.sequence % HINT_EVERY == 0:
            await self.write_hint()

    async def check_epoch(self) -> None:
        """Raise `FencedError` if somebody else has appended behind our entries. Usually one request.

        A commit of our own may be on its way, and there already: an entry of our epoch is ours. A claim may still come
        right after this, and before what the caller does next: that must then harm nobody. Raises `StoreError` if the
        store does not answer.
        """
        assert self.last is not None, "nothing was claimed"
        looked = self._now()
        if self._since(self._contact) <= LOG_CONTACT_MAX_S:
            following = self.last.sequence + 1
            while await self.log.exists(following):
                found = await self.log.load(following)
                if found.epoch != self.epoch:
                    raise _fenced(self.last, found)
                following += 1
        else:  # a claim may have come and been swept
            end = await self.find_end()
            if end is None or end.entry is None or end.entry.epoch != self.epoch:
                raise _fenced(self.last, None if end is None else end.entry)
        self._contact = looked

    async def write_hint(self) -> None:
        """Write the hint for our last entry, unless that was done. Errors are ignored: an old hint costs some probes.

        It is written only if that entry was the end not long ago. Later, a sweep may have removed what followed it, and
        a search that begins there would take it for the end.
        """
        if self.last is not None and self._is_hint_due and self._since(self._contact) <= LOG_CONTACT_MAX_S:
            with anyio.move_on_after(self._timeout_s), contextlib.suppress(Exception):
                # `foreign`: a stray CancelledError must not make the caller believe that there is no entry.
                await foreign(self._store.put(HINT_KEY, (hint_of(self.last),)))
                self._is_hint_due = False

    async def _create(self, entry: Entry, body: tuple[bytes]) -> None:
        attempt, begun, unanswered = 1, anyio.current_time(), False
        while True:
            try:
                return await self._store.put_if_absent(entry_key(entry.sequence), body)
            except ObjectExistsError as error:
                return await self._settle(entry, error)
            except StoreUnavailableError as error:
                # Asking again is safe: the object is the same with the same stamp, whichever request makes it.
                unanswered |= not isinstance(error, (StoreFullError, StoreThrottledError))
                pause_s = self._policy.pause_s(attempt, error, anyio.current_time() - begun)
                if pause_s is None and isinstance(error, StoreFullError) and not unanswered:
                    return await self._settle(entry, error)
                if pause_s is None:
                    raise OutcomeUnknownError("a commit got no answer: reopen", sequence=entry.sequence) from error
                attempt += 1
                await anyio.sleep(pause_s)
            except StoreError as error:  # a refusal; but an earlier request may have made the object all the same
                return await self._settle(entry, error)

    async def _settle(self, entry: Entry, cause: StoreError) -> None:
        """Read what lies there: our entry, made by a request whose answer was lost, somebody else's, or nothing."""
        try:
            found = await self.log.load(entry.sequence)
        except MissingObjectError as error:
            if not isinstance(cause, ObjectExistsError):
                raise cause from None  # nothing was made: the refusal is the truth
            raise OutcomeUnknownError("a commit cannot be read back: reopen", sequence=entry.sequence) from error
        except StoreError as error:
            raise OutcomeUnknownError("a commit cannot be read back: reopen", sequence=entry.sequence) from error
        if found.stamp != entry.stamp:
            raise _fenced(entry, found) from cause

    async def _check_is_part_of_log(self, entry: Entry) -> None:
        """Raise `FencedError` if what was appended, long after the last look, is not part of the log.

        While this writer slept, another may have claimed the job, and a sweep may have removed the claim: then the
        place was free again, and our entry lies below the log, where nobody looks.
        """
        try:
            end = await self.find_end()
            fenced = end is None or (
                await self.log.is_stray(entry, end) if isinstance(entry, Commit) else end.sequence != entry.sequence
            )
        except StoreError as error:
            raise OutcomeUnknownError("a late commit cannot be looked up: reopen", sequence=entry.sequence) from error
        if fenced:
            raise _fenced(entry, None if end is None else end.entry)

    def _now(self) -> tuple[float, float]:
        return self._clock.monotonic(), self._clock.time()

    def _since(self, moment: tuple[float, float]) -> float:
        """Seconds by the clock that counts more: one may stand still while the machine sleeps, the other may be set."""
        return max(now - then for now, then in zip(self._now(), moment, strict=True))


def _fenced(entry: Entry, found: Entry | None) -> FencedError:
    return FencedError(
        "another writer has opened this job: stop this one",
        sequence=entry.sequence,
        epoch_mine=entry.epoch,
        epoch_found=None if found is None else found.epoch,
    )
