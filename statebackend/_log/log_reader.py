"""Reads the log of a job: entries at `commits/<sequence>` in the primary, created once each and never changed.

There are two kinds of entries, commits and claims. The newest commit is the entry at the end of the log, or the one
that a claim at the end names. From a commit its branch leads back over its parents; it may pass over other entries,
because a writer that opened an older checkpoint has begun a new branch there.

The end is found from the hint by probing forward. The hint may be old or absent and does no harm then, since it only
says where to begin. But if the log ends before the entry that it names, that entry is lost: no sweep removes the last
one. A sweep removes the oldest entries, so an entry that is missing at the low end is not retained.
From the sweep floor on there is no gap; below it only single entries stay, such as those of savepoints. A sweep that
begins meanwhile moves the hint, which is why it is read again at the end. An entry that was deleted by mistake leaves a
hole: the probing stops before it, so a store that can list is asked what lies behind, and the end is there.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Container, Iterable, Mapping
from typing import Final

from statebackend._codec.commit import Claim, Commit, Entry, decode_entry
from statebackend._log.log_end import LogEnd, checked_by
from statebackend._log.names import COMMITS, HINT_KEY, Hint, entry_key, entry_prefixes, parse_hint, sequence_of
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import Capability, ObjectInfo, ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    DataError,
    MissingObjectError,
    ObjectNotFoundError,
)
from statebackend.ids import CheckpointId, CommitSequence
from statebackend.settings import KiB

_logger = logging.getLogger(__name__)

LISTINGS_MAX: Final = 3
"""So often entries are listed, if the last one is gone each time that it is read: a sweep has been there by then."""
GUESSES_MAX: Final = 4
"""So often the place of a checkpoint is guessed from its id. Where ids are far apart that misleads: then by halves."""
HOLE_MAX: Final = 64
"""So many lost entries are looked past, at least. A writer that works renews the hint as often."""
DECODE_ON_LOOP_BYTES_MAX: Final = 32 * KiB
"""Decoding this much takes about 0.3 ms, for which the loop can stop; more of it is decoded in a thread."""


class LogReader:
    """Reads the log of `job` in `store`, which is confined to that job. Writes nothing, and may be shared."""

    def __init__(self, store: ObjectStore, job: str, threads: WorkerThreads) -> None:
        self.job: Final = job
        self._store = store
        self._threads = threads
        self._last_read: tuple[str, bytes] | None = None

    # ------------------------------------------------------------------------------------------------- single entries

    async def load(self, sequence: int, *, body: bytes = b"") -> Entry:
        """Return one verified entry. `body`: its bytes, if the caller has them; otherwise they are read.

        Raises `MissingObjectError`, `CorruptCommitError`, `UnsupportedVersionError` or `WrongJobError`.
        """
        key = entry_key(sequence)
        try:
            data = body or await self._store.get(key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("an entry of the log is gone, perhaps swept", object=key) from error
        if len(data) <= DECODE_ON_LOOP_BYTES_MAX:
            entry = decode_entry(data, key, job=self.job)
        else:
            entry = await self._threads.cpu(lambda: decode_entry(data, key, job=self.job))
        if entry.sequence != sequence:
            raise CorruptCommitError(
                "an entry of another place in the log lies here: put the right object back, or open an older"
                " checkpoint by its id",
                object=key,
                offset=0,
                sequence_found=entry.sequence,
            )
        if isinstance(entry, Commit):
            self._last_read = (key, data)
        return entry

    async def load_commit(self, sequence: int, *, body: bytes = b"") -> Commit:
        """As `load`, for an entry that has to be a commit."""
        entry = await self.load(sequence, body=body)
        if isinstance(entry, Claim):
            raise CorruptCommitError("a claim where a commit should be", object=entry_key(sequence), offset=0)
        return entry

    def take_body(self, commit: Commit) -> Mapping[str, bytes]:
        """Return the bytes of `commit` by its key, but only once, and only if it was the last commit to be read.

        A restore needs the bytes of the commit for the change sets in it. The commit was just read to be opened, so it
        need not be read again; and it is handed over, so that a backend does not hold it for its whole life.
        """
        last_read, self._last_read = self._last_read, None
        return dict([last_read]) if last_read is not None and last_read[0] == entry_key(commit.sequence) else {}

    # ------------------------------------------------------------------------------------------- branches, checkpoints

    async def newest(self, end: LogEnd | None) -> Commit | None:
        """The newest commit of a log with that end, `None` if nobody has committed. Raises as `load` and `check`."""
        if end is not None:
            end.check()
        if end is None or end.newest is None:
            return None
        return end.entry if isinstance(end.entry, Commit) else await self.load_commit(end.newest)

    async def branch(
        self,
        start: Entry | int,
        *,
        count_max: int | None = None,
        listed: Container[int] | None = None,
        damaged: Callable[[int, DataError], None] | None = None,
    ) -> AsyncIterator[Commit]:
        """Yield the commits of a branch, newest first: from `start`, an entry or its sequence, back over the parents.

        It ends with the first commit of all, with the oldest that is retained, or after `count_max`. `listed`: the
        entries that were there a moment ago. Then the branch ends at the first that is not among them, and
        `MissingObjectError` is raised for one that has gone since. Raises as `load`.

        `damaged`, if given, is called instead with each entry that cannot be read, and why; it may raise. The parent of
        such an entry is unknown, so the branch goes on with the entry before it in the log, as the best guess.
        """
        entry, following = (None, start) if isinstance(start, int) else (start, start.sequence)
        load: Callable[[int], Awaitable[Entry]] = self.load
        found = 0
        while (count_max is None or found < count_max) and following >= 0 and (listed is None or following in listed):
            try:
                entry = entry or await load(following)
            except DataError as error:
                if listed is None and isinstance(error, MissingObjectError):
                    return  # not retained, nor is anything older
                if damaged is None:
                    raise
                damaged(following, error)
                following, load = following - 1, self.load
                continue
            if isinstance(entry, Commit):
                found += 1
                yield entry
            before = entry.parent if isinstance(entry, Commit) else entry.newest
            if before is None:
                return
            entry, following, load = None, before, self.load_commit

    async def readable(self, sequence: int, *, end: LogEnd | None = None) -> Commit | None:
        """The newest undamaged commit at or before `sequence`, `None` if no such commit is retained.

        With the `end` of the log, its entry is not read again.
        """
        start = end.entry if end is not None and end.sequence == sequence else None
        found = [commit async for commit in self.branch(start or sequence, count_max=1, damaged=pass_over)]
        return found[0] if found else None

    async def find(self, end: LogEnd | None, checkpoint_id: CheckpointId, *, floor: int | None = None) -> Commit:
        """Return the commit with that checkpoint id, on any branch. Raises `CheckpointNotFoundError`.

        Damaged entries are passed over: to go back behind them is what this is for. `floor`: that of the sweeps, if it
        is known. Below it nothing is looked for, and from there on there is no stray.
        """
        low = 0 if floor is None else floor
        high = guess = -1 if end is None else int(end.sequence)
        guesses_left = GUESSES_MAX
        while end is not None and low <= high:  # ids grow with the sequence; what is gone is older than all that is not
            commit = await self.readable(guess, end=end)
            for before in range(guess - 1, low - 1, -1) if floor is not None and commit is None else ():
                if (commit := await self.readable(before)) is not None:  # from the floor on, what is gone is a hole
                    break
            if commit is None or commit.sequence < low or (floor is None and await self.is_stray(commit, end)):
                low, near = guess + 1, None
            else:  # most ids are larger by one than the one before, so their difference is about that of the places
                near = commit.sequence - (ahead := commit.checkpoint_id - checkpoint_id)
                if ahead == 0:
                    return commit
                low, high = (guess + 1, high) if ahead < 0 else (low, commit.sequence - 1)
            guesses_left -= 1
            guess = min(max(low, near), high) if near is not None and guesses_left > 0 else (low + high) // 2
        raise CheckpointNotFoundError(
            "no retained commit has that checkpoint id: open without one to get the newest", checkpoint_id=checkpoint_id
        )

    async def is_stray(self, commit: Commit, end: LogEnd) -> bool:
        """True if the commit is not part of the log: a fenced writer made it late, where an entry had been swept.

        The entry swept there was the claim that fenced that writer, so what follows tells. A commit of the log is
        followed by a commit of the same epoch or by a claim that names it, and by nothing else.
        """
        if commit.sequence == end.sequence:
            return False
        try:
            following = await self.load(commit.sequence + 1)
        except MissingObjectError:
            return True
        except CorruptCommitError:
            return False  # unknown; then a commit that can be opened is worth more than the doubt
        if isinstance(following, Claim):
            return following.newest != commit.sequence
        return following.epoch != commit.epoch

    # ---------------------------------------------------------------------------------------------------- many entries

    async def each(
        self,
        sequences: Iterable[int],
        consume: Callable[[int, Entry], None],
        *,
        doomed: Collection[int] = (),
        concurrency_max: int,
    ) -> None:
        """Load these entries, several at a time, and pass them to `consume` in their order. Raises as `load`.

        Of the `doomed` ones, those that are damaged or gone by now are left out.
        """

        async def fetch(sequence: int) -> Entry | None:
            try:
                return await self.load(sequence)
            except (CorruptCommitError, MissingObjectError):
                if sequence in doomed:
                    return None
                raise

        async def take(sequence: int, entry: Entry | None) -> None:
            if entry is not None:
                consume(sequence, entry)

        await in_order(tuple(sequences), fetch, take, concurrency_max=concurrency_max)

    async def listed(self) -> AsyncGenerator[tuple[int, ObjectInfo]]:
        """Yield the entries that there are with their sequences, in order. For stores with `Capability.LIST`."""
        async for info in self._store.list(COMMITS):
            if (sequence := sequence_of(info.key)) is not None:
                yield sequence, info

    async def claims_after(self, sequence: int) -> list[Claim]:
        """The claims that were made after `sequence`, which was the end of the log. Raises as `load`."""
        claims: list[Claim] = []
        while True:
            sequence += 1
            try:
                entry = await self.load(sequence)
            except MissingObjectError:
                return claims
            if isinstance(entry, Claim):
                claims.append(entry)

    # -------------------------------------------------------------------------------------------------- end of the log

    async def end(self, *, looks_again: bool = True, at_least: int | None = None) -> LogEnd | None:
        """Find where the log ends, from the hint by probing; `None` for a job without entries.

        Without `looks_again` the caller makes sure that no sweep was there meanwhile: then the end that is found lies
        at or above the sweep floor, as it was afterwards. It may lie before a hole. `at_least`: an entry that was there
        before. If the end is no older, what lies behind a hole is not looked for: for callers that ask all the time.
        """
        hint = await self.hint()
        if not looks_again and hint is not None and (found := await self._end_from(hint)) is not None:
            return found
        while hint is not None:
            found = await self._end_from(hint)
            if found is not None and (at_least is None or found.sequence < at_least):
                found = await self._behind_holes(found)
            # A sweep moves a hint that lies below its floor, and only then deletes. So if the hint is as it was, there
            # was no gap behind it. If not, an entry that was missed may have been swept, and need not be the end.
            before, hint = hint, await self.hint()
            if hint == before:
                if found is not None:
                    return found
                break
        found = await self._end_by_list()
        return found if hint is None or not hint.verified else checked_by(found, hint)

    async def exists(self, sequence: int) -> bool:
        """True if there is such an entry. One request, and the entry is not read."""
        return await self._store.head(entry_key(sequence)) is not None

    async def hint(self) -> Hint | None:
        """The hint, or `None` if it is absent or damaged."""
        try:
            return parse_hint(await self._store.get(HINT_KEY))
        except ObjectNotFoundError:
            return None

    async def _end_by_list(self) -> LogEnd | None:
        """The last entry of those that are listed, and of what follows; `None` for a job without entries.

        A sweep may have removed that entry before it is read, when others came after it: then they are listed again.
        """
        for listings_left in reversed(range(LISTINGS_MAX)):
            last = await self._list_last()
            try:
                return None if last is None else await self._end_at(await self._probe(last))
            except MissingObjectError:
                if not listings_left:
                    raise
        raise AssertionError("listed at least once")

    async def _end_from(self, hint: Hint) -> LogEnd | None:
        """The last entry that follows the hinted one without a gap; `None` if the hinted one itself was swept."""
        sequence = await self._probe(hint.sequence)
        with contextlib.suppress(MissingObjectError):
            found = await self._end_at(sequence)
            # Without a successor, the entry must also bear the hint's stamp. Otherwise the hinted one was swept since,
            # what lies there is a stray, and the real end is somewhere above.
            if sequence > hint.sequence or (found.entry is not None and hint.names(found.entry)):
                return found
        return None

    async def _behind_holes(self, end: LogEnd) -> LogEnd:
        """The end of the entries behind those that are lost after `end`; `end` itself if there are none.

        One listing, of a page nearly always.
        """
        if Capability.LIST not in self._store.capabilities:
            return end
        while True:
            missing, last = end.sequence + 1, None
            for prefix in entry_prefixes(missing + 1, missing + HOLE_MAX):
                async for info in self._store.list(prefix):
                    found = sequence_of(info.key)
                    last = found if found is not None and found > missing else last
            if last is None:
                return end
            try:
                behind = await self._end_at(await self._probe(last))
            except MissingObjectError:  # swept since: the hint tells
                return end
            if await self.exists(missing):
                return behind  # there is no hole: they were made meanwhile
            _logger.warning(
                "an entry of the log is gone, though later ones are there: going on from the newest, and `verify` lists"
                " what is missing: object=%s newest=%s",
                entry_key(missing),
                entry_key(behind.sequence),
            )
            end = behind

    async def _end_at(self, sequence: int) -> LogEnd:
        try:
            return LogEnd(CommitSequence(sequence), await self.load(sequence))
        except CorruptCommitError:
            return LogEnd(CommitSequence(sequence), None)

    async def _probe(self, begin: int) -> int:
        """The last of the entries that follow `begin` without a gap: galloping first, then by halves."""
        last, step = begin, 1
        while await self.exists(last + step):
            last, step = last + step, 2 * step
        beyond = last + step
        while beyond - last > 1:
            middle = (last + beyond) // 2
            if await self.exists(middle):
                last = middle
            else:
                beyond = middle
        return last

    async def _list_last(self) -> int | None:
        if Capability.LIST not in self._store.capabilities:  # then it cannot be swept either: its log begins at 0
            return 0 if await self.exists(0) else None
        last = None
        async for sequence, _ in self.listed():
            last = sequence
        return last


def pass_over(_sequence: int, error: DataError) -> None:
    """For `branch`: go on behind damaged entries. Raises the error of one that a newer release has written."""
    if not isinstance(error, CorruptCommitError):  # an entry of a newer release is not damaged
        raise error
