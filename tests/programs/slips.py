"""Slips: what a user does wrong. Each must end in an error of the library, and the state must be what it was before.

After a slip the program goes on rightly, in a new run.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

import statebackend as sb
from statebackend.errors import (
    BackendClosedError,
    CheckpointExistsError,
    FencedError,
    InputError,
    SettingsError,
    StateBackendError,
    StateGoneError,
    WrongQueryError,
)
from tests.programs.looking import WrongError, check, refused
from tests.programs.operations import change, declare
from tests.programs.program import Declared, Job, Slip
from tests.programs.surroundings import attend
from tests.programs.values import KEYS
from tests.programs.wrong_calls import (
    backup_put_back,
    beyond_a_limit,
    one_name_for_two,
    savepoint_twice,
    wrong_call,
)

if TYPE_CHECKING:
    from tests.programs.running import Running


MADE = Counter[tuple[str, bool]]()
"""How often each slip was made in this process, and if it ended in silence, or in something wrong."""


def slip(running: "Running", step: Slip) -> None:
    """Make the slip, and go on rightly. Nothing, where the program has no place for it."""
    try:
        made = SLIPS[step.what](running, step)
    except WrongError:
        MADE[step.what, True] += 1
        raise
    if made is not False:
        MADE[step.what, False] += 1
        running.next_run()


def deliver(running: "Running", step: Slip, table: Callable[[pa.Table], pa.Table] = lambda table: table) -> None:
    """Deliver the next batch, with rows that are changed so."""
    running.sink(running.session.frame(table(running.table(step.batch, raises=False))), running.batch_id)


def _with_job(running: "Running", step: Slip, job: Job, *kinds: type[StateBackendError], **options: Any) -> None:
    """The next run is that of another job, and must be refused when it is made, or with its first batch."""
    running.sink.close()
    running.begin_run()
    with refused(*kinds):
        running.sink = running.make_sink(job, **options)
        deliver(running, step)


def twice(running: "Running", step: Slip) -> bool | None:
    """The sink is called for two parts of a batch. The way out of it is to start from what was before."""
    if not running.kept or running.is_swept or len(step.batch.items) < 2:
        return False
    table = running.table(step.batch, raises=False)
    kept = running.line[-1]
    deliver(running, step, lambda table: table.slice(0, 1))
    with refused(InputError):
        running.sink(running.session.frame(table.slice(1)), running.batch_id)
    name = f"before-{running.batch_id}-{running.runs}"
    attend(sb.savepoint(running.settings, name, checkpoint_id=kept.checkpoint_id))
    running.savepoints[name] = kept
    running.next_run(savepoint=name)
    running.batch(step.batch)
    return None


def same_frame_twice(running: "Running", step: Slip) -> bool | None:
    """A retry around the sink, with the same frame: it is skipped."""
    running.batch(step.batch)
    if step.batch.mishap:
        return None
    running.sink(running.frame_of_batch, running.batch_id - 1)
    return None


def two_sinks(running: "Running", step: Slip) -> bool | None:
    """A second program is started by mistake, takes the job over, and is stopped; the first one must not go on."""
    if not running.kept:
        return False
    first = running.sink
    first_run = running.runs
    running.begin_run()
    running.sink = running.make_sink()
    running.batch(msgspec.structs.replace(step.batch, mishap=""))
    second = running.sink
    running.session.begin_run(first_run, running.query_id)
    with refused(StateBackendError):
        first(running.frame(step.batch, running.batch_id), running.batch_id)
    first.close()
    second.close()
    return None


def edited_beside(running: "Running", step: Slip) -> bool | None:
    """Somebody opens the job by hand, without stopping the stream. Its next batch is refused."""
    if not running.kept or running.sink._job is None:
        return False

    async def open_it() -> None:
        async with sb.open_backend(running.settings):
            pass

    attend(open_it())
    with refused(FencedError):
        running.sink(running.frame(step.batch, running.batch_id), running.batch_id)
    return None


def forgotten_clock(running: "Running", step: Slip) -> bool | None:
    """The program is started without the clock that the job goes by. A function with no rows may not have moved it."""
    has_rows = bool(step.batch.items) or "function" not in running.job.work
    if running.job.clock == "none" or running.held.now == float("-inf") or not has_rows:
        return False
    job = msgspec.structs.replace(running.job, clock="none", late=None, lateness_s=0.0)
    _with_job(running, step, job, StateBackendError)
    return None


def other_clock(running: "Running", step: Slip) -> bool | None:
    """The program is started with a clock of another kind."""
    if running.job.clock == "none" or running.held.now == float("-inf"):
        return False
    other = "batch" if running.job.clock == "event" else "event"
    job = msgspec.structs.replace(running.job, clock=other, late=None, lateness_s=0.0)
    if not step.batch.items:
        return False
    _with_job(running, step, job, StateBackendError)
    return None


def no_clock_for_timers(running: "Running", step: Slip) -> bool | None:
    """A processor with timers in a sink without a clock."""
    if (running.kept and running.job.clock != "none") or "function" in running.job.work:
        return False
    states = (*running.job.states, Declared("late", "timers"))
    job = msgspec.structs.replace(running.job, clock="none", late=None, lateness_s=0.0, states=states)
    _with_job(running, step, job, SettingsError)
    return None


def no_clock_for_ttl(running: "Running", step: Slip) -> bool | None:
    """A time-to-live in a sink without a clock, as soon as something is written."""
    if running.job.clock != "none" or not step.batch.items:
        return False
    state = Declared("expires", "value", ttl_s=5.0)
    job = msgspec.structs.replace(running.job, states=(*running.job.states, state))
    _with_job(running, step, job, StateBackendError)
    return None


def shared_name(running: "Running", step: Slip) -> bool | None:
    """A frame has two columns of one name, as a join leaves them. A function may take such a frame."""
    if "function" in running.job.work:
        return False
    with refused(InputError, sb.StateBackendError):
        deliver(running, step, lambda table: table.append_column("does", table.column("does")))
    return None


def renamed_key(running: "Running", step: Slip) -> bool | None:
    """The key column has another name."""
    is_unseen = running.job.parallelism == 0 and not step.batch.items
    if "function" in running.job.work or is_unseen:
        return False
    with refused(StateBackendError):
        deliver(running, step, lambda table: table.rename_columns(["other", *table.column_names[1:]]))
    return None


def null_key(running: "Running", step: Slip) -> bool | None:
    """A row has no key."""
    is_passed_on = running.job.parallelism > 0 or running.job.work == "table"  # to who is given no late rows
    if "function" in running.job.work or not step.batch.items or (is_passed_on and _has_late(running, step)):
        return False

    def without(table: pa.Table) -> pa.Table:
        column = pa.array([None, *table.column(0).to_pylist()[1:]], table.schema.field(0).type)
        return table.set_column(0, table.column_names[0], column)

    with refused(StateBackendError):
        deliver(running, step, without)
    return None


def _has_late(running: "Running", step: Slip) -> bool:
    """True if a row may be dropped before anybody looks at it."""
    return running.job.clock == "event" and any(item.at_s < running.held.now for item in step.batch.items)


def null_time(running: "Running", step: Slip) -> bool | None:
    """A row has no time, and the clock goes by the times of the rows."""
    if running.job.clock != "event" or not step.batch.items:
        return False

    def without(table: pa.Table) -> pa.Table:
        place = table.column_names.index("at")
        column = pa.array([None, *table.column("at").cast(pa.int64()).to_pylist()[1:]], pa.int64())
        return table.set_column(place, "at", column.cast(table.schema.field("at").type))

    with refused(StateBackendError):
        deliver(running, step, without)
    return None


def other_type(running: "Running", step: Slip) -> bool | None:
    """A state is declared with a type that cannot read what was written."""
    kinds = ("value", "list", "reducing")
    states = [each for each in running.job.states if each.kind in kinds and each.name in running.held.known]
    if not states or (running.job.parallelism and not step.batch.items):
        return False
    state = states[0]
    other = msgspec.structs.replace(
        state, type="int" if state.type.startswith(("leg", "stop")) else "leg 0", default=False
    )
    states = [other if each.name == state.name else each for each in running.job.states]
    _with_job(running, step, msgspec.structs.replace(running.job, states=tuple(states)), StateBackendError)
    return None


def other_kind(running: "Running", step: Slip) -> bool | None:
    """A state is declared as one of another kind."""
    states = [each for each in running.job.states if each.kind == "value" and each.name in running.held.known]
    if not states or (running.job.parallelism and not step.batch.items):
        return False
    other = msgspec.structs.replace(states[0], kind="list", default=False)
    changed = [other if each.name == other.name else each for each in running.job.states]
    _with_job(running, step, msgspec.structs.replace(running.job, states=tuple(changed)), StateBackendError)
    return None


def no_output(running: "Running", step: Slip) -> bool | None:
    """What is put out has nowhere to go."""
    if running.job.output == "none" or "function" in running.job.work or not step.batch.items:
        return False
    if running.job.late == "output":
        _with_job(running, step, running.job, StateBackendError, output=None)
        return None
    if _has_late(running, step):
        return False
    _with_job(running, step, running.job, StateBackendError, output=None)
    return None


def closed_backend(running: "Running", step: Slip) -> bool | None:
    """Somebody keeps a backend beyond its context, changes its states, and checkpoints.

    Or gives the id of the newest commit again.
    """
    if not running.kept:
        return False
    running.sink.close()
    job, keys = running.job, running.program.keys
    has_time = job.clock == "none" or running.held.now != float("-inf")

    async def open_it() -> None:
        async with sb.open_backend(running.settings) as backend:
            states = [(each, declare(backend, each, job, keys)) for each in job.states if has_time]
            with refused(CheckpointExistsError):
                await backend.checkpoint(max(running.kept))
        for declared, state in states:
            with refused(BackendClosedError):
                change(state, declared, KEYS[keys][0], backend.clock_s or 0.0)
        with refused(BackendClosedError):
            await backend.checkpoint(backend.next_checkpoint_id)

    attend(open_it())
    return None


def delivered_after_close(running: "Running", step: Slip) -> bool | None:
    """The sink is closed while the query goes on. It opens the state again."""
    running.sink.close()
    running.sink.close()
    running.batch(step.batch)
    return None


def gap(running: "Running", step: Slip) -> bool | None:
    """Spark's checkpoint is ahead of the state."""
    with refused(StateGoneError):
        running.sink(running.frame(step.batch, running.batch_id + 1), running.batch_id + 1)
    return None


