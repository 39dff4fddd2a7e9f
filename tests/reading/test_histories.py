"""The history of a key has every kept commit that changed it, with the values that a read of each checkpoint shows."""

import random
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend._reading.feed import open_changes
from statebackend._tables.key_groups import key_group
from statebackend.errors import CheckpointNotFoundError, InputError, KeyTypeError
from statebackend.objectstore import MemoryStore
from statebackend.testing import FaultyStore, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.following.model import KEYS, declared, write
from tests.rewrite.jobs import settings_of

STATES = ("value", "list", "map", "total", "mean", "timers", "columns")


async def value_at(settings: sb.Settings, store: MemoryStore, checkpoint_id: int, state: str, key: str) -> Any:
    """What `read_rows` shows of that checkpoint."""
    async with sb.read_rows(settings, checkpoint_id=checkpoint_id, states=[state], key=key, store=store) as rows:
        return next((row.value for row in rows), None)


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    "changed",
    [{"inline_bytes_max": 0}, {"materialize_handles_max": 3}, {"materialize_fan_in": 2}, {"checkpoints_retained": 5}],
    ids=("segments", "bases", "merged", "swept"),
)
def test_every_change_is_told_with_the_values_of_its_checkpoints(table: str, changed: dict[str, Any]) -> None:
    """Of every kind of state, across bases, merged change sets, a new writer, an older checkpoint and a sweep."""

    @run_virtual
    async def go() -> None:
        chance, clock, store = random.Random(str(changed)), VirtualClock(), MemoryStore(clock=VirtualClock())
        settings = settings_of(4, table=table, materialize_retry_delay_s=0.0, **{"checkpoints_retained": 100} | changed)
        branch: list[int] = []
        for back in (None, None, 6):
            async with sb.open_backend(settings, store=store, clock=clock, checkpoint_id=back) as backend:
                branch = [each for each in branch if back is None or each <= back]
                for _ in range(5):
                    write(declared(backend, with_late=False), chance)
                    number = backend.next_checkpoint_id
                    await backend.checkpoint(number, source=sb.SourceMark("query", 10 * number, "run"))
                    branch.append(number)
                    await anyio.sleep(10.0)
        if "checkpoints_retained" in changed:
            for _ in range(2):
                await anyio.sleep(50_000.0)  # a night
            await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store, clock=clock)
            branch = branch[-5:]
        for place, state in enumerate(STATES):
            key = KEYS[place]
            found = await sb.history_of(settings, state, key, store=store)
            assert found.is_whole == ("checkpoints_retained" not in changed)
            assert found.checkpoint_id == branch[0]
            values = [await value_at(settings, store, each, state, key) for each in branch]
            told = {each.checkpoint_id: each for each in found.changes}
            assert list(told) == sorted(told, reverse=True)
            value = None if found.is_whole else values[0]
            assert found.value == value
            for each, now in zip(branch, values, strict=True):
                if each in told:
                    assert (told[each].before, told[each].after) == (value, now)
                    assert told[each].source == sb.SourceMark("query", 10 * each, "run")
                    assert state in told[each].states
                else:
                    assert now == value, f"a change of {state} at {each} is not told"
                value = now

    go()


@pytest.fixture
async def job() -> tuple[sb.Settings, MemoryStore]:
    """Three commits, of which two change `a`, and one of these another state, too."""
    settings, store = settings_of(4, checkpoints_retained=100), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        numbers, words = backend.value_state("n", int), backend.value_state("w", str)
        backend.operator_state("offsets", int, mode="union").append(1)
        numbers["a"] = 1
        await backend.checkpoint(1)
        numbers["b"] = 2
        await backend.checkpoint(2)
        numbers["a"], words["a"] = 3, "three"
        await backend.checkpoint(3)
    return settings, store


async def test_it_says_which_other_states_have_the_key_and_how_far_it_looked(
    job: tuple[sb.Settings, MemoryStore],
) -> None:
    settings, store = job
    found = await sb.history_of(settings, "n", "a", store=store)
    assert [(each.checkpoint_id, each.before, each.after, each.states) for each in found.changes] == [
        (3, 1, 3, ("n", "w")),
        (1, None, 1, ("n",)),
    ]
    second = (await sb.history_of(settings, "n", "b", store=store)).changes[0].committed_at_s
    later = await sb.history_of(settings, "n", "a", since=second, store=store)
    assert [each.checkpoint_id for each in later.changes] == [3]
    assert (later.checkpoint_id, later.value, later.is_whole) == (2, 1, False)


