"""What happens beside the stream: edits by hand, savepoints, upkeep, and readers."""

import datetime as dt
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import statebackend as sb
from statebackend.errors import CheckpointNotFoundError, InputError, StateBackendError
from tests.programs.dictionaries import NEVER, Dictionaries
from tests.programs.histories import look_at_history
from tests.programs.looking import check
from tests.programs.operations import act, declare
from tests.programs.program import Edit, Heir, Look, Savepoint, Upkeep
from tests.programs.readers import MoreReaders
from tests.programs.spark_reading import look_at_feed, look_in_spark
from tests.programs.surroundings import attend
from tests.programs.values import KEYS
from tests.programs.weather import is_of_weather, through_weather, weather

if TYPE_CHECKING:
    from tests.programs.running import Running


@dataclass
class Made:
    """A commit by hand, which may have been made. `at_s`: when it was the newest, if its maker has heard of it."""

    checkpoint_id: int
    held: Dictionaries
    at_s: float | None = None


def edit(running: "Running", step: Edit) -> None:
    """Open the job by hand, change it, commit, without a word of it to the stream."""
    made: list[Made] = []
    if (work := edits(running, step, made.append)) is None:
        return
    running.sink.close()

    async def open_it() -> None:
        async with sb.open_backend(running.settings) as backend:
            await work(backend)

    attend(open_it())
    for each in made:
        running.committed(each.checkpoint_id, each.held, None, at_s=each.at_s)


def edits(
    running: "Running",
    step: Edit | Heir,
    tell: Callable[[Made], None],
) -> Callable[[Any], Awaitable[None]] | None:
    """What a person does with a backend: changes and commits. `tell`: of each commit before it is made.

    `None` where nothing of a time-to-live could be written, since the job has no time yet.
    """
    job, kind = running.job, running.program.keys
    if job.clock != "none" and running.held.now == NEVER:
        return None
    held = running.held.copy()
    held.before = held.now
    states = {each.name: each for each in job.states}
    keys = KEYS[kind]

    async def work(backend: Any) -> None:
        for _ in range(step.commits):
            opened = {name: declare(backend, each, job, kind) for name, each in states.items()}
            for item in step.items:
                for do in item.does:
                    key = keys[item.key % len(keys)]
                    act(opened[do.state], states[do.state], key, do, backend.clock_s or 0.0)
                    held.act(states[do.state], key, do)
            held.commit(job.states)
            checkpoint_id = backend.next_checkpoint_id + step.skipped
            tell(made := Made(checkpoint_id, held.copy()))
            await backend.checkpoint(checkpoint_id)
            made.at_s = time.time()

    return work


def newest_id(settings: sb.Settings) -> int:
    """The newest checkpoint of the job, as anybody finds it."""
    found = attend(sb.inspect(settings)).newest_checkpoint_id
    assert found is not None
    return found


def savepoint(running: "Running", step: Savepoint) -> None:
    """Name the newest commit."""
    if step.name in running.savepoints:
        return
    if step.asked is None:
        attend(sb.savepoint(running.settings, step.name))
    else:
        asked = running.sink.savepoint(step.name)
        running.batch(step.asked)
        check("id of the savepoint", asked.result(60.0).checkpoint_id, running.line[-1].checkpoint_id)
    running.savepoints[step.name] = running.line[-1]


def upkeep(running: "Running", step: Upkeep) -> None:
    """What an operator does now and then; once more, where the weather was too bad."""
    if step.what == "sweep":
        running.is_swept = True
    through_weather(running, step, lambda: _upkeep(running, step.what))
    if step.what == "drop savepoints":
        running.savepoints.clear()


def _upkeep(running: "Running", what: str) -> None:
    settings = running.settings
    match what:
        case "sweep":
            attend(sb.sweep(settings, dry_run=False, min_age_s=0.0))
        case "repair" if settings.local:
            with suppress(InputError):  # no local copies yet
                check("repairs", list(attend(sb.repair(settings, dry_run=False))), [])
        case "verify":
            check("damages", list(attend(sb.verify(settings)).damages), [])
        case "drop savepoints":
            for name in {each.name for each in attend(sb.savepoints(settings))} & running.savepoints.keys():
                attend(sb.drop_savepoint(settings, name))


