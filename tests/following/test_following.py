"""A follower in each kind of trouble: it says what is wrong, is never fresh for that reason, and writes nothing."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._codec.commit import MAGIC, VERSION
from statebackend._codec.segment import checksum_of
from statebackend._following.followed_state import StateAtCommit
from statebackend._following.log_steps import ANSWER_S, LOOK_WELL_S
from statebackend.errors import (
    BackendClosedError,
    FencedError,
    InputError,
    SettingsError,
    StaleError,
    StateGoneError,
    StateTypeError,
    StoreAccessError,
    StoreUnavailableError,
    UnsupportedVersionError,
)
from statebackend.objectstore import MemoryStore
from statebackend.owners import KeyGroupRange
from statebackend.testing import Fail, FaultyStore, Hold, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.knobs import replaced
from tests.rewrite.jobs import settings_of

SETTINGS: Final = settings_of(4)
SECOND_S: Final = 1.0


class Leg(msgspec.Struct):
    origin: str


class Stop(msgspec.Struct):
    origin: str
    minutes: int = 0


async def commit(backend: sb.StateBackend, number: int, **values: Any) -> None:
    """Commit these values in the state `n`, as batch `number`."""
    backend.value_state("n", int).update(values)
    await backend.checkpoint(number, source=sb.SourceMark("query", number, "run"))


@asynccontextmanager
async def followed(
    store: MemoryStore, seen_through: sb.ObjectStore | None = None, **options: Any
) -> AsyncGenerator[tuple[sb.StateBackend, sb.StateFollower]]:
    """A job with one commit, and a follower of it."""
    clock = VirtualClock()
    async with sb.open_backend(SETTINGS, store=store, clock=clock) as backend:
        await commit(backend, 1, a=1)
        async with sb.follow(SETTINGS, store=seen_through or store, clock=clock, **options) as follower:
            yield backend, follower


@run_virtual
async def test_a_job_that_is_not_there_is_refused_or_waited_for() -> None:
    """By an option. Waiting ends with the first commit."""
    store, clock = MemoryStore(), VirtualClock()
    with pytest.raises(InputError, match="no checkpoint yet"):
        async with sb.follow(SETTINGS, store=store, clock=clock):
            pass
    found: list[int] = []

    async def follow() -> None:
        async with sb.follow(SETTINGS, store=store, clock=clock, wait=True) as follower:
            found.append(follower.value_state("n", int)["a"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.sleep(10)
        assert found == []
        async with sb.open_backend(SETTINGS, store=store, clock=clock) as backend:
            await commit(backend, 1, a=1)
    assert found == [1]


async def troubled(store: MemoryStore, follower: sb.StateFollower) -> BaseException | None:
    """What a read with a bound says after a while, and why."""
    await anyio.sleep(60)
    assert follower.value_state("n", int)["a"] == 1, "without a bound it answers from what it has"
    with pytest.raises(StaleError) as caught, follower.at_one_commit(max_staleness_s=30):
        pass
    assert caught.value.position.staleness_s > 30
    assert caught.value.position.problem == str(caught.value.__cause__)
    return caught.value.__cause__


@run_virtual
async def test_a_job_that_is_deleted() -> None:
    """Its log has no next entry either, which must not pass for an idle job."""
    store = MemoryStore()
    async with followed(store) as (_, follower):
        for info in [info async for info in store.list("")]:
            await store.delete(info.key)
        assert isinstance(await troubled(store, follower), StateGoneError)


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("away"), StoreAccessError("no rights any more")], ids=["away", "rights"]
)
def test_a_store_that_fails(error: Exception, quiet: None) -> None:
    """And works again: then the follower goes on."""

    @run_virtual
    async def go() -> None:
        store = MemoryStore()
        seen_through = FaultyStore(store)
        async with followed(store, seen_through) as (backend, follower):
            seen_through.plan = [Fail(error=error)]
            assert await troubled(store, follower) is error
            await commit(backend, 2, a=2)
            seen_through.plan = []
            await follower.wait_for(batch_id=2)
            assert follower.value_state("n", int)["a"] == 2
            await anyio.sleep(2 * SECOND_S)
            assert follower.position.staleness_s <= SECOND_S
            assert follower.position.problem is None

    go()


@run_virtual
async def test_a_store_that_hangs() -> None:
    """A look has an end, and what it found out has not."""
    store = MemoryStore()
    seen_through = FaultyStore(store)
    async with followed(store, seen_through) as (_, follower):
        seen_through.plan = [hold := Hold()]
        await anyio.sleep(ANSWER_S)
        assert isinstance(await troubled(store, follower), StoreUnavailableError)
        hold.release()


@run_virtual
async def test_a_commit_of_a_newer_release() -> None:
    """It says so, and answers from the one before."""
    store = MemoryStore()
    async with followed(store) as (_, follower):
        found = bytearray(await store.get(f"{SETTINGS.job}/commits/{1:012}"))
        found[len(MAGIC)] = VERSION + 1
        head = len(MAGIC) + 1
        checksum = checksum_of((bytes(found[:head]), memoryview(found)[head + 4 :]))
        found[head : head + 4] = checksum.to_bytes(4, "little")
        await store.put(f"{SETTINGS.job}/commits/{2:012}", (bytes(found),))
        assert isinstance(await troubled(store, follower), UnsupportedVersionError)


@run_virtual
async def test_a_log_that_was_put_back_from_a_backup() -> None:
    """Nothing follows the last entry there, or another one does: the follower goes back to what the log says."""
    store = MemoryStore()
    async with followed(store) as (backend, follower):
        backup = {info.key: await store.get(info.key) async for info in store.list("")}
        await commit(backend, 2, a=2)
        await follower.wait_for(batch_id=2)
        for info in [info async for info in store.list("")]:
            await store.delete(info.key)
        for key, body in backup.items():
            await store.put(key, (body,))
        await anyio.sleep(LOOK_WELL_S + 2 * SECOND_S)
        assert follower.value_state("n", int)["a"] == 1
        assert (follower.position.batch_id, follower.position.jumps) == (1, 1)


@run_virtual
async def test_another_history_behind_a_backup_is_not_taken_for_this_one() -> None:
    """Its entries have the numbers that would have come next, within one look."""
    store, clock = MemoryStore(), VirtualClock()
    async with followed(store) as (backend, follower):
        backup = {info.key: await store.get(info.key) async for info in store.list("")}
        await commit(backend, 2, a=2, b=2)
        await follower.wait_for(batch_id=2)
        for info in [info async for info in store.list("")]:
            await store.delete(info.key)
        for key, body in backup.items():
            await store.put(key, (body,))
        async with sb.open_backend(SETTINGS, store=store, clock=clock) as other:
            await commit(other, 5, c=5)
            await follower.wait_for(batch_id=5)
            assert dict(follower.value_state("n", int)) == {"a": 1, "c": 5}


@run_virtual
async def test_an_idle_job_is_looked_at_by_one_get() -> None:
    """But for a closer look every ten seconds. Nothing is ever written, nor deleted."""
    store = MemoryStore()
    seen_through = FaultyStore(store)
    async with followed(store, seen_through) as (backend, follower):
        await commit(backend, 2, a=2)
        await follower.wait_for(batch_id=2)
        seen_through.calls.clear()
        await anyio.sleep(4 * LOOK_WELL_S)
        following = ("get", f"{SETTINGS.job}/commits/{3:012}")
        in_a_row, longest = 0, 0
        for call in seen_through.calls:
            in_a_row = in_a_row + 1 if call == following else 0
            longest = max(longest, in_a_row)
        assert longest >= LOOK_WELL_S / SECOND_S - 2
        assert {operation for operation, _ in seen_through.calls} <= {"get", "head", "get_range", "list"}
        assert follower.position.staleness_s <= 2 * SECOND_S


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    "changed", [{"materialize_handles_max": 3}, {"materialize_fan_in": 2}], ids=("bases", "merged")
)
def test_bases_and_merged_change_sets_cost_a_follower_nothing(table: str, changed: Any) -> None:
    """They hold what it has: each change is applied once, and no commit is read anew."""

    @run_virtual
    async def go() -> None:
        clock, store = VirtualClock(), MemoryStore()
        settings = settings_of(4, table=table, inline_bytes_max=0, materialize_retry_delay_s=0.0, **changed)
        async with sb.open_backend(settings, store=store, clock=clock) as backend:
            await commit(backend, 1, a=0)
            async with sb.follow(settings, store=store, clock=clock) as follower:
                for number in range(2, 40):
                    await commit(backend, number, **{str(number % 5): number, "last": number})
                    await anyio.sleep(2 * SECOND_S)
                    assert follower.value_state("n", int)["last"] == number
                position = follower.position
                assert (position.commits, position.changes, position.jumps) == (38, 2 * 38, 0)
                read = backend._snapshots.committed
                assert len(read.changelog) < 38, "bases or merged change sets took their place"

    go()


@run_virtual
async def test_waiting_for_a_batch_that_does_not_come_has_an_end_and_asks_in_measure() -> None:
    """Some ten looks a second, and no more after it."""
    store = MemoryStore()
    seen_through = FaultyStore(store)
    async with followed(store, seen_through) as (_, follower):
        before = len(seen_through.calls)
        with pytest.raises(StaleError) as caught:
            await follower.wait_for(batch_id=2, timeout_s=3.0)
        assert caught.value.position.batch_id == 1
        assert 20 <= len(seen_through.calls) - before <= 60
        before = len(seen_through.calls)
        await anyio.sleep(3.0)
        assert len(seen_through.calls) - before <= 10


@run_virtual
async def test_a_job_that_commits_faster_than_its_log_is_read() -> None:
    """The follower reads the entries together, and knows how fresh it is."""
    store = MemoryStore()
    is_over = False

    async def hurry(backend: sb.StateBackend) -> None:
        number = 1
        while not is_over:
            number += 1
            await commit(backend, number, a=number)
            await anyio.sleep(0.01)

    async with followed(store) as (backend, follower), anyio.create_task_group() as tasks:
        tasks.start_soon(hurry, backend)
        for _ in range(6):
            await anyio.sleep(SECOND_S)
            assert follower.position.staleness_s <= 2 * SECOND_S
            assert follower.position.jumps == 0
        is_over = True


@run_virtual
async def test_a_state_that_the_job_does_not_have_yet_takes_any_class() -> None:
    """It is empty; then it is what the job made of it, as each declaration reads it."""
    store = MemoryStore()
    async with followed(store) as (backend, follower):
        legs, stops, other = (follower.value_state("legs", type_) for type_ in (Leg, Stop, int))
        assert (len(legs), legs.get("a"), list(stops), "a" in other) == (0, None, [], False)
        backend.list_state("first", str)["a"].append("x")  # takes the number that the follower might have given away
        backend.value_state("legs", Leg)["a"] = Leg("EWR")
        await commit(backend, 2)
        await follower.wait_for(batch_id=2)
        assert (legs["a"], stops["a"]) == (Leg("EWR"), Stop("EWR"))
        assert follower.list_state("first", str)["a"] == ["x"]
        with pytest.raises(StateTypeError):
            other.get("a")


@run_virtual
async def test_no_write_gets_through() -> None:
    """Each says that a follower is only read."""
    async with followed(MemoryStore()) as (_, follower):
        values, lists, maps = (
            follower.value_state("n", int),
            follower.list_state("l", int),
            follower.map_state("m", int, int),
        )
        writes: Sequence[Any] = (
            lambda: values.__setitem__("a", 2),
            lambda: values.__delitem__("a"),
            lambda: values.put_many(["a"], [1]),
            lambda: values.pop("a"),
            lambda: lists.append("a", 1),
            lambda: maps["a"].__setitem__(1, 1),
            lambda: follower.timers("t").register("a", 1.0),
        )
        for write in writes:
            with pytest.raises(InputError, match="only read"):
                write()
        assert dict(values) == {"a": 1}


@run_virtual
async def test_no_commit_is_applied_while_somebody_reads() -> None:
    """A read that spans an `await` is of one commit."""
    store = MemoryStore()
    async with followed(store) as (backend, follower):
        values = follower.value_state("n", int)
        with follower.at_one_commit() as position:
            await commit(backend, 2, **{str(number): number for number in range(3000)})
            await anyio.sleep(60)
            assert (dict(values), position.batch_id, follower.position.batch_id) == ({"a": 1}, 1, 1)
            assert follower.position.staleness_s >= 59
        await follower.wait_for(batch_id=2)
        assert len(values) == 3001


@run_virtual
async def test_some_key_groups_are_followed_alone() -> None:
    """A key of others is refused, they are not promoted, and ask for what there is."""
    store, clock = MemoryStore(), VirtualClock()
    async with sb.open_backend(SETTINGS, store=store, clock=clock) as backend:
        await commit(backend, 1, **{str(number): number for number in range(40)})
        async with (
            sb.follow(SETTINGS, store=store, clock=clock, key_groups=KeyGroupRange(0, 1)) as first,
            sb.follow(SETTINGS, store=store, clock=clock, key_groups=KeyGroupRange(2, 3)) as second,
        ):
            await commit(backend, 2, **{str(number): number + 1 for number in range(40)})
            found = []
            for follower in (first, second):
                await follower.wait_for(batch_id=2)
                found.append(dict(follower.value_state("n", int)))
            assert found[0] | found[1] == {str(number): number + 1 for number in range(40)}
            assert found[0].keys().isdisjoint(found[1])
            with pytest.raises(InputError, match="part of the job"):
                await first.promote()
    with pytest.raises(SettingsError, match="other key groups"):
        async with sb.follow(SETTINGS, store=store, clock=clock, key_groups=KeyGroupRange(2, 4)):
            pass


@run_virtual
async def test_a_promotion_that_is_asked_for_twice_gives_one_backend() -> None:
    """At once, from two tasks, and again later. What was declared for reading can be read no more."""
    store = MemoryStore()
    async with followed(store) as (old, follower):
        values = follower.value_state("n", int)
        backends: list[sb.StateBackend] = []

        async def promote() -> None:
            backends.append(await follower.promote())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(promote)
            tasks.start_soon(promote)
        await promote()
        assert len(set(map(id, backends))) == 1
        await commit(backends[0], 2, a=2)
        with pytest.raises(FencedError):
            await commit(old, 3, a=3)
        with pytest.raises(BackendClosedError, match="use the backend"):
            values.get("a")


@run_virtual
async def test_what_was_promoted_is_followed_no_more() -> None:
    """Or the backend's own commits would be applied to its tables behind its back, on top of what was written since."""
    store = MemoryStore()
    async with followed(store) as (_, follower):
        heir = await follower.promote()
        values, seen = heir.value_state("n", int), heir.list_state("seen", int)
        for number in range(2, 6):
            seen["k"].append(number)
            await commit(heir, number, a=number)
            values["a"] = -number
            await anyio.sleep(10 * SECOND_S)
            assert (values["a"], list(seen["k"])) == (-number, [*range(2, number + 1)])


