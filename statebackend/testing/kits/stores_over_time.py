"""The part of `ObjectStoreConformance` that is about time: what a call leaves behind, and what the next one sees."""

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal

import anyio
import pytest

from statebackend._log.sweeping.retention import CLOCK_SKEW_MAX_S
from statebackend.abc import Capability, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import ObjectExistsError, ObjectNotFoundError
from statebackend.testing.kits.blocking import blocking_calls
from statebackend.testing.kits.cancellation import TURNS
from statebackend.testing.kits.store_under_test import StoreUnderTest, content_of, keys_of

Look = Literal["head", "get", "get_range", "list"]
LOOKS: Final[tuple[Look, ...]] = ("head", "get", "get_range", "list")
CHANGES: Final = (b"first", b"the second, which is longer", None, b"3rd", None)
"""The contents of a key, one after the other: `None` is no object."""


class StoreOverTime(StoreUnderTest):
    """Cancelled calls, times, other processes, and calls that must not remember what they have seen."""

    @pytest.mark.parametrize("former", [None, b"former" * 10_000], ids=["new", "replacing"])
    async def test_a_cancelled_put_leaves_a_whole_object_or_none(self, former: bytes | None) -> None:
        """After a cancelled put the object is the former or the new one, and the key can be used again."""
        body = [bytes([number]) * 5_000 for number in range(20)]
        async with self.open_store() as store:
            for count in TURNS:
                await store.delete("object")
                if former is not None:
                    await store.put("object", [former])
                await self._cancelled(partial(store.put, "object", body), count)
                assert await content_of(store, "object") in (former, b"".join(body))
                await store.put("object", [b"again"])
                assert await store.get("object") == b"again"

    async def test_a_cancelled_put_if_absent_leaves_a_whole_object_or_none(self) -> None:
        """An object that existed before stays as it is."""
        self._needs(Capability.PUT_IF_ABSENT)
        body = [bytes([number]) * 5_000 for number in range(20)]
        async with self.open_store() as store:
            await store.put_if_absent("commits/taken", [b"first"])
            for count in TURNS:
                key = f"commits/{count}"
                await self._cancelled(partial(store.put_if_absent, key, body), count)
                assert await content_of(store, key) in (None, b"".join(body))
                await self._cancelled(partial(store.put_if_absent, "commits/taken", body), count)
                assert await store.get("commits/taken") == b"first"

    @pytest.mark.parametrize("operation", ["put", "put_if_absent", "delete"])
    async def test_a_cancelled_call_has_no_effect_after_it_has_returned(self, operation: str) -> None:
        """The key keeps the object that it has then, or none, or the one that a later call puts there.

        A commit that appears after its writer was told that there is none is applied twice.
        """
        if operation == "put_if_absent":
            self._needs(Capability.PUT_IF_ABSENT)
        left: dict[str, bytes | None] = {}
        async with self.open_store() as store:
            for count, put_again in itertools.product(TURNS, (False, True)):
                key = f"object/{count}/{'again' if put_again else 'once'}"
                calls: dict[str, Callable[[], Awaitable[None]]] = {
                    "put": partial(store.put, key, [b"cancelled"]),
                    "put_if_absent": partial(store.put_if_absent, key, [b"cancelled"]),
                    "delete": partial(store.delete, key),
                }
                if operation == "delete":
                    await store.put(key, [b"first"])
                await self._cancelled(calls[operation], count)
                if put_again:
                    await store.put(key, [b"again"])
                left[key] = await content_of(store, key)
            await anyio.sleep(self.late_s)
            assert {key: await content_of(store, key) for key in left} == left

    async def test_reads_remember_nothing(self) -> None:
        """Whatever was read of a key before, or found missing, any read after a change shows what is there now."""
        async with self.open_store() as store:
            await self._remember_nothing(store, store)

    async def test_reads_remember_nothing_that_others_change(self) -> None:
        """Another process finds the end of the log by asking for the next entry, until there is one."""
        self._needs_other()
        async with self.open_store() as store, self.open_other(store) as other:
            await self._remember_nothing(store, other)

    async def test_tells_when_an_object_was_stored(self) -> None:
        """In seconds since the epoch, by a clock that may be wrong by a day: a sweep goes by it."""
        async with self.open_store() as store:
            for key in ("object", "object"):
                await store.put(key, [b"x"])
            infos = [await store.head("object")]
            if Capability.LIST in self.capabilities:
                infos += [info async for info in store.list("")]
            now_s = SystemClock().time()
            assert all(info is not None and abs(info.modified_s - now_s) < CLOCK_SKEW_MAX_S for info in infos), infos

    async def test_does_not_block_the_loop(self) -> None:
        """No call sleeps, connects or handles files in the thread of the loop, where all other calls wait for it.

        Seen are calls from Python, and not what an extension module does by itself.
        """
        async with self.open_store() as store:
            await self._call_everything(store)  # the first time, modules may be imported
            with blocking_calls() as found:
                await self._call_everything(store)
            assert found == []

    async def test_others_find_at_once_what_was_acknowledged(self) -> None:
        """After a call has returned, every client sees its effect."""
        self._needs_other()
        async with self.open_store() as store, self.open_other(store) as other:
            await store.put("object", [b"first"])
            assert await other.get("object") == b"first"
            await store.put("object", [b"second"])
            assert await other.get("object") == b"second"
            if Capability.LIST in self.capabilities:
                assert await keys_of(other, "") == ["object"]
            await store.delete("object")
            assert await other.head("object") is None

    async def test_others_respect_what_put_if_absent_made(self) -> None:
        """There is one winner among all processes, whether they come one after the other or at the same time."""
        self._needs(Capability.PUT_IF_ABSENT)
        self._needs_other()
        won: list[bytes] = []
        async with self.open_store() as store, self.open_other(store) as other:

            async def create(by: ObjectStore, key: str, body: bytes) -> None:
                try:
                    await by.put_if_absent(key, [body])
                except ObjectExistsError:
                    return
                won.append(body)

            await create(store, "commits/0", b"first")
            await create(other, "commits/0", b"second")
            assert won == [b"first"]
            for number in range(1, 9):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(create, store, f"commits/{number}", b"one %d" % number)
                    tasks.start_soon(create, other, f"commits/{number}", b"other %d" % number)
            assert won[1:] == [await store.get(f"commits/{number}") for number in range(1, 9)]

    async def _remember_nothing(self, writer: ObjectStore, reader: ObjectStore) -> None:
        """Each kind of read before a change, and each kind after it: any of them may fill or empty a cache."""
        looks = LOOKS if Capability.LIST in self.capabilities else LOOKS[:3]
        for before, after in itertools.product(looks, looks):
            key, former = f"object/{before}-{after}", None
            for content in CHANGES:
                assert await _seen(reader, key, before) == _expected(former, before)
                if content is None:
                    await writer.delete(key)
                else:
                    await writer.put(key, [content])
                assert await _seen(reader, key, after) == _expected(content, after), f"{before}, a change, {after}"
                former = content

    async def _call_everything(self, store: ObjectStore) -> None:
        for _ in range(2):
            await store.put("object", [b"x" * 100_000])
            await store.get("object")
            await store.get_range("object", 1, 2)
            await store.head("object")
            if Capability.LIST in self.capabilities:
                await keys_of(store, "")
            if Capability.PUT_IF_ABSENT in self.capabilities:
                with suppress(ObjectExistsError):
                    await store.put_if_absent("created", [b"x"])
            await store.delete("object")


async def _seen(store: ObjectStore, key: str, look: Look) -> bytes | int | None:
    """The object, or its size, as one kind of read shows it; `None` if there is none."""
    match look:
        case "head":
            info = await store.head(key)
            return None if info is None else info.size_bytes
        case "list":
            return next(iter([info.size_bytes async for info in store.list(key)]), None)
        case "get":
            return await content_of(store, key)
        case "get_range":
            try:
                return await store.get_range(key, 1, 1000)
            except ObjectNotFoundError:
                return None


def _expected(content: bytes | None, look: Look) -> bytes | int | None:
    if content is None or look == "get":
        return content
    return content[1:] if look == "get_range" else len(content)
