"""Deletes garbage from a job's primary, beside writers, readers and other sweeps.

    take inventory -> classify -> raise the floor -> look for claims -> delete log entries -> delete data, oldest first

Raising the floor before looking for claims makes this safe beside a writer that opens an old checkpoint. That writer
claims the job, names in its claim the commit that it continues from, and then reads the floor. So either it finds that
the commit was swept, or the sweep finds its claim, and deletes nothing. In any other order both could miss each other.

In a store without room the floor cannot be raised. Then what no opening could ever need goes first, and makes room for
the floor: orphans, former floors, and claims below the hint.

Entries go before data, so that no commit that can be opened ever lacks an object. A sweep that is killed, cancelled or
refused between any two requests leaves every such commit whole, and the next sweep finishes the work.

A log that was not swept for long goes in parts, oldest first, so that it need not be held in memory and a sweep that is
killed has got further. The floor is raised above all of them before the first.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import anyio
import msgspec

from statebackend._codec.commit import Commit, Entry
from statebackend._log.inventory import Inventory, check_can_list, list_entries, take_inventory
from statebackend._log.names import HINT_KEY, data_name_of, entry_key, floor_key, floor_of, hint_of, sequence_of
from statebackend._log.reader import LogReader
from statebackend._log.retention import Ages, Classified, LogPlan, Reach, Verdict, classify, plan_log
from statebackend._log.writer import LOG_CONTACT_MAX_S
from statebackend._tasks import in_order
from statebackend.abc import Clock, ObjectStore
from statebackend.errors import InputError, StoreError, StoreFullError
from statebackend.ids import Epoch
from statebackend.objectstore.scoped import delete_many, deletes_many

MIN_AGE_S: Final = 3600.0
"""Least age of what is deleted, unless a caller says otherwise."""
PART_ENTRIES: Final = 10_000
"""Entries of the log whose contents are in memory at a time. A job that commits each second makes them in three hours.
"""
BATCH_MAX: Final = 1000
"""Most objects deleted in one call, for a store that deletes many at once."""
FIRST_SWEEP_S: Final = 60.0
"""A backend that sweeps does so for the first time after this long, or sooner."""
AT_ONCE_EVERY: Final = 16
"""One opening in so many sweeps at once: otherwise runs shorter than `FIRST_SWEEP_S` would never sweep."""

_logger = logging.getLogger(__name__)


class SweepFailure(msgspec.Struct, frozen=True):
    """An object that could not be deleted. The next sweep tries again."""

    key: str
    reason: str


class SweepReport(msgspec.Struct, frozen=True):
    """A verdict on every object of a job, and which of the garbage was deleted.

    `stopped` says why the sweep gave up, else `None`; a dry run is not `stopped`. It has deleted nothing then, or only
    what no commit ever pointed into, to make room. `local` has the local copies; there, a key is the path of the file.
    `cleared`: how many objects of a long log were deleted before it was looked at; they are not among the others.
    """

    dry_run: bool
    objects: tuple[Classified, ...]
    deleted: tuple[str, ...] = ()
    failures: tuple[SweepFailure, ...] = ()
    stopped: str | None = None
    local: tuple[Classified, ...] = ()
    cleared: int = 0

    @property
    def garbage(self) -> tuple[Classified, ...]:
        """The objects that are not needed, oldest first."""
        found = [each for each in (*self.objects, *self.local) if each.verdict.is_garbage]
        return tuple(sorted(found, key=lambda each: (each.modified_s, each.key)))

    def total(self, verdict: Verdict) -> tuple[int, int]:
        """How many objects have that verdict, local copies included, and their bytes."""
        sizes = [each.size_bytes for each in (*self.objects, *self.local) if each.verdict is verdict]
        return len(sizes), sum(sizes)

    def lines(self) -> Iterator[str]:
        """Yield lines for people: totals, then garbage and foreign objects with reasons, then what went wrong."""
        for verdict in Verdict:
            count, size_bytes = self.total(verdict)
            if count:
                yield f"{verdict.value:<12}{count:>10} objects{size_bytes:>16} bytes"
        foreign = [each for each in (*self.objects, *self.local) if each.verdict is Verdict.FOREIGN]
        for each in (*self.garbage, *foreign):
            yield f"{each.verdict.value:<12}{each.size_bytes:>16}  {each.key}  ({each.reason})"
        for failure in self.failures:
            yield f"not deleted: {failure.key}  ({failure.reason})"
        if self.stopped is not None:
            yield f"stopped: {self.stopped}"
        yield "dry run: nothing was deleted" if self.dry_run else f"{len(self.deleted) + self.cleared} objects deleted"


class Sweep:
    """Sweeps one job in its primary. Writers, readers and other sweeps may be at work, in whatever processes.

    `checkpoints_retained`: how many commits of the branch stay, at least 1. `min_age_s`: least age of what is deleted,
    in seconds by the store's clock; entries of the log stay for an hour in any case. Raises `InputError`, also for a
    store that cannot list.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: LogReader,
        *,
        checkpoints_retained: int,
        clock: Clock,
        min_age_s: float = MIN_AGE_S,
        concurrency_max: int = 16,
        part_entries: int = PART_ENTRIES,
    ) -> None:
        check_can_list(store)
        if not min_age_s >= 0:
            raise InputError("min_age_s must not be negative", min_age_s=min_age_s)
        self._store = store
        self._log = log
        self._checkpoints_retained = checkpoints_retained
        self._min_age_s = min_age_s
        self._concurrency_max = concurrency_max
        self._part_entries = part_entries
        self._clock = clock

    async def run(self, *, dry_run: bool) -> SweepReport:
        """Sweep once. Raises a `DataError` if it cannot be known what is needed: then nothing was deleted.

        An object that cannot be deleted is reported, and is no error. A cancelled call has deleted some of the garbage.
        """
        cleared, begun_s, entries = 0, self._clock.monotonic(), await list_entries(self._log)
        if len(entries) > self._part_entries and not dry_run:
            cleared = await self._clear(await self._look(entries, begun_s, log_only=True))
            begun_s, entries = self._clock.monotonic(), await list_entries(self._log)
        found = await self._look(entries, begun_s)
        ages = self._ages(found)
        log = self._plan(found, ages)
        reach, claims = Reach(), set[int]()

        def reached(sequence: int, entry: Entry) -> None:
            if isinstance(entry, Commit):
                reach.add(entry, stays=sequence in log.keep)
            else:
                claims.add(sequence)

        # Entries that go are read too: what only they point into is superseded, even in the current epoch, where an
        # object that no commit points into has to stay.
        await self._log.each(
            (*log.keep, *log.remove), reached, doomed=frozenset(log.remove), concurrency_max=self._concurrency_max
        )
        epoch = Epoch(0) if found.end is None else found.end.epoch
        log = log.without(reach.needed)
        # Of this epoch only: its attempts may stand on an older checkpoint, below commits of earlier epochs.
        newest = max((commit.sequence for commit in found.retained if commit.epoch == epoch), default=-1)
        classified = classify(
            found.objects, log=log, reach=reach, known=found.known, epoch=epoch, ages=ages, newest=newest
        )
        report = SweepReport(dry_run, tuple(classified), cleared=cleared)
        return report if dry_run or not report.garbage else await self._delete(report, log, found, claims)

    async def _look(self, entries: Mapping[int, float], begun_s: float, *, log_only: bool = False) -> Inventory:
        return await take_inventory(
            self._store,
            self._log,
            entries,
            checkpoints_retained=self._checkpoints_retained,
            begun_s=begun_s,
            log_only=log_only,
        )

    def _ages(self, found: Inventory) -> Ages:
        return Ages(newest_s=_newest_s(found), now_s=self._clock.time(), min_age_s=self._min_age_s)

    def _plan(self, found: Inventory, ages: Ages) -> LogPlan:
        retained = {commit.sequence for commit in found.retained}
        return plan_log(found.entries, retained=retained, pinned=found.pinned, ages=ages)

    async def _clear(self, found: Inventory) -> int:
        """Delete a long log, but for its last part and what stays; return how many objects went.

        What entries point into goes with the last of them, part by part. None of it can be opened by then: all lies
        below the floor. Does nothing where the rest of the sweep has to find out why.
        """
        log = self._plan(found, self._ages(found))
        if len(log.remove) <= self._part_entries:
            return 0
        try:
            if await self._raise_floor(log, found) or await self._wanted_again(log, found):
                return 0
        except StoreFullError:
            return 0
        needed = await self._pointed_into(log.keep)
        cleared, before = 0, set[str]()  # what the part before points into
        for begin in range(0, len(log.remove), self._part_entries):
            part = log.remove[begin : begin + self._part_entries]
            here = await self._pointed_into(part, doomed=frozenset(part))
            # Entries that go carry change sets too, but they go as entries.
            gone = [key for key in sorted(before - here - needed) if sequence_of(key) is None]
            deleted, _ = await self._delete_all(gone)
            cleared += len(deleted)
            if part[-1] == log.remove[-1]:
                break  # left to the rest of the sweep, which tells what went
            wanted = [key for key in map(entry_key, part) if key not in needed]
            deleted, failures = await self._delete_all(wanted)
            cleared += len(deleted)
            if failures:  # an entry is still there: then so must be what it points into
                break
            before = here
        return cleared

    async def _pointed_into(self, sequences: Collection[int], *, doomed: Collection[int] = ()) -> set[str]:
        """The keys of all objects that these entries point into. Those of `doomed` may be damaged or gone."""
        found = set[str]()

        def reached(_sequence: int, entry: Entry) -> None:
            if isinstance(entry, Commit):
                found.update(entry.segments())

        await self._log.each(sequences, reached, doomed=doomed, concurrency_max=self._concurrency_max)
        return found

    async def _delete(
        self, report: SweepReport, log: LogPlan, found: Inventory, claims: Collection[int]
    ) -> SweepReport:
        try:
            stopped = await self._raise_floor(log, found)
        except StoreFullError:
            report = await self._make_room(report, found, claims)
            try:
                stopped = await self._raise_floor(log, found)
            except StoreFullError as error:
                stopped = f"no room to say how far this sweep goes: make a little, and sweep again ({error})"
        stopped = stopped or await self._wanted_again(log, found)
        if stopped is not None:
            return msgspec.structs.replace(report, stopped=stopped)
        deleted, failures = await self._delete_all([entry_key(sequence) for sequence in log.remove])
        data = [each for each in report.garbage if sequence_of(each.key) is None]
        if failures:  # an entry is still there: then so must be what it points into
            data = [each for each in data if each.verdict is Verdict.ORPHAN]
        data_deleted, data_failures = await self._delete_all([each.key for each in data])
        return msgspec.structs.replace(
            report,
            deleted=tuple(dict.fromkeys((*report.deleted, *deleted, *data_deleted))),
            failures=(*failures, *data_failures),
        )

    async def _make_room(self, report: SweepReport, found: Inventory, claims: Collection[int]) -> SweepReport:
        """Delete the garbage that no writer could open meanwhile, so that it needs no floor. Failures may pass.

        No commit points into an orphan, only the highest floor counts, and nobody opens a claim. A claim goes only
        below the hint: from there on a search for the end must not meet a gap.
        """
        below = found.hint or 0
        needless = [
            each.key
            for each in report.garbage
            if each.verdict is Verdict.ORPHAN
            or floor_of(each.key) is not None
            or ((sequence := sequence_of(each.key)) in claims and sequence is not None and sequence < below)
        ]
        deleted, _ = await self._delete_all(needless)
        return msgspec.structs.replace(report, deleted=tuple(deleted))

    async def _raise_floor(self, log: LogPlan, found: Inventory) -> str | None:
        """Record how far this sweep goes, and move the hint if it is below. Returns why the sweep must stop, if so.

        A search for the end that began below the floor would probe where entries are missing. The hint is written only
        if the end was seen not long ago: then no other sweep can have gone beyond it.
        """
        if found.end is None:
            return None
        if log.floor and floor_key(log.floor) not in found.known:
            await self._store.put(floor_key(log.floor), ())
        if found.hint is not None and found.hint < log.floor:
            if self._clock.monotonic() - found.begun_s > LOG_CONTACT_MAX_S:
                return "the look at the job took too long: sweep again"
            await self._store.put(HINT_KEY, (hint_of(found.end),))
        return None

    async def _wanted_again(self, log: LogPlan, found: Inventory) -> str | None:
        """Return why the sweep must stop: a claim made since the inventory continues a commit that it would break."""
        for claim in await self._log.claims_after(-1 if found.end is None else found.end.sequence):
            if claim.base is not None and claim.base < log.floor and claim.base not in log.keep:
                return f"a writer has opened commit {claim.base} meanwhile: sweep again when it has committed"
        return None

    async def _delete_all(self, keys: Sequence[str]) -> tuple[list[str], list[SweepFailure]]:
        """Delete in the order given, several at a time or in batches. Returns the deleted keys and the failures."""
        deleted: list[str] = []
        failures: list[SweepFailure] = []
        if deletes_many(self._store):
            for batch in (keys[begin : begin + BATCH_MAX] for begin in range(0, len(keys), BATCH_MAX)):
                try:
                    await delete_many(self._store, batch)
                except StoreError:  # one by one shows which of them failed; deleting one that is gone is no error
                    await self._delete_each(batch, deleted, failures)
                else:
                    deleted += batch
        else:
            await self._delete_each(keys, deleted, failures)
        return deleted, failures

    async def _delete_each(self, keys: Sequence[str], deleted: list[str], failures: list[SweepFailure]) -> None:

        async def delete(key: str) -> SweepFailure | None:
            try:
                await self._store.delete(key)
            except StoreError as error:
                return SweepFailure(key, str(error))
            return None

        async def note(key: str, failure: SweepFailure | None) -> None:
            if failure is None:
                deleted.append(key)
            else:
                failures.append(failure)

        await in_order(keys, delete, note, concurrency_max=self._concurrency_max)


