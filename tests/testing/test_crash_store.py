"""What was acknowledged survives a crash; what was not has happened whole or not at all; the dead do nothing."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import anyio
import pytest

import statebackend as sb
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import ObjectExistsError, StateBackendError
from statebackend.testing import CrashedError, CrashStore, ObjectStoreConformance, VirtualClock, run_virtual
from statebackend.testing.kits.cancellation import turns


class TestCrashStore(ObjectStoreConformance):
    """As long as nothing crashes it is a store like any other."""

    capabilities = frozenset(Capability)

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        yield CrashStore(seed=1).open()


async def test_the_acknowledged_survives_and_the_dead_do_nothing() -> None:
    """Every call of the old life fails from then on, and changes nothing."""
    world = CrashStore(seed=1)
    old = world.open()
    await old.put("a", [b"1"])
    await old.put_if_absent("b", [b"2"])
    world.crash()
    new = world.open()
    for call in (old.put("a", [b"x"]), old.put_if_absent("c", [b"x"]), old.delete("b"), old.get("a"), old.head("a")):
        with pytest.raises(CrashedError):
            await call
    with pytest.raises(CrashedError):
        [info async for info in old.list("")]
    assert [(info.key, await new.get(info.key)) async for info in new.list("")] == [("a", b"1"), ("b", b"2")]
    assert world.history == [("put", "a", "done"), ("put_if_absent", "b", "done")]


async def test_a_new_life_ends_the_old_one() -> None:
    """There is one process at a time: fencing between two is proved elsewhere."""
    world = CrashStore(seed=1)
    old, _ = world.open(), world.open()
    with pytest.raises(CrashedError):
        await old.put("a", [b"x"])
    world.crash()
    world.crash()


async def crash_in(seed: int, *, torn: bool = False) -> set[bytes | None]:
    """What is left of a put that replaced "old" with "new!" and was under way at the crash."""
    world = CrashStore(seed=seed, torn=torn)
    await world.open().put("a", [b"old"])
    store = world.open(crash_at=1)
    with pytest.raises(CrashedError):
        await store.put("a", [b"ne", b"w!"])
    return {await world.open().get("a")}


async def test_what_is_under_way_has_happened_or_not_as_the_seed_says() -> None:
    """Both occur, nothing else does, and a seed always means the same."""
    found = [await crash_in(seed) for seed in range(30)]
    assert set().union(*found) == {b"old", b"new!"}
    assert found == [await crash_in(seed) for seed in range(30)]


async def test_a_put_is_torn_only_when_asked() -> None:
    """Then any part of the new object may be what is left."""
    found: set[bytes | None] = set()
    for seed in range(100):
        found |= await crash_in(seed, torn=True)
    assert found == {b"old", b"new!", b"", b"n", b"ne", b"new"}


async def test_everything_under_way_is_cut_off_each_by_itself() -> None:
    """Of many puts at once some are kept and some are lost."""
    world = CrashStore(seed=5)
    store = world.open()
    keys = [f"{number:02d}" for number in range(40)]
    acknowledged: list[str] = []

    async def put(key: str) -> None:
        with suppress(CrashedError):
            await store.put(key, [b"x"])
            acknowledged.append(key)

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(put, key)
        await turns(2)
        world.crash()
    left = [info.key async for info in world.open().list("")]
    outcomes = {key: outcome for _, key, outcome in world.history}
    assert left == [key for key in keys if outcomes[key] in ("done", "kept")]
    assert sorted(acknowledged) == [key for key in keys if outcomes[key] == "done"]
    assert set(outcomes.values()) == {"done", "kept", "lost"}


async def test_a_conditional_put_under_way_never_replaces() -> None:
    """Also where chance would have kept it."""
    for seed in range(20):
        world = CrashStore(seed=seed, torn=True)
        await world.open().put("a", [b"first"])
        with pytest.raises(CrashedError):
            await world.open(crash_at=1).put_if_absent("a", [b"second"])
        assert await world.open().get("a") == b"first"
        with pytest.raises(ObjectExistsError):
            await world.open().put_if_absent("a", [b"third"])


async def test_a_life_ends_at_the_request_it_was_given() -> None:
    """Reads count."""
    world = CrashStore(seed=1)
    await world.open().put("a", [b"x"])
    store = world.open(crash_at=3)
    assert await store.get("a") == b"x"
    assert await store.head("a") is not None
    for _ in range(2):
        with pytest.raises(CrashedError):
            await store.get("a")


# ------------------------------------------------------------------------------------------ the backend on it


class Job:
    """A job that crashes again and again, against a dictionary. Everything in it follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.world = CrashStore(seed=seed)
        self.settings = sb.Settings(
            job="crash",
            primary="memory://is-not-used",
            persist_delay_s=self.chance.choice((0, 0.01)),
            preemptive_persist_threshold_bytes=self.chance.choice((0, 100, 10_000)),
            inline_bytes_max=self.chance.choice((0, 100, 10_000)),
            compression="none",
        )
        self.states: list[dict[sb.Key, int]] = [{}]
        """What the state is after so many batches."""
        self.acknowledged = 0
        self.restored = 0

    async def live(self, crash_at: int | None, *, batches: int) -> None:
        """One life: restore, check, go on from there."""
        store = self.world.open(crash_at=crash_at)
        async with sb.open_backend(self.settings, store=store, clock=VirtualClock()) as backend:
            values = backend.value_state("n", int)
            source = backend.newest.source if backend.newest is not None else None
            committed = 0 if source is None else source.batch_id
            assert self.acknowledged <= committed < len(self.states), "an acknowledged checkpoint is lost"
            assert dict(values) == self.states[committed], "the state is not that of any batch"
            del self.states[committed + 1 :]  # what no commit holds is delivered again, and may come out otherwise
            self.restored += backend.restored is not None
            for batch in range(committed + 1, committed + 1 + batches):
                self.states.append(self._change(values))
                await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("q", batch))
                self.acknowledged = batch

    def _change(self, values: sb.ValueState[int]) -> dict[sb.Key, int]:
        after = dict(self.states[-1])
        for _ in range(self.chance.randrange(15)):
            key = self.chance.randrange(10)
            if self.chance.random() < 0.2:
                values.pop(key, None)
                after.pop(key, None)
            else:
                values[key] = after[key] = self.chance.randrange(1000)
        return after


