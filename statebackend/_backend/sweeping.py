"""Sweeps of a job as the settings say: one, or again and again beside its writer, in the background."""

import logging
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from statebackend._log.log_reader import LogReader
from statebackend._log.sweeping.log_sweep import MIN_AGE_S, Sweep, SweepReport
from statebackend._threads import WorkerThreads
from statebackend.abc import Capability, Clock, ObjectStore, Observer
from statebackend.ids import Epoch
from statebackend.settings import Settings

FIRST_SWEEP_S: Final = 60.0
"""A backend that sweeps does so for the first time after this long, or sooner."""
AT_ONCE_EVERY: Final = 16
"""One opening in so many sweeps at once: otherwise runs shorter than `FIRST_SWEEP_S` would never sweep."""

_logger = logging.getLogger(__name__)


def open_sweep(
    primary: ObjectStore, settings: Settings, threads: WorkerThreads, *, clock: Clock, min_age_s: float = MIN_AGE_S
) -> Sweep:
    """A sweep of the job in `primary`, which is confined to it."""
    return Sweep(
        primary,
        LogReader(primary, settings.job, threads),
        checkpoints_retained=settings.checkpoints_retained,
        checkpoints_retained_s=settings.checkpoints_retained_s,
        clock=clock,
        min_age_s=min_age_s,
        concurrency_max=settings.restore_concurrency_max,
    )


class SweepBeside:
    """The sweeps of an opened job in the background of `tasks`, as the settings say, if the primary can list."""

    def __init__(
        self,
        primary: ObjectStore,
        settings: Settings,
        threads: WorkerThreads,
        *,
        epoch: Epoch,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
    ) -> None:
        """`epoch`: of the opening."""
        self._swept = anyio.Event()
        self._is_first_due = False
        if not settings.sweep_interval_s:
            return
        if Capability.LIST not in primary.capabilities:
            _logger.warning(
                "job %s: the primary grows for ever, since a store that cannot list cannot be swept. sweep_interval_s=0"
                " says that this is known",
                settings.job,
            )
            return
        self._is_first_due = epoch % AT_ONCE_EVERY == 0
        sweep = open_sweep(primary, settings, threads, clock=clock)
        every = partial(sweep_every, at_once=self._is_first_due, clock=clock, observer=observer, swept=self._swept)
        tasks.start_soon(every, settings.sweep_interval_s, sweep)

    async def first(self) -> None:
        """Wait until a sweep that was begun at once has ended: the run may be short. The caller bounds it."""
        if self._is_first_due:
            await self._swept.wait()


async def sweep_every(
    interval_s: float, sweep: Sweep, *, at_once: bool, clock: Clock, observer: Observer, swept: anyio.Event
) -> None:
    """Sweep every `interval_s` seconds until cancelled. Failures are logged and told, and the next sweep tries again.

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
            observer.sweep_failed(error)
        else:
            seconds = clock.monotonic() - begun_s
            _tell(report, seconds)
            deleted = len(report.deleted) + report.cleared
            observer.swept(deleted=deleted, failures=len(report.failures), seconds=seconds)
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
