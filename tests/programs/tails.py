"""What some programs end with: steps that must come in one order, which is seldom drawn step by step.

They have a chance of their own, so that the steps before them are those that the seed always meant.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tests.programs.program import (
    Batch,
    Clone,
    Declared,
    Edit,
    Job,
    Look,
    PutBack,
    Rewind,
    SeedAnew,
    Start,
    Step,
    Transform,
)
from tests.programs.values import LEGS

if TYPE_CHECKING:
    from tests.programs.drawing import Drawing


def tail(drawing: "Drawing") -> Sequence[Step]:
    """One of them, and a batch."""
    return [*drawing.chance.choice(TAILS)(drawing), drawing.batch()]


def _rewind_over_an_edit(drawing: "Drawing") -> Sequence[Step]:
    """Spark's checkpoint is put back to before a batch upon which somebody has edited the state."""
    job = msgspec.structs.replace(drawing.drawn, on_rewind="rollback")
    edit = Edit(drawing.items(2, 3))
    return [Start(job), drawing.plain_batch(), edit, drawing.plain_batch(), Rewind(1, drawing.plain_batch())]


def _put_back(drawing: "Drawing") -> Sequence[Step]:
    """Mostly where files of RocksDB are copied: their names are those of a checkpoint, which another run may make."""
    job = drawing.drawn
    if job.settings.get("table") != "runs" and drawing.chance.random() < 0.7:
        job = _with_settings(job, table="rocksdb", materialize_handles_max=1)
    return [Start(job), PutBack(drawing.plain_batch(), drawing.plain_batch())]


def _layers(drawing: "Drawing") -> Sequence[Step]:
    """Columns over runs, of which each commit or two write a layer or a base: it takes in what is there already."""
    number = len(drawing.drawn.states)
    columns = tuple(drawing.chance.sample(("int", "str", "float", "bool"), 2))
    state = Declared(f"c{number}", "columns", columns=columns)
    job = _with_settings(drawing.drawn, table="runs", materialize_handles_max=drawing.chance.choice((1, 1, 2)))
    drawing.drawn = _with_state(job, state)
    return [Start(drawing.drawn), *(_of_state(drawing, state, rows, 40) for rows in (30, 8, 3, 12, 3, 8))]


def _evolution(drawing: "Drawing") -> Sequence[Step]:
    """A state gets a later version of its type, and a commit from before is compared with one from after it."""
    old, new = sorted(drawing.chance.sample(range(len(LEGS)), 2))
    job, number = drawing.drawn, len(drawing.drawn.states)
    steps: list[Step] = []
    for version in (old, new):
        state = Declared(f"v{number}", "value", type=list(LEGS)[version])
        drawing.drawn = _with_state(job, state)
        steps += [Start(drawing.drawn), *(_of_state(drawing, state, 3, 4) for _ in range(2))]
    return [*steps, Look("differences", -3), Look("feed", drawing.chance.choice((-1, -2)))]


def _made_as_a_whole(drawing: "Drawing") -> Sequence[Step]:
    """A commit without changes that explain it, and the history of keys, which leads over it."""
    chance = drawing.chance
    transform = Transform(chance.randrange(9), *(chance.randrange(5) for _ in range(3)))
    made = chance.choice((transform, transform, SeedAnew(goes_on=True), Clone(goes_on=True)))
    numbers = chance.sample(range(127), 3)
    return [drawing.plain_batch(), made, drawing.plain_batch(), *(Look("history", number) for number in numbers)]


def _with_settings(job: Job, **others: object) -> Job:
    """The job with other tables and what goes with them."""
    kept = {name: each for name, each in job.settings.items() if name not in ("rocksdb_bases", "state_memory_bytes")}
    return msgspec.structs.replace(job, settings={**kept, **others})


def _with_state(job: Job, state: Declared) -> Job:
    return msgspec.structs.replace(job, states=(*job.states, state))


def _of_state(drawing: "Drawing", state: Declared, rows: int, keys: int) -> Batch:
    """A batch whose rows all do something to this state."""
    items = drawing.items(rows, keys)
    doing = tuple(msgspec.structs.replace(each, does=(drawing.do(state),)) for each in items)
    return msgspec.structs.replace(drawing.plain_batch(), items=doing)


TAILS: Sequence[Callable[["Drawing"], Sequence[Step]]] = (
    _rewind_over_an_edit,
    _put_back,
    _layers,
    _evolution,
    _made_as_a_whole,
)