def other_query(running: "Running", step: Slip) -> bool | None:
    """The query has another checkpoint directory, and so another id, and begins anew. It fences nobody."""
    if not running.kept or running.line[-1].newest_batch is None:
        return False
    running.sink.close()
    running.session.begin_run(running.runs, "another query")
    before = _entries(running)
    with refused(WrongQueryError):
        running.sink(running.frame(step.batch, 0), 0)
    check("entries of the log", _entries(running), before)
    return None


def _entries(running: "Running") -> list[str]:
    return sorted(path.name for path in (running.home / "primary").glob("*/commits/*"))


def other_zone(running: "Running", step: Slip) -> bool | None:
    """The program is started on a machine, or with a setting, that makes other days of the same instants."""
    if running.job.zone_told or not running.kept or running.line[-1].newest_batch is None:
        return False
    running.sink.close()
    running.session = running.new_session("Asia/Tokyo")
    running.begin_run()
    with refused(SettingsError):
        running.sink = running.make_sink()
        deliver(running, step)
    running.session = running.new_session(running.job.zone)
    return None


SLIPS: Mapping[str, Callable[["Running", Slip], bool | None]] = {
    "twice": twice,
    "same frame twice": same_frame_twice,
    "two sinks": two_sinks,
    "edited beside": edited_beside,
    "forgotten clock": forgotten_clock,
    "other clock": other_clock,
    "timers without a clock": no_clock_for_timers,
    "time-to-live without a clock": no_clock_for_ttl,
    "two columns of one name": shared_name,
    "renamed key": renamed_key,
    "null key": null_key,
    "null time": null_time,
    "other type": other_type,
    "other kind": other_kind,
    "no output": no_output,
    "closed backend": closed_backend,
    "delivered after close": delivered_after_close,
    "gap": gap,
    "other query": other_query,
    "other zone": other_zone,
    "wrong call": wrong_call,
    "beyond a limit": beyond_a_limit,
    "one name for two": one_name_for_two,
    "savepoint twice": savepoint_twice,
    "backup put back": backup_put_back,
}
