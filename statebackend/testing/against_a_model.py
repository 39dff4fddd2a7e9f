"""`compare`: a processor beside a plain model of it, on rows that a seed draws, through kills, replays and restarts.

seed -> rows -> ProcessorTester, which dies before a commit, gets a batch again, restarts, rescales
             -> the model, once
after each batch both have put out the same rows, and hold the same
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, Protocol

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._processing.processor import KeyedProcessor
from statebackend.testing.processor_tester import ProcessorTester

ROWS_MAX: Final = (0, 1, 2, 8, 40)
"""Most rows of a batch, drawn anew for each: none, one, and more than a key has by chance."""
RANGES: Final = (1, 2, 5)

Row = Mapping[str, Any]


class Model(Protocol):
    """The purpose of a processor, in plain Python. It holds its state itself: it is copied before each batch."""

    def batch(self, rows: Sequence[Row]) -> Iterable[Row]:
        """Take the rows of one batch, and return the output rows, in any order."""
        ...

    def state(self) -> Mapping[Any, Any]:
        """The state that the processor should have by now, in the form in which `look` shows it."""
        ...


def compare(
    processor: KeyedProcessor,
    model: Model,
    *,
    seed: int,
    draw_row: Callable[[Random], Row],
    look: Callable[[KeyedBackend], Mapping[Any, Any]],
    batches: int = 20,
    **options: Any,
) -> None:
    """Process drawn batches by both, and compare what they put out and hold after each. The seed decides all of it.

    `draw_row` makes a row by the chance that it is given. `look` shows the state of one range of the keys, as
    `lambda backend: dict(backend.value_state("flown", int))`; the ranges are put together. `options` are those of
    `ProcessorTester`, such as `key`, `event_time` and `schema`. Of ten batches four are cut off before their commit,
    come again behind it, or are followed by a restart, perhaps with another number of ranges.

    Raises `AssertionError`, with the seed and the batch, and what the processor raises.
    """
    chance = Random(seed)  # noqa: S311  # a seed is to be repeated, not to be unknown
    with ProcessorTester(processor, **options) as tester:
        for number in range(batches):
            rows = [draw_row(chance) for _ in range(chance.randint(0, chance.choice(ROWS_MAX)))]
            mishap = chance.choice(("killed", "again", "restarted", "rescaled", *("none",) * 6))
            where = f"seed {seed}, batch {number} ({mishap})"
            if mishap == "killed":
                tester.batch(rows, commit=False)
            was, model = model, copy.deepcopy(model)
            _check(f"{where}: output", _sorted(tester.batch(rows)), _sorted(model.batch(rows)))
            if mishap == "again":
                _check(f"{where}: replay", _sorted(tester.replay()), _sorted(was.batch(rows)))
            if mishap in ("restarted", "rescaled"):
                tester.restart(ranges=chance.choice(RANGES) if mishap == "rescaled" else None)
            held = {key: value for backend in tester.backends for key, value in look(backend).items()}
            _check(f"{where}: state", held, dict(model.state()))


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def _check(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what} differs\n  processor: {found}\n  model:     {expected}")
