"""Deletes garbage from a job's primary, beside writers, readers and other sweeps.

    take inventory -> choose milestones -> classify -> raise the floor -> look for claims
    -> delete log entries -> delete data, oldest first

Raising the floor before looking for claims makes this safe beside a writer that opens an old checkpoint. That writer
claims the job, names in its claim the commit that it continues from, and then reads the floor. So either it finds that
the commit was swept, or the sweep finds its claim, and deletes nothing. In any other order both could miss each other.

In a store without room the floor cannot be raised. Then what no opening could ever need goes first, and makes room for
the floor: orphans, former floors, and claims below the hint.

Entries go before data, so that no commit that can be opened ever lacks an object. A sweep that is killed, cancelled or
refused between any two requests leaves every such commit whole, and the next sweep finishes the work.

A log that was not swept for long goes in parts first, so that it need not be held in memory and a sweep that is killed
has got further: `long_log.py`.
"""

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from statebackend._codec.commit import Commit, Entry
from statebackend._log.log_reader import LogReader
from statebackend._log.milestones import Milestone
from statebackend._log.names import data_name_of, entry_key, floor_of, sequence_of
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.sweeping.inventory import Inventory, check_can_list, take_inventory
from statebackend._log.sweeping.long_log import Clearing, LongLog, plan_clearing
from statebackend._log.sweeping.retention import Ages, LogPlan, ObjectReport, Reach, SweepReason, classify, plan_log
from statebackend._log.sweeping.sweep_requests import SweepFailure, SweepRequests
from statebackend._log.sweeping.thinning import thinned
from statebackend.abc import Clock, ObjectStore
from statebackend.errors import InputError, StoreFullError
from statebackend.ids import Epoch

MIN_AGE_S: Final = 3600.0
"""Least age of what is deleted, unless a caller says otherwise."""
PART_ENTRIES: Final = 10_000
"""Entries of the log whose contents are in memory at a time. A job that commits each second makes them in three hours.
"""


class SweepReport(msgspec.Struct, frozen=True):
    """A verdict on every object of a job, and which of the garbage was deleted.

    `stopped` says why the sweep gave up, else `None`; a dry run is not `stopped`. It has deleted nothing then, or only
    what no commit ever pointed into, to make room. `local` has the local copies; there, a key is the path of the file.
    `cleared`: how many objects of a long log were deleted before it was looked at; they are not among the others.
    """

    dry_run: bool
    objects: tuple[ObjectReport, ...]
    deleted: tuple[str, ...] = ()
    failures: tuple[SweepFailure, ...] = ()
    stopped: str | None = None
    local: tuple[ObjectReport, ...] = ()
    cleared: int = 0

    @property
    def garbage(self) -> tuple[ObjectReport, ...]:
        """The objects that are not needed, oldest first."""
        found = [each for each in (*self.objects, *self.local) if each.verdict.is_garbage]
        return tuple(sorted(found, key=lambda each: (each.modified_s, each.key)))

    def total(self, verdict: SweepReason) -> tuple[int, int]:
        """How many objects have that verdict, local copies included, and their bytes."""
        sizes = [each.size_bytes for each in (*self.objects, *self.local) if each.verdict is verdict]
        return len(sizes), sum(sizes)

    def lines(self) -> Iterator[str]:
        """Yield lines for people: totals, then garbage and foreign objects with reasons, then what went wrong."""
        for verdict in SweepReason:
            count, size_bytes = self.total(verdict)
            if count:
                yield f"{verdict.value:<12}{count:>10} objects{size_bytes:>16} bytes"
        foreign = [each for each in (*self.objects, *self.local) if each.verdict is SweepReason.FOREIGN]
        for each in (*self.garbage, *foreign):
            yield f"{each.verdict.value:<12}{each.size_bytes:>16}  {each.key}  ({each.reason})"
        for failure in self.failures:
            yield f"not deleted: {failure.key}  ({failure.reason})"
        if self.stopped is not None:
            yield f"stopped: {self.stopped}"
        yield "dry run: nothing was deleted" if self.dry_run else f"{len(self.deleted) + self.cleared} objects deleted"


