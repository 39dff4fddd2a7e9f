"""Deletes what nobody needs any more: classify everything, look at the end of the log again, then delete, oldest first.

    look -> classify -> say how far -> look for claims -> delete log entries, oldest first -> delete data, oldest first

To say how far and then to look is what makes it safe beside a writer who opens an old checkpoint. He claims the job,
names in his claim the commit that he continues, and then looks how far sweeps have gone. So either he finds that it was
swept, or the sweep finds his claim, and deletes nothing.

A sweep that is killed, cancelled or refused between any two requests has left a job of which every commit that can be
opened is whole. The next sweep goes on.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import anyio
import msgspec

from statebackend._codec.commit import Commit, Entry
from statebackend._log.commits import LOG_CONTACT_MAX_S
from statebackend._log.inventory import Surveyor, View
from statebackend._log.names import HINT_KEY, data_name_of, entry_key, floor_key, hint_of, sequence_of
from statebackend._log.retention import Ages, Classified, LogPlan, Reach, Verdict, classify, plan_log
from statebackend._tasks import in_order
from statebackend.abc import Clock, ObjectStore
from statebackend.errors import InputError, StoreError
from statebackend.ids import Epoch
from statebackend.objectstore.scoped import delete_many, deletes_many

MIN_AGE_S: Final = 3600.0
"""Least age of what is deleted, unless a caller says otherwise."""
BATCH_MAX: Final = 1000
"""Most objects that go in one call, where a store deletes many at once."""
FIRST_SWEEP_S: Final = 60.0
"""When a backend that sweeps does so for the first time, at the latest."""

_logger = logging.getLogger(__name__)


class SweepFailure(msgspec.Struct, frozen=True):
    """An object that could not be deleted. The next sweep tries again."""

    key: str
    reason: str


class SweepReport(msgspec.Struct, frozen=True):
    """What lies under a job, what of it is garbage and why, and what of that was deleted.

    `stopped` says why less was deleted than is garbage. A dry run deletes nothing, and is not `stopped` for that.
    `local` is about the local copies: there, a key is the path of the file.
    """

    dry_run: bool
    objects: tuple[Classified, ...]
    deleted: tuple[str, ...] = ()
    failures: tuple[SweepFailure, ...] = ()
    stopped: str | None = None
    local: tuple[Classified, ...] = ()

    @property
    def garbage(self) -> tuple[Classified, ...]:
        """What is not needed, oldest first."""
        found = [each for each in (*self.objects, *self.local) if each.verdict.is_garbage]
        return tuple(sorted(found, key=lambda each: (each.modified_s, each.key)))

    def total(self, verdict: Verdict) -> tuple[int, int]:
        """How many objects that verdict was passed on, local copies among them, and their bytes."""
        sizes = [each.size_bytes for each in (*self.objects, *self.local) if each.verdict is verdict]
        return len(sizes), sum(sizes)

    def lines(self) -> Iterator[str]:
        """For people: the totals, then what is garbage or foreign, with reasons, then what went wrong."""
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
    """Sweeps one job in its primary. Beside writers, readers and other sweeps, in whatever processes.

    `checkpoints_retained`: how many commits of the branch stay, at least 1. `min_age_s`: least age of what is deleted,
    in seconds by the store's clock; entries of the log stay for an hour whatever it says. Raises `InputError`.
    """

    def __init__(
        self,
        store: ObjectStore,
        job: str,
        *,
        checkpoints_retained: int,
        clock: Clock,
        min_age_s: float = MIN_AGE_S,
        concurrency_max: int = 16,
    ) -> None:
        if not min_age_s >= 0:
            raise InputError("min_age_s must not be negative", min_age_s=min_age_s)
        self._store = store
        self._surveyor = Surveyor(
            store, job, checkpoints_retained=checkpoints_retained, concurrency_max=concurrency_max
        )
        self._min_age_s = min_age_s
        self._concurrency_max = concurrency_max
        self._clock = clock

    async def run(self, *, dry_run: bool) -> SweepReport:
        """One sweep. Raises `DataError`s where it cannot be known what is needed: nothing is deleted then.

        An object that cannot be deleted is reported and no error. A cancelled call has deleted some of the garbage.
        """
        view = await self._surveyor.look(begun_s=self._clock.monotonic())
        ages = Ages(newest_s=_newest_s(view), now_s=self._clock.time(), min_age_s=self._min_age_s)
        log = plan_log(
            {sequence: info.modified_s for sequence, info in view.entries.items()},
            retained={commit.sequence for commit in view.retained},
            pinned=view.pinned,
            ages=ages,
        )
        reach = Reach()

        def reached(sequence: int, entry: Entry) -> None:
            if isinstance(entry, Commit):
                reach.add(entry, stays=sequence in log.keep)

        await self._surveyor.each((*log.keep, *log.remove), reached, doomed=frozenset(log.remove))
        epoch = Epoch(0) if view.end is None else view.end.epoch
        log = log.without(reach.needed)
        newest = max((commit.sequence for commit in view.retained if commit.epoch == epoch), default=-1)
        classified = classify(
            view.objects, log=log, reach=reach, known=view.known, epoch=epoch, ages=ages, newest=newest
        )
        report = SweepReport(dry_run, tuple(classified))
        return report if dry_run or not report.garbage else await self._delete(report, log, view)

    async def _delete(self, report: SweepReport, log: LogPlan, view: View) -> SweepReport:
        stopped = await self._raise_floor(log, view) or await self._wanted_again(log, view)
        if stopped is not None:
            return msgspec.structs.replace(report, stopped=stopped)
        deleted, failures = await self._delete_all([entry_key(sequence) for sequence in log.remove])
        data = [each for each in report.garbage if sequence_of(each.key) is None]
        if failures:  # what it points into stays with it
            data = [each for each in data if each.verdict is Verdict.ORPHAN]
        data_deleted, data_failures = await self._delete_all([each.key for each in data])
        return msgspec.structs.replace(report, deleted=(*deleted, *data_deleted), failures=(*failures, *data_failures))

    async def _raise_floor(self, log: LogPlan, view: View) -> str | None:
        """Say how far this sweep goes, and see to it that a search for the end does not begin below. Why not, if not.

        A hint is written only while its entry was the end not long ago: then no sweep can have gone beyond it.
        """
        if view.end is None:
            return None
        if log.floor and floor_key(log.floor) not in view.known:
            await self._store.put(floor_key(log.floor), ())
        if view.hint is not None and view.hint < log.floor:
            if self._clock.monotonic() - view.begun_s > LOG_CONTACT_MAX_S:
                return "the look at the job took too long: sweep again"
            await self._store.put(HINT_KEY, (hint_of(view.end),))
        return None

    async def _wanted_again(self, log: LogPlan, view: View) -> str | None:
        """Whether somebody has opened, since the look, a commit that is about to lose what it needs: why to stop."""
        for claim in await self._surveyor.claims_after(-1 if view.end is None else view.end.sequence):
            if claim.base is not None and claim.base < log.floor and claim.base not in log.keep:
                return f"a writer has opened commit {claim.base} meanwhile: sweep again when it has committed"
        return None

    async def _delete_all(self, keys: Sequence[str]) -> tuple[list[str], list[SweepFailure]]:
        """In the order given, several at a time or in batches. Errors are collected."""
        deleted: list[str] = []
        failures: list[SweepFailure] = []
        if deletes_many(self._store):
            for batch in (keys[begin : begin + BATCH_MAX] for begin in range(0, len(keys), BATCH_MAX)):
                try:
                    await delete_many(self._store, batch)
                except StoreError:  # which of them, is found out one by one: it is no error that some are gone
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
    """Sweep again and again, until cancelled. What goes wrong is logged, and tried again the next time."""
    pause_s = min(interval_s, FIRST_SWEEP_S)
    while True:
        await anyio.sleep(pause_s)
        pause_s = interval_s
        try:
            report = await sweep.run(dry_run=False)
        except Exception as error:  # noqa: BLE001  nobody's checkpoint fails for what a sweep finds
            _logger.warning("the sweep failed: reason=%r", error)
            continue
        _logger.info("swept: deleted=%d garbage=%d", len(report.deleted), len(report.garbage))
        for failure in report.failures:
            _logger.warning("could not delete: key=%s reason=%s", failure.key, failure.reason)


def _newest_s(view: View) -> float:
    """The newest time that the store gave to an object of ours."""
    ours = (info for info in view.objects if info.key in view.known or data_name_of(info.key) is not None)
    return max((info.modified_s for info in (*ours, *view.entries.values())), default=0.0)
