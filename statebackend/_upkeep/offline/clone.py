"""Makes a new job of another job's checkpoint: its own log, epoch and objects, in the same store or in any other.

    keep the checkpoint -> claim the new job -> copy each object -> look whether it is still kept -> one commit

The claim has a stamp that is made of what is cloned, and each copy a name that is made of the name of its object. So a
call that was killed is continued by the next one, and two at once do each other no harm. Before the commit the new job
has no checkpoint. The decision is told in `docs/decisions/a-clone-is-a-new-job.md`.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend._backend.stores import Primary, open_primary
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.commit import Claim, Commit, encode_entry
from statebackend._log.fresh_names import new_stamp
from statebackend._log.log_end import LogEnd
from statebackend._log.log_reader import LogReader
from statebackend._log.log_writer import LogWriter
from statebackend._log.moments import Moment
from statebackend._log.names import entry_key, sequence_of
from statebackend._retry import RetryPolicy
from statebackend._tables.key_groups import key_hash
from statebackend._tasks import finish
from statebackend._upkeep.arguments import check_settings
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend._upkeep.offline.cloned_checkpoint import AskedClone, ClonedCheckpoint
from statebackend._upkeep.offline.copied_objects import CopiedObjects, pointed_at, whole_objects
from statebackend._upkeep.offline.erase import state_ids
from statebackend._upkeep.offline.key_search import keys_of
from statebackend._upkeep.offline.offline_commit import UNOBSERVED, Uploads, open_uploads
from statebackend._upkeep.offline.written_again import Left, WrittenAgain
from statebackend._upkeep.progress import Meter, Tell
from statebackend._version import __version__
from statebackend.abc import Clock, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import (
    FencedError,
    InputError,
)
from statebackend.ids import CheckpointId, RangeState, SourceMark, StagedOutput, StateDescriptor
from statebackend.settings import Settings

STAMP: Final = "clone"
"""The stamps of a clone's claims begin with it: a job that has no other entries is one that was not finished."""
SAMPLE_SEED: Final = 43
"""Not that of key groups: a sample has keys of each of them."""


class CloneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a clone: `checkpoint_id` of `job` is that of `source_job`.

    `objects` and `size_bytes`: what the clone has. Of these, `found` objects were there already, from a call that was
    interrupted; `copied` were copied by the stores; the others went through here. `states`: their names. `share`: of
    the keys. `outputs`: how many outputs the clone is to publish. `source`: the newest batch of Spark in the state, if
    it has one: a stream of the clone goes on with the batch after it.
    """

    job: str
    source_job: str
    checkpoint_id: CheckpointId
    max_parallelism: int
    states: tuple[str, ...]
    share: float = 1.0
    objects: int = 0
    size_bytes: int = 0
    found: int = 0
    copied: int = 0
    outputs: int = 0
    source: SourceMark | None = None
    seconds: float = 0.0
    requests: int = 0


async def clone(
    settings: Settings,
    *,
    from_: Settings,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    at: Moment | None = None,
    states: Literal["all"] | Sequence[str] = "all",
    keys: float = 1.0,
    outputs: Literal["take", "leave"] = "take",
    store: ObjectStore | None = None,
    from_store: ObjectStore | None = None,
    clock: Clock | None = None,
    tell: Tell = lambda _: None,
) -> CloneReport:
    """Make the job that `settings` names, which must not exist, of a checkpoint of the job that `from_` names.

    The checkpoint is the newest, that of `checkpoint_id`, of `savepoint`, or the newest not later than `at`. The stream
    of that job may go on. `states`: only those named. `keys`: only this share of the keys, the same ones in all states;
    with either, everything is read and written again. `outputs`: "take" has the clone publish what its source may not
    have published yet, as the source does; "leave" has it publish nothing. `tell` is called with how far it is.

    A store copies the objects itself if both jobs lie in it; otherwise they are read and written here. The clone has
    the checkpoint id, the clock, and the marks of the query that the source has, and `from_`'s number of key groups.
    Meanwhile the source has a savepoint, `clone-...`, which a failed call leaves for the next one to go on with: the
    same call continues. Where the source may not be written, name a `savepoint` of it.

    Raises `InputError` for a job that exists, the job itself, an unknown state, and a share that is none;
    `CheckpointNotFoundError`, `SavepointNotFoundError`, also if the checkpoint was swept, dropped, or its keys were
    erased meanwhile; `FencedError` if another writer opened the clone; `DataError`, `StoreError`. A failed or cancelled
    call has made nothing that can be opened.
    """
    check_settings(settings)
    check_settings(from_, "from_")
    stores_are_equal = store is from_store and (store is not None or _place(settings) == _place(from_))
    if settings.job == from_.job and stores_are_equal:
        raise InputError("a job cannot be cloned onto itself: give the clone another name", job=settings.job)
    asked = AskedClone(checkpoint_id, savepoint, at, states, keys, outputs)
    asked.check()
    clock = SystemClock() if clock is None else clock
    begun_s = clock.monotonic()
    async with open_job_primary(from_, from_store, reads_copies=False) as source:
        opening = open_primary(settings, source.threads, commits=True, instead=store, clock=clock, observer=UNOBSERVED)
        async with opening as primary:
            report = await _Cloning(settings, source, primary, asked, clock=clock, tell=tell).run()
            requests = primary.spending.requests.total()
    return msgspec.structs.replace(report, seconds=clock.monotonic() - begun_s, requests=requests)


def _place(settings: Settings) -> tuple[str, str]:
    return settings.primary.rstrip("/"), settings.s3.endpoint if settings.primary.startswith("s3:") else ""


class _Cloning:
    """Clones one checkpoint of `source` into the job at `primary`, once."""

    def __init__(
        self, settings: Settings, source: JobPrimary, primary: Primary, asked: AskedClone, *, clock: Clock, tell: Tell
    ) -> None:
        self._settings = settings
        self._source = source
        self._store = primary.store
        self._asked = asked
        self._clock = clock
        self._tell = tell
        self._log = LogReader(primary.store, settings.job, source.threads)
        self._checkpoint = ClonedCheckpoint(source, asked, settings)
        self._stamps: list[str] = []
        self._writer = LogWriter(
            primary.store,
            self._log,
            policy=RetryPolicy.of(settings.upload),
            timeout_s=settings.commit_timeout_s + settings.upload.primary_outage_s,
            clock=clock,
            new_stamp=lambda: self._stamps.pop() if self._stamps else new_stamp(),
            release=__version__,
        )

    async def run(self) -> CloneReport:
        """Clone it. Raises as `clone`."""
        await self._last_claim(await self._writer.find_end())  # before anything is done to the source
        commit = await self._checkpoint.keep()
        report = CloneReport(
            job=self._settings.job,
            source_job=commit.job,
            checkpoint_id=commit.checkpoint_id,
            max_parallelism=commit.max_parallelism,
            states=tuple(each.name for each in self._states_of(commit)),
            share=self._asked.share,
            source=commit.summary.newest_mark,
        )
        try:
            if not await self._claim(commit):
                report = await self._copy(commit, report)
        except (InputError, FencedError):  # the same call would fail again
            await self._checkpoint.release()
            raise
        await self._checkpoint.release()
        return report

    # --------------------------------------------------------------------------------------------- the log of the clone

    async def _last_claim(self, end: LogEnd | None) -> Claim | None:
        """The claim of a clone at the end of the log, or before its only commit; `None` if the log has no entry.

        Raises `InputError` for any other log: the job exists.
        """
        if end is None:
            return None
        end.check()
        is_commit = isinstance(end.entry, Commit) and end.sequence > 0 and end.entry.parent is None
        claim = await self._log.load(end.sequence - 1) if is_commit else end.entry
        if not isinstance(claim, Claim) or not claim.stamp.startswith(STAMP):
            raise self._taken(end)
        return claim

    def _taken(self, end: LogEnd) -> InputError:
        return InputError(
            "the job exists: give the clone another name, or delete that job",
            job=self._settings.job,
            primary=self._settings.primary,
            entries=end.sequence + 1,
        )

    async def _claim(self, commit: Commit) -> bool:
        """Claim the new job for a clone of `commit`, or find the claim of a call before. True if that has committed."""
        end, stamp = await self._writer.find_end(), self._stamp_of(commit)
        claim = await self._last_claim(end)
        if end is not None and isinstance(end.entry, Commit):
            if claim is None or claim.stamp != stamp:
                raise self._taken(end)
            return True
        if claim is not None and claim.stamp == stamp and not self._asked.is_partial:
            self._writer.last = claim
            return False
        self._stamps.append(stamp)
        if await self._writer.claim(end) is None:
            raise FencedError("another writer has opened the clone at this moment: look who, and clone again")
        return False

    def _stamp_of(self, commit: Commit) -> str:
        said = f"{commit.job} {commit.sequence} {commit.stamp} {self._asked.part}"
        return f"{STAMP}{hashlib.sha256(said.encode()).hexdigest()[:32]}"

    # ----------------------------------------------------------------------------------------------- what the clone has

    async def _copy(self, commit: Commit, report: CloneReport) -> CloneReport:
        """Copy what the commit needs, and commit it. Returns the report with the numbers."""
        settings, threads, outbox = self._settings, self._source.threads, commit.outbox
        copies = CopiedObjects(
            self._source.store,
            self._store,
            self._writer.epoch,
            threads,
            concurrency_max=settings.restore_concurrency_max,
        )
        is_sent = False
        async with open_uploads(settings, self._store, self._writer.epoch, threads, clock=self._clock) as uploads:
            try:
                pending = () if self._asked.outputs == "leave" else outbox
                ranges, names = await self._ranges(commit, copies, pending, uploads)
                pending = await copies.outbox(pending, names)
                await self._checkpoint.check(commit)
                made = self._writer.next_commit(
                    checkpoint_id=commit.checkpoint_id,
                    parent=None,
                    max_parallelism=commit.max_parallelism,
                    ranges=tuple(ranges),
                    states=self._states_of(commit),
                    source=commit.source,
                    marks=commit.marks,
                    outbox=pending,
                    clock=commit.clock,
                    starts_from=commit.starts_from,
                )
                encoded = encode_entry(made, entry_key(made.sequence))
                is_sent = True
                await finish(self._writer.create, encoded.entry, encoded.body)
            except BaseException as error:
                await uploads.discard_unless_held(error, is_sent=is_sent)
                raise
            await self._writer.write_hint()
        sizes = {handle.key: handle.length for part in ranges for handle in part.objects()}
        sizes.update((part.key, part.length) for output in pending for part in output.parts)
        return msgspec.structs.replace(
            report,
            objects=len(sizes),
            size_bytes=sum(sizes.values()),
            found=copies.found,
            copied=copies.copied,
            outputs=len(pending),
        )

    async def _ranges(
        self, commit: Commit, copies: CopiedObjects, pending: Sequence[StagedOutput], uploads: Uploads
    ) -> tuple[Sequence[RangeState], Mapping[str, str]]:
        """The ranges of the clone's commit, and the new keys of the objects that were copied."""
        if self._asked.is_partial:
            names = await copies.copy(whole_objects((), pending), lambda _: None)
            return await self._part_of(commit, uploads), names
        names = await copies.copy(whole_objects(commit.ranges, pending), self._tell)
        carried = {key for part in commit.ranges for key in part.segments() if sequence_of(key) is not None}
        ranges = await self._again(commit, iter, carried, ()).write(uploads)
        return [
            msgspec.structs.replace(pointed_at(part, names), sizes=before.sizes)
            for part, before in zip(ranges, commit.ranges, strict=True)
        ], names

    async def _part_of(self, commit: Commit, uploads: Uploads) -> Sequence[RangeState]:
        """The ranges with the part of the states and of the keys that was asked for."""
        ids, share = state_ids(commit, self._asked.states), self._asked.share

        def left(parts: Iterable[Changes]) -> Iterator[Changes]:
            for each in parts:
                if ids is not None and each.state_id not in ids:
                    continue
                chosen = in_sample(each, share) if share < 1.0 else None
                if chosen is None or len(chosen) == each.records:
                    yield each
                elif len(chosen):
                    yield each.taken(chosen)

        needed = {handle.key: handle.length for part in commit.ranges for handle in part.objects()}
        meter = Meter("copying", sum(needed.values()), self._tell)
        places = [place for place, part in enumerate(commit.ranges) if part.rocksdb]
        again = self._again(
            commit, left, needed.keys(), places, read=lambda count: meter.step(count, changes=0, size_bytes=count)
        )
        return [
            msgspec.structs.replace(
                part, operator=tuple(each for each in part.operator if ids is None or each.state_id in ids)
            )
            for part in await again.write(uploads)
        ]

    def _again(
        self,
        commit: Commit,
        left: Left,
        keys: Collection[str],
        places: Collection[int],
        *,
        read: Callable[[int], None] = lambda _: None,
    ) -> WrittenAgain:
        settings = msgspec.structs.replace(self._settings, max_parallelism=commit.max_parallelism, local=())
        return WrittenAgain(
            commit,
            self._source.store,
            left,
            keys=keys,
            places=places,
            settings=settings,
            threads=self._source.threads,
            clock=self._clock,
            read=read,
        )

    def _states_of(self, commit: Commit) -> tuple[StateDescriptor, ...]:
        ids = state_ids(commit, self._asked.states)
        return tuple(each for each in commit.states if ids is None or each.state_id in ids)


def in_sample(changes: Changes, share: float) -> npt.NDArray[np.intp]:
    """The places of the changes whose keys are in a sample of that share: the same keys whatever the state."""
    limit = int(share * 2**64)
    keys = keys_of(changes)
    chosen = np.fromiter((key_hash(key, SAMPLE_SEED) < limit for key in keys), dtype=np.bool_, count=changes.records)
    return np.flatnonzero(chosen)