async def test_each_entry_is_read_once_and_little_else() -> None:
    """Of 200 commits whose changes lie in the entries themselves; and as many ranged reads where they do not."""
    for inline, most in ((1 << 16, 0), (0, 200)):
        settings, store = settings_of(4, checkpoints_retained=1000, inline_bytes_max=inline), MemoryStore()
        async with sb.open_backend(settings, store=store) as backend:
            state = backend.value_state("n", int)
            for number in range(200):
                state["a"] = number
                await backend.checkpoint(number)
        seen_through = FaultyStore(store)
        found = await sb.history_of(settings, "n", "a", store=seen_through)
        assert len(found.changes) == 200
        assert len([call for call in seen_through.calls if "/commits/" not in call[1]]) <= most + 3
        entries = [key for _, key in seen_through.calls if "/commits/" in key]
        assert len(entries) <= 200 + 12


async def test_what_has_no_history_is_refused(job: tuple[sb.Settings, MemoryStore]) -> None:
    settings, store = job
    with pytest.raises(InputError):
        await sb.history_of(settings, "m", "a", store=store)
    with pytest.raises(InputError):
        await sb.history_of(settings, "offsets", "a", store=store)
    with pytest.raises(InputError):
        await sb.history_of(settings, "n", "a", since=1e15, store=store)
    with pytest.raises(KeyTypeError):
        await sb.history_of(settings, "n", 1.5, store=store)  # type: ignore[arg-type]
    of_same_group = next(each for each in range(100) if key_group(each, 4) == key_group("a", 4))
    with pytest.raises(KeyTypeError):
        await sb.history_of(settings, "n", of_same_group, store=store)
    assert (await sb.history_of(settings, "n", "nobody", store=store)).changes == ()
    with pytest.raises(InputError):
        await sb.history_of(settings, "n", "a", store=MemoryStore())


async def test_a_sweep_that_is_faster_is_told(job: tuple[sb.Settings, MemoryStore]) -> None:
    """The segments are gone, and the floor says why."""
    settings, store = settings_of(4, inline_bytes_max=0, checkpoints_retained=100), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        for number in range(3):
            backend.value_state("n", int)["a"] = number
            await backend.checkpoint(number)
    segments = [info.key async for info in store.list(f"{settings.job}/segments/")]
    for each in segments:
        await store.delete(each)
    await store.put(f"{settings.job}/swept/{9:012}", ())
    with pytest.raises(CheckpointNotFoundError):
        await sb.history_of(settings, "n", "a", store=store)


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
async def test_what_a_commit_made_as_a_whole_is_told(table: str) -> None:
    """A seed, a transformation and a clone have no changes: their values are in no change set, but in bases."""
    settings, store = settings_of(4, table=table, checkpoints_retained=100), MemoryStore()
    await sb.seed(settings, lambda states: states.value_state("n", int), {"n": {"a": 1, "b": 2}}, store=store)

    async def write(settings: sb.Settings, **numbers: int) -> None:
        async with sb.open_backend(settings, store=store) as backend:
            backend.value_state("n", int).update(numbers)
            await backend.checkpoint(backend.next_checkpoint_id)

    async def told(settings: sb.Settings, key: str) -> list[tuple[int, Any, Any]]:
        found = await sb.history_of(settings, "n", key, store=store)
        assert found.is_whole
        assert all("n" in each.states for each in found.changes)
        return [(each.checkpoint_id, each.before, each.after) for each in found.changes]

    await write(settings, a=10)
    assert await told(settings, "a") == [(1, 1, 10), (0, None, 1)]
    await sb.transform(settings, "n", lambda key, value: [(key if key == "b" else f"{key}x", value)], store=store)
    await write(settings, ax=11)
    await sb.rewrite(settings, store=store)
    assert await told(settings, "ax") == [(3, 10, 11), (2, None, 10)]
    assert await told(settings, "a") == [(2, 10, None), (1, 1, 10), (0, None, 1)]
    assert await told(settings, "b") == [(0, None, 2)]
    copy = settings_of(4, table=table, job="copy", primary="memory://rewrite")
    newest = (await sb.clone(copy, from_=settings, store=store, from_store=store)).checkpoint_id
    await write(copy, ax=12)
    assert await told(copy, "ax") == [(newest + 1, 11, 12), (newest, None, 11)]
    assert await told(copy, "a") == []


async def test_a_clone_of_a_job_without_bases_is_told() -> None:
    """Its first commit has the other job's change sets, which nobody has committed in this one: a feed lacks them."""
    settings, store = settings_of(4), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("n", int)["a"] = 1
        await backend.checkpoint(7)
    copy = settings_of(4, job="copy")
    await sb.clone(copy, from_=settings, store=store, from_store=store)
    found = await sb.history_of(copy, "n", "a", store=store)
    assert [(each.checkpoint_id, each.before, each.after) for each in found.changes] == [(7, None, 1)]
    with pytest.raises(InputError, match="made the state as a whole"):
        async with open_changes(copy, "n", sequences=[1], before=None, store=store):
            pass