async def sweep_every(interval_s: float, sweep: Sweep, *, at_once: bool, clock: Clock, swept: anyio.Event) -> None:
    """Sweep every `interval_s` seconds until cancelled. Failures are logged, and the next sweep tries again.

    `at_once`: the first is not waited for. `swept` is set after the first, whatever came of it.
    """
    pause_s = 0.0 if at_once else min(interval_s, FIRST_SWEEP_S)
    while True:
        await anyio.sleep(pause_s)
        pause_s, begun_s = interval_s, clock.monotonic()
        try:
            report = await sweep.run(dry_run=False)
        except Exception as error:  # noqa: BLE001  # no checkpoint fails because of a sweep
            _logger.warning("the sweep failed: reason=%r", error)
        else:
            _tell(report, clock.monotonic() - begun_s)
        swept.set()


def _tell(report: SweepReport, seconds: float) -> None:
    """Log what a sweep did."""
    garbage = report.garbage
    _logger.info(
        "swept: objects=%d garbage=%d bytes=%d deleted=%d seconds=%.3f stopped=%s",
        len(report.objects),
        len(garbage),
        sum(each.size_bytes for each in garbage),
        len(report.deleted) + report.cleared,
        seconds,
        report.stopped,
    )
    for failure in report.failures:
        _logger.warning("could not delete: key=%s reason=%s", failure.key, failure.reason)


def _newest_s(found: Inventory) -> float:
    """The newest time that the store gave to an object of ours."""
    ours = (info for info in found.objects if info.key in found.known or data_name_of(info.key) is not None)
    return max(max((info.modified_s for info in ours), default=0.0), max(found.entries.values(), default=0.0))
