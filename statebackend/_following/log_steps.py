"""Looks at the log for what comes behind an entry: nothing, entries, or a log that does not go on from there."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, TypeVar

import anyio
import msgspec

from statebackend._codec.commit import Entry
from statebackend._following.position import KnownMoment
from statebackend._log.log_end import LogEnd
from statebackend._log.names import entry_key
from statebackend._tasks import in_order
from statebackend._upkeep.job_primary import JobPrimary
from statebackend.abc import Clock
from statebackend.errors import MissingObjectError, ObjectNotFoundError, StateGoneError, StoreUnavailableError

T = TypeVar("T")

ENTRIES_MAX: Final = 64
"""Entries read at a time, so that the follower of a job that commits quickly comes forward in steps."""
AT_A_TIME: Final = 8
BEHIND: Final = 4
"""Looks in a row that found something, after which the end of the log is looked for, to know how far there is to go."""
LOOK_WELL_S: Final = 10.0
"""A log that was put back from a backup, or deleted, has no next entry either. So the end is looked for so often."""
UNSWEPT_S: Final = 1800.0
"""No entry is swept within twice this time. After a longer one, no next entry does not mean that there was none."""
ANSWER_S: Final = 30.0
"""How long one look may take. A store that hangs is one that does not answer."""


class Found(msgspec.Struct, frozen=True):
    """The entries behind the last one, in order, with their bytes by their keys.

    `fresh`: when there was nothing behind them; `None` where that was not looked for. `broken`: why the log cannot be
    followed from the last entry on, but has to be looked at anew.
    """

    entries: Sequence[Entry] = ()
    bodies: Mapping[str, bytes] = {}
    fresh: KnownMoment | None = None
    broken: str | None = None


class LogSteps:
    """Steps along the log of a job. `at`: the last entry that was read."""

    def __init__(self, primary: JobPrimary, clock: Clock) -> None:
        self._primary = primary
        self._clock = clock
        self._sequence = -1
        self._stamp: str | None = None  # not known of a damaged entry
        self._contact: KnownMoment | None = None  # when an entry or its absence was last seen
        self._looked_well: KnownMoment | None = None
        self._found_in_a_row = 0

    def stand_behind(self, end: LogEnd, moment: KnownMoment) -> None:
        """Go on behind this end, which was found after that moment."""
        self._sequence, self._stamp = end.sequence, None if end.entry is None else end.entry.stamp
        self._contact = self._looked_well = moment
        self._found_in_a_row = 0

    def stand_at(self, entry: Entry) -> None:
        """The entry was dealt with."""
        self._sequence, self._stamp = entry.sequence, entry.stamp

    async def look(self) -> Found:
        """Look behind the last entry: one request if there is nothing. Raises `StateGoneError`, as `LogReader.load`."""
        moment = KnownMoment(self._clock)
        if self._contact is None or self._contact.since_s() > UNSWEPT_S:
            return Found(broken="the follower slept for long")
        first = await in_time(self._load(self._sequence + 1))
        if first is None:
            if self._looked_well is None or self._looked_well.since_s() >= LOOK_WELL_S:
                return await self._look_well()
            self._contact, self._found_in_a_row = moment, 0
            return Found(fresh=moment)
        self._contact = moment
        self._found_in_a_row += 1
        if self._found_in_a_row >= BEHIND:
            return await self._look_well()
        entry, body = first
        return Found((entry,), {entry_key(entry.sequence): body})

    async def _look_well(self) -> Found:
        """Look for the end of the log, and read what lies before it. More requests than `look`."""
        moment = KnownMoment(self._clock)
        end = await in_time(self._primary.log.end())
        if end is None:
            raise StateGoneError(
                "the job that was followed is gone: put its primary back, or correct job or primary",
                job=self._primary.settings.job,
                sequence=self._sequence,
            )
        end.check()
        if end.sequence < self._sequence or not await self._is_ours(end):
            return Found(broken="the log was put back to an older state")
        last = min(end.sequence, self._sequence + ENTRIES_MAX)
        entries: list[Entry] = []
        bodies: dict[str, bytes] = {}

        async def take(sequence: int, found: tuple[Entry, bytes] | None) -> None:
            if found is None:
                raise MissingObjectError("an entry of the log is gone, perhaps swept", object=entry_key(sequence))
            entries.append(found[0])
            bodies[entry_key(sequence)] = found[1]

        sequences = range(self._sequence + 1, last + 1)
        try:
            await in_time(in_order(sequences, self._load, take, concurrency_max=AT_A_TIME))
        except MissingObjectError:
            return Found(broken="a sweep was faster")
        self._contact = self._looked_well = moment
        self._found_in_a_row = 0 if last == end.sequence else BEHIND
        return Found(entries, bodies, moment if last == end.sequence else None)

    async def _is_ours(self, end: LogEnd) -> bool:
        """True if the entry that was read last is still in the log. One that was swept tells nothing."""
        if self._stamp is None:
            return True
        if end.sequence == self._sequence:
            return end.entry is None or end.entry.stamp == self._stamp
        found = await in_time(self._load(self._sequence))
        return found is None or found[0].stamp == self._stamp

    async def _load(self, sequence: int) -> tuple[Entry, bytes] | None:
        try:
            body = await self._primary.store.get(entry_key(sequence))
        except ObjectNotFoundError:
            return None
        return await self._primary.log.load(sequence, body=body), body


async def in_time(call: Awaitable[T], timeout_s: float = ANSWER_S) -> T:
    """Await a call to the store. Raises `StoreUnavailableError` where it takes longer."""
    with anyio.move_on_after(timeout_s):
        return await call
    raise StoreUnavailableError("the store did not answer in time", timeout_s=timeout_s)
