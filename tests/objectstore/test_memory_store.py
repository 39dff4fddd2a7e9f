"""What a store in memory promises beyond the contract."""

import anyio

from statebackend.abc import ObjectInfo
from statebackend.objectstore import MemoryStore, open_memory_store


class StoppedClock:
    def monotonic(self) -> float:
        return 0.0

    def time(self) -> float:
        return 1234.5


async def test_one_name_means_one_store_for_the_life_of_the_process() -> None:
    """What one opener of a name stored, the next one finds; another name is another place."""
    await open_memory_store("shared").put("object", [b"x"])
    assert await open_memory_store("shared").get("object") == b"x"
    assert await open_memory_store("not-shared").head("object") is None


async def test_objects_carry_the_time_of_the_clock_it_was_given() -> None:
    """Time comes in as an argument, so that a test can say what it is."""
    store = MemoryStore(clock=StoppedClock())
    await store.put("object", [b"abc"])
    assert await store.head("object") == ObjectInfo(key="object", size_bytes=3, modified_s=1234.5)


async def test_a_cancelled_call_has_not_happened() -> None:
    """Neither a write nor a delete of a cancelled caller takes place."""
    store = MemoryStore()
    await store.put("kept", [b"x"])
    for call, args in ((store.put, ("new", [b"x"])), (store.put_if_absent, ("new", [b"x"])), (store.delete, ("kept",))):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call(*args)  # type: ignore[operator]
    assert [info.key async for info in store.list("")] == ["kept"]