@run_virtual
async def test_of_two_heirs_one_is_fenced() -> None:
    """The one that claimed first. What the other one commits is whole."""
    store, clock = MemoryStore(), VirtualClock()
    async with followed(store) as (_, first), sb.follow(SETTINGS, store=store, clock=clock) as second:
        heirs: list[sb.StateBackend | None] = [None, None]

        async def promote(number: int, follower: sb.StateFollower) -> None:
            try:
                heirs[number] = await follower.promote()
            except FencedError:
                heirs[number] = None

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(promote, 0, first)
            tasks.start_soon(promote, 1, second)
        fenced = 0
        for number, heir in enumerate(heirs):
            try:
                assert heir is not None
                await commit(heir, 10 + number, a=number)
            except (FencedError, AssertionError):
                fenced += 1
        assert fenced == 1


@run_virtual
async def test_a_promotion_that_fails_leaves_a_follower() -> None:
    """It goes on, and can be promoted later."""
    store = MemoryStore()
    seen_through = FaultyStore(store)
    async with followed(store, seen_through) as (old, follower):
        seen_through.plan = [Fail(operation="put_if_absent", error=StoreAccessError("not yours"))]
        with pytest.raises(StoreAccessError):
            await follower.promote()
        seen_through.plan = []
        await commit(old, 2, a=2)
        await follower.wait_for(batch_id=2)
        assert follower.value_state("n", int)["a"] == 2
        heir = await follower.promote()
        assert heir.value_state("n", int)["a"] == 2


