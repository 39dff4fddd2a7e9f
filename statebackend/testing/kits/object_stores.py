"""Proves that a store keeps the contract of `ObjectStore`.

    class TestMyStore(ObjectStoreConformance):
        capabilities = frozenset({Capability.LIST, Capability.PUT_IF_ABSENT})

        def open_store(self) -> AbstractAsyncContextManager[ObjectStore]:
            return open_my_store(bucket="test")

It uses nothing but the contract: no private names, no message texts, and only your way of opening the store.
"""

from typing import Final

import anyio
import pytest

from statebackend.abc import Body, Capability, CopiesObjects, DeletesMany
from statebackend.errors import ObjectExistsError, ObjectNotFoundError
from statebackend.testing.kits.store_under_test import keys_of
from statebackend.testing.kits.stores_apart import StoreApart
from statebackend.testing.kits.stores_over_time import StoreOverTime

ODD_KEYS: Final = (
    "a",
    "0",
    "with space",
    "-dash",
    ".hidden",
    "dots...in.the.middle",
    "..two-dots-first",
    "UPPER",
    "upper",
    "percent%20encoded",
    "plus+and&and=and?and#and",
    "quotes'\"`",
    "back\\slash",
    "brackets[1]{2}(3)<4>*",
    "deep/er/and/deep/er/still",
    "part-of-200/" + "x" * 200,
)


