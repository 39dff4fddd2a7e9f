"""One step of a mirror after the other: looks, plans, reads, writes the step down, writes the rows."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from statebackend._codec.commit import Commit
from statebackend._columns.arrow import Schema
from statebackend._following.log_steps import LOOK_WELL_S
from statebackend._following.position import KnownMoment
from statebackend._log.fresh_names import new_stamp
from statebackend._log.mirror_steps import NEW, MirrorLog, MirrorStep
from statebackend._mirroring import agreement
from statebackend._mirroring.mirror_report import MirrorReport
from statebackend._mirroring.mirrors import Mirror
from statebackend._mirroring.planning import StepPlan, declared, plan, whole
from statebackend._mirroring.rows import RowsOfSteps, check_mirrored
from statebackend._mirroring.spool import Spool, check_keys, key_type_of, key_type_text, opened_spool
from statebackend._mirroring.target import MirrorRows, MirrorTable
from statebackend._mirroring.writing_down import WritingDown
from statebackend._reading.asked_of_state import state_in
from statebackend._tasks import finish, open_tasks
from statebackend._upkeep.job_primary import JobPrimary
from statebackend._upkeep.progress import Tell
from statebackend.abc import Clock, Observer
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    InputError,
    MissingObjectError,
    StoreUnavailableError,
)

_logger = logging.getLogger(__name__)

SWEPT_MAX: Final = 5
"""Times in a row that a commit may be swept while it is read, before that is an error."""
ASKED: Final = "it was asked to start over"


class Mirroring:
    """One mirror at work. Its calls come one at a time. The target is open."""

    def __init__(
        self,
        primary: JobPrimary,
        mirror: Mirror,
        *,
        clock: Clock,
        observer: Observer,
        tell: Tell,
        anew: bool,
    ) -> None:
        self._primary = primary
        self._mirror = mirror
        self._target = mirror.target
        self._clock = clock
        self._observer = observer
        self._progress = tell
        self._log = MirrorLog(primary.store, mirror.name)
        self._rows = RowsOfSteps(
            primary,
            mirror.state,
            form=mirror.form,
            key_as_json=mirror.key_as_json,
            migrate=mirror.migrate,
        )
        self._is_known = False
        self._last: MirrorStep | None = None  # the newest step that was written down
        self._at: MirrorStep | None = None  # the newest step that the table has
        self._begun: MirrorStep | None = None  # written down, and not known to be in the table
        self._number = 0  # of the newest step of all
        self._found = 0  # the newest step that the table had when it was asked
        self._anew = ASKED if anew else ""
        self._fitted: Any = None
        self._swept = 0
        self._fresh_s = clock.monotonic()
        self._looked_well: KnownMoment | None = None  # when the end of the job's log was last looked for
        self._without_keys: tuple[int, str] | None = None  # a commit at which the state has none, and had none before
        self.report = MirrorReport(name=mirror.name)

    async def catch_up(self) -> None:
        """Bring the table to the commit that was the newest when its last step began; a later call goes on.

        Raises what reading and the target raise.
        """
        while await self.step():
            pass

    async def step(self) -> bool:
        """Take one step; false if none is left to take. A cancelled call leaves a step that the next one takes."""
        if not self._is_known:
            await self._find()
        if await self._nothing_follows():
            self._note_fresh()
            return False
        self._looked_well = KnownMoment(self._clock)
        at_least = None if self._at is None else self._at.sequence + 1  # else it looks behind holes, too
        newest = (await self._primary.find(at_least=at_least)).commit
        if self._at is not None and self._mirror.state not in {each.name for each in newest.states}:
            raise InputError("the state is gone from the job: drop its mirror, and its table", state=self._mirror.state)
        check_mirrored(newest, self._mirror.state)
        is_new = self._at is None and self._begun is None
        has_none = is_new and self._without_keys == (newest.sequence, newest.stamp)
        planned = None if has_none else await self._planned(newest)
        if planned is None:
            self._note_fresh()
            return False
        try:
            moved = await self._take(planned)
        except (CheckpointNotFoundError, MissingObjectError):
            self._swept += 1
            if self._swept == SWEPT_MAX:
                raise
            self._anew, self._begun = self._anew or "a sweep was faster", None
            return True
        self._swept = 0
        is_at_newest = self._at is not None and (self._at.sequence, self._at.stamp) == (newest.sequence, newest.stamp)
        if is_at_newest:
            self._fresh_s = self._clock.monotonic()
        seconds = 0.0 if not planned.behind else self._clock.monotonic() - self._fresh_s
        self._observer.mirror_lagged(self._mirror.name, commits=planned.behind, seconds=seconds)
        return moved and not is_at_newest

    # -------------------------------------------------------------------------------------------------- where it stands

    async def _nothing_follows(self) -> bool:
        """True if the log has no entry behind the commit that the table has: one request, and most looks need no other.

        A log that was put back, or has lost an entry, has none either: a look in full sees that, after `LOOK_WELL_S`.
        """
        at, looked_well = self._at, self._looked_well
        if at is None or looked_well is None or looked_well.since_s() >= LOOK_WELL_S:
            return False
        return self._begun is None and not self._anew and not await self._primary.log.exists(at.sequence + 1)

    def _note_fresh(self) -> None:
        self._fresh_s = self._clock.monotonic()
        self._observer.mirror_lagged(self._mirror.name, commits=0, seconds=0.0)

    async def _find(self) -> None:
        """Ask the mirror's log, then the table. Raises `WrongMirrorError`."""
        newest, found = await self._log.newest(), await self._target.find()
        while not agreement.fit(newest, found) and (now := await self._log.newest()) != newest:  # others went on
            newest, found = now, await self._target.find()
        self._found = found.number or 0
        self._number = max(0 if newest is None else newest.number, self._found)
        if newest is not None and agreement.is_slip(newest, found, self._mirror):
            newest = None
        agreement.check(newest, found, self._mirror, may_move=bool(self._anew))
        self._at = self._begun = None
        if newest is not None and not self._anew:
            if not agreement.fit(newest, found):
                if agreement.may_be_empty(newest, found) and await self._had_no_key(newest):
                    self._at = newest
                else:
                    self._anew = "the table was emptied, or put back to an older state"
            elif newest.done or found.number == newest.number:
                self._at = newest if newest.done else await self._log.done(newest)
            else:
                self._begun = newest
        self._last = newest
        self._fitted = None
        self._is_known = True
        if self._at is not None:
            self.report = self._reported(self._at)

    async def _had_no_key(self, step: MirrorStep) -> bool:
        """True if the state was empty at the commit of the step, as far as that is kept."""
        try:
            commit = await self._primary.log.load_commit(step.sequence)
            return commit.stamp == step.stamp and await self._rows.has_none(commit)
        except (CheckpointNotFoundError, MissingObjectError, CorruptCommitError):
            return False

    async def _planned(self, newest: Commit) -> StepPlan | None:
        if self._anew:
            return whole(newest, self._anew)
        if self._begun is not None and self._begun.refused and newest.sequence != self._begun.sequence:
            self._begun = None
            return whole(newest, "the table has refused a value")
        if self._begun is not None:
            if (found := await self._as_written(self._begun)) is not None:
                return found
            self._begun = None
            return whole(newest, "it fell behind what is kept")
        if self._at is None:
            return whole(newest, NEW)
        return await plan(self._primary, self._at, newest, state_in(newest, self._mirror.state))

    async def _as_written(self, step: MirrorStep) -> StepPlan | None:
        """The plan of a step that was written down; `None` if its commits are not kept any more."""
        floor, log = await self._primary.positions.savepoints.floor(), self._primary.log
        if min((step.sequence, *step.sequences, *step.undone)) < floor:
            return None
        try:
            commits = [await log.load_commit(each) for each in step.sequences or (step.sequence,)]
            before = None if step.before is None else await log.load_commit(step.before)
            undone = [await log.load_commit(each) for each in step.undone]
        except MissingObjectError:
            return None
        if commits[-1].stamp != step.stamp:
            return None
        return StepPlan(step.kind, commits, before, undone, step.reason)

    # --------------------------------------------------------------------------------------------------- taking a step

    async def _take(self, planned: StepPlan) -> bool:
        begun_s, last = self._clock.monotonic(), self._last
        ahead = None if last is None or planned.kind != "changes" else self._target.ahead(last.mirror_id)
        with opened_spool(ahead) as spool:
            step, partitions = await self._noted(planned, spool)
            if spool.schema is None:
                return await self._pass_over(planned)
            if step is None:
                self._is_known = False  # another process has gone on
                return True
            self._last = self._begun = step
            self._number = step.number
            rows = MirrorRows(
                step.mirror_id,
                step.number,
                step.generation,
                int(planned.last.checkpoint_id),
                planned.kind == "whole",
                spool.rows,
                spool.schema,
                spool.batches,
                partitions,
                len(planned.commits) == 1,
                ahead,
            )
            if not await self._written(step, rows):
                return True  # another process was quicker, with this step or one before it
            self._at = self._last = await self._log.done(step)
        self._begun, self._anew = None, ""
        self._tell(planned, spool.rows, self._clock.monotonic() - begun_s)
        return True

    async def _noted(self, planned: StepPlan, spool: Spool) -> tuple[MirrorStep | None, Sequence[int] | None]:
        """Read the rows of a step and write it down, beside that where the table is known to fit: before any is in it.

        Returns the step, `None` if there are no rows or another process has gone on; and the partitions of the rows.
        """
        begun, last = self._begun, self._last
        number = self._number + 1 if begun is None else begun.number
        generation = number if planned.kind == "whole" or last is None else last.generation
        key_type = key_type_of(last.key_type) if last is not None and last.key_type else None

        def step_of(schema: Schema) -> MirrorStep:
            check_keys(schema, key_type)
            return begun or writing.step or self._step(planned, number, generation, key_type_text(schema))

        def found() -> None:
            if begun is None and writing.step is None and spool.schema is not None and spool.schema == self._fitted:
                writing.begin(step_of(spool.schema))

        async with open_tasks() as tasks:
            writing = WritingDown(self._log, tasks)
            partitions = await self._rows.read(
                planned,
                generation,
                spool,
                partitions=self._target.partitions if self._mirror.form == "table" else None,
                key_type=key_type,
                found=found,
                tell=self._progress,
            )
            if spool.has_file:
                await self._primary.threads.cpu(spool.end)
            if spool.schema is None:
                return None, partitions
            step = step_of(spool.schema)
            await self._fit(spool, planned)
            is_ours = begun is not None or agreement.same(await writing.end(step), step)
        return step if is_ours else None, partitions

    async def _written(self, step: MirrorStep, rows: MirrorRows) -> bool:
        """Write the rows of a step; false if another process has written to the table meanwhile. Raises as `write`."""
        try:
            await finish(self._target.write, rows)
        except InputError:
            await self._log.refused(step)
            raise
        except StoreUnavailableError:
            self._is_known = False
            if ((await self._target.find()).number or 0) <= self._found:
                raise
            return False
        self._found = step.number
        return True

    async def _pass_over(self, planned: StepPlan) -> bool:
        """The commits have changed other states alone, or the state has no key yet."""
        last = planned.last
        if self._at is None:
            self._without_keys = last.sequence, last.stamp
            return False
        self._at = self._last = await self._log.done(
            msgspec.structs.replace(
                self._at,
                sequence=last.sequence,
                stamp=last.stamp,
                checkpoint_id=int(last.checkpoint_id),
                committed_at_s=last.committed_at_s,
                batch_id=None if last.source is None else last.source.batch_id,
                at_s=self._clock.time(),
            )
        )
        self._tell(planned, 0, 0.0)
        return True

    async def _fit(self, spool: Spool, planned: StepPlan) -> None:
        if self._fitted is not None and self._fitted == spool.schema:
            return
        mirror = self._mirror
        table = MirrorTable(
            self._primary.settings.job,
            mirror.state,
            mirror.form,
            spool.schema,
            int(planned.last.max_parallelism),
            planned.kind == "whole",
        )
        await self._target.fit(table)
        self._fitted = spool.schema

    def _step(self, planned: StepPlan, number: int, generation: int, key_type: str) -> MirrorStep:
        mirror, last = self._mirror, planned.last
        return MirrorStep(
            number=number,
            mirror_id=new_stamp() if self._last is None else self._last.mirror_id,
            job=self._primary.settings.job,
            state=mirror.state,
            target=self._target.place,
            form=mirror.form,
            kind=planned.kind,
            generation=generation,
            sequence=last.sequence,
            stamp=last.stamp,
            checkpoint_id=int(last.checkpoint_id),
            batch_id=None if last.source is None else last.source.batch_id,
            committed_at_s=last.committed_at_s,
            max_parallelism=int(last.max_parallelism),
            declared=declared(state_in(last, mirror.state)),
            at_s=self._clock.time(),
            before=None if planned.before is None else planned.before.sequence,
            sequences=() if planned.kind == "whole" else tuple(each.sequence for each in planned.commits),
            undone=tuple(each.sequence for each in planned.undone),
            reason=planned.reason,
            key_type=key_type,
            key_as_json=mirror.key_as_json,
            hold_s=mirror.hold_s,
        )

    def _tell(self, planned: StepPlan, rows: int, seconds: float) -> None:
        mirror, last, done = self._mirror, planned.last, self.report
        if planned.reason:
            _logger.warning(
                "mirror %s of state %s begins with all of checkpoint %d: %s",
                mirror.name,
                mirror.state,
                last.checkpoint_id,
                planned.reason,
            )
        self.report = msgspec.structs.replace(
            self._reported(last),
            steps=done.steps + 1,
            commits=done.commits + len(planned.commits),
            rows=done.rows + rows,
            anew=(*done.anew, planned.reason) if planned.reason else done.anew,
        )
        self._observer.mirrored(
            mirror.name, commits=len(planned.commits), rows=rows, seconds=seconds, anew=planned.reason or None
        )

    def _reported(self, stands_at: Commit | MirrorStep) -> MirrorReport:
        return msgspec.structs.replace(
            self.report,
            checkpoint_id=int(stands_at.checkpoint_id),
            committed_at_s=stands_at.committed_at_s,
            view=self._target.view() if self._mirror.form == "log" else None,
        )
