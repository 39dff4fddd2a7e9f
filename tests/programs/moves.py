"""The query goes elsewhere: its Spark checkpoint is put back, or the next run starts from a savepoint."""

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

import statebackend as sb
from statebackend.errors import (
    InputError,
    MissingObjectError,
    RewindError,
    SettingsError,
    StateBackendError,
    WrongQueryError,
)
from tests.programs.beside import newest_id
from tests.programs.dictionaries import Dictionaries
from tests.programs.looking import check, refused
from tests.programs.program import (
    Adopt,
    Batch,
    Declared,
    FromSavepoint,
    Job,
    PutBack,
    Rewind,
    Rewrite,
    Transform,
)
from tests.programs.surroundings import attend, copy_tree
from tests.programs.values import KEYS
from tests.programs.weather import through_weather

if TYPE_CHECKING:
    from tests.programs.running import Running

FIRST_QUERY = "query"
"""The id of the query, until another one adopts its state."""


def rewind(running: "Running", step: Rewind) -> None:
    """An earlier batch comes again. It is refused, or the state goes back to where it did not have that batch."""
    here = running.batch_id
    target = here - 1 - step.back
    if target < 0:
        return
    place = _place_before(running, target)
    is_edited = any(each.is_edit for each in running.line[0 if place is None else place + 1 :] if _has(each, target))
    running.next_run()
    is_below_another = target < running.returned_with  # a query has come back: it had that batch before another's
    if running.job.on_rewind == "fail" or place is None or is_edited or is_below_another:
        with refused(RewindError, *((SettingsError,) if running.is_rewritten else ())):
            running.sink(running.frame(step.batch, target), target)
        running.next_run()
        return
    running.batch_id, line = target, running.line
    running.held, running.line = running.kept[line[place].checkpoint_id].copy(), line[: place + 1]
    running.held.declare(running.job)
    try:
        running.batch(step.batch)
    except (RewindError, MissingObjectError):
        if not running.is_swept:  # what it would have to go back to may be gone
            raise
        running.batch_id, running.line = here, line
        running.held = running.kept[line[-1].checkpoint_id].copy()
        running.next_run()


def _place_before(running: "Running", target: int) -> int | None:
    """Where in the line the newest commit lies that has no batch from `target` on."""
    places = [place for place, each in enumerate(running.line) if not _has(each, target)]
    return places[-1] if places else None


def _has(commit: "Committed", target: int) -> bool:  # type: ignore[name-defined]  # noqa: F821
    return commit.newest_batch is not None and commit.newest_batch >= target


def rewrite(running: "Running", step: Rewrite) -> None:
    """The job gets another number of key groups. No savepoint of before goes with it any more, and no rollback."""
    if step.groups == running.held.groups or step.savepoint not in ("", *running.savepoints):
        return
    running.sink.close()
    kept = running.savepoints.get(step.savepoint, running.line[-1])
    held = running.kept[kept.checkpoint_id].copy()
    held.declare(running.job)
    held.groups = step.groups
    running.held = held
    before = newest_id(running.settings)

    def once() -> None:
        if newest_id(running.settings) == before:  # else it was done, and nobody heard of it
            attend(sb.rewrite(running.settings, savepoint=step.savepoint or None))

    through_weather(running, step, once)
    rewritten = newest_id(running.settings)
    assert rewritten > before
    for name in running.savepoints:
        attend(sb.drop_savepoint(running.settings, name))
    running.savepoints.clear()
    running.line, running.is_rewritten = [], True
    running.committed(rewritten, held, None)
    running.line = [kept._replace(checkpoint_id=rewritten, is_edit=True)]
    running.batch_id = 0 if kept.newest_batch is None else kept.newest_batch + 1
    running.next_run()


def transform(running: "Running", step: Transform) -> None:
    """One key of a state is dropped, and another is given a new one. Not of a state from which values expire."""
    readers = running.readers()
    states = [each for each in readers.known(running.held, readers.keyed) if each.ttl_s is None]
    if not states or not running.held.rows(state := states[step.state % len(states)]):
        return
    keys = KEYS[running.program.keys]
    dropped, moved, to = (keys[number % len(keys)] for number in (step.dropped, step.moved, step.to))
    running.sink.close()
    held = running.held.copy()
    entries, is_there = held.keyed[state.name], held.is_there(state, moved) and moved not in (dropped, to)
    is_taken = is_there and to != dropped and held.is_there(state, to)
    entries.pop(dropped, None)
    if is_there:
        entries[to] = entries.pop(moved)

    def function(key: sb.Key, value: Any) -> Any:
        return [] if key == dropped else [(to if key == moved else key, value)]

    before = newest_id(running.settings)

    def once() -> None:
        if newest_id(running.settings) == before:  # else it was done, and nobody heard of it
            attend(sb.transform(running.settings, state.name, function))

    if is_taken or _has_equal_names(running.held, state):
        with refused(InputError):
            once()
    else:
        through_weather(running, step, once)
        running.committed(newest_id(running.settings), held, None)
        running.transformed[max(running.kept)] = state.name
    running.next_run()


