"""The bytes of one local root: counted before they are written, and until they are known to be gone."""

from collections import Counter

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._local.budget import ByteBudget
from statebackend._local.segments import LocalSegments
from statebackend.errors import SettingsError, StoreAccessError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.settings import Settings
from statebackend.testing import Fail, FaultyStore, Hold


async def keys(store) -> list[str]:
    return [info.key async for info in store.list("")]


async def counted(segments: LocalSegments) -> LocalSegments:
    await segments.take_stock()
    return segments


def test_a_limit_is_not_negative() -> None:
    """0 means none."""
    assert Settings(job="a", primary="memory://a").local_bytes_max == 0
    with pytest.raises(SettingsError) as caught:
        Settings(job="a", primary="memory://a", local_bytes_max=-1)
    assert dict(caught.value.facts) == {"local_bytes_max": -1}


async def test_a_put_that_would_exceed_the_limit_is_refused_and_writes_nothing() -> None:
    """Exactly full is fine; the error carries the numbers that a person needs to choose another limit."""
    store = FaultyStore(MemoryStore())
    segments = await counted(LocalSegments([store], bytes_max=10))
    await segments.put("a", [b"1234", b"56"])
    await segments.put("b", [b"7890"])
    with pytest.raises(StoreUnavailableError) as caught:
        await segments.put("c", [b"x"])
    assert dict(caught.value.facts) == {"key": "c", "size_bytes": 1, "held_bytes": 10, "local_bytes_max": 10}
    assert await keys(segments) == ["a", "b"]
    assert ("put", "c") not in store.calls


async def test_what_lies_apart_takes_room_too() -> None:
    """The bytes of RocksDB's bases. The error tells all that is held, or its numbers would not add up."""
    segments = await counted(LocalSegments([MemoryStore()], bytes_max=10))
    segments.set_apart(0, 6)
    await segments.put("a", [b"1234"])
    with pytest.raises(StoreUnavailableError) as caught:
        await segments.put("b", [b"x"])
    assert dict(caught.value.facts) == {"key": "b", "size_bytes": 1, "held_bytes": 10, "local_bytes_max": 10}
    segments.set_apart(0, 5)
    await segments.put("b", [b"x"])


async def test_a_put_that_was_refused_leaves_its_room_to_a_smaller_one() -> None:
    """A write that is refused is not counted."""
    segments = await counted(LocalSegments([MemoryStore()], bytes_max=10))
    with pytest.raises(StoreUnavailableError):
        await segments.put("large", [b"x" * 11])
    await segments.put("small", [b"x" * 10])
    assert segments.held_bytes == [10]


async def test_deleting_makes_room() -> None:
    """Superseded copies and lost attempts give theirs back."""
    segments = await counted(LocalSegments([MemoryStore()], bytes_max=10))
    await segments.put("a", [b"x" * 10])
    await segments.delete("a")
    await segments.delete("never there")
    assert segments.held_bytes == [0]
    await segments.put("b", [b"x" * 10])


async def test_puts_at_the_same_time_share_the_room() -> None:
    """Counted before they are written: two that fit one by one but not together are not both let in."""
    hold = Hold(operation="put", key="a")
    segments = await counted(LocalSegments([FaultyStore(MemoryStore(), [hold])], bytes_max=10))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(segments.put, "a", [b"x" * 6])
        await hold.reached.wait()
        with pytest.raises(StoreUnavailableError):
            await segments.put("b", [b"x" * 5])
        await segments.put("c", [b"x" * 4])
        hold.release()
    assert await keys(segments) == ["a", "c"]


async def test_every_root_has_its_own_limit() -> None:
    """A full disk does not keep copies from the others."""
    stores = [MemoryStore(), MemoryStore()]
    segments = await counted(LocalSegments(stores, bytes_max=3))
    for number in range(20):
        try:
            await segments.put(f"segments/{number}", [b"x"])
        except StoreUnavailableError:
            continue
    assert segments.held_bytes == [3, 3]
    assert [len(await keys(store)) for store in stores] == [3, 3]


async def test_what_lies_there_already_is_counted() -> None:
    """Also what is beyond the limit, because it was lowered, or lies where nobody looks. Pruning makes room."""
    store = MemoryStore()
    await store.put("old", [b"x" * 8])
    await store.put("needed", [b"x" * 4])
    segments = await counted(LocalSegments([store], bytes_max=10))
    assert segments.held_bytes == [12]
    with pytest.raises(StoreUnavailableError):
        await segments.put("new", [b"x"])
    assert await segments.prune({"needed"}) == 1
    assert segments.held_bytes == [4]
    await segments.put("new", [b"x" * 6])


