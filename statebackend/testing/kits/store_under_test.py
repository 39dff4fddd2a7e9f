"""Describes a store to the tests of `ObjectStoreConformance`: what it can do, and how it is opened."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import ClassVar

import pytest

from statebackend.abc import Capability, ObjectStore
from statebackend.errors import ObjectExistsError, ObjectNotFoundError
from statebackend.testing.kits.cancellation import cancelled, turns


class StoreUnderTest(ABC):
    """The description of a store to its kit. It has no tests."""

    capabilities: ClassVar[frozenset[Capability]]
    """The capabilities of the store, beyond what every store can do."""

    list_page_objects: ClassVar[int] = 0
    """Objects per page of a listing, such as 1000: listings are tested with more than that."""

    patience_s: ClassVar[float] = 5.0
    """Seconds within which a cancelled call has to end."""

    late_s: ClassVar[float] = 0.05
    """Seconds after which what a cancelled call has left running would have taken effect."""

    @abstractmethod
    def open_store(self) -> AbstractAsyncContextManager[ObjectStore]:
        """Open an empty store. Each test calls it once."""

    def open_other(self, store: ObjectStore) -> AbstractAsyncContextManager[ObjectStore]:
        """Open another way to the objects of `store`, as another process would.

        It shares nothing with `store`: no buffer, no cache, no connection. Without an override the tests that need
        another way are skipped.
        """
        raise NotImplementedError

    async def _cancelled(self, call: Callable[[], Awaitable[None]], count: int) -> None:
        with suppress(ObjectExistsError):
            await cancelled(call, how="scope", after=partial(turns, count), patience_s=self.patience_s)

    def _needs_other(self) -> None:
        if type(self).open_other is StoreUnderTest.open_other:
            pytest.skip("there is no other way to the objects of this store")

    def _needs(self, capability: Capability) -> None:
        if capability not in self.capabilities:
            pytest.skip(f"the store does not declare {capability}")


async def keys_of(store: ObjectStore, prefix: str) -> Sequence[str]:
    """The keys that the store lists."""
    return [info.key async for info in store.list(prefix)]


async def content_of(store: ObjectStore, key: str) -> bytes | None:
    """The object, or `None` if there is none."""
    try:
        return await store.get(key)
    except ObjectNotFoundError:
        return None
