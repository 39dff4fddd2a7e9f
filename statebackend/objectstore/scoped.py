"""Two wrappers: a store below a prefix, and a store that counts its requests.

Also removes many objects from any store, in batches if it can, and copies an object from one store to another, by the
store itself if it can.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from statebackend._tasks import HomeProcess
from statebackend.abc import Body, Capability, CopiesObjects, CountsRequests, DeletesMany, ObjectInfo, ObjectStore


class ScopedStore:
    """The objects of a store whose keys begin with `prefix`, under their keys without it.

    Changed only by the process that made it: in a forked one every change raises `ForkedProcessError`.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.inside: Final = store
        self._store = store
        self._prefix = prefix
        self._home = HomeProcess()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store inside."""
        return self._store.capabilities

    async def put(self, key: str, body: Body) -> None:
        """As the store inside."""
        self._home.check()
        await self._store.put(self._prefix + key, body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """As the store inside."""
        self._home.check()
        await self._store.put_if_absent(self._prefix + key, body)

    async def get(self, key: str) -> bytes:
        """As the store inside."""
        return await self._store.get(self._prefix + key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """As the store inside."""
        return await self._store.get_range(self._prefix + key, offset, length)

    async def head(self, key: str) -> ObjectInfo | None:
        """As the store inside, with the key without the prefix."""
        info = await self._store.head(self._prefix + key)
        return None if info is None else self._inside(info)

    async def delete(self, key: str) -> None:
        """As the store inside."""
        self._home.check()
        await self._store.delete(self._prefix + key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        """As the store inside, or one by one."""
        self._home.check()
        await delete_many(self._store, [self._prefix + key for key in keys])

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """As the store inside, from the store inside of `source`; false if it cannot copy."""
        self._home.check()
        return await copy_object(source, source_key, self._store, self._prefix + key, size_bytes)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """As the store inside, with keys without the prefix."""
        async for info in self._store.list(self._prefix + prefix):
            yield self._inside(info)

    def name_inside(self, key: str) -> str:
        """The key in the store inside."""
        return self._prefix + key

    def _inside(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key.removeprefix(self._prefix), info.size_bytes, info.modified_s)


class CountingStore:
    """Counts the requests to a store, by the method of `ObjectStore` that has their price, and the bytes read."""

    def __init__(self, store: ObjectStore) -> None:
        self.inside: Final = store
        self._store = store
        self._calls = Counter[str]()
        self.bytes_read = 0
        self._before = Counter(store.priced_requests) if isinstance(store, CountsRequests) else Counter[str]()

    @property
    def requests(self) -> Counter[str]:
        """The requests since this was made, as the store counts them, or else one per call. A copy."""
        if isinstance(self._store, CountsRequests):
            return Counter(self._store.priced_requests) - self._before
        return self._calls.copy()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of the store inside."""
        return self._store.capabilities

    async def put(self, key: str, body: Body) -> None:
        """As the store inside."""
        self._calls["put"] += 1
        await self._store.put(key, body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """As the store inside."""
        self._calls["put_if_absent"] += 1
        await self._store.put_if_absent(key, body)

    async def get(self, key: str) -> bytes:
        """As the store inside."""
        self._calls["get"] += 1
        return self._read(await self._store.get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """As the store inside."""
        self._calls["get_range"] += 1
        return self._read(await self._store.get_range(key, offset, length))

    def _read(self, data: bytes) -> bytes:
        self.bytes_read += len(data)
        return data

    async def head(self, key: str) -> ObjectInfo | None:
        """As the store inside."""
        self._calls["head"] += 1
        return await self._store.head(key)

    async def delete(self, key: str) -> None:
        """As the store inside."""
        self._calls["delete"] += 1
        await self._store.delete(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        """As the store inside, or one by one. Counts as one request."""
        self._calls["delete_many"] += 1
        await delete_many(self._store, keys)

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """As the store inside; false if it cannot copy. Has the price of a `put`."""
        is_copied = await copy_object(source, source_key, self._store, key, size_bytes)
        self._calls["put"] += is_copied
        return is_copied

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """As the store inside."""
        self._calls["list"] += 1
        async for info in self._store.list(prefix):
            yield info


def deletes_many(store: ObjectStore) -> bool:
    """True if the store, or the one inside this module's wrappers, removes many objects in few requests."""
    while isinstance(store, ScopedStore | CountingStore):
        store = store.inside
    return isinstance(store, DeletesMany)


async def delete_many(store: ObjectStore, keys: Sequence[str]) -> None:
    """Remove the objects, in few requests if `store` can, else one after the other up to the first error.

    After a failed or cancelled call some of them are gone.
    """
    if isinstance(store, DeletesMany):
        await store.delete_many(keys)
    else:
        for key in keys:
            await store.delete(key)


async def copy_object(source: ObjectStore, source_key: str, target: ObjectStore, key: str, size_bytes: int) -> bool:
    """Copy an object within the stores, if `target` can take it from `source`: see `CopiesObjects.copy_from`."""
    while isinstance(source, ScopedStore | CountingStore):
        source_key = source.name_inside(source_key) if isinstance(source, ScopedStore) else source_key
        source = source.inside
    return isinstance(target, CopiesObjects) and await target.copy_from(source, source_key, key, size_bytes)
