"""The query goes elsewhere: its Spark checkpoint is put back, or the next run starts from a savepoint."""

from typing import TYPE_CHECKING

from statebackend.errors import MissingObjectError, RewindError, StateBackendError
from tests.programs.program import FromSavepoint, Rewind
from tests.programs.slips import refused

if TYPE_CHECKING:
    from tests.programs.running import Running


def rewind(running: "Running", step: Rewind) -> None:
    """An earlier batch comes again. It is refused, or the state goes back to where it did not have that batch."""
    here = running.batch_id
    target = here - 1 - step.back
    if target < 0:
        return
    place = _place_before(running, target)
    is_edited = any(each.is_edit for each in running.line[0 if place is None else place + 1 :] if _has(each, target))
    running.next_run()
    if running.job.on_rewind == "fail" or place is None or is_edited:
        with refused(RewindError):
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


def from_savepoint(running: "Running", step: FromSavepoint) -> None:
    """A branch: the run goes on from the savepoint. Then the program as it was comes back, and is refused."""
    kept = running.savepoints[step.name]
    was = running.batch_id
    running.batch_id = 0 if kept.newest_batch is None else kept.newest_batch + 1
    running.line = [*running.line[: _index(running, kept.checkpoint_id)], kept]
    running.held = running.kept[kept.checkpoint_id].copy()
    running.held.declare(running.job)
    running.next_run(savepoint=step.name)
    running.batch(step.batch)
    if was > running.batch_id:
        running.next_run()
        with refused(StateBackendError):
            running.sink(running.frame(step.batch, was), was)
    running.next_run()


def _index(running: "Running", checkpoint_id: int) -> int:
    """How many commits of the line lie before this one; none where it is of another line."""
    ids = [each.checkpoint_id for each in running.line]
    return ids.index(checkpoint_id) if checkpoint_id in ids else 0