@run_virtual
async def test_an_heir_that_is_refused_before_its_claim_fences_nobody() -> None:
    """It was given the newest commit, which it may not have followed yet, and goes on as a follower."""
    store, given = MemoryStore(), list[sb.CommitSummary | None]()
    async with followed(store) as (old, follower):

        def refuse(newest: sb.CommitSummary | None) -> None:
            given.append(newest)
            raise InputError("the owner is at work")

        await commit(old, 2, a=2)
        with pytest.raises(InputError, match="is at work"):
            await follower.promote(before_claim=refuse)
        await commit(old, 3, a=3)
        heir = await follower.promote(before_claim=given.append)
        assert heir.value_state("n", int)["a"] == 3
    assert [newest.checkpoint_id for newest in given if newest is not None] == [2, 3]


@run_virtual
async def test_a_failed_piece_leaves_the_commit_before_until_all_is_read_anew() -> None:
    """Nobody sees a part of a commit."""
    store = MemoryStore()
    async with followed(store) as (backend, follower):
        values, advance = follower.value_state("n", int), StateAtCommit.advance

        async def halfway(state: Any, changes: Any, to: Any, may_go_on: Any) -> None:
            await advance(state, changes, to, _fails_at_the_end(may_go_on))

        with patch.object(StateAtCommit, "advance", halfway):
            await commit(backend, 2, a=2, b=2)
            await anyio.sleep(0.5)
            with patch.object(follower._following, "_jump", _away):
                await anyio.sleep(3 * SECOND_S)
                assert (dict(values), follower.position.batch_id) == ({"a": 1}, 1)
                assert follower.position.problem is not None
        await follower.wait_for(batch_id=2)
        assert dict(values) == {"a": 2, "b": 2}


