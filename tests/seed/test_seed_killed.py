"""Killed at any of its requests, or with any answer lost, a seed has happened as a whole or not at all."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import pytest

import statebackend as sb
from statebackend._upkeep.seeding import sorted_runs
from statebackend.errors import FencedError, InputError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fault, FaultyStore, Moment, run_virtual
from tests.killed_operations import Operation, kill_at_every_request, lose_every_answer
from tests.rewrite.jobs import settings_of

SETTINGS = settings_of(16, upload__attempts_max=1, compression="none")
START = {"orders": {"0": 1234}}
ROWS = {f"key {number}": number for number in range(200)}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs, and several segments of bases."""
    monkeypatch.setattr(sorted_runs, "RUN_ROWS", 60)
    monkeypatch.setattr(sorted_runs, "WINDOW_BYTES", 1)
    monkeypatch.setattr("statebackend._upkeep.seeding.seed.base_segment_bytes", lambda _: 1000)
    monkeypatch.setattr("statebackend._checkpoint.materialization.bases.FRAME_BYTES_MIN", 500)
    monkeypatch.setattr("statebackend._upkeep.seeding.sources.PAIRS_AT_ONCE", 20)


def states(backend: Any) -> Any:
    return backend.value_state("value", int)


async def seed(store: sb.ObjectStore) -> sb.reports.SeedReport:
    return await sb.seed(SETTINGS, states, {"value": ROWS}, starts_from=START, store=store)


class Seed(Operation):
    """What a killed call has left is swept once the job has a newer commit."""

    requests_min = 8

    async def prepare(self, store: sb.ObjectStore) -> None:
        """There is no job."""

    async def run(self, store: sb.ObjectStore) -> None:
        assert (await seed(store)).segments > 2

    async def has_happened(self, store: sb.ObjectStore) -> bool:
        async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
            found = dict(states(backend))
            starts = [summary.starts_from async for summary in backend.history()]
        assert (found, starts) in (({}, []), (ROWS, [START]))
        return bool(found)

    async def complete(self, store: sb.ObjectStore, *, has_happened: bool) -> None:
        with pytest.raises(InputError, match="has a state already") if has_happened else nullcontext():
            await seed(store)


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """Another call makes the seed, or says that it is there; a sweep deletes the rest and nothing else."""
    await kill_at_every_request(Seed(SETTINGS))


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """The seed may fail, and a second call completes it."""
    await lose_every_answer(Seed(SETTINGS), moment)


@dataclass(kw_only=True, eq=False)
class Commits(Fault):
    """Another process opens the job, and commits."""

    to: sb.ObjectStore

    async def strike(self) -> None:
        async with sb.open_backend(SETTINGS, store=self.to) as backend:
            states(backend)["theirs"] = 1
            await backend.checkpoint(0)


@pytest.mark.parametrize("place", range(1, 12))
@run_virtual
async def test_a_commit_that_another_makes_meanwhile_stays_alone(place: int) -> None:
    """Before whichever request of the seed it comes: the seed finds it, is fenced, or was first and is gone on from."""
    store = MemoryStore()
    other = Commits(nth=place, to=store)
    refused: StateBackendError | None = None
    try:
        await seed(FaultyStore(store, [other]))
    except (InputError, FencedError) as error:
        refused = error
    assert other.matched >= place, "the seed has fewer requests"
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        found = dict(states(backend))
    assert found == ({"theirs": 1} if refused is not None else ROWS | {"theirs": 1}), refused


@run_virtual
async def test_a_commit_that_is_made_while_rows_are_read_is_found() -> None:
    """By the look behind the claim; and the rows were read to their end, so it came amid them."""
    store, read = MemoryStore(), list[int]()

    def rows() -> Iterator[tuple[str, int]]:  # in a thread
        for number, pair in enumerate(ROWS.items()):
            if number == len(ROWS) // 2:
                asyncio.run(Commits(to=store).strike())
            read.append(number)
            yield pair

    with pytest.raises(InputError, match="has a state already"):
        await sb.seed(SETTINGS, states, {"value": rows()}, store=store)
    assert len(read) == len(ROWS)
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert dict(states(backend)) == {"theirs": 1}


@run_virtual
async def test_scratch_files_are_gone(tmp_path: Any) -> None:
    """After a seed, and after one whose source fails."""
    settings = settings_of(16, table_dir=str(tmp_path))

    def failing() -> Iterator[tuple[str, int]]:
        yield from ROWS.items()
        raise LookupError("gone")

    for source in (ROWS, failing()):
        with suppress(LookupError):
            await sb.seed(settings, states, {"value": source}, store=MemoryStore())
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
