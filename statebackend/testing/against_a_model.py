"""`compare`: a processor beside a plain model of it, on rows that a seed draws, through kills, replays and restarts.

seed -> rows -> ProcessorTester, which dies before a commit, gets a batch again, loses its store, restarts, rescales
             -> the model, once
after each batch both have put out the same rows, and hold the same
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, Protocol, cast

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._processing.processor import KeyedProcessor
from statebackend.abc import ObjectStore
from statebackend.errors import StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing.faults import Fail, FaultyStore, Moment
from statebackend.testing.processor_tester import ProcessorTester

ROWS_MAX: Final = (0, 1, 2, 8, 40)
"""Most rows of a batch, drawn anew for each: none, one, and more than a key has by chance."""
RANGES: Final = (1, 2, 5)
REQUESTS_MAX: Final = 4
"""A store that does not answer does so from one of this many requests of a batch on."""

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
    meet a store that does not answer, come again behind it, or are followed by a restart, perhaps with another number
    of ranges. With `settings` and no `store` the store always answers.

    Raises `AssertionError`, with the seed and the batch, and what the processor raises.
    """
    chance = Random(seed)  # noqa: S311  # a seed is to be repeated, not to be unknown
    store = None if options.get("settings") and not options.get("store") else FaultyStore(_store_of(options))
    given: dict[str, Any] = {**options, "store": store}
    with ProcessorTester(processor, **given) as tester:
        for number in range(batches):
            rows = [draw_row(chance) for _ in range(chance.randint(0, chance.choice(ROWS_MAX)))]
            mishap = chance.choice(("killed", "no answer", "again", "restarted", "rescaled", *("none",) * 5))
            where = f"seed {seed}, batch {number} ({mishap})"
            if mishap == "killed":
                tester.batch(rows, commit=False)
            was, model = model, copy.deepcopy(model)
            expected = _sorted(model.batch(rows))
            if mishap == "no answer" and store is not None:
                output = _in_bad_weather(tester, rows, store, chance)
            else:
                output = tester.batch(rows)
            if output is not None:
                _check(f"{where}: output", _sorted(output), expected)
            if mishap == "again":
                _check(f"{where}: replay", _sorted(tester.replay()), _sorted(was.batch(rows)))
            if mishap in ("restarted", "rescaled"):
                tester.restart(ranges=chance.choice(RANGES) if mishap == "rescaled" else None)
            held = {key: value for backend in tester.backends for key, value in look(backend).items()}
            _check(f"{where}: state", held, dict(model.state()))


def _store_of(options: Mapping[str, Any]) -> ObjectStore:
    return cast("ObjectStore | None", options.get("store")) or MemoryStore()


def _in_bad_weather(
    tester: ProcessorTester, rows: Sequence[Row], store: FaultyStore, chance: Random
) -> Sequence[Row] | None:
    """Process the batch on a store that stops to answer, and again on one that does. Returns its output.

    `None` if the first one was committed all the same: then it was passed over, and put out nothing.
    """
    moment: Moment = chance.choice(("before", "after"))
    store.plan = [Fail(nth=chance.randint(1, REQUESTS_MAX), onwards=True, moment=moment)]
    try:
        return tester.batch(rows)
    except StateBackendError:
        store.plan = []
        return tester.batch(rows) or None
    finally:
        store.plan = []


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def _check(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what} differs\n  processor: {found}\n  model:     {expected}")
