"""A range that is opened later than others has a copy of their broadcast state, and no empty one of its own."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._ranges.range_owners import RangeOwners, open_range_owners
from statebackend.objectstore import MemoryStore
from tests.knobs import settings_with
from tests.ranges.parts import BODY_BYTES_MAX, Run, open_run

RULES = [7, 8]


def append(*rules: int) -> Callable[[sb.StateBackend], None]:
    return lambda backend: backend.operator_state("rules", int, "broadcast").extend(rules)


def tell(found: list[list[int]]) -> Callable[[sb.StateBackend], None]:
    return lambda backend: found.append(list(backend.operator_state("rules", int, "broadcast")))


def nothing(_: sb.StateBackend) -> None:
    """As a processor that does not declare the state."""


async def work(run: Run, owners: RangeOwners, does: Callable[[sb.StateBackend], None], places: Iterable[int]) -> None:
    """A batch in which only these ranges have a task."""
    tasks = run.tasks()
    await run.commit([await owners.contribute(tasks[place], does) for place in places])  # type: ignore[arg-type]


@pytest.fixture(params=["heap", "rocksdb"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> sb.Settings:
    return settings_with(
        job="fleet",
        primary="memory://unused",
        persist_delay_s=0.0,
        max_parallelism=12,
        table=request.param,
        table_dir=str(tmp_path),
    )


@pytest.mark.parametrize("body_bytes_max", [0, BODY_BYTES_MAX], ids=["parts of commits", "whole commits"])
@pytest.mark.parametrize("first", [1, 2])
async def test_a_range_that_opens_later_has_the_copy_of_the_others(
    settings: sb.Settings, first: int, body_bytes_max: int
) -> None:
    """In the epoch in which they have begun it, after batches without it, and in the next epoch."""
    store, found = MemoryStore(), list[list[int]]()
    for epoch in range(2):
        async with open_run(settings, 3, store) as run, open_range_owners(store=store) as owners:
            run.body_bytes_max = body_bytes_max
            if epoch == 0:
                await work(run, owners, append(*RULES), [first])
                await work(run, owners, nothing, {first, 2})  # opens a range that does not look at it
            await work(run, owners, tell(found), [0, 1, 2])
            await work(run, owners, tell(found), [0, 1, 2])
    assert found == [RULES] * 12


@pytest.mark.parametrize(
    "says", [lambda state: state.replace([]), lambda state: state.clear()], ids=["replace", "clear"]
)
async def test_a_range_that_says_that_there_are_none_keeps_an_empty_copy(
    settings: sb.Settings, says: Callable[[sb.OperatorState[int]], None]
) -> None:
    """It has begun the state as the others have."""
    store, found = MemoryStore(), list[list[int]]()
    for epoch in range(2):
        async with open_run(settings, 2, store) as run, open_range_owners(store=store) as owners:
            if epoch == 0:
                none, some = [
                    await owners.contribute(task, does)  # type: ignore[arg-type]
                    for task, does in zip(
                        run.tasks(),
                        [lambda backend: says(backend.operator_state("rules", int, "broadcast")), append(*RULES)],
                        strict=True,
                    )
                ]
                await run.commit([none, some])
            await work(run, owners, tell(found), [0, 1])
    assert found == [[], RULES] * 2


async def test_a_range_that_only_declares_the_state_keeps_no_empty_copy(settings: sb.Settings) -> None:
    """In the batch in which another one begins it, as one that is opened to look for timers; nor does a job by hand."""
    store, found = MemoryStore(), list[list[int]]()
    async with sb.open_backend(settings, store=store) as backend:
        tell(found)(backend)
        await backend.checkpoint(0)
    async with open_run(settings, 3, store) as run, open_range_owners(store=store) as owners:
        tasks = run.tasks()
        told = await owners.contribute(tasks[0], tell(found))
        await run.commit([told, await owners.contribute(tasks[2], append(*RULES))])  # type: ignore[arg-type]
        await work(run, owners, tell(found), [0, 1, 2])
    async with sb.open_backend(settings, store=store) as backend:
        tell(found)(backend)
    assert found == [[], [], *[RULES] * 4]


async def test_another_number_of_owners_takes_over_no_empty_copy(settings: sb.Settings) -> None:
    """One owner takes the first copy: that of a range which was opened when the others had theirs already."""
    store, found = MemoryStore(), list[list[int]]()
    async with open_run(settings, 3, store) as run, open_range_owners(store=store) as owners:
        await work(run, owners, append(*RULES), [2])
        await work(run, owners, tell(found), [0])
    for parts in (1, 4):
        async with open_run(settings, parts, store) as run, open_range_owners(store=store) as owners:
            await work(run, owners, tell(found), range(parts))
    assert found == [RULES] * 6


async def test_each_owner_keeps_its_own_copy(settings: sb.Settings) -> None:
    """One that was emptied, too: it is a report, and not none."""
    store, found = MemoryStore(), list[list[int]]()
    async with open_run(settings, 3, store) as run, open_range_owners(store=store) as owners:
        await work(run, owners, append(*RULES), [0, 1])
        await work(run, owners, lambda backend: backend.operator_state("rules", int, "broadcast").clear(), [1])
        await work(run, owners, append(9), [0])
        await work(run, owners, tell(found), [0, 1, 2])
    assert found == [[*RULES, 9], [], [*RULES, 9]]
