"""Batches that put out rows, by processes that die anywhere: what is received is exactly what is committed.

Each life is a process that Spark starts: it delivers the first batch that has not been reported as done, and then those
that follow. What a batch makes, of state and of rows, is different each time that it is processed. A life dies at a
random request to its store, or in the receiver, before it has the rows or after; now and then two live at once. The
receiver drops what it has a batch of, and looks whether that was the same.
"""

import contextlib
from dataclasses import dataclass, field
from random import Random

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._log.outbox import Output
from statebackend.errors import FencedError, StateBackendError
from statebackend.ids import SourceMark
from statebackend.testing.crash_store import CrashStore
from statebackend.testing.virtual_time import VirtualClock, run_virtual
from tests.knobs import settings_with

QUERY = "query"
BATCHES = 4


class DeadError(StateBackendError):
    """The process dies where no store is asked."""


@dataclass(frozen=True)
class Life:
    """How a process ends: at which request; or in which publication, counted from 1, and on which side of it."""

    crash_at: int | None = None
    dies_in: int | None = None
    received_before: bool = False
    by_hand: bool = False
    """Before it delivers anything, somebody commits by hand, and publishes nothing."""


@dataclass
class World:
    """The job, Spark's own notes, the receiver, and what is true."""

    chance: Random
    store: CrashStore
    settings: sb.Settings
    done: int = 0
    """Batches that Spark knows to be done."""
    received: dict[int, tuple[int, list[bytes]]] = field(default_factory=dict)
    """By batch: the epoch that published it first, and its streams."""
    publications: int = 0

    def receive(self, batch_id: int, streams: list[bytes], epoch: int) -> None:
        if batch_id not in self.received:
            assert batch_id == len(self.received), f"batch {batch_id} after {sorted(self.received)}"
        _, known = self.received.setdefault(batch_id, (epoch, streams))
        assert known == streams, "other rows under the same key"


async def live(world: World, life: Life) -> bool:
    """One process, from its start to its end. Whether it has come to an end by itself."""
    store = world.store.open(crash_at=life.crash_at)
    try:
        async with sb.open_backend(world.settings, store=store, clock=VirtualClock()) as backend:
            if life.by_hand:
                backend.value_state("n", int)["by hand"] = world.chance.randrange(1000)
                await backend.checkpoint(backend.next_checkpoint_id)
                return True
            while world.done < BATCHES:
                await deliver(world, backend, world.done, life)
                world.done += 1
        return True
    except StateBackendError:
        return False
    finally:
        world.store.crash()


async def deliver(world: World, backend: sb.StateBackend, batch_id: int, life: Life) -> None:
    """What the sink does with a batch."""
    marks = [summary.source async for summary in backend.history() if summary.source is not None]
    await publish(world, backend, life)
    if marks and marks[0].batch_id >= batch_id:
        return
    made = world.chance.randrange(1000)
    backend.value_state("n", int)[batch_id] = made
    parts = tuple(b"%d of %d, %d" % (part, made, batch_id) for part in range(world.chance.randrange(3)))
    await backend.checkpoint(
        backend.next_checkpoint_id, source=SourceMark(QUERY, batch_id), output=Output(b"%d" % made, len(parts), parts)
    )
    await publish(world, backend, life)


async def publish(world: World, backend: sb.StateBackend, life: Life) -> None:
    while (taken := await backend.take_output()) is not None:
        output, streams = taken
        world.publications += 1
        dies = world.publications == life.dies_in
        if dies and not life.received_before:
            raise DeadError("before")
        world.receive(output.source.batch_id, [output.schema, *map(bytes, streams)], backend.epoch)
        if dies:
            raise DeadError("after")
        backend.published(output)


async def committed(world: World) -> dict[int, int]:
    """What each batch has made, as the state has it."""
    async with sb.open_backend(world.settings, store=world.store.open(), read_only=True) as backend:
        return {key: value for key, value in backend.value_state("n", int).items() if isinstance(key, int)}


@run_virtual
async def run(seed: int, inline_bytes_max: int, lives: list[Life]) -> int:
    """These lives, and one that is left alone; judged after each of them. How many of them died."""
    world = world_of(seed, inline_bytes_max)
    died = 0
    for life in lives:
        world.publications = 0
        died += not await live(world, life)
        state = await committed(world)
        for batch_id, (_, streams) in world.received.items():
            assert streams[0] == b"%d" % state[batch_id], "received, and not what is committed"
    await live(world, Life())
    state = await committed(world)
    assert sorted(state) == list(range(BATCHES))
    assert sorted(world.received) == list(range(BATCHES))
    for batch_id, (_, streams) in world.received.items():
        assert streams[0] == b"%d" % state[batch_id]
        assert all(stream.endswith(b" of %d, %d" % (state[batch_id], batch_id)) for stream in streams[1:])
    return died


def world_of(seed: int, inline_bytes_max: int) -> World:
    return World(
        Random(seed),
        CrashStore(seed=seed, clock=VirtualClock()),
        settings_with(
            job="job",
            primary="memory://unused",
            persist_delay_s=0.0,
            upload__retry_delay_s=0.0,
            upload__primary_outage_s=0.0,
            inline_bytes_max=inline_bytes_max,
            max_parallelism=2,
        ),
    )


LIVES = st.one_of(
    st.builds(Life, crash_at=st.integers(1, 40)),
    st.builds(Life, dies_in=st.integers(1, BATCHES), received_before=st.booleans()),
    st.builds(Life, crash_at=st.none() | st.integers(1, 20), by_hand=st.just(value=True)),
)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.sampled_from([0, 15, 100_000]), st.lists(LIVES, max_size=6))
def test_whatever_dies_each_committed_batch_is_received_once_and_nothing_else(
    seed: int, inline_bytes_max: int, lives: list[Life]
) -> None:
    """And in order: none is received for the first time after a later one."""
    run(seed, inline_bytes_max, lives)


@pytest.mark.parametrize("inline_bytes_max", [0, 100_000])
def test_death_at_every_request_and_at_every_publication(inline_bytes_max: int) -> None:
    """One after the other, so that none is left to chance."""
    number = 1
    while run(number, inline_bytes_max, [Life(crash_at=number)]):
        number += 1
    assert number > 3 * BATCHES
    for nth in range(1, BATCHES + 1):
        for after in (False, True):
            assert run(nth, inline_bytes_max, [Life(dies_in=nth, received_before=after)]) == 1


@run_virtual
async def test_two_drivers_at_once_publish_no_batch_twice_with_different_rows() -> None:
    """Each opens the job when it likes, and goes on until it is fenced; the last one finishes."""
    for seed in range(20):
        world = world_of(seed, 0)
        store = world.store.open()

        async def drive(*, world: World = world, store: sb.ObjectStore = store) -> None:
            await anyio.sleep(world.chance.random())
            with contextlib.suppress(FencedError):
                async with sb.open_backend(world.settings, store=store, clock=VirtualClock()) as backend:
                    for batch_id in range(BATCHES):
                        await anyio.sleep(world.chance.random() / 10)
                        await deliver(world, backend, batch_id, Life())

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(drive)
        state = await committed(world)
        assert {batch_id: int(streams[0]) for batch_id, (_, streams) in world.received.items()} == state
        assert sorted(state) == list(range(BATCHES))
