"""Deletes garbage from a job's primary, beside writers, readers and other sweeps.

    take inventory -> classify -> raise the floor -> look for claims -> delete log entries -> delete data, oldest first

Raising the floor before looking for claims makes this safe beside a writer that opens an old checkpoint. That writer
claims the job, names in its claim the commit that it continues from, and then reads the floor. So either it finds that
the commit was swept, or the sweep finds its claim, and deletes nothing. In any other order both could miss each other.

In a store without room the floor cannot be raised. Then what no opening could ever need goes first, and makes room for
the floor: orphans, former floors, and claims below the hint.

Entries go before data, so that no commit that can be opened ever lacks an object. A sweep that is killed, cancelled or
refused between any two requests leaves every such commit whole, and the next sweep finishes the work.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import anyio
import msgspec

from statebackend._codec.commit import Commit, Entry
from statebackend._log.inventory import Inventory, check_can_list, take_inventory
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
BATCH_MAX: Final = 1000
"""Most objects deleted in one call, for a store that deletes many at once."""
FIRST_SWEEP_S: Final = 60.0
"""A backend that sweeps does so for the first time after this long, or sooner."""

_logger = logging.getLogger(__name__)


class SweepFailure(msgspec.Struct, frozen=True):
    """An object that could not be deleted. The next sweep tries again."""

    key: str
    reason: str


class SweepReport(msgspec.Struct, frozen=True):
    """A verdict on every object of a job, and which of the garbage was deleted.

    `stopped` says why the sweep gave up, else `None`; a dry run is not `stopped`. It has deleted nothing then, or only
    what no commit ever pointed into, to make room. `local`
    has the local copies; there, a key is the path of the file.
    """

    dry_run: bool
    objects: tuple[Classified, ...]
    deleted: tuple[str, ...] = ()
    failures: tuple[SweepFailure, ...] = ()
    stopped: str | None = None
    local: tuple[Classified, ...] = ()

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
        yield "dry run: nothing was deleted" if self.dry_run else f"{len(self.deleted)} objects deleted"


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
    ) -> None:
        check_can_list(store)
        if not min_age_s >= 0:
            raise InputError("min_age_s must not be negative", min_age_s=min_age_s)
        self._store = store
        self._log = log
        self._checkpoints_retained = checkpoints_retained
        self._min_age_s = min_age_s
        self._concurrency_max = concurrency_max
        self._clock = clock

    async def run(self, *, dry_run: bool) -> SweepReport:
        """Sweep once. Raises a `DataError` if it cannot be known what is needed: then nothing was deleted.

        An object that cannot be deleted is reported, and is no error. A cancelled call has deleted some of the garbage.
        """
        found = await take_inventory(
            self._store,
            self._log,
            checkpoints_retained=self._checkpoints_retained,
            begun_s=self._clock.monotonic(),
        )
        ages = Ages(newest_s=_newest_s(found), now_s=self._clock.time(), min_age_s=self._min_age_s)
        log = plan_log(
            {sequence: info.modified_s for sequence, info in found.entries.items()},
            retained={commit.sequence for commit in found.retained},
            pinned=found.pinned,
            ages=ages,
        )
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
        report = SweepReport(dry_run, tuple(classified))
        return report if dry_run or not report.garbage else await self._delete(report, log, found, claims)

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


async def sweep_every(interval_s: float, sweep: Sweep) -> None:
    """Sweep every `interval_s` seconds until cancelled. Failures are logged, and the next sweep tries again."""
    pause_s = min(interval_s, FIRST_SWEEP_S)
    while True:
        await anyio.sleep(pause_s)
        pause_s = interval_s
        try:
            report = await sweep.run(dry_run=False)
        except Exception as error:  # noqa: BLE001  # no checkpoint fails because of a sweep
            _logger.warning("the sweep failed: reason=%r", error)
            continue
        _logger.info("swept: deleted=%d garbage=%d", len(report.deleted), len(report.garbage))
        for failure in report.failures:
            _logger.warning("could not delete: key=%s reason=%s", failure.key, failure.reason)


def _newest_s(found: Inventory) -> float:
    """The newest time that the store gave to an object of ours."""
    ours = (info for info in found.objects if info.key in found.known or data_name_of(info.key) is not None)
    return max((info.modified_s for info in (*ours, *found.entries.values())), default=0.0)
