"""What some programs end with: steps that must come in one order, which is seldom drawn step by step.

They have a chance of their own, so that the steps before them are those that the seed always meant.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from tests.programs.program import Edit, PutBack, Rewind, Start, Step

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
        settings = {**job.settings, "table": "rocksdb", "materialize_handles_max": 1}
        for other in ("rocksdb_bases", "state_memory_bytes"):
            settings.pop(other, None)
        job = msgspec.structs.replace(job, settings=settings)
    return [Start(job), PutBack(drawing.plain_batch(), drawing.plain_batch())]


TAILS: Sequence[Callable[["Drawing"], Sequence[Step]]] = (_rewind_over_an_edit, _put_back)
