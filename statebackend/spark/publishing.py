"""Publishes the committed output of a sink's job: what an earlier run has left, and that of each batch."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from statebackend._observers import Observers
from statebackend.abc import Clock, Observer
from statebackend.abc.clock import SystemClock
from statebackend.ids import StagedOutput
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.driver import result_of
from statebackend.spark.execution import OpenedJob
from statebackend.spark.output import Outbox, Publication

_logger = logging.getLogger(__name__)
_CLOCK: Final[Clock] = SystemClock()


class Publishing:
    """Publishes through `outbox`. Without one, it warns once of output that waits for it."""

    def __init__(self, outbox: Outbox | None, observer: Observer | None) -> None:
        self._outbox = outbox
        self._observer = observer
        self._warned = False

    def run(self, df: DataFrame, job: OpenedJob, query: QueryThread) -> None:
        """Publish the committed output that may be unpublished. Raises what the outbox's function raises."""
        if self._outbox is None:
            if job.outbox.pending and not self._warned:
                _logger.warning(
                    "committed output may be unpublished, and this sink has no outbox: give it output=Outbox(publish)"
                )
                self._warned = True
            return
        while job.outbox.pending:
            taken = attend(process_portal().start(job.take_output), query)
            assert taken is not None, "nobody else publishes from this job"
            output, streams = taken
            publication = Publication(output, streams, epoch=job.epoch, session=df.sparkSession)
            with _telling(output, Observers(self._observer or Observer())):
                result_of(self._outbox.publish(publication), df, query)
            attend(process_portal().start(_mark_published, job, output), query)


@contextmanager
def _telling(output: StagedOutput, observer: Observer) -> Generator[None]:
    """Tell the observer, on the loop, how the publication of `output` in this context ended, and how long it took."""
    begun_s = _CLOCK.monotonic()
    try:
        yield
    except BaseException as error:
        seconds = _CLOCK.monotonic() - begun_s
        process_portal().post(partial(observer.publication_failed, output, error, seconds=seconds))
        raise
    process_portal().post(partial(observer.output_published, output, seconds=_CLOCK.monotonic() - begun_s))


async def _mark_published(job: OpenedJob, output: StagedOutput) -> None:
    job.published(output)
