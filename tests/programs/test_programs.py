"""A seed decides its program, what fails is shrunk, and a library that does something else is found out."""

from typing import Any, get_args

import anyio
import pytest

from tests.programs import program as programs
from tests.programs.__main__ import cause_of, failure_of
from tests.programs.beside import READERS
from tests.programs.drawing import FRESH, draw
from tests.programs.pairs import traits
from tests.programs.program import Batch, Declared, Do, Item, Job, Look, Mirror, Program, Seed, Start, Step
from tests.programs.shrinking import shrunk
from tests.programs.slips import SLIPS

pytestmark = pytest.mark.usefixtures("quiet")


def test_a_seed_decides_its_program() -> None:
    assert [draw(seed) for seed in range(20)] == [draw(seed) for seed in range(20)]


def test_everything_is_drawn() -> None:
    """A step that can be run and is never drawn looks as if it were covered."""
    drawn = [draw(seed) for seed in range(2000)]
    assert {type(step) for program in drawn for step in program.steps} == set(get_args(Step))
    found = frozenset[str]().union(*map(traits, drawn))
    assert {f"slip: {what}" for what in SLIPS} <= found
    assert {f"beside: look at {reader}" for reader in READERS} <= found


def test_a_commit_draws_everything_too() -> None:
    """In some of its programs there is bad weather, or a process that is killed at a request."""
    drawn = [draw(FRESH + number) for number in range(300)]
    assert any(isinstance(step, Batch) and step.mishap == "answers lost" for each in drawn for step in each.steps)
    assert any(
        isinstance(step, Batch) and step.mishap == "killed at a request" for each in drawn for step in each.steps
    )


def test_a_program_is_printed_as_the_code_that_makes_it() -> None:
    for seed in range(20):
        assert eval(draw(seed).code(), vars(programs)) == draw(seed)


def test_what_fails_is_shrunk_to_what_matters() -> None:
    """Here to the only operation that matters, among hundreds."""
    wanted = Do("v0", "put", 3)

    def fails(program: Program) -> bool:
        batches = [step for step in program.steps if isinstance(step, Batch)]
        return any(wanted in item.does for batch in batches for item in batch.items)

    start = Start(Job(states=(Declared("v0", "value"), Declared("l1", "list"))))
    noise = tuple(Item(key, 0.0, (Do("l1", "append"), Do("v0", "put", 1))) for key in range(30))
    program = Program("str", (start, Batch(noise), Batch((*noise, Item(1, 0.0, (Do("v0", "pop"), wanted)), *noise))))
    smallest = shrunk(program, fails)
    assert smallest.steps[1:] == (Batch((Item(1, 0.0, (wanted,)),)),)


def test_a_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that loses every other element of a list fails within a few programs."""
    from statebackend._state.kinds.list_state import ListState  # noqa: PLC0415  # broken here alone

    monkeypatch.setattr(ListState, "extend", lambda self, key, elements: self.append(key, next(iter(elements))))
    failures = (failure_of(draw(FRESH + number)) for number in range(100))
    assert "WrongError" in cause_of(next(filter(None, failures)))


async def lost(*_: object) -> None:
    """In place of what adds rows."""


async def idle(_settings: object, _mirror: object, ended: anyio.Event, **_options: object) -> None:
    """In place of a mirror beside a sink that carries over what there is before it ends."""
    await ended.wait()


STATE = Start(Job(states=(Declared("v0", "value"),)))
PUT, OTHER = ((Item(key, 0.0, (Do("v0", "put", 1),)),) for key in (0, 1))
BREAKS: dict[str, tuple[str, Any, Program]] = {
    "a mirror loses changes": (
        "statebackend._mirroring.rows.RowsOfSteps._add_changes",
        lost,
        Program("str", (STATE, Batch(PUT), Mirror(), Batch(OTHER))),
    ),
    "a sink that closes leaves its mirrors where they are": (
        "statebackend.spark.mirrors_beside.run_mirror",
        idle,
        Program("str", (STATE, Batch(PUT), Mirror(in_sink=True, lag=9), Batch(OTHER))),
    ),
    "a history begins with nothing": (
        "statebackend._reading.histories._Search._is_whole",
        lambda self, made: False,
        Program("str", (STATE, Seed(PUT), Batch(PUT), Look("history"))),
    ),
}


@pytest.mark.parametrize(("place", "broken", "program"), BREAKS.values(), ids=BREAKS)
def test_what_is_wrong_beside_the_stream_is_found(
    place: str, broken: Any, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is sound, until the library is broken."""
    assert failure_of(program) is None
    monkeypatch.setattr(place, broken)
    error = failure_of(program)
    assert error is not None
    assert "WrongError" in cause_of(error)
