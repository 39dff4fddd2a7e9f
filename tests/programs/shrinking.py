"""Makes a program that fails smaller, as long as it fails in the same way."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from tests.programs.program import (
    Adopt,
    Batch,
    Clone,
    Declared,
    Edit,
    Erase,
    Follow,
    FromSavepoint,
    Heir,
    Item,
    Job,
    Mirror,
    Program,
    Rewind,
    Seed,
    SeedAnew,
    Slip,
    Start,
    Step,
    Upkeep,
)

T = TypeVar("T")
TRIES_MAX = 600
PLAIN = {
    Follow: Follow(),
    Mirror: Mirror(),
    Upkeep: Upkeep("verify"),
    Erase: Erase(()),
    Clone: Clone(),
    SeedAnew: SeedAnew(),
}
FEW = 8
"""So few rows are left out one by one."""


def shrunk(program: Program, fails: Callable[[Program], bool], tries_max: int = TRIES_MAX) -> Program:
    """The smallest program found for which `fails` is true, by leaving out one thing after the other."""
    tries, again = 0, True
    while again:
        again = False
        for smaller in _smaller(program):
            if (tries := tries + 1) > tries_max:
                return program
            if fails(smaller):
                program, again = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Smaller programs, the ones that lack most come first."""
    if program.bounds is not None:
        yield msgspec.structs.replace(program, bounds=None)
    steps = program.steps
    for place in range(len(steps) - 1, 0, -1):
        yield _with(program, steps[:place])
    for place in range(len(steps) - 1, 0, -1):
        yield _with(program, (*steps[:place], *steps[place + 1 :]))
    yield from _without_states(program)
    for place, step in enumerate(steps):
        for smaller in _smaller_step(step):
            yield _with(program, (*steps[:place], smaller, *steps[place + 1 :]))


def _without_states(program: Program) -> Iterator[Program]:
    names = {each.name for step in program.steps if isinstance(step, Start) for each in step.job.states}
    for name in sorted(names):
        yield _with(program, tuple(_without(step, name) for step in program.steps))


def _without(step: Step, name: str) -> Step:
    match step:
        case Start():
            states = tuple(each for each in step.job.states if each.name != name)
            return Start(_with(step.job, states=states), step.after)
        case Batch() | Edit() | Heir() | Seed():
            return _with(step, items=tuple(_with(item, does=_others(item, name)) for item in step.items))
        case Rewind() | Adopt() | FromSavepoint() | Slip():
            return _with(step, batch=_without(step.batch, name))
    return step


def _others(item: Item, name: str) -> Any:
    return tuple(do for do in item.does if do.state != name)


def _smaller_step(step: Step) -> Iterator[Step]:
    if isinstance(step, Start):
        for job in _smaller_job(step.job):
            yield Start(job, step.after)
    if isinstance(step, Rewind | Adopt | FromSavepoint | Slip):
        for batch in _smaller_step(step.batch):
            yield _with(step, batch=batch)
    if isinstance(step, Follow | Mirror | Upkeep | Erase | Clone | SeedAnew):
        yield from _plainer(step, PLAIN[type(step)], skip=("keys", "what", "goes_on", "state"))
    if isinstance(step, Batch | Edit | Heir | Seed):
        yield from _plainer(step, type(step)(items=step.items), skip=("items",))
        half = len(step.items) // 2
        for items in (step.items[:half], step.items[half:]) if half else ():
            yield _with(step, items=items)
        for place, item in enumerate(step.items if len(step.items) <= FEW else ()):
            yield _with(step, items=(*step.items[:place], *step.items[place + 1 :]))
            for smaller in _smaller_item(item):
                yield _with(step, items=(*step.items[:place], smaller, *step.items[place + 1 :]))


def _smaller_job(job: Job) -> Iterator[Job]:
    yield from _plainer(job, Job())
    for place, state in enumerate(job.states):
        for plainer in _plainer(state, Declared(state.name, state.kind, columns=state.columns[:1])):
            yield _with(job, states=(*job.states[:place], plainer, *job.states[place + 1 :]))
    for name in job.settings:
        yield _with(job, settings={other: value for other, value in job.settings.items() if other != name})


def _smaller_item(item: Item) -> Iterator[Item]:
    for place in range(len(item.does)):
        yield _with(item, does=(*item.does[:place], *item.does[place + 1 :]))


def _plainer(thing: T, plain: T, skip: tuple[str, ...] = ("states", "settings", "name", "kind")) -> Iterator[T]:
    """The same, with one field as it is in the plain one."""
    for field in msgspec.structs.fields(thing):  # type: ignore[arg-type]
        if field.name not in skip and getattr(thing, field.name) != getattr(plain, field.name):
            yield _with(thing, **{field.name: getattr(plain, field.name)})


def _with(thing: Any, *steps: Any, **changes: Any) -> Any:
    if steps:
        changes["steps"] = steps[0]
    return msgspec.structs.replace(thing, **changes)