async def survive(job: Job, crash_at: Callable[[int], int], *, lives: int) -> None:
    """Crash in every life but the last one."""
    for life in range(lives):
        with suppress(StateBackendError):  # whatever the dead process thinks has happened to it
            await job.live(crash_at(life), batches=50)
            pytest.fail("this life should have ended")
    await job.live(None, batches=1)
    await job.live(None, batches=0)


@pytest.mark.parametrize("first_seed", range(0, 100, 50))
def test_no_crash_loses_what_the_backend_acknowledged(first_seed: int) -> None:
    """Lives that end at random requests: each finds a state that some batch left, and none older than acknowledged."""
    for seed in range(first_seed, first_seed + 50):
        job = Job(seed)
        try:
            run_virtual(survive)(job, lambda _, job=job: job.chance.randrange(1, 25), lives=6)
        except Exception as error:
            error.add_note(f"seed={seed}, after {job.world.history}")
            raise
        assert job.acknowledged > 0


def test_no_request_is_one_at_which_a_crash_loses_something() -> None:
    """At every request of a life, from the first on, each with several outcomes of what was under way."""
    for seed in range(4):
        job = Job(seed)
        try:
            run_virtual(survive)(job, lambda life: life + 1, lives=30)
        except Exception as error:
            error.add_note(f"seed={seed}, after {job.world.history}")
            raise
        assert job.restored > 10, "most lives began with nothing: little was shown"


def test_a_seed_tells_the_same_story_again() -> None:
    """The same writes with the same outcomes, but for the names that the backend makes up."""
    stories = []
    for _ in range(2):
        job = Job(42)
        run_virtual(survive)(job, lambda _, job=job: job.chance.randrange(1, 25), lives=6)
        stories.append([(operation, key.split("/")[1], outcome) for operation, key, outcome in job.world.history])
    assert stories[0] == stories[1]
