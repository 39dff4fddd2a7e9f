"""The rules of a mirror are needed: a life without one ends with a table that is not the state, or with a row twice."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

import statebackend as sb
from statebackend._log.mirror_steps import MirrorStep
from statebackend._mirroring import planning
from statebackend._mirroring.mirroring import Mirroring
from statebackend._mirroring.rows import RowsOfSteps
from tests.mirroring.places import folder
from tests.mirroring.test_every_target import Life

SEEDS: Final = 12


async def nothing_undone(*_: Any) -> None:
    """What the abandoned commits changed stays."""


async def trusts_its_log(self: Mirroring) -> None:
    """It does not ask the table which step it has."""
    self._last = newest = await self._log.newest()
    self._at = newest
    self._number = 0 if newest is None else newest.number
    self._is_known = True


async def goes_on(_: Any, at: MirrorStep, found: Any, newest: Any, __: str) -> planning.StepPlan:
    """A job that has gone back is followed as if it had not."""
    return planning.StepPlan("changes", found.commits, found.before)


MUTANTS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "rewritten states are not noticed": lambda: patch.object(planning, "_added", lambda *_: 1),
    "a job that went back is not noticed": lambda: patch.object(planning, "_back", goes_on),
    "nothing is undone": lambda: patch.object(RowsOfSteps, "_add_undone", nothing_undone),
    "the table is not asked": lambda: patch.object(Mirroring, "_find", trusts_its_log),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mirror_without_a_rule_is_noticed(name: str, tmp_path: Path) -> None:
    with MUTANTS[name]():
        for seed in range(SEEDS):
            life = Life(folder("", tmp_path / str(seed)), seed)
            try:
                await life.run(25)
            except (AssertionError, sb.StateBackendError):
                return
    pytest.fail("no life was wrong")
