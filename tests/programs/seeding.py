"""A job is seeded: its first state comes from plain pairs; or a new job gets what was read from one, and goes on.

seed            before the first batch: what the dictionaries hold
seed_anew       another job is made of what a reader or an export gives of this one
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

import statebackend as sb
from statebackend.errors import InputError, StateGoneError
from tests.programs.beside import newest_id
from tests.programs.cloning import Original
from tests.programs.dictionaries import NEVER, Cell, Dictionaries
from tests.programs.looking import refused
from tests.programs.operations import declare
from tests.programs.program import OPERATOR, Batch, Declared, Seed, SeedAnew
from tests.programs.readers import MoreReaders
from tests.programs.surroundings import attend
from tests.programs.values import KEYS, LEGS, TYPES, evolved, read_of
from tests.programs.weather import through_weather

if TYPE_CHECKING:
    from tests.programs.running import Running


START, ELSEWHERE = {"entries": {"0": 7, "1": 0}}, {"entries": {"0": 7, "1": 1}}
"""Offsets at which a stream begins."""


def seed(running: "Running", step: Seed) -> None:
    """The job begins with a state. Where it has a clock, that begins then, too."""
    job, held = running.job, running.held.copy()
    if job.clock != "none":
        held.move(step.clock_s)
    states = {each.name: each for each in job.states}
    keys = KEYS[running.program.keys]
    for item in step.items:
        for do in item.does:
            held.act(states[do.state], keys[item.key % len(keys)], do)
    found = {name: _pairs(held, each) for name, each in states.items() if each.kind not in OPERATOR}
    if not found or any(pairs is None for pairs in found.values()):
        return
    sources = {name: partial(dict, pairs) for name, pairs in found.items() if pairs is not None}
    _seed(running, running.settings, held, sources, step)
    with refused(InputError):
        attend(sb.seed(running.settings, _declares(running), {name: make() for name, make in sources.items()}))
    running.committed(newest_id(running.settings), held, None)
    running.starts_from = START if step.starts else None
    for other in (None, ELSEWHERE) if step.starts else (ELSEWHERE,):
        running.next_run(starts_from=other)
        with refused(StateGoneError):
            running.sink(running.frame(Batch(), running.batch_id), running.batch_id)
    running.next_run()


def seed_anew(running: "Running", step: SeedAnew) -> None:
    """Make another job of what this one holds, as it is read; compare; and go on as that one, as another query."""
    source, job, readers = running.settings, running.job, running.readers()
    known = {each.name: each for each in readers.known(running.held, readers.keyed)}
    states = [each for each in readers.keyed if each.name in known]
    held = _seeded(running.held, job.states)
    sources: dict[str, Callable[[], Any]] = {}
    for each in states:
        if (pairs := _pairs(running.held, each)) is None:  # no dict can hold it
            return
        is_read = pairs and step.form != "pairs" and each == known[each.name] and not _lacks_fields(running.held, each)
        sources[each.name] = partial(_read, running, readers, each, step.form) if is_read else partial(dict, pairs)
    if not sources:
        return
    seeded = msgspec.structs.replace(source, job=f"seed-{len(running.originals)}-{running.runs}")
    if _has_timers_before(held, states):
        with refused(InputError):
            _seed(running, seeded, held.copy(), sources, step)
        return
    if step.goes_on:
        running.sink.close()
    _seed(running, seeded, held, sources, step)
    attend(MoreReaders(seeded, job).look_whole(held))
    if not step.goes_on:
        shutil.rmtree(running.home / "primary" / seeded.job)
        return
    running.originals.append(Original(source, job, running.held))
    running.query_id, running.adopts, running.starts_from = f"after {seeded.job}", False, None
    kept = running.line[-1]._replace(checkpoint_id=newest_id(seeded), newest_batch=None)
    running.kept[kept.checkpoint_id] = held
    running.become(seeded.job, kept)


def _seed(
    running: "Running",
    settings: sb.Settings,
    held: Dictionaries,
    sources: Mapping[str, Callable[[], Any]],
    step: Seed | SeedAnew,
) -> None:
    """Seed it, in the weather of the step; `held` knows the states from then on. `sources`: made for each attempt."""
    job = running.job
    options: dict[str, Any] = {"starts_from": START} if isinstance(step, Seed) and step.starts else {}
    if job.clock != "none" and held.now != NEVER:
        options |= {"clock_s": held.now, "clock_kind": "processing" if job.clock == "batch" else "event"}

    def once() -> None:
        given = {name: make() for name, make in sources.items()}
        attend(sb.seed(settings, _declares(running), given, **options))

    if not through_weather(running, step, once, again=False) and not _has_commit(settings):
        once()
    held.known, held.untimed = {}, {}
    held.commit([each for each in job.states if each.kind not in OPERATOR])


def _has_timers_before(held: Dictionaries, states: Sequence[Declared]) -> bool:
    """True if a timer lies before the clock: it has fired, and was registered again. No new job takes such a timer."""
    timers = [each.name for each in states if each.kind == "timers"]
    return any(at < held.now for name in timers for times in held.keyed[name].values() for at in times)


def _has_commit(settings: sb.Settings) -> bool:
    try:
        return attend(sb.inspect(settings)).newest_checkpoint_id is not None
    except InputError:  # there is no such job
        return False


def _declares(running: "Running") -> Any:
    def declares(backend: Any) -> None:
        for each in running.job.states:
            if each.kind not in OPERATOR:
                declare(backend, each, running.job, running.program.keys)

    return declares


def _read(running: "Running", readers: MoreReaders, declared: Declared, form: str) -> Any:
    """The state as columns, or as a file of Parquet."""
    options = {"ttl": running.job.ttl(declared), "migrate": TYPES[declared.type].upcasts}
    if form == "columns":
        return sb.read_state(readers.settings, declared.name, **options)
    path = running.home.parent / f"{declared.name}.parquet"
    path.unlink(missing_ok=True)
    attend(sb.export(readers.settings, declared.name, path, **options))
    return path


def _lacks_fields(held: Dictionaries, declared: Declared) -> bool:
    """True if a stored value lacks a field: readers show null for it, and not the default."""

    def cells(found: Any) -> Iterable[Any]:
        return [found] if isinstance(found, Cell) else found.values() if isinstance(found, dict) else found

    stored = (cell.value for found in held.keyed[declared.name].values() for cell in cells(found))
    return declared.type in LEGS and any(
        read_of(declared.type, value) != msgspec.structs.asdict(evolved(declared.type, value)) for value in stored
    )


def _pairs(held: Dictionaries, declared: Declared) -> dict[Any, Any] | None:
    """What is under each key, as a seed takes it; `None` where no dict can have the names of a map."""
    found: dict[Any, Any] = {}
    for key, each in held.rows(declared).items():
        match declared.kind:
            case "value" | "reducing":
                found[key] = evolved(declared.type, each)
            case "list":
                found[key] = [evolved(declared.type, one) for one in each]
            case "map":
                found[key] = {cell.name: evolved(declared.type, cell.value) for cell in each.values()}
                if len(found[key]) < len(each):
                    return None
            case "columns":
                found[key] = dict(each)
            case _:
                found[key] = tuple(each)
    return found


def _seeded(held: Dictionaries, states: tuple[Declared, ...]) -> Dictionaries:
    """What a job holds that was seeded with this: written now, by types of now, and without operator state."""
    found, declared = held.copy(), {each.name: each for each in states}
    for name, entries in found.keyed.items():
        for key, each in entries.items():
            entries[key] = _written(found, declared[name], each)
    found.operator = {name: [] for name in found.operator}
    return found


def _written(held: Dictionaries, declared: Declared, found: Any) -> Any:
    if isinstance(found, Cell):
        if held._lives(declared, found):
            return _cell(held, declared, found)
        return found._replace(at=held.untimed[declared.name]) if found.at is None else found  # it stays expired
    if isinstance(found, list):
        return [_cell(held, declared, each) for each in found if held._lives(declared, each)]
    if isinstance(found, dict):
        return {text: _cell(held, declared, each) for text, each in found.items() if held._lives(declared, each)}
    return found


def _cell(held: Dictionaries, declared: Declared, cell: Cell) -> Cell:
    value = cell.value
    if declared.kind == "columns":
        value = {name: value.get(name) for name in declared.columns}
    return held._cell(declared, evolved(declared.type, value), cell.name)
