"""A seed from frames of Spark as one Spark job: each range of key groups writes its own bases, and the driver commits.

    claim -> salt the rows of each frame -> one partition for each range -> mapInArrow (seed_task.py) -> one commit

The claim comes first, since a task names what it stores by its epoch. So rows that do not fit are found behind it,
unless a dry run comes before.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, cast

import anyio
import msgspec
from pyspark import SparkContext
from pyspark.sql import DataFrame

from statebackend._backend.copy_writers import OpenUploader
from statebackend._processing.column_names import check_distinct
from statebackend._ranges.equal_ranges import ranges_of
from statebackend._tasks import open_tasks
from statebackend._threads import FileThreads
from statebackend._upkeep.offline.offline_commit import OfflineJob, Uploads, open_offline
from statebackend._upkeep.seeding.seed import (
    Origin,
    SeedReport,
    as_json,
    carried_out,
    committed,
    declared_for,
    key_of,
)
from statebackend._upkeep.seeding.seeded_states import Declares
from statebackend._version import __version__
from statebackend.errors import SettingsError
from statebackend.ids import ClockKind, Epoch, RangeState
from statebackend.settings import Settings
from statebackend.spark.executors import seed_task
from statebackend.spark.executors.batch_job import check_shared
from statebackend.spark.executors.pickling import pickled
from statebackend.spark.executors.placement import SALT, salted, salts_of
from statebackend.spark.executors.seed_task import SeededFrame, SeededRange, SeedSpec
from statebackend.spark.executors.task_errors import error_in
from statebackend.spark.executors.worker import RESULT_SCHEMA, task_of
from statebackend.spark.frames import check_types, context_of

CANCEL_EVERY_S: Final = 0.1
"""Between two requests to Spark to cancel the job: one may come before there is a job."""
_JOB_GROUP: Final = "spark.jobGroup.id"


async def seed(
    settings: Settings,
    states: Declares,
    frames: Mapping[str, DataFrame],
    *,
    parallelism: int,
    key: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "key",
    starts_from: Any = None,
    clock_s: float | None = None,
    clock_kind: ClockKind = "event",
    dry_run: bool = False,
    uploader: OpenUploader | None = None,
) -> SeedReport:
    """As `sb.seed`, of frames of Spark, on the executors: each of `parallelism` ranges of key groups writes its own.

        await sb.spark.seed(settings, Customers(), {"customers": sums}, key="customer", parallelism=64)

    No row comes to the driver, which makes the one commit. The rows of a range are sorted by one task in a scratch
    directory of its host. The columns of a key are text, whole numbers or bytes; what else a row has is as for
    `sb.seed`. A frame has no order, so a key that comes twice is refused, and none can be first or last: aggregate it
    before. Spark's own bar and page show how far it is. Workers need what `execution="executors"` of a sink needs, and
    `states` is sent to them. A stream may go on in the driver, or with another `parallelism`.

    Raises as `sb.seed`, but a row that does not fit, which is told by its key, and a key that comes twice are found
    behind the claim: with `dry_run` they are found before, and nothing is claimed or written. Raises `SettingsError`
    for what hosts cannot share, and on Spark Connect, and `BatchError` where all attempts at a range failed. A failed
    call has deleted what it knows of; the rest, and all of a killed one, is left to a sweep.
    """
    return await seed_frames(
        settings,
        states,
        frames,
        parallelism=parallelism,
        origin=Origin(starts_from=as_json(starts_from)),
        key=key,
        clock_s=clock_s,
        clock_kind=clock_kind,
        dry_run=dry_run,
        uploader=uploader,
    )


async def seed_frames(
    settings: Settings,
    states: Declares,
    frames: Mapping[str, DataFrame],
    *,
    parallelism: int,
    origin: Origin,
    key: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    clock_s: float | None,
    clock_kind: ClockKind,
    dry_run: bool,
    uploader: OpenUploader | None = None,
) -> SeedReport:
    """As `seed`, for a stream that goes on from `origin`."""
    check_shared(settings, None, uploader)
    seeded = await declared_for(frames, states, settings, clock_s, clock_kind)
    spec = SeedSpec(
        settings=settings,
        declares=states,
        clock=seeded.clock,
        descriptors=seeded.descriptors,
        frames=(),
        salts=salts_of(len(owners := ranges_of(parallelism, settings.max_parallelism))),
        owners=owners,
        epoch=None,
        uploader=uploader,
    )
    for name in frames:
        seeded.encoder(name)  # or there is no state of that name
    keys = {name: key_of(key, name) for name in frames}
    threads = FileThreads(2)  # one of them waits for the job
    job = await threads.io(_SeedJob, spec, frames, keys, threads)

    async def seeding(opened: OfflineJob) -> SeedReport:
        report = SeedReport(job=settings.job, dry_run=dry_run, source=origin.source)
        if dry_run:
            await job.run(None)
        else:
            report = await committed(report, opened, seeded, job.write, origin=origin)
        return msgspec.structs.replace(report, keys=job.keys, rows=job.rows, requests=job.requests, usd=job.usd)

    return await carried_out(seeding, open_offline(settings, commits=not dry_run, store=None, clock=None))


class _SeedJob:
    """The Spark job of one seed. `keys` and `rows`, by state, and what the tasks spent, are known once it has run.

    Made in a thread: it asks the JVM. `keys_of`: the key's columns of each frame. Raises `InputError` for columns that
    cannot be placed or sent, and `SettingsError` on Spark Connect.
    """

    def __init__(
        self,
        spec: SeedSpec,
        frames: Mapping[str, DataFrame],
        keys_of: Mapping[str, str | Sequence[str]],
        threads: FileThreads,
    ) -> None:
        described: list[SeededFrame] = []
        placed: list[DataFrame] = []
        for name, frame in frames.items():
            if context_of(frame) is None:
                raise SettingsError("Spark Connect cannot place keys on executors: seed through the driver, by sb.seed")
            key = keys_of[name]
            described.append(SeededFrame(name, tuple(frame.columns), key if isinstance(key, str) else tuple(key)))
            placed.append(_placed(frame, [key] if isinstance(key, str) else key, f"s{len(placed)}", spec))
        rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), placed)
        ordered = rows.select(*(f"s{number}" for number in range(len(placed))), SALT)
        self._rows = ordered.repartition(len(spec.owners), SALT)
        self._spec = msgspec.structs.replace(spec, frames=tuple(described))
        self._threads = threads
        self.keys: Counter[str] = Counter(dict.fromkeys(frames, 0))
        self.rows: Counter[str] = Counter(dict.fromkeys(frames, 0))
        self.requests = 0
        self.usd = 0.0

    async def write(self, uploads: Uploads) -> Sequence[RangeState]:
        """Have the bases written, which are those of `uploads` then; return the ranges. Raises as `run`."""
        found = {each.key_groups: each.bases for each in await self.run(uploads)}
        return [RangeState(owner, (), found.get(owner, ())) for owner in self._spec.owners]

    async def run(self, uploads: Uploads | None) -> Sequence[SeededRange]:
        """Run it; without `uploads` rows are only checked. A cancelled call cancels the job, and waits for its end.

        Raises the first `InputError` that a task tells, `BatchError`, `SettingsError`, and what Spark raises.
        """
        results = await self._collected(None if uploads is None else uploads.epoch)
        for each in results:
            if uploads is not None:
                uploads.adopt(each.bases)
            self.keys.update(each.keys)
            self.rows.update(each.rows)
            self.requests += each.requests
            self.usd += each.usd
        for each in results:
            if each.refused is not None:
                raise each.refused.error()
        return results

    async def _collected(self, epoch: Epoch | None) -> Sequence[SeededRange]:
        context = self._rows.sparkSession.sparkContext
        group, ended = f"statebackend seed of {self._spec.settings.job}, epoch {epoch}", anyio.Event()

        def collect() -> list[Any]:
            context.setJobGroup(group, group)
            try:
                return self._job(epoch).collect()
            except Exception as error:
                if (failure := error_in(str(error))) is None:
                    raise
                raise failure from error
            finally:
                context.setLocalProperty(_JOB_GROUP, cast("str", None))  # the thread may be used by others

        async with open_tasks() as tasks:
            tasks.start_soon(self._cancel, context, group, ended)
            try:
                rows = await self._threads.io(collect)
            finally:
                ended.set()
        return [msgspec.msgpack.decode(row.result, type=SeededRange) for row in rows]

    async def _cancel(self, context: SparkContext, group: str, ended: anyio.Event) -> None:
        """If this is cancelled before the job has ended, cancel that, too."""
        try:
            await ended.wait()
        finally:
            with anyio.CancelScope(shield=True):
                while not ended.is_set():
                    await self._threads.io(context.cancelJobGroup, group)
                    with anyio.move_on_after(CANCEL_EVERY_S):
                        await ended.wait()

    def _job(self, epoch: Epoch | None) -> DataFrame:
        """The frame whose rows are the results of the tasks."""
        sent = pickled(msgspec.structs.replace(self._spec, epoch=epoch))
        task = task_of(sent, release=__version__, module=seed_task.__name__)
        rows: Any = self._rows  # the types of mapInArrow are pyarrow's, which has none
        job: DataFrame = rows.mapInArrow(task, RESULT_SCHEMA)
        return job


def _placed(frame: DataFrame, key: Sequence[str], name: str, spec: SeedSpec) -> DataFrame:
    """The rows of the frame as structs of that name, with the salt of their slot."""
    check_distinct(frame.columns)
    check_types(frame)
    rows = salted(frame, key, spec.salts, max_parallelism=spec.settings.max_parallelism)
    columns = ", ".join(f"c{place}" for place in range(len(frame.columns)))
    return rows.selectExpr(f"struct({columns}) AS {name}", SALT)