class Sweep:
    """Sweeps one job in its primary. Writers, readers and other sweeps may be at work, in whatever processes.

    `checkpoints_retained`: how many commits of the branch stay, at least 1. `checkpoints_retained_s`: how old a commit
    may be to stay as one of a stretch of time: `thinning.py`. `min_age_s`: least age of what is deleted,
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
        checkpoints_retained_s: float = 0.0,
        min_age_s: float = MIN_AGE_S,
        concurrency_max: int = 16,
        part_entries: int = PART_ENTRIES,
    ) -> None:
        check_can_list(store)
        if not min_age_s >= 0:
            raise InputError("min_age_s must not be negative", min_age_s=min_age_s)
        self._store = store
        self._log = log
        self._requests = SweepRequests(store, log, clock=clock, concurrency_max=concurrency_max)
        self._checkpoints_retained = checkpoints_retained
        self._retained_s = checkpoints_retained_s
        self._min_age_s = min_age_s
        self._concurrency_max = concurrency_max
        self._part_entries = part_entries
        self._clock = clock

    async def run(self, *, dry_run: bool) -> SweepReport:
        """Sweep once. Raises a `DataError` if it cannot be known what is needed: then nothing was deleted.

        An object that cannot be deleted is reported, and is no error. A cancelled call has deleted some of the garbage.
        """
        cleared, begun_s = 0, self._clock.monotonic()
        entries = await self._entries(None if dry_run else self._part_entries)
        if entries is None:
            cleared, begun_s = await self._clear(), self._clock.monotonic()
            entries = await self._entries(None)
        assert entries is not None, "asked for all of them"
        found = await self._look(entries, (min(entries), max(entries)) if entries else None, begun_s)
        ages = self._ages(found, max(entries.values(), default=0.0))
        retained = {commit.sequence for commit in found.retained}
        log = plan_log(entries, retained=retained, pinned=found.pinned, ages=ages)
        if self._retained_s:
            found = await self._with_milestones(found, entries, entries, log.floor, ages)
            log = plan_log(entries, retained=retained, pinned=found.pinned, ages=ages)
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
            found.objects,
            log=log,
            reach=reach,
            known=found.known,
            epoch=epoch,
            ages=ages,
            newest=newest,
            milestones=found.milestones,
        )
        report = SweepReport(dry_run, tuple(classified), cleared=cleared)
        return report if dry_run or not report.garbage else await self._delete(report, log, found, claims)

    async def _entries(self, count_max: int | None) -> Mapping[int, float] | None:
        """When each entry of the log was made, by the store's clock; `None` if there are more than `count_max`."""
        entries: dict[int, float] = {}
        async with aclosing(self._log.listed()) as listed:
            async for sequence, info in listed:
                if len(entries) == count_max:
                    return None
                entries[sequence] = info.modified_s
        return entries

    async def _clear(self) -> int:
        """Delete what of a long log goes, but for the last part of it; return how many objects went."""
        begun_s, listed = self._clock.monotonic(), LongLog(self._part_entries)
        async for sequence, info in self._log.listed():
            listed.add(sequence, info.modified_s)
        found = await self._look(listed, listed.ends, begun_s, log_only=True)
        if found.end is None:
            return 0
        retained = {commit.sequence for commit in found.retained}
        ages = self._ages(found, listed.newest_s)
        planned = partial(plan_clearing, listed.blocks, retained=retained, end=found.end.sequence, ages=ages)
        plan = planned(pinned=found.pinned)
        if self._retained_s:
            found = await self._with_milestones(found, listed.sampled, listed, plan.floor, ages)
            plan = planned(pinned=found.pinned)
        clearing = Clearing(
            self._log, self._requests, part_entries=self._part_entries, concurrency_max=self._concurrency_max
        )
        return await clearing.run(plan, found)

    async def _look(
        self, listed: Container[int], ends: tuple[int, int] | None, begun_s: float, *, log_only: bool = False
    ) -> Inventory:
        return await take_inventory(
            self._store,
            self._log,
            listed=listed,
            ends=ends,
            checkpoints_retained=self._checkpoints_retained,
            begun_s=begun_s,
            log_only=log_only,
        )

    async def _with_milestones(
        self, found: Inventory, entries: Mapping[int, float], listed: Container[int], floor: int, ages: Ages
    ) -> Inventory:
        milestones = await thinned(
            self._log,
            Savepoints(self._store, self._log),
            entries,
            listed=listed,
            floor=floor,
            ages=ages,
            retained_s=self._retained_s,
        )
        by_sequence: dict[int, Milestone] = {each.sequence: each for each in milestones}
        pinned = {**dict.fromkeys(by_sequence, "kept for its age"), **found.pinned}
        return msgspec.structs.replace(found, pinned=pinned, milestones=by_sequence)

    def _ages(self, found: Inventory, entries_newest_s: float) -> Ages:
        """`entries_newest_s`: the newest time of an entry. Also counts: that of any other object of ours."""
        ours = (info for info in found.objects if info.key in found.known or data_name_of(info.key) is not None)
        newest_s = max((info.modified_s for info in ours), default=0.0)
        return Ages(newest_s=max(newest_s, entries_newest_s), now_s=self._clock.time(), min_age_s=self._min_age_s)

    async def _delete(
        self, report: SweepReport, log: LogPlan, found: Inventory, claims: Collection[int]
    ) -> SweepReport:
        try:
            stopped = await self._requests.raise_floor(log.floor, found)
        except StoreFullError:
            report = await self._make_room(report, found, claims)
            try:
                stopped = await self._requests.raise_floor(log.floor, found)
            except StoreFullError as error:
                stopped = f"no room to say how far this sweep goes: make a little, and sweep again ({error})"
        stopped = stopped or await self._requests.wanted_again(log.floor, log.keep, found)
        if stopped is not None:
            return msgspec.structs.replace(report, stopped=stopped)
        deleted, failures = await self._requests.delete_all([entry_key(sequence) for sequence in log.remove])
        data = [each for each in report.garbage if sequence_of(each.key) is None]
        if failures:  # an entry is still there: then so must be what it points into
            data = [each for each in data if each.verdict is SweepReason.ORPHAN]
        data_deleted, data_failures = await self._requests.delete_all([each.key for each in data])
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
            if each.verdict is SweepReason.ORPHAN
            or floor_of(each.key) is not None
            or ((sequence := sequence_of(each.key)) in claims and sequence is not None and sequence < below)
        ]
        deleted, _ = await self._requests.delete_all(needless)
        return msgspec.structs.replace(report, deleted=tuple(deleted))