async def test_a_replacement_counts_for_what_it_adds() -> None:
    """A bad copy is repaired in a root that is full; a good one that is larger than the bad one needs room."""
    store = MemoryStore()
    await store.put("bad", [b"x" * 6])
    await store.put("good", [b"x" * 4])
    segments = await counted(LocalSegments([store], bytes_max=10))
    await segments.put("bad", [b"y" * 6])
    with pytest.raises(StoreUnavailableError):
        await segments.put("good", [b"y" * 5])
    await segments.put("bad", [b"y" * 5])
    await segments.put("good", [b"y" * 5])
    assert segments.held_bytes == [10]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_put_that_failed_counts_until_it_is_deleted(moment) -> None:
    """Nobody knows whether the object is there. The uploader deletes it; where that fails too, it goes on counting."""
    store = FaultyStore(MemoryStore(), [Fail(operation="put", moment=moment), Fail(operation="delete", nth=1)])
    segments = await counted(LocalSegments([store], bytes_max=10))
    with pytest.raises(StoreUnavailableError):
        await segments.put("a", [b"x" * 6])
    with pytest.raises(StoreUnavailableError):
        await segments.delete("a")
    assert segments.held_bytes == [6]
    await segments.delete("a")
    assert segments.held_bytes == [0]


async def test_a_cancelled_put_counts_until_it_is_deleted() -> None:
    """It may have been stored all the same."""
    hold = Hold(operation="put", moment="after")
    segments = await counted(LocalSegments([FaultyStore(MemoryStore(), [hold])], bytes_max=10))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(segments.put, "a", [b"x" * 6])
        await hold.reached.wait()
        tasks.cancel_scope.cancel()
    assert segments.held_bytes == [6]
    await segments.delete("a")
    assert segments.held_bytes == [0]


async def test_a_root_that_cannot_be_listed_takes_no_copies_under_a_limit() -> None:
    """Not knowing is no reason to exceed it; without a limit it does not matter. Pruning asks once more."""
    store = FaultyStore(MemoryStore(), [Fail(operation="list", nth=1), Fail(operation="list", nth=2)])
    await store.put("there", [b"x"])
    limited, unlimited = LocalSegments([store], bytes_max=10), LocalSegments([store])
    await limited.take_stock()
    await unlimited.take_stock()
    with pytest.raises(StoreUnavailableError):
        await limited.put("a", [b"x"])
    await unlimited.put("a", [b"x"])
    assert await limited.prune({"there"}) == 1
    await limited.put("b", [b"x"])
    assert limited.held_bytes == [2]


async def test_a_directory_that_is_not_as_it_was_made_is_the_disks_fault_and_not_the_callers() -> None:
    """The store calls the key wrong; but the primary took it. A restore that repairs must not fail for that."""

    class Confused(MemoryStore):
        async def put(self, key, body) -> None:
            await super().put(f"{key}/../", body)

    with pytest.raises(StoreAccessError):
        await LocalSegments([Confused()]).put("segments/a", [b"x"])


async def test_a_chunk_counts_by_its_bytes() -> None:
    """Also one whose items are larger than a byte."""
    segments = await counted(LocalSegments([MemoryStore()], bytes_max=100))
    await segments.put("a", [memoryview(bytes(16)).cast("Q"), bytearray(3), b""])
    assert segments.held_bytes == [19]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "put and fail", "delete"]), st.sampled_from("abcd"), st.integers(0, 12)),
    max_size=40,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12)), OPERATIONS, st.integers(0, 30))
def test_the_account_is_right_after_any_operations(there: dict[str, int], operations, bytes_max: int) -> None:
    """Never less than what may lie there; never more than the limit, unless more lay there from the start."""
    budget = ByteBudget(bytes_max)
    budget.found(there)
    may_lie_there = Counter(there)
    most = max(bytes_max, sum(there.values()))
    for operation, key, size in operations:
        if operation == "delete":
            budget.deleted(key)
            del may_lie_there[key]
        else:
            growth = size - may_lie_there[key]
            fits = not bytes_max or growth <= 0 or may_lie_there.total() + growth <= bytes_max
            try:
                budget.begin(key, size)
            except StoreUnavailableError:
                assert not fits
                continue
            assert fits
            if operation == "put":
                budget.stored(key, size)
            may_lie_there[key] = size if operation == "put" else max(size, may_lie_there[key])
        budget.check_invariants()
        assert budget.held_bytes == may_lie_there.total()
        assert not bytes_max or budget.held_bytes <= most
