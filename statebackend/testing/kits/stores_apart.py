"""The part of `ObjectStoreConformance` for a store with `apart`: the same objects, for another event loop.

While that loop reads, the loop of the store itself may stand still: look-ups block their caller, and it may be the one.
So everything that these tests ask of the store that was opened apart they ask in a thread, and wait for it.
"""

import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

from statebackend.abc import ObjectStore, OpensApart
from statebackend.errors import ObjectNotFoundError
from statebackend.testing.kits.store_under_test import StoreUnderTest

RANGES_AT_ONCE = 64


class StoreApart(StoreUnderTest):
    """Skipped for stores without `apart`."""

    async def test_what_was_put_is_there_apart(self) -> None:
        """Whole objects and ranges, cut off at the end of the object, put before it was opened apart or after that."""
        async with self.open_store() as store:
            await store.put("before", [b"0123456789"])

            async def read(apart: ObjectStore) -> None:
                assert await apart.get("before") == b"0123456789"
                assert await apart.get_range("before", 3, 4) == b"3456"
                assert await apart.get_range("before", 8, 10) == b"89"
                assert await apart.get_range("before", 99, 5) == b""
                with pytest.raises(ObjectNotFoundError):
                    await apart.get("after")
                with pytest.raises(ObjectNotFoundError):
                    await apart.get_range("after", 0, 1)

            self._apart(store, read)
            await store.put("after", [b"later"])

            async def read_later(apart: ObjectStore) -> None:
                assert await apart.get("after") == b"later"

            self._apart(store, read_later)

    async def test_many_ranges_are_read_apart_at_once(self) -> None:
        """Each gets its own bytes."""
        async with self.open_store() as store:
            body = b"".join(number.to_bytes(4, "big") for number in range(10_000))
            await store.put("object", [body])

            async def read(apart: ObjectStore) -> None:
                async def check(offset: int) -> None:
                    assert await apart.get_range("object", offset, 400) == body[offset : offset + 400]

                async with anyio.create_task_group() as tasks:
                    for number in range(RANGES_AT_ONCE):
                        tasks.start_soon(check, 601 * number)

            self._apart(store, read)

    async def test_a_store_outlives_what_was_opened_apart(self) -> None:
        """Leaving its context closes nothing of the store itself."""
        async with self.open_store() as store:
            await store.put("object", [b"content"])

            async def look(apart: ObjectStore) -> None:
                assert await apart.head("object") is not None

            self._apart(store, look)
            assert await store.get("object") == b"content"
            await store.put("object", [b"again"])

            async def read(apart: ObjectStore) -> None:
                assert await apart.get("object") == b"again"

            self._apart(store, read)
            assert await store.get("object") == b"again"

    def _apart(self, store: ObjectStore, work: Callable[[ObjectStore], Awaitable[None]]) -> None:
        """Open it in a loop of another thread, and `work` on it, while this loop waits. Raises what that raises."""
        if not isinstance(store, OpensApart):
            pytest.skip("the store cannot be opened apart")
        raised: list[BaseException] = []

        async def opened() -> None:
            async with store.apart() as apart:
                await work(apart)

        def run() -> None:
            try:
                anyio.run(opened)
            except BaseException as error:  # noqa: BLE001  # raised below
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)  # one that hangs must not keep the process
        thread.start()
        thread.join(self.patience_s)
        assert not thread.is_alive(), "what was opened apart waits for the loop of the store"
        for error in raised:
            raise error
