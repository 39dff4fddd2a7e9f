"""The lives of processes that edit a job, and are killed: each by itself, at a request or at a row."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

import statebackend as sb
from statebackend._upkeep.seeding import sorted_runs
from statebackend.objectstore import LocalStore
from statebackend.testing import FaultyStore
from tests.backend.killed_child import Suicide
from tests.clone.test_clone import named
from tests.erase.persons import BOTH
from tests.mortals import Report
from tests.rewrite.jobs import settings_of

PLAIN: Final[dict[str, Any]] = {**BOTH, "checkpoints_retained": 1}
SETTINGS: Final = settings_of(16, **PLAIN)
ROWS: Final = {f"key {number}": number for number in range(200)}
DONE: Final = 1


def values(backend: Any) -> Any:
    return backend.value_state("value", int)


def settings_in(directory: Path) -> sb.Settings:
    """With a place for scratch files."""
    return settings_of(16, **PLAIN, table_dir=f"{directory}/scratch")


async def seed(directory: Path, store: sb.ObjectStore, row: int | None = None) -> None:
    """From rows of which one is a death."""

    def rows() -> Iterator[tuple[str, int]]:
        for number, pair in enumerate(ROWS.items()):
            if number == row:
                os.kill(os.getpid(), signal.SIGKILL)
            yield pair

    await sb.seed(settings_in(directory), values, {"value": rows()}, store=store)


async def clone(directory: Path, store: sb.ObjectStore) -> None:
    await sb.clone(named(SETTINGS), from_=SETTINGS, store=store, from_store=store)


async def transform(directory: Path, store: sb.ObjectStore) -> None:
    """A thousand more for each key."""
    await sb.transform(SETTINGS, "value", lambda key, value: [("value", key, value + 1000)], type=int, store=store)


EDITS: Final[Mapping[str, Callable[..., Any]]] = {"seed": seed, "clone": clone, "transform": transform}


def live(report: Report, directory: Path, edit: str, *, row: int | None = None, **death: Any) -> None:
    """Edit the job in the directory, report `DONE` if that was lived to see, and die."""
    options = {} if row is None else {"row": row}
    store = FaultyStore(LocalStore(directory / "primary"), [Suicide(**death)] if death else [])
    with pytest.MonkeyPatch.context() as patch:  # so that a small seed has several runs
        patch.setattr(sorted_runs, "RUN_ROWS", 60)
        patch.setattr("statebackend._upkeep.seeding.sources.PAIRS_AT_ONCE", 20)
        asyncio.run(EDITS[edit](directory, store, **options))
    report(DONE)
    os.kill(os.getpid(), signal.SIGKILL)