@pytest.mark.asyncio
class ObjectStoreConformance(StoreOverTime, StoreApart):
    """Each test opens a store and checks one promise. Tests of capabilities that are not declared are skipped."""

    async def test_has_the_declared_capabilities(self) -> None:
        """The declared capabilities are those of the store: no fewer, and none that the tests have not proved."""
        async with self.open_store() as store:
            assert store.capabilities == self.capabilities

    @pytest.mark.parametrize(
        "body",
        [[b"one piece"], [], [b""], [b"a", b"", b"bc", b"def"], [b"x" * 1000] * 1500, [b"\x00\xff" * 700_000]],
        ids=["one chunk", "no chunk", "empty chunk", "several chunks", "many chunks", "large chunk"],
    )
    async def test_returns_the_bytes_that_were_put(self, body: Body) -> None:
        """However a body is cut into chunks, the object is their content in order."""
        async with self.open_store() as store:
            await store.put("object", body)
            assert await store.get("object") == b"".join(body)

    async def test_takes_any_kind_of_buffer(self) -> None:
        """A chunk may be bytes, a bytearray, or a memoryview, even one with items larger than a byte."""
        async with self.open_store() as store:
            words = memoryview(bytes(range(8))).cast("I")
            await store.put("object", [b"ab", bytearray(b"cd"), memoryview(b"_ef_")[1:3], words])
            assert await store.get("object") == b"abcdef" + bytes(range(8))

    async def test_copies_an_object_as_a_put_would(self) -> None:
        """A store with `copy_from` has the whole object at both keys, which then have nothing to do with each other."""
        async with self.open_store() as store:
            if not isinstance(store, CopiesObjects):
                pytest.skip("the store copies nothing by itself")
            content = b"\x00\xff" * 50_000
            await store.put("a/source", [content])
            await store.put("b/target", [b"former"])
            for _ in range(2):
                assert await store.copy_from(store, "a/source", "b/target", len(content))
                assert await store.get("b/target") == content
            await store.put("a/source", [b"new"])
            assert await store.get("b/target") == content
            await store.delete("a/source")
            assert await store.get("b/target") == content
            with pytest.raises(ObjectNotFoundError):
                await store.copy_from(store, "a/source", "c/target", 1)
            assert await store.head("c/target") is None

    async def test_keeps_bytes_the_caller_changes_afterwards(self) -> None:
        """An object is a copy: reusing a buffer after `put` has returned does not change it."""
        async with self.open_store() as store:
            buffer = bytearray(b"before")
            await store.put("object", [buffer])
            buffer[:] = b"after!"
            assert await store.get("object") == b"before"

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, 10, b"0123456789"),
            (0, 1, b"0"),
            (3, 4, b"3456"),
            (8, 10, b"89"),
            (10, 5, b""),
            (99, 5, b""),
            (4, 0, b""),
        ],
    )
    async def test_returns_a_range_or_what_there_is_of_it(self, offset: int, length: int, expected: bytes) -> None:
        """A range that ends beyond the object is cut off there; one that starts beyond it is empty."""
        async with self.open_store() as store:
            await store.put("object", [b"01234", b"56789"])
            assert await store.get_range("object", offset, length) == expected

    async def test_head_tells_the_size_and_none_for_a_missing_object(self) -> None:
        """`head` describes an object that exists, and raises no error for one that does not."""
        async with self.open_store() as store:
            await store.put("some/object", [b"123", b"45"])
            info = await store.head("some/object")
            assert info is not None
            assert (info.key, info.size_bytes) == ("some/object", 5)
            assert await store.head("some") is None
            assert await store.head("other/object") is None

    async def test_reading_a_missing_object_is_its_own_error(self) -> None:
        """A caller can tell "not there" from "no answer"."""
        async with self.open_store() as store:
            with pytest.raises(ObjectNotFoundError):
                await store.get("missing")
            with pytest.raises(ObjectNotFoundError):
                await store.get_range("missing/too", 0, 1)

    async def test_delete_removes_and_can_be_repeated(self) -> None:
        """After a delete the object is gone. Deleting it again, or an object that never existed, is no error."""
        async with self.open_store() as store:
            await store.put("a/object", [b"x"])
            await store.delete("a/object")
            assert await store.head("a/object") is None
            with pytest.raises(ObjectNotFoundError):
                await store.get("a/object")
            await store.delete("a/object")
            await store.delete("never/was")

    async def test_delete_leaves_other_objects_alone(self) -> None:
        """Deleting a key leaves longer keys and keys below it."""
        async with self.open_store() as store:
            for key in ("top/a", "top/ab", "top/b/c"):
                await store.put(key, [key.encode()])
            await store.delete("top/a")
            await store.delete("top")
            assert [await store.get(key) for key in ("top/ab", "top/b/c")] == [b"top/ab", b"top/b/c"]

    async def test_delete_many_removes_these_and_no_others(self) -> None:
        """Deletes more keys than fit in any batch, some of them absent. For stores with `delete_many`."""
        async with self.open_store() as store:
            if not isinstance(store, DeletesMany):
                pytest.skip("the store deletes one by one")
            for key in ("top/a", "top/ab", "top/b/c", "odd +%20&"):
                await store.put(key, [b"x"])
            await store.delete_many([])
            await store.delete_many(["top/a", *(f"never/was/{number}" for number in range(1500)), "odd +%20&"])
            kept = [key for key in ("top/a", "top/ab", "top/b/c", "odd +%20&") if await store.head(key) is not None]
            assert kept == ["top/ab", "top/b/c"]

    async def test_put_replaces_the_whole_object(self) -> None:
        """A shorter new object leaves nothing of a longer former one."""
        async with self.open_store() as store:
            await store.put("object", [b"a long first content"])
            await store.put("object", [b"short"])
            assert await store.get("object") == b"short"
            info = await store.head("object")
            assert info is not None
            assert info.size_bytes == len(b"short")

    async def test_a_reader_sees_one_whole_object_while_it_is_replaced(self) -> None:
        """A reader beside a writer gets the former object or the new one, never a mixture or an error."""
        versions = [bytes([number]) * (20_000 + number) for number in range(16)]
        seen: list[bytes] = []
        async with self.open_store() as store:
            await store.put("object", [versions[0]])

            async def read() -> None:
                seen.append(await store.get("object"))

            async with anyio.create_task_group() as tasks:
                for version in versions:
                    tasks.start_soon(store.put, "object", [version[:7], version[7:]])
                    tasks.start_soon(read)
            seen.append(await store.get("object"))
        assert len(seen) == len(versions) + 1
        assert set(seen) <= set(versions)

    @pytest.mark.parametrize("key", ODD_KEYS)
    async def test_takes_every_legal_key(self, key: str) -> None:
        """A key is any '/'-separated names of printable ASCII; none stands for another."""
        async with self.open_store() as store:
            await store.put(key, [key.encode()])
            assert await store.get(key) == key.encode()
            if Capability.LIST in self.capabilities:
                assert await keys_of(store, "") == [key]

    async def test_keeps_odd_keys_apart(self) -> None:
        """No two legal keys name the same object."""
        async with self.open_store() as store:
            for key in ODD_KEYS:
                await store.put(key, [key.encode()])
            assert [await store.get(key) for key in ODD_KEYS] == [key.encode() for key in ODD_KEYS]

    async def test_lists_what_starts_with_a_prefix_in_key_order(self) -> None:
        """Keys are listed in the order of whole keys, where '-' sorts before '/'; a prefix may end within a name."""
        self._needs(Capability.LIST)
        keys = ["a", "b/1", "b/2/x", "b/10", "b-c", "b0", "bb/1", "c/d/e/f"]
        async with self.open_store() as store:
            for key in reversed(keys):
                await store.put(key, [b"." * len(key)])
            assert await keys_of(store, "") == sorted(keys)
            assert await keys_of(store, "b") == sorted(key for key in keys if key.startswith("b"))
            assert await keys_of(store, "b/") == ["b/1", "b/10", "b/2/x"]
            assert await keys_of(store, "b/1") == ["b/1", "b/10"]
            assert await keys_of(store, "c/d/e/f") == ["c/d/e/f"]
            assert [info.size_bytes async for info in store.list("b/")] == [3, 4, 5]

    @pytest.mark.parametrize("prefix", ["none", "none/", "a/b/c/", "a/../", "../", "/", "//", "./a"])
    async def test_lists_nothing_under_a_prefix_without_objects(self, prefix: str) -> None:
        """A prefix that no key has lists nothing and is no error, even if no key could have it."""
        self._needs(Capability.LIST)
        async with self.open_store() as store:
            assert await keys_of(store, prefix) == []
            await store.put("a/b/c", [b"x"])
            assert await keys_of(store, prefix) == []

    async def test_put_if_absent_creates_once_and_leaves_the_first(self) -> None:
        """The second creator gets an error, and the first one's object stays, even against an equal body."""
        self._needs(Capability.PUT_IF_ABSENT)
        async with self.open_store() as store:
            await store.put_if_absent("commits/0", [b"fir", b"st"])
            for body in (b"second", b"first"):
                with pytest.raises(ObjectExistsError):
                    await store.put_if_absent("commits/0", [body])
            assert await store.get("commits/0") == b"first"

    async def test_put_if_absent_respects_an_object_that_put_made(self) -> None:
        """It does not matter who created the object; once it is deleted, the key is free."""
        self._needs(Capability.PUT_IF_ABSENT)
        async with self.open_store() as store:
            await store.put("object", [b""])
            with pytest.raises(ObjectExistsError):
                await store.put_if_absent("object", [b"x"])
            assert await store.get("object") == b""
            await store.delete("object")
            await store.put_if_absent("object", [b"x"])
            assert await store.get("object") == b"x"

    async def test_put_if_absent_has_exactly_one_winner(self) -> None:
        """Of 16 concurrent creators one succeeds, 15 get an error, and the object is the winner's, whole."""
        self._needs(Capability.PUT_IF_ABSENT)
        winners: list[bytes] = []
        losers: list[bytes] = []
        async with self.open_store() as store:

            async def create(body: bytes) -> None:
                try:
                    await store.put_if_absent("commits/1", [body[:1], body[1:]])
                except ObjectExistsError:
                    losers.append(body)
                else:
                    winners.append(body)

            async with anyio.create_task_group() as tasks:
                for number in range(16):
                    tasks.start_soon(create, bytes([number]) * 1000)
            assert (len(winners), len(losers)) == (1, 15)
            assert await store.get("commits/1") == winners[0]

    async def test_lists_more_than_the_place_tells_at_once(self) -> None:
        """A listing is complete, however many requests it takes."""
        self._needs(Capability.LIST)
        keys = [f"object/{number:06d}" for number in range(self.list_page_objects + 20)]
        async with self.open_store() as store:
            for first in range(0, len(keys), 50):
                async with anyio.create_task_group() as tasks:
                    for key in keys[first : first + 50]:
                        tasks.start_soon(store.put, key, [b"x"])
            assert await keys_of(store, "object/") == keys

    async def test_a_listing_may_be_left_early_and_outlives_changes(self) -> None:
        """A caller may stop a listing early, and objects that come and go meanwhile do not affect the others."""
        self._needs(Capability.LIST)
        keys = [f"object/{number:03d}" for number in range(20)]
        async with self.open_store() as store:
            for key in keys:
                await store.put(key, [b"x"])
            async for info in store.list("object/"):
                assert info.key == keys[0]
                break
            listed: list[str] = []
            async for info in store.list("object/"):
                listed.append(info.key)
                await store.delete("object/010")
                await store.put("object/new", [b"x"])
            changed = {"object/010", "object/new"}
            assert [key for key in listed if key not in changed] == [key for key in keys if key not in changed]
