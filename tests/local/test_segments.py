"""The local copies over several roots: where a key lies, who may change what, and what is cleared away."""

import zlib
from collections.abc import Sequence

import pytest

from statebackend._local.segments import LocalSegments
from statebackend.abc import Capability
from statebackend.errors import ObjectNotFoundError, StoreAccessError, StoreError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold
from statebackend.testing.virtual_time import VirtualClock, run_virtual

KEYS = [f"segments/{number}" for number in range(40)]


def home(key: str, roots: int) -> int:
    return zlib.crc32(key.encode()) % roots


async def keys(store) -> list[str]:
    return [info.key async for info in store.list("")]


@pytest.mark.parametrize("roots", [1, 2, 3])
async def test_a_key_lies_in_the_root_that_its_checksum_names(roots: int) -> None:
    """The same one in every process, which a salted hash would not be; and every root gets its share."""
    stores = [MemoryStore() for _ in range(roots)]
    segments = LocalSegments(stores)
    for key in KEYS:
        await segments.put(key, [key.encode()])
    for index, store in enumerate(stores):
        assert await keys(store) == sorted(key for key in KEYS if home(key, roots) == index) != []
    assert await keys(segments) == sorted(KEYS)
    assert [await segments.get(key) for key in KEYS] == [key.encode() for key in KEYS]


async def test_it_can_what_all_of_its_roots_can() -> None:
    """One root in memory makes the whole not durable."""

    class OnlyLists(MemoryStore):
        @property
        def capabilities(self) -> frozenset[Capability]:
            return frozenset({Capability.LIST, Capability.DURABLE})

    assert LocalSegments([MemoryStore(), OnlyLists()]).capabilities == {Capability.LIST}


