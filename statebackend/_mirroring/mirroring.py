"""One step of a mirror after the other: looks, plans, reads, writes the step down, writes the rows."""

import logging
from typing import Any, Final

import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.fresh_names import new_stamp
from statebackend._log.mirror_steps import NEW, MirrorLog, MirrorStep
from statebackend._mirroring.mirror_report import MirrorReport
from statebackend._mirroring.mirrors import Mirror
from statebackend._mirroring.planning import StepPlan, declared, plan, whole
from statebackend._mirroring.rows import RowsOfSteps, check_mirrored
from statebackend._mirroring.spool import Spool, check_keys, key_type_of, key_type_text, opened_spool
from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable
from statebackend._reading.asked_of_state import state_in
from statebackend._tasks import finish
from statebackend._upkeep.job_primary import JobPrimary
from statebackend._upkeep.progress import Tell
from statebackend.abc import Clock, Observer
from statebackend.errors import (
    CheckpointNotFoundError,
    InputError,
    MissingObjectError,
    StoreUnavailableError,
    WrongMirrorError,
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
        self._anew = ASKED if anew else ""
        self._fitted: Any = None
        self._swept = 0
        self._fresh_s = clock.monotonic()
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
        at_least = None if self._at is None else self._at.sequence + 1  # else it looks behind holes, too
        newest = (await self._primary.find(at_least=at_least)).commit
        if self._at is not None and self._mirror.state not in {each.name for each in newest.states}:
            raise InputError("the state is gone from the job: drop its mirror, and its table", state=self._mirror.state)
        check_mirrored(newest, self._mirror.state)
        planned = await self._planned(newest)
        if planned is None:
            self._fresh_s = self._clock.monotonic()
            self._observer.mirror_lagged(self._mirror.name, commits=0, seconds=0.0)
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

    async def _find(self) -> None:
        """Ask the mirror's log, then the table. Raises `WrongMirrorError`."""
        newest, found = await self._log.newest(), await self._target.find()
        while not _fit(newest, found) and (now := await self._log.newest()) != newest:  # others have gone on meanwhile
            newest, found = now, await self._target.find()
        self._number = max(0 if newest is None else newest.number, found.number or 0)
        if newest is not None and not newest.has_name and self._differs(newest) and found.mirror_id != newest.mirror_id:
            newest = None  # a slip, which has failed
        self._check(newest, found)
        self._at = self._begun = None
        if newest is not None and not self._anew:
            if not _fit(newest, found):
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

    def _differs(self, step: MirrorStep) -> bool:
        mirror = self._mirror
        wanted = mirror.state, mirror.form, self._target.place, mirror.key_as_json
        return (step.state, step.form, step.target, step.key_as_json) != wanted

    def _check(self, newest: MirrorStep | None, found: MirrorMark) -> None:
        mirror, place = self._mirror, self._target.place
        if newest is not None:
            if (newest.state, newest.form) != (mirror.state, mirror.form):
                raise WrongMirrorError(
                    "the job has another mirror of that name: give this one its own name",
                    name=mirror.name,
                    state=newest.state,
                    form=newest.form,
                )
            if newest.target != place and not self._anew:
                raise WrongMirrorError(
                    "the mirror of that name writes to another table: give this one its own name, or move it there with"
                    " anew=True",
                    name=mirror.name,
                    target=place,
                    target_mirrored=newest.target,
                )
            if newest.key_as_json != mirror.key_as_json:
                raise WrongMirrorError(
                    "the mirror's table has its keys in the other form: give key_as_json as before, or another table",
                    name=mirror.name,
                    key_as_json=newest.key_as_json,
                )
        if found.mirror_id is not None and (newest is None or found.mirror_id != newest.mirror_id):
            raise WrongMirrorError(
                "another mirror writes this table, perhaps of a job that was deleted and made anew: give this one"
                " another table, or drop that one",
                name=mirror.name,
                target=place,
            )
        if newest is None and found.mirror_id is None and not found.is_empty:
            raise WrongMirrorError(
                "the table has rows that no mirror has written: give the mirror a table of its own",
                name=mirror.name,
                target=place,
            )

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
        begun_s = self._clock.monotonic()
        begun, number = self._begun, self._number + 1
        if begun is not None:
            number = begun.number
        generation = number if planned.kind == "whole" or self._last is None else self._last.generation
        with opened_spool() as spool:
            mirrored = "" if self._last is None else self._last.key_type
            key_type = key_type_of(mirrored) if mirrored else None
            partitions = await self._rows.read(
                planned,
                generation,
                spool,
                partitions=self._target.partitions if self._mirror.form == "table" else None,
                key_type=key_type,
                tell=self._progress,
            )
            if spool.has_file:
                await self._primary.threads.cpu(spool.end)
            if spool.schema is None:
                return await self._pass_over(planned)
            check_keys(spool.schema, key_type)
            step = begun or self._step(planned, number, generation, key_type_text(spool.schema))
            await self._fit(spool, planned)
            if begun is None and not _same(await self._log.write_down(step), step):
                self._is_known = False  # another process has gone on
                return True
            self._last = self._begun = step
            self._number = number
            rows = MirrorRows(
                step.mirror_id,
                step.number,
                generation,
                int(planned.last.checkpoint_id),
                planned.kind == "whole",
                spool.rows,
                spool.schema,
                spool.batches,
                partitions,
                len(planned.commits) == 1,
            )
            try:
                await finish(self._target.write, rows)
            except InputError:
                await self._log.refused(step)
                raise
            except StoreUnavailableError:
                self._is_known = False
                if ((await self._target.find()).number or 0) < number:
                    raise
                return True  # another process was quicker
            self._at = self._last = await self._log.done(step)
        self._begun, self._anew = None, ""
        self._tell(planned, spool.rows, self._clock.monotonic() - begun_s)
        return True

    async def _pass_over(self, planned: StepPlan) -> bool:
        """The commits have changed other states alone, or the state has no key yet."""
        if self._at is None:
            return False
        last = planned.last
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


def _fit(newest: MirrorStep | None, found: MirrorMark) -> bool:
    """True if the newest step is the one that the table has or the next one, or if the table cannot tell."""
    if newest is None:
        return found.mirror_id is None
    cannot_tell = found.number is None and not found.is_empty
    return cannot_tell or found.number == newest.number or (not newest.done and _follows(newest, found))


def _follows(step: MirrorStep, found: MirrorMark) -> bool:
    """True if the step can be taken where the table stands."""
    if step.kind == "whole":
        return found.is_empty or (found.number is not None and found.number < step.number)
    return found.number == step.number - 1


def _same(one: MirrorStep, other: MirrorStep) -> bool:
    """True if both are the same step, made by different processes."""
    return msgspec.structs.replace(
        one, at_s=0.0, done=False, refused=False, hold_s=0.0, mirror_id=""
    ) == msgspec.structs.replace(other, at_s=0.0, done=False, refused=False, hold_s=0.0, mirror_id="") and (
        one.mirror_id == other.mirror_id
    )
