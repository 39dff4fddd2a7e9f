"""The store that fails on command does so exactly when it is told to."""

import anyio
import pytest

from statebackend.errors import ObjectExistsError, StoreAccessError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold


async def test_fails_the_nth_matching_call_only() -> None:
    """Calls of other operations and other keys do not count."""
    store = FaultyStore(MemoryStore(), [Fail(operation="put", key="segments/*", nth=2)])
    await store.put("commits/0", [b"x"])
    await store.put("segments/0", [b"x"])
    assert await store.get("segments/0") == b"x"
    with pytest.raises(StoreUnavailableError):
        await store.put("segments/1", [b"x"])
    assert await store.head("segments/1") is None
    await store.put("segments/2", [b"x"])


async def test_fails_every_call_for_as_long_as_the_plan_says_so() -> None:
    """Without a number a fault is permanent, until the test takes it out of the plan."""
    store = FaultyStore(MemoryStore(), [Fail(error=StoreAccessError("refused"))])
    for call in (store.put("a", [b"x"]), store.get("a"), store.head("a"), store.delete("a")):
        with pytest.raises(StoreAccessError):
            await call
    with pytest.raises(StoreAccessError):
        [info async for info in store.list("")]
    store.plan.clear()
    await store.put("a", [b"x"])
    assert [info.key async for info in store.list("")] == ["a"]


async def test_a_lost_response_means_that_it_happened() -> None:
    """The caller sees an error, the object is there, and a second conditional put finds it."""
    store = FaultyStore(MemoryStore(), [Fail(operation="put_if_absent", nth=1, moment="after")])
    with pytest.raises(StoreUnavailableError):
        await store.put_if_absent("commits/0", [b"mine"])
    with pytest.raises(ObjectExistsError):
        await store.put_if_absent("commits/0", [b"mine"])
    assert await store.get("commits/0") == b"mine"


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_holds_calls_until_released(moment) -> None:
    """Before: nothing has happened yet. After: it has, and only the caller does not know."""
    hold = Hold(operation="put", moment=moment)
    store = FaultyStore(MemoryStore(), [hold])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "a", [b"x"])
        await hold.reached.wait()
        assert (await store.head("a") is not None) == (moment == "after")
        hold.release()
    assert await store.get("a") == b"x"


async def test_a_stubborn_hold_outlasts_cancellation() -> None:
    """It stands for a thread that cannot be stopped: the call ends only when it is released."""
    hold = Hold(operation="put", stubborn=True)
    store = FaultyStore(MemoryStore(), [hold])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "a", [b"x"])
        await hold.reached.wait()
        tasks.cancel_scope.cancel()
        hold.release()
    assert await store.head("a") is None


async def test_remembers_every_call_in_order() -> None:
    """Tests count requests with it, failed ones included."""
    store = FaultyStore(MemoryStore(), [Fail(operation="get")])
    await store.put("a", [b"x"])
    with pytest.raises(StoreUnavailableError):
        await store.get("a")
    await store.delete("a")
    assert store.calls == [("put", "a"), ("get", "a"), ("delete", "a")]