class ReadsTogether(MemoryStore):
    """Remembers how many objects it was asked for at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def get_many(self, keys: Sequence[str]) -> Sequence[bytes | StoreError]:
        self.asked.append(len(keys))
        return [await self.get(key) for key in keys]


async def test_many_copies_are_read_by_one_call_for_each_root() -> None:
    """In the order of the keys, whichever roots they lie in; from a store that cannot do that, one by one."""
    together, one_by_one = ReadsTogether(), MemoryStore()
    segments = LocalSegments([together, one_by_one])
    for key in KEYS:
        await segments.put(key, [key.encode()])
    assert await segments.get_many(KEYS) == [key.encode() for key in KEYS]
    assert together.asked == [sum(home(key, 2) == 0 for key in KEYS)]


@run_virtual
async def test_of_many_copies_each_has_its_own_error() -> None:
    """One is missing, and one root hangs: one wait, the others are read, and the root is slow from then on."""
    hung, other = FaultyStore(MemoryStore(), [Hold(operation="get")]), MemoryStore()
    segments = LocalSegments([hung, other], read_timeout_s=5.0)
    missing = next(key for key in KEYS if home(key, 2) == 1)
    for key in KEYS:
        if key != missing:
            await segments.put(key, [b"x"])
    for _ in range(2):
        found = dict(zip(KEYS, await segments.get_many(KEYS), strict=True))
        errors = {key: (type(each), str(each)) for key, each in found.items() if isinstance(each, StoreError)}
        in_hung = {key: (StoreUnavailableError, "slow") for key in KEYS if home(key, 2) == 0}
        assert {key: each for key, each in errors.items() if home(key, 2) == 0} == in_hung
        assert [key for key in errors if home(key, 2)] == [missing]
        assert VirtualClock().monotonic() == 5.0


async def test_a_copy_is_expected_unless_its_root_was_counted_without_it() -> None:
    """A root that was not counted may have anything."""
    segments = LocalSegments([MemoryStore(), MemoryStore()], owned=[True, False])
    owned, other = (next(key for key in KEYS if home(key, 2) == root) for root in (0, 1))
    assert segments.expects(owned)
    await segments.take_stock()
    assert (segments.expects(owned), segments.expects(other)) == (False, True)
    await segments.put(owned, [b"x"])
    assert segments.expects(owned)


async def test_a_root_of_another_backend_is_read_and_never_changed() -> None:
    """Two backends on one host: the second one uses what the first one wrote, and touches nothing."""
    foreign = FaultyStore(MemoryStore())
    await foreign.put("segments/a", [b"x"])
    segments = LocalSegments([foreign], owned=[False])
    foreign.calls.clear()
    for call in (
        segments.put("segments/a", [b"y"]),
        segments.put_if_absent("segments/b", [b"y"]),
        segments.delete("segments/a"),
    ):
        with pytest.raises(StoreAccessError):
            await call
    assert await segments.prune(keep=()) == 0
    assert foreign.calls == []
    assert await segments.get("segments/a") == b"x"
    assert await segments.get_range("segments/a", 0, 1) == b"x"
    assert await segments.head("segments/a") is not None
    assert await keys(segments) == ["segments/a"]


async def test_prune_removes_what_is_not_kept_and_counts_it() -> None:
    """Orphans of killed attempts go; what the restored checkpoint needs stays."""
    stores = [MemoryStore(), MemoryStore()]
    segments = LocalSegments(stores)
    for key in KEYS:
        await segments.put(key, [b"x"])
    keep = {*KEYS[:15], "segments/never-there"}
    assert await segments.prune(keep) == len(KEYS) - 15
    assert await keys(segments) == sorted(KEYS[:15])
    assert await segments.prune(keep) == 0


async def test_prune_leaves_the_roots_of_others_alone() -> None:
    """Only the owner knows what is needed there."""
    stores = [MemoryStore(), MemoryStore()]
    await stores[0].put("segments/orphan", [b"x"])
    await stores[1].put("segments/orphan", [b"x"])
    assert await LocalSegments(stores, owned=[True, False]).prune(keep=()) == 1
    assert (await keys(stores[0]), await keys(stores[1])) == ([], ["segments/orphan"])


async def test_with_another_number_of_roots_moved_copies_are_missing_and_get_pruned() -> None:
    """A copy where nobody looks is no copy: it is not listed, and `prune` takes it away although it is kept."""
    stores = [MemoryStore(), MemoryStore()]
    for key in KEYS:
        await stores[0].put(key, [b"x"])
    segments = LocalSegments(stores)
    moved = [key for key in KEYS if home(key, 2) == 1]
    with pytest.raises(ObjectNotFoundError):
        await segments.get(moved[0])
    assert await keys(segments) == sorted(set(KEYS) - set(moved))
    assert await segments.prune(KEYS) == len(moved)
    assert await keys(stores[0]) == sorted(set(KEYS) - set(moved))


@pytest.mark.parametrize("operation", ["list", "delete"])
async def test_a_root_that_fails_does_not_keep_prune_from_the_others(operation) -> None:
    """Best effort: no error, and what could be removed is."""
    stores = [FaultyStore(MemoryStore()), FaultyStore(MemoryStore())]
    for store in stores:
        await store.put("segments/orphan", [b"x"])
    stores[0].plan.append(Fail(operation=operation))
    assert await LocalSegments(stores).prune(keep=()) == 1
    stores[0].plan.clear()
    assert (await keys(stores[0]), await keys(stores[1])) == (["segments/orphan"], [])


@run_virtual
async def test_a_root_that_hangs_is_slow_and_then_left_alone() -> None:
    """One wait, not one for each file; the other root goes on, and so does what an upload writes."""
    hold = Hold(operation="get")
    stores = [FaultyStore(MemoryStore(), [hold]), FaultyStore(MemoryStore())]
    segments = LocalSegments(stores, read_timeout_s=5.0)
    for key in KEYS:
        await segments.put(key, [b"x"])
    slow = [key for key in KEYS if home(key, 2) == 0]
    for key in slow:
        for call in (segments.get(key), segments.get_range(key, 0, 1), segments.repair(key, [b"y"])):
            with pytest.raises(StoreUnavailableError, match=r"^slow$"):
                await call
    assert VirtualClock().monotonic() == 5.0
    assert hold.held == 0
    for key in set(KEYS) - set(slow):
        assert await segments.get(key) == b"x"
    await segments.put(slow[0], [b"z"])


@run_virtual
async def test_a_repair_that_hangs_is_given_up() -> None:
    """A restore waits for it, and has what it needs already."""
    store = FaultyStore(MemoryStore(), [Hold(operation="put")])
    with pytest.raises(StoreUnavailableError, match=r"^slow$"):
        await LocalSegments([store], read_timeout_s=5.0).repair("segments/a", [b"x"])
    assert VirtualClock().monotonic() == 5.0


@run_virtual
async def test_a_root_that_cannot_be_listed_in_time_is_left_alone() -> None:
    """Its owner counts what lies there while a backend opens, which goes on without it: no reads, writes or pruning."""
    hung, other = FaultyStore(MemoryStore(), [Hold(operation="list")]), FaultyStore(MemoryStore())
    segments = LocalSegments([hung, other], read_timeout_s=5.0)
    await segments.take_stock()
    assert VirtualClock().monotonic() == 5.0
    hung.plan.clear()
    hung.calls.clear()
    for key in KEYS:
        if home(key, 2) == 0:
            for call in (segments.get(key), segments.put(key, [b"x"]), segments.delete(key)):
                with pytest.raises(StoreUnavailableError):
                    await call
        else:
            await segments.put(key, [b"x"])
            assert await segments.get(key) == b"x"
    assert await segments.prune(keep=()) == sum(home(key, 2) for key in KEYS)
    assert hung.calls == []
    assert VirtualClock().monotonic() == 5.0


@run_virtual
async def test_a_root_that_is_known_to_hang_keeps_its_place() -> None:
    """Keys of the other one lie where they always lay, and none of them is taken for one that nobody looks for."""
    hung, other = FaultyStore(MemoryStore()), MemoryStore()
    here = [key for key in KEYS if home(key, 2) == 1]
    for key in here:
        await other.put(key, [b"x"])
    segments = LocalSegments([hung, other], hanging={0})
    await segments.take_stock()
    assert await segments.prune(keep=KEYS) == 0
    assert [await segments.get(key) for key in here] == [b"x"] * len(here)
    assert hung.calls == []


@run_virtual
async def test_a_deletion_that_hangs_keeps_prune_from_that_root_only() -> None:
    """One wait, and not one for each copy."""
    stores = [FaultyStore(MemoryStore(), [Hold(operation="delete")]), FaultyStore(MemoryStore())]
    for store in stores:
        for key in KEYS:
            await store.put(key, [b"x"])
    assert await LocalSegments(stores, read_timeout_s=5.0).prune(keep=()) == len(KEYS)
    assert VirtualClock().monotonic() == 5.0
    assert (len(await keys(stores[0])), await keys(stores[1])) == (len(KEYS), [])


@run_virtual
async def test_of_a_root_that_is_too_slow_nothing_is_removed_that_was_found_before() -> None:
    """Nobody waits for it again; the other one is cleared."""
    slow, other = FaultyStore(MemoryStore()), FaultyStore(MemoryStore())
    segments = LocalSegments([slow, other], read_timeout_s=5.0)
    for key in KEYS:
        await segments.put(key, [b"x"])
    slow.plan += [Hold(operation="get"), Hold(operation="delete")]
    with pytest.raises(StoreUnavailableError, match=r"^slow$"):
        await segments.get(next(key for key in KEYS if home(key, 2) == 0))
    slow.calls.clear()
    assert await segments.remove_some(lambda found: found) == sum(home(key, 2) for key in KEYS)
    assert slow.calls == []
    assert VirtualClock().monotonic() == 5.0
