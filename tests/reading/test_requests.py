"""How many requests a reader sends before it reads any state. Reading itself costs one for each file that is needed."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import statebackend as sb
from statebackend import errors
from statebackend._log.names import HINT_KEY, entry_key, floor_key, hint_of
from statebackend._log.position import Pin
from statebackend._reading.differences import diff
from statebackend._reading.opened_state import read_batches
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore

COMMITS = 100
SETTINGS = sb.Settings(job="fleet", primary="memory://unused", inline_bytes_max=0)
"""Change sets lie in segments, so a request for an entry of the log is one for the position."""

Read = Callable[[FaultyStore], Awaitable[Any]]


@pytest.fixture
async def store() -> FaultyStore:
    """A job whose hint names the newest of its commits, whose ids are those of their places."""
    store = FaultyStore(MemoryStore())
    async with sb.open_backend(SETTINGS, store=store) as backend:
        state = backend.value_state("n", int)
        for checkpoint_id in range(1, COMMITS + 1):
            state["k"] = checkpoint_id
            await backend.checkpoint(checkpoint_id)
    return store


async def hint_at(store: FaultyStore, sequence: int) -> None:
    async with open_job_primary(SETTINGS, store) as primary:
        await primary.store.put(HINT_KEY, (hint_of(await primary.log.load(sequence)),))


async def before_state(store: FaultyStore, read: Read) -> list[str]:
    """The requests of a read, without those for files of the state."""
    store.calls.clear()
    await read(store)
    return [f"{operation} {key}" for operation, key in store.calls if "/segments/" not in key]


def of_state(**which: Any) -> Read:
    async def read(store: FaultyStore) -> None:
        async with read_batches(SETTINGS, "n", store=store, **which) as batches:
            assert sum([batch.num_rows async for batch in batches]) == 1

    return read


def of_difference(before: int | str, after: int | str) -> Read:
    async def read(store: FaultyStore) -> None:
        assert [each.before async for each in diff(SETTINGS, before, after, store=store)] == [before]

    return read


async def pin_of(store: FaultyStore, checkpoint_id: int) -> Pin:
    async with open_job_primary(SETTINGS, store) as primary:
        return Pin.of((await primary.find(checkpoint_id=checkpoint_id)).commit)


async def test_the_newest_state_is_found_by_five_requests(store: FaultyStore) -> None:
    """The hint, what may follow, the commit, what may lie behind a hole, and the hint again: a sweep may have come."""
    assert len(await before_state(store, of_state())) == 5


async def test_who_asks_again_and_again_lists_only_where_the_log_went_back(store: FaultyStore) -> None:
    """A listing is the price of twelve other requests."""

    def at_least(sequence: int) -> Read:
        async def read(store: FaultyStore) -> None:
            async with open_job_primary(SETTINGS, store) as primary:
                assert (await primary.find(at_least=sequence)).commit.sequence == COMMITS

        return read

    assert len(await before_state(store, at_least(COMMITS))) == 4
    assert len(await before_state(store, at_least(COMMITS + 1))) == 5


@pytest.mark.parametrize("checkpoint_id", [40, 69, 71, 99, 100])
async def test_a_checkpoint_is_found_by_its_id_on_either_side_of_a_hole(store: FaultyStore, checkpoint_id: int) -> None:
    """Also where the hint lies before it, so that the search begins there, and wherever the id is guessed to be."""
    await hint_at(store, 69)
    for gone in (70, 50):
        await store.delete(f"fleet/{entry_key(gone)}")
        await of_state(checkpoint_id=checkpoint_id)(store)
    with pytest.raises(errors.CheckpointNotFoundError):
        await of_state(checkpoint_id=70)(store)


@pytest.mark.parametrize("checkpoint_id", [1, 40, 99, 100])
@pytest.mark.parametrize("behind", [0, 20, 60])
async def test_a_pinned_commit_is_read_by_one_request(store: FaultyStore, checkpoint_id: int, behind: int) -> None:
    """However old it is, and however old the hint: a task of a query whose driver has found the commit."""
    pin = await pin_of(store, checkpoint_id)
    await hint_at(store, COMMITS - behind)
    assert await before_state(store, of_state(pin=pin)) == [f"get fleet/{entry_key(checkpoint_id)}"]


@pytest.mark.parametrize(("before", "after"), [(99, 100), (1, 100), (40, 41), (95, 98)])
async def test_two_checkpoints_are_found_by_six_requests(store: FaultyStore, before: int, after: int) -> None:
    """One look for the end and the floor serves both, and no commit is read twice."""
    sent = await before_state(store, of_difference(before, after))
    assert len(sent) <= 6
    assert len(set(sent)) == len(sent)


async def test_ids_that_are_far_apart_cost_a_search_by_halves() -> None:
    """Such as times in milliseconds: a guess from the difference of two of them leads astray, and is given up."""
    store = FaultyStore(MemoryStore())
    async with sb.open_backend(SETTINGS, store=store) as backend:
        state = backend.value_state("n", int)
        for place in range(1, COMMITS + 1):
            state["k"] = place
            await backend.checkpoint(1_700_000_000_000 + place * place * 1000)
    for place in (1, 2, 50, 97, COMMITS):
        checkpoint_id = 1_700_000_000_000 + place * place * 1000
        assert len(await before_state(store, of_state(checkpoint_id=checkpoint_id))) <= 4 + 4 + COMMITS.bit_length()


async def test_a_savepoint_is_found_without_a_look_for_the_end(store: FaultyStore) -> None:
    """Its marker names the commit."""
    await sb.savepoint(SETTINGS, "kept", checkpoint_id=7, store=store)
    assert len(await before_state(store, of_state(savepoint="kept"))) == 2


async def test_a_pin_whose_commit_was_swept_is_told_as_that(store: FaultyStore) -> None:
    """Also where another one has come to lie in its place: that is not read for it."""
    pin, other = await pin_of(store, 40), await pin_of(store, 41)
    body = await store.get(f"fleet/{entry_key(40)}")
    await store.delete(f"fleet/{entry_key(40)}")
    with pytest.raises(errors.CheckpointNotFoundError, match="swept"):
        await of_state(pin=pin)(store)
    await store.put(f"fleet/{entry_key(40)}", (body,))
    with pytest.raises(errors.CheckpointNotFoundError, match="swept"):
        await of_state(pin=Pin(pin.sequence, other.stamp))(store)
    await of_state(pin=pin)(store)


async def test_a_sweep_between_two_looks_hides_no_checkpoint(store: FaultyStore) -> None:
    """It moves the hint, raises the floor and deletes what lay behind an entry that a savepoint keeps: look again."""
    newest_hint = await store.get(f"fleet/{HINT_KEY}")
    await hint_at(store, 10)

    class Sweep(Fail):
        async def strike(self) -> None:
            await store.put(f"fleet/{HINT_KEY}", [newest_hint])
            await store.put(f"fleet/{floor_key(50)}", ())
            for sequence in {*range(50)} - {10}:
                with suppress(errors.ObjectNotFoundError):
                    await store.delete(f"fleet/{entry_key(sequence)}")

    swept = FaultyStore(store, [Sweep(operation="get", key=f"*{HINT_KEY}", nth=1, moment="after")])
    await of_state(checkpoint_id=77)(swept)
    with pytest.raises(errors.CheckpointNotFoundError):
        await of_state(checkpoint_id=10)(swept)