def _has_equal_names(held: Dictionaries, state: Declared) -> bool:
    """True if no function is given the dict of a map: Python takes two names for equal. Decimals are text in it."""
    maps = held.rows(state).values() if state.kind == "map" and state.names != "decimal" else ()
    return any(len({cell.name for cell in entries.values()}) < len(entries) for entries in maps)


def adopt(running: "Running", step: Adopt) -> None:
    """Another query goes on with the state, from its batch 0, once it says whose state that is; perhaps a third, ..."""
    if running.query_id != FIRST_QUERY or running.line[-1].newest_batch is None:
        return
    former, next_id = running.query_id, running.batch_id
    for number in range(step.times):
        former, next_id = running.query_id, running.batch_id
        _adopt_as(running, f"a later query {number}", 0)
        running.next_run()
        with refused(WrongQueryError):
            running.sink(running.frame(step.batch, 0), 0)
        running.adopts = former
        running.next_run()
        running.batch(step.batch)
    if step.returns:
        running.adopts = running.query_id
        _adopt_as(running, former, next_id)
        running.returned_with = next_id
        running.next_run()
        running.batch(step.batch)


def _adopt_as(running: "Running", query_id: str, batch_id: int) -> None:
    running.query_id, running.batch_id, running.returned_with = query_id, batch_id, 0
    running.line = [each._replace(newest_batch=None) for each in running.line]
    running.savepoints = {name: each._replace(newest_batch=None) for name, each in running.savepoints.items()}


def from_savepoint(running: "Running", step: FromSavepoint) -> None:
    """A branch: the run goes on from the savepoint. Then the program as it was comes back, and is refused."""
    if (kept := running.savepoints.get(step.name)) is None:
        return
    was = running.batch_id
    running.batch_id = 0 if kept.newest_batch is None else kept.newest_batch + 1
    running.line = [*running.line[: _index(running, kept.checkpoint_id)], kept]
    running.held = running.kept[kept.checkpoint_id].copy()
    running.held.declare(running.job)
    is_of_other = kept.query_id not in (None, running.query_id)  # from before it was adopted
    running.next_run(savepoint=step.name, **({"adopt": kept.query_id} if is_of_other else {}))
    running.batch(step.batch)
    if was > running.batch_id:
        running.next_run()
        with refused(StateBackendError):
            running.sink(running.frame(step.batch, was), was)
    running.next_run()


def put_back(running: "Running", step: PutBack) -> None:
    """Go another way from a backup, without the local disks; with them again, what they have of the first is no damage.

    Not beside a mirror: its table has rows of the commit that is gone.
    """
    if running.mirror is not None or running.line[-1].newest_batch is None:
        return
    was, held, line, batch_id, kept = running.job, running.held, running.line, running.batch_id, dict(running.kept)
    running.follow(None)
    running.close_left()
    running.sink.close()
    primary, backup = running.home / "primary", running.home.parent / "backup"
    backup.mkdir()
    copy_tree(primary, backup)
    running.line = list(line)
    _work_with(running, step.batch, has_local=True)
    shutil.rmtree(primary)
    backup.rename(primary)
    running.held, running.line, running.batch_id, running.kept = held, line, batch_id, kept
    _work_with(running, step.other, has_local=False)
    running.job = _with_local(was, has_local=True)
    check("damages", list(attend(sb.verify(running.settings)).damages), [])
    with suppress(InputError):  # a batch without rows leaves no local copies
        check("repairs", list(attend(sb.repair(running.settings, dry_run=False))), [])
    running.job = was
    running.next_run()


def _work_with(running: "Running", batch: Batch, *, has_local: bool) -> None:
    running.job = _with_local(running.job, has_local=has_local)
    running.next_run()
    running.batch(batch)
    running.sink.close()


def _with_local(job: Job, *, has_local: bool) -> Job:
    return msgspec.structs.replace(job, settings={**job.settings, "has_local": has_local})


def _index(running: "Running", checkpoint_id: int) -> int:
    """How many commits of the line lie before this one; none where it is of another line."""
    ids = [each.checkpoint_id for each in running.line]
    return ids.index(checkpoint_id) if checkpoint_id in ids else 0