def look(running: "Running", step: Look) -> None:
    """What a reader sees of the newest commit, or of an earlier one; in bad weather it may see nothing."""
    with weather(step.weather, step.number, lambda: None):
        try:
            READERS[step.reader](running, MoreReaders(running.settings, running.job), step.number)
        except StateBackendError as error:
            if not (step.weather and is_of_weather(error)):
                raise


def _look_at_keys(running: "Running", readers: MoreReaders, number: int) -> None:
    keys = KEYS[running.program.keys]
    readers.look_at_keys(running.held, [keys[(number + place) % len(keys)] for place in range(3)])


def _look_at_earlier(running: "Running", readers: MoreReaders, number: int) -> None:
    checkpoint_id = _earlier(running, number)
    with perhaps_swept(running, checkpoint_id):
        attend(readers.look_whole(running.kept[checkpoint_id], checkpoint_id=checkpoint_id))


def _look_at_moment(running: "Running", readers: MoreReaders, number: int) -> None:
    """A commit, by the time at which it was the newest, as a number, a text or a `datetime`."""
    checkpoint_id = _earlier(running, number)
    moment = dt.datetime.fromtimestamp(running.moments[checkpoint_id], dt.UTC)
    at = (moment.timestamp(), moment.isoformat(), moment)[number % 3]
    with perhaps_swept(running, checkpoint_id):
        attend(readers.look_whole(running.kept[checkpoint_id], at=at))


def _look_at_savepoints(running: "Running", readers: MoreReaders, number: int) -> None:
    for name, kept in running.savepoints.items():
        attend(readers.look_whole(running.kept[kept.checkpoint_id], savepoint=name))


def _look_at_differences(running: "Running", readers: MoreReaders, number: int) -> None:
    earlier, newest = _earlier(running, number), max(running.kept)
    with perhaps_swept(running, earlier):
        attend(readers.look_at_differences((earlier, newest), running.kept[earlier], running.held))


def _look_at_feed(running: "Running", readers: MoreReaders, number: int) -> None:
    checkpoint_id = _earlier(running, number)
    line = [each.checkpoint_id for each in running.line]
    if checkpoint_id in line[1:]:
        with perhaps_swept(running, line[0]):
            states = running.kept[line[line.index(checkpoint_id) - 1]], running.kept[checkpoint_id]
            whole = running.transformed.get(checkpoint_id)
            look_at_feed(running.settings, running.job, running.held, states, checkpoint_id, transformed=whole)


READERS: Mapping[str, Callable[["Running", MoreReaders, int], None]] = {
    "parts": lambda running, readers, number: readers.look_in_parts(running.held, number % (running.held.groups - 1)),
    "keys": _look_at_keys,
    "checkpoint": _look_at_earlier,
    "savepoint": _look_at_savepoints,
    "moment": _look_at_moment,
    "rows": lambda running, readers, number: attend(readers.look_at_rows(running.held)),
    "differences": _look_at_differences,
    "export": lambda running, readers, number: attend(readers.export(running.held, running.home.parent, number)),
    "commands": lambda running, readers, number: readers.look_by_commands(running.held, number),
    "spark": lambda running, readers, number: look_in_spark(running.settings, running.job, running.held),
    "feed": _look_at_feed,
    "report": lambda running, readers, number: attend(
        readers.look_at_report(running.held, running.line[-1].checkpoint_id, running.savepoints)
    ),
    "history": lambda running, readers, number: look_at_history(running, number),
}


def _earlier(running: "Running", number: int) -> int:
    """One of the commits there were."""
    ids = sorted(running.kept)
    return ids[number % len(ids)]


@contextmanager
def perhaps_swept(running: "Running", checkpoint_id: int) -> Generator[None]:
    """In this context the checkpoint may not be found any more, if a sweep may have deleted it."""
    try:
        yield
    except CheckpointNotFoundError:
        if checkpoint_id < running.floor:
            return  # keys were erased since
        if not running.is_swept or checkpoint_id == max(running.kept):
            raise