def _fails_at_the_end(may_go_on: Any) -> Any:
    calls = 0

    async def failing() -> None:
        nonlocal calls
        calls += 1
        await may_go_on()
        if calls == 2:
            raise StoreUnavailableError("halfway")

    return failing


async def _away(_: str) -> bool:
    raise StoreUnavailableError("away")


def test_local_copies_are_read_first_and_left_as_they_are(tmp_path: Path) -> None:
    """Beside the job that owns them, from a store that can only be read."""
    settings = replaced(
        SETTINGS, primary=f"file://{tmp_path}/primary", local=(str(tmp_path / "local"),), inline_bytes_max=0
    )

    async def go() -> None:
        async with sb.open_backend(settings) as backend:
            await commit(backend, 1, a=1)
            before = {path: path.stat().st_mtime_ns for path in (tmp_path / "local").rglob("*") if path.is_file()}
            async with sb.follow(settings, every_s=0.05) as follower:
                assert follower.restored.files_local == 1
                assert follower.restored.files_primary == 0
                after = {path: path.stat().st_mtime_ns for path in (tmp_path / "local").rglob("*") if path.is_file()}
                assert after == before
                await commit(backend, 2, a=2)
                await follower.wait_for(batch_id=2, timeout_s=60)
                assert follower.value_state("n", int)["a"] == 2

    anyio.run(go)


