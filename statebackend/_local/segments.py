"""The local copies of segments: one object store over the stores of all local roots."""

import logging
import math
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

import anyio

from statebackend._local.budget import ByteBudget
from statebackend._once import OnceLog, reason_of
from statebackend.abc import Body, Capability, ObjectInfo, ObjectStore
from statebackend.errors import InputError, StoreAccessError, StoreError, StoreUnavailableError

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@runtime_checkable
class GetsMany(Protocol):
    """A store that reads several small objects for the price of one."""

    async def get_many(self, keys: Sequence[str]) -> Sequence[bytes | StoreError]:
        """Return what `get` would return or raise for each key."""
        ...


@runtime_checkable
class OpensCopies(Protocol):
    """A store whose objects are files."""

    async def open_copy(self, key: str, open_: Callable[[Path], T]) -> T:
        """Call `open_` with the path of the object's file, in a thread."""
        ...


class LocalSegments:
    """An `ObjectStore` over `stores`, one for each local root. A key always lies in the same root.

    `owned` says which roots this backend may change, all by default. It may read the others; writing there raises
    `StoreAccessError`. After the number of roots has changed, keys lie elsewhere: a copy in its old root counts as
    missing, which costs a read of the primary, and `prune` removes it.

    `bytes_max` limits the bytes in one root, 0 for no limit. A put that would exceed it, together with those under way,
    raises `StoreUnavailableError` and writes nothing. `take_stock` counts what is there at the start.

    `read_timeout_s` bounds `get`, `get_range`, `repair`, and `get_many` in each root: one that takes longer raises
    `StoreUnavailableError` with the message "slow", and from then on they do so at once for that root. It bounds
    `take_stock` and each step of `prune` too: a root that cannot be listed in time is no longer used. Nor are those
    whose indexes are in `hanging`, from the start. Reading and writing an unused root raises `StoreUnavailableError`.
    """

    def __init__(
        self,
        stores: Sequence[ObjectStore],
        *,
        owned: Sequence[bool] | None = None,
        bytes_max: int = 0,
        read_timeout_s: float = math.inf,
        hanging: Collection[int] = (),
    ) -> None:
        self._stores = tuple(stores)
        self._owned = (True,) * len(self._stores) if owned is None else tuple(owned)
        self._read_timeout_s = read_timeout_s
        self._hanging = set(hanging)
        self._slow = set(hanging)
        self.given_up: Final = OnceLog(_logger)
        """For those who write copies, and remove them: what a root does to each copy is logged once."""
        self._budgets = [ByteBudget(bytes_max) for _ in self._stores]
        assert len(self._owned) == len(self._stores) > 0

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that all of the stores have."""
        return frozenset(able for able in Capability if all(able in store.capabilities for store in self._stores))

    @property
    def held_bytes(self) -> Sequence[int]:
        """Bytes in each root, including those being written; 0 for a root that is not owned."""
        return [budget.held_bytes for budget in self._budgets]

    def expects(self, key: str) -> bool:
        """False if there was no copy of this key when its root was counted, nor written since."""
        budget = self._budgets[self.root_of(key)]
        return not budget.counted or key in budget.keys

    def set_apart(self, root: int, size_bytes: int) -> None:
        """Count `size_bytes` of RocksDB bases against the `bytes_max` of a root."""
        self._budgets[root].apart_bytes = size_bytes

    async def put(self, key: str, body: Body) -> None:
        await self._write(key, body, self._writable(key).put)

    async def put_if_absent(self, key: str, body: Body) -> None:
        await self._write(key, body, self._writable(key).put_if_absent)

    async def get(self, key: str) -> bytes:
        return await self._in_time(key, lambda: self._store(key).get(key))

    async def get_many(self, keys: Sequence[str]) -> Sequence[bytes | StoreError]:
        """Return what `get` would return or raise for each key, by one call for each root. For small copies."""
        of_roots: dict[int, list[str]] = {}
        for key in keys:
            of_roots.setdefault(self.root_of(key), []).append(key)
        found: dict[str, bytes | StoreError] = {}
        for root, own in of_roots.items():
            try:
                contents = await self._in_time(own[0], partial(_get_many, self._stores[root], own))
            except StoreError as error:
                contents = [error] * len(own)
            found |= zip(own, contents, strict=True)
        return [found[key] for key in keys]

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return await self._in_time(key, lambda: self._store(key).get_range(key, offset, length))

    async def open_copy(self, key: str, open_: Callable[[Path], T]) -> T:
        """Call `open_` with the path of a copy, in a thread. Raises as `get`; also where copies are no files."""
        store = self._store(key)
        if not isinstance(store, OpensCopies):
            raise StoreUnavailableError("the local copies are no files", key=key)
        return await self._in_time(key, lambda: store.open_copy(key, open_))

    async def repair(self, key: str, body: Body) -> None:
        """Like `put`, but bounded in time: called by a restore that has found a copy missing or bad."""
        await self._in_time(key, lambda: self.put(key, body))

    async def head(self, key: str) -> ObjectInfo | None:
        return await self._store(key).head(key)

    async def delete(self, key: str) -> None:
        await self._writable(key).delete(key)
        self._budgets[self.root_of(key)].deleted(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects that `get` would find, in the order of their keys."""
        found = [
            info
            for index, store in enumerate(self._stores)
            async for info in store.list(prefix)
            if self.root_of(info.key) == index
        ]
        for info in sorted(found, key=lambda info: info.key):
            yield info

    async def take_stock(self) -> None:
        """Count the bytes in the owned roots. Called once by the owner, before anything is written.

        Best effort: an error is logged, and then a root with a limit takes no copies. A root that hangs takes none at
        all.
        """
        for index, owned in enumerate(self._owned):
            if owned and index not in self._hanging:
                await self._count(index)

    async def prune(
        self,
        keep: Collection[str],
        *,
        spare: Callable[[str], bool] = lambda _: False,
        is_ours: Callable[[str], bool] = lambda _: True,
    ) -> int:
        """Delete every copy that is neither in `keep` nor to `spare`, or lies in the wrong root; say how many.

        Only copies whose key `is_ours`: other files that lie there are not touched.

        Called once by the owner, after the restore and before the first upload: a copy that is not needed then was left
        by a process that was killed. Best effort: errors are logged. Roots that are not owned stay as they are. A
        cancelled call has deleted some of the copies.
        """
        return sum(
            [await self._prune_root(index, keep, spare, is_ours) for index, owned in enumerate(self._owned) if owned]
        )

    async def remove_some(self, choose: Callable[[Collection[str]], Collection[str]]) -> int:
        """Delete the copies that `choose` picks from all keys in the roots by now. Return how many were deleted.

        For roots that several processes share without knowing of each other. Best effort, as `prune`.
        """
        for index in range(len(self._stores)):
            if index not in self._slow:
                await self._count(index)
        unwanted = choose({key for budget in self._budgets for key in budget.keys})
        return sum(
            [
                await self._remove(index, [key for key in budget.keys if key in unwanted])
                for index, budget in enumerate(self._budgets)
                if index not in self._slow
            ]
        )

    async def _prune_root(
        self, index: int, keep: Collection[str], spare: Callable[[str], bool], is_ours: Callable[[str], bool]
    ) -> int:
        budget = self._budgets[index]
        if index in self._slow:
            return 0
        if not budget.counted:
            await self._count(index)
        unwanted = [key for key in budget.keys if not (key in keep or spare(key)) or self.root_of(key) != index]
        return await self._remove(index, list(filter(is_ours, unwanted)))

    async def _remove(self, index: int, keys: Collection[str]) -> int:
        budget, removed = self._budgets[index], 0
        try:
            for key in sorted(keys):
                with anyio.fail_after(self._read_timeout_s):
                    await self._stores[index].delete(key)
                budget.deleted(key)
                removed += 1
        except OSError as error:  # a `TimeoutError` is one
            _logger.warning("could not prune the local copies of one root: root=%d reason=%r", index, error)
        return removed

    async def _count(self, index: int) -> None:
        try:
            with anyio.move_on_after(self._read_timeout_s) as bounded:
                self._budgets[index].found({info.key: info.size_bytes async for info in self._stores[index].list("")})
        except OSError as error:
            message = "could not list the local copies of one root: root=%d reason=%s"
            self.given_up.warning(("list", index), reason_of(error), message, index, error)  # `prune` lists again
            return
        if bounded.cancelled_caught:
            _logger.warning("a local root hangs, and is not used any more: root=%d", index)
            self._hanging.add(index)
            self._slow.add(index)

    async def _write(self, key: str, body: Body, write: Callable[[str, Body], Awaitable[None]]) -> None:
        budget = self._budgets[self.root_of(key)]
        size_bytes = sum(memoryview(chunk).nbytes for chunk in body)
        budget.begin(key, size_bytes)
        try:
            await write(key, body)
        except InputError as error:
            # The primary took this key, so the key is fine: the directory is not as we made it.
            raise StoreAccessError("the local root does not take this key", key=key, reason=str(error)) from error
        budget.stored(key, size_bytes)

    async def _in_time(self, key: str, call: Callable[[], Awaitable[T]]) -> T:
        root = self.root_of(key)
        if root not in self._slow:
            with anyio.move_on_after(self._read_timeout_s):
                return await call()
            self._slow.add(root)
            _logger.warning("a local root is too slow to restore from: root=%d", root)
        raise StoreUnavailableError("slow")

    def root_of(self, key: str) -> int:
        """The index of the root that a key lies in."""
        return zlib.crc32(key.encode()) % len(self._stores)

    def _store(self, key: str) -> ObjectStore:
        return self._stores[self.root_of(key)]

    def _writable(self, key: str) -> ObjectStore:
        if not self._owned[self.root_of(key)]:
            raise StoreAccessError("this local root is only read: another backend owns it, or its disk fails", key=key)
        if self.root_of(key) in self._hanging:
            raise StoreUnavailableError("this local root hung when it was opened", key=key)
        return self._store(key)


async def _get_many(store: ObjectStore, keys: Sequence[str]) -> Sequence[bytes | StoreError]:
    if isinstance(store, GetsMany):
        return await store.get_many(keys)
    found: list[bytes | StoreError] = []
    for key in keys:
        try:
            found.append(await store.get(key))
        except StoreError as error:
            found.append(error)
    return found
