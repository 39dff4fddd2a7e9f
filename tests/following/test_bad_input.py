"""What a follower is given that it cannot work with: each has an error of its own, and nothing is written."""

import itertools
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._codec.commit import MAGIC, VERSION
from statebackend._codec.segment import checksum_of
from statebackend._following.log_steps import ANSWER_S
from statebackend.errors import BackendClosedError, FencedError, InputError, StateTypeError, UnsupportedVersionError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.following.test_following import SETTINGS, commit, followed
from tests.knobs import replaced
from tests.rewrite.jobs import settings_of


async def objects(store: MemoryStore) -> dict[str, bytes]:
    """All that lies there."""
    return {info.key: await store.get(info.key) async for info in store.list("")}


@run_virtual
async def test_a_job_of_a_newer_release_is_not_opened() -> None:
    """It is not followed from an older commit either: that would be an old answer for a new one."""
    store, clock = MemoryStore(), VirtualClock()
    async with sb.open_backend(SETTINGS, store=store, clock=clock) as backend:
        await commit(backend, 1, a=1)
    key = f"{SETTINGS.job}/commits/{1:012}"
    found, head = bytearray(await store.get(key)), len(MAGIC) + 1
    found[len(MAGIC)] = VERSION + 1
    found[head : head + 4] = checksum_of((bytes(found[:head]), memoryview(found)[head + 4 :])).to_bytes(4, "little")
    await store.put(key, (bytes(found),))
    before = await objects(store)
    with pytest.raises(UnsupportedVersionError):
        async with sb.follow(SETTINGS, store=store, clock=clock):
            pass
    assert await objects(store) == before


@run_virtual
async def test_a_store_that_hangs_while_changes_are_read() -> None:
    """It is told as one that hangs while the log is looked at. The commit before is answered from."""
    clock, store = VirtualClock(), MemoryStore()
    settings = settings_of(4, inline_bytes_max=0)
    seen_through = FaultyStore(store)
    async with sb.open_backend(settings, store=store, clock=clock) as backend:
        await commit(backend, 1, a=1)
        async with sb.follow(settings, store=seen_through, clock=clock) as follower:
            seen_through.plan = [hold := Hold(key="*/segments/*")]
            await commit(backend, 2, a=2)
            await anyio.sleep(10 * ANSWER_S)
            position = follower.position
            assert (follower.value_state("n", int)["a"], position.batch_id) == (1, 1)
            assert position.staleness_s >= 9 * ANSWER_S
            assert position.problem is not None
            seen_through.plan = []
            hold.release()
            await follower.wait_for(batch_id=2)
            assert follower.value_state("n", int)["a"] == 2


def test_followers_share_directories_with_each_other_and_with_the_job(tmp_path: Path) -> None:
    """None of them has one of its own to be followed: what lies in the local copies is no primary."""
    pytest.importorskip("rocksdict")
    local = tmp_path / "local"
    settings = replaced(
        SETTINGS, primary=f"file://{tmp_path}/primary", local=(str(local),), table="rocksdb", inline_bytes_max=0
    )

    async def go() -> None:
        async with sb.open_backend(settings) as backend:
            await commit(backend, 1, a=1)
            async with sb.follow(settings) as first, sb.follow(settings) as second:
                found = [dict(each.value_state("n", int)) for each in (first, second)]
                assert found == [{"a": 1}] * 2
                with pytest.raises(InputError, match="no checkpoint yet"):
                    async with sb.follow(replaced(settings, primary=f"file://{local}")):
                        pass

    anyio.run(go)


@run_virtual
async def test_columns_that_are_declared_otherwise() -> None:
    """A follower cannot change them, as a backend would; the error says which ones there are."""
    async with followed(MemoryStore()) as (backend, follower):
        kinds = {"n": pa.int32(), "x": pa.float64()}
        backend.columnar_state("c", pa.schema(kinds), key=pa.string())["a"] = {"n": 1, "x": 0.5}
        await commit(backend, 2)
        await follower.wait_for(batch_id=2)
        others: list[Any] = [{"n": pa.int64(), "x": pa.float64()}, {"n": pa.int32()}, {**kinds, "more": pa.string()}]
        for other in others:
            with pytest.raises(StateTypeError, match="as the job has them"):
                follower.columnar_state("c", pa.schema(other), key=pa.string())
        with pytest.raises(StateTypeError):
            follower.columnar_state("c", pa.schema(kinds), key=pa.int64())
        with pytest.raises(StateTypeError):
            follower.list_state("n", int)
        assert follower.columnar_state("c", pa.schema(kinds), key=pa.string())["a"] == {"n": 1, "x": 0.5}


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_promotion_while_the_old_driver_waits_for_the_answer_to_its_commit(lost: str) -> None:
    """The heir has that commit if it was made; the old driver, which learns that later, commits no other."""

    @run_virtual
    async def go() -> None:
        store, clock = MemoryStore(), VirtualClock()
        old_store = FaultyStore(store)
        async with sb.open_backend(SETTINGS, store=old_store, clock=clock) as old:
            await commit(old, 1, a=1)
            async with sb.follow(SETTINGS, store=store, clock=clock) as follower, anyio.create_task_group() as tasks:
                hold = Hold(operation="put_if_absent", moment="after" if lost == "answer" else "before")
                is_lost = Fail(operation="put_if_absent", moment="after", nth=1)
                old_store.plan = [hold, is_lost] if lost == "answer" else [hold]
                outcomes: list[str] = []

                async def commit_old() -> None:
                    try:
                        await commit(old, 2, a=2)
                    except FencedError:
                        outcomes.append("fenced")
                    else:
                        outcomes.append("committed")

                tasks.start_soon(commit_old)
                await hold.reached.wait()
                heir = await follower.promote()
                assert dict(heir.value_state("n", int)) == {"a": 2 if lost == "answer" else 1}
                await commit(heir, 3, b=3)
                hold.release()
            assert outcomes == ["committed" if lost == "answer" else "fenced"]
            with pytest.raises(FencedError if lost == "answer" else BackendClosedError):
                await commit(old, 4, a=4)

    go()


@run_virtual
async def test_whatever_is_cancelled_leaves_a_job_that_goes_on() -> None:
    """At each step of opening, waiting, promoting and committing. Nothing runs on, and nothing that was committed is
    lost.
    """
    clock = VirtualClock()
    settings = settings_of(4, inline_bytes_max=0)

    async def follow_and_promote(store: MemoryStore, old: sb.StateBackend) -> None:
        async with sb.follow(settings, store=store, clock=clock) as follower:
            await commit(old, 2, a=2)
            await follower.wait_for(batch_id=2)
            with follower.at_one_commit():
                await anyio.lowlevel.checkpoint()
            heir = await follower.promote()
            await commit(heir, 3, a=3)

    for steps in itertools.count(1, 3):
        store, done = MemoryStore(), False
        async with sb.open_backend(settings, store=store, clock=clock) as old:
            await commit(old, 1, a=1)
            async with anyio.create_task_group() as tasks:

                async def run(store: MemoryStore = store, old: sb.StateBackend = old) -> None:
                    nonlocal done
                    await follow_and_promote(store, old)
                    done = True

                tasks.start_soon(run)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        async with sb.open_backend(settings, store=store, clock=clock) as after:
            assert after.newest is not None
            assert after.newest.source is not None
            batch = after.newest.source.batch_id
            assert dict(after.value_state("n", int)) == {"a": batch}
            await commit(after, 9, b=9)
        if done:
            assert batch == 3
            return