def test_synchronous_code_asks_on_another_thread(tmp_path: Path) -> None:
    """All that a function reads is of one commit; errors come out as they are, and closing is final."""
    settings = replaced(SETTINGS, primary=f"file://{tmp_path}/primary")

    async def work(number: int) -> None:
        async with sb.open_backend(settings) as backend:
            await commit(backend, number, a=number)

    anyio.run(work, 1)
    with sb.follow_in_background(settings, every_s=0.05) as fleet:
        assert fleet.ask(lambda follower: follower.value_state("n", int)["a"]) == 1
        anyio.run(work, 2)
        assert fleet.wait_for(batch_id=2, timeout_s=60).batch_id == 2
        assert fleet.ask(lambda follower: dict(follower.value_state("n", int))) == {"a": 2}
        with pytest.raises(KeyError):
            fleet.ask(lambda follower: follower.value_state("n", int)["b"])
        assert fleet.position.batch_id == 2
    with pytest.raises(BackendClosedError):
        fleet.ask(lambda follower: follower.position)


@run_virtual
async def test_keys_that_are_erased_one_after_the_other_are_gone_from_a_follower() -> None:
    """A change set that is written again for the second time looks as after the first, but for where it lies."""
    store, clock = MemoryStore(), VirtualClock()
    async with sb.open_backend(SETTINGS, store=store, clock=clock) as backend:
        await commit(backend, 1, a=1, b=2, c=3)
    async with sb.follow(SETTINGS, store=store, clock=clock) as follower:
        for checkpoint_id, key, left in ((2, "a", {"b": 2, "c": 3}), (3, "b", {"c": 3})):
            await sb.erase(SETTINGS, [key], store=store, clock=clock)
            await follower.wait_for(checkpoint_id=checkpoint_id)
            assert dict(follower.value_state("n", int)) == left
