"""Stores that break the contract in one way each. The one that keeps it is the library's own, in memory."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import anyio
import anyio.lowlevel

from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.errors import ObjectExistsError, ObjectNotFoundError
from statebackend.objectstore import MemoryStore
from statebackend.testing import ObjectStoreConformance


class ClaimsMore(MemoryStore):
    @property
    def capabilities(self):
        return frozenset(Capability)


class AcknowledgesEarly(MemoryStore):
    """The last put becomes visible with the next one."""

    waiting: tuple[str, list[bytes]] | None = None

    async def put(self, key, body):
        if self.waiting is not None:
            await super().put(*self.waiting)
        self.waiting = key, [bytes(chunk) for chunk in body]


class KeepsTheCallersBuffers(MemoryStore):
    def __init__(self):
        super().__init__()
        self.bodies: dict[str, Body] = {}

    async def put(self, key, body):
        await super().put(key, body)
        self.bodies[key] = body

    async def get(self, key):
        await super().get(key)
        return b"".join(self.bodies[key])


class CountsItemsForBytes(MemoryStore):
    async def put(self, key, body):
        await super().put(key, [b"".join(bytes(chunk[: len(chunk)])[: len(chunk)] for chunk in body)])


class AppendsToWhatIsThere(MemoryStore):
    """A shorter object leaves the end of a longer one behind it."""

    async def put(self, key, body):
        old = await super().get(key) if await self.head(key) is not None else b""
        new = b"".join(body)
        await super().put(key, [new, old[len(new) :]])


class WritesChunkByChunk(MemoryStore):
    async def put(self, key, body):
        for end in range(len(body) + 1):
            await super().put(key, body[:end])


class DeletesBeforeItPuts(MemoryStore):
    async def put(self, key, body):
        await self.delete(key)
        await super().put(key, body)


class CopiesByReference(MemoryStore):
    """A copy is a second name: it changes with its source, and goes with it."""

    def __init__(self):
        super().__init__()
        self.sources: dict[str, str] = {}

    async def copy_from(self, source, source_key, key, size_bytes):
        self.sources[key] = source_key
        return await super().copy_from(source, source_key, key, size_bytes)

    async def get(self, key):
        return await super().get(self.sources.get(key, key))


class RangeIncludesItsEnd(MemoryStore):
    async def get_range(self, key, offset, length):
        return await super().get_range(key, offset, length + 1)


class RangeBeyondTheEndRaises(MemoryStore):
    async def get_range(self, key, offset, length):
        if offset >= len(await self.get(key)):
            raise ValueError("not satisfiable")
        return await super().get_range(key, offset, length)


class MissingIsEmpty(MemoryStore):
    async def get(self, key):
        try:
            return await super().get(key)
        except ObjectNotFoundError:
            return b""


class MissingIsAKeyError(MemoryStore):
    async def get(self, key):
        try:
            return await super().get(key)
        except ObjectNotFoundError:
            raise KeyError(key) from None


class HeadRaises(MemoryStore):
    async def head(self, key):
        info = await super().head(key)
        if info is None:
            raise ObjectNotFoundError("no object at that key", key=key)
        return info


class DeletesOnce(MemoryStore):
    async def delete(self, key):
        if await self.head(key) is None:
            raise ObjectNotFoundError("no object at that key", key=key)
        await super().delete(key)


class DeletesByPrefix(MemoryStore):
    async def delete(self, key):
        for found in [info.key async for info in self.list(key)]:
            await super().delete(found)


class DeletesManyUntilOneIsNotThere(MemoryStore):
    async def delete_many(self, keys):
        for key in keys:
            if await self.head(key) is None:
                return
            await super().delete(key)


class IgnoresCase(MemoryStore):
    async def put(self, key, body):
        await super().put(key.lower(), body)

    async def get(self, key):
        return await super().get(key.lower())


class UnquotesKeys(MemoryStore):
    """As a server does that takes a key out of a URL once too often."""

    async def put(self, key, body):
        await super().put(unquote(key.replace("+", " ")), body)

    async def get(self, key):
        return await super().get(unquote(key.replace("+", " ")))


class ListsInAnyOrder(MemoryStore):
    async def list(self, prefix):
        for info in [info async for info in super().list(prefix)][::-1]:
            yield info


class ListsByParts(MemoryStore):
    """In the order of a directory walk, where '/' comes before everything."""

    async def list(self, prefix):
        found = [info async for info in super().list(prefix)]
        for info in sorted(found, key=lambda info: info.key.split("/")):
            yield info


class ListsWholePartsOnly(MemoryStore):
    async def list(self, prefix):
        async for info in super().list(prefix):
            if not prefix or prefix.endswith("/"):
                yield info


class ListsOnePage(MemoryStore):
    async def list(self, prefix):
        for info in [info async for info in super().list(prefix)][:10]:
            yield info


class ListStumblesOverChanges(MemoryStore):
    async def list(self, prefix):
        for key in [info.key async for info in super().list(prefix)]:
            yield ObjectInfo(key, len(await self.get(key)), 0.0)


class Overwrites(MemoryStore):
    """As some servers do that know no conditional put, without a word."""

    async def put_if_absent(self, key, body):
        await self.put(key, body)


class LooksThenPuts(MemoryStore):
    async def put_if_absent(self, key, body):
        if await self.head(key) is not None:
            raise ObjectExistsError("there is an object at that key already", key=key)
        await self.put(key, body)


class TakesEqualForMine(MemoryStore):
    async def put_if_absent(self, key, body):
        try:
            await super().put_if_absent(key, body)
        except ObjectExistsError:
            if await self.get(key) != b"".join(body):
                raise


class RemembersWhatItMade(MemoryStore):
    """And not what `put` or `delete` did."""

    def __init__(self):
        super().__init__()
        self.made: set[str] = set()

    async def put_if_absent(self, key, body):
        if key in self.made:
            raise ObjectExistsError("there is an object at that key already", key=key)
        self.made.add(key)
        await self.put(key, body)


class MakesRoomFirst(MemoryStore):
    """Creates the object empty, to be the one that wins, and fills it then."""

    async def put_if_absent(self, key, body):
        await super().put_if_absent(key, [])
        await self.put(key, body)


class CachesForItself(MemoryStore):
    """What comes by another way to the same place, it does not see."""

    def __init__(self, place: MemoryStore | None = None) -> None:
        super().__init__()
        self.place = place or MemoryStore()
        self.cache: dict[str, bytes] = {}

    async def put(self, key, body):
        await self.place.put(key, body)
        self.cache[key] = b"".join(body)

    async def get(self, key):
        if key not in self.cache:
            self.cache[key] = await self.place.get(key)
        return self.cache[key]


class WritesBehind(MemoryStore):
    """Sends what it was given when it is asked for the next thing, and answers as if it had done so at once."""

    def __init__(self, place: MemoryStore | None = None) -> None:
        super().__init__()
        self.place = place or MemoryStore()

    async def put(self, key, body):
        if await self.head(key) is not None:
            await self.place.put(key, [await super().get(key)])
        await super().put(key, body)


class CreatesForItself(CachesForItself):
    """Asks its own memory whether there is an object, and no one else."""

    async def put_if_absent(self, key, body):
        if key in self.cache:
            raise ObjectExistsError("there is an object at that key already", key=key)
        await self.put(key, body)


class RefusesOddPrefixes(MemoryStore):
    """As one does that takes a prefix for a path."""

    async def list(self, prefix):
        if ".." in prefix.split("/"):
            raise ValueError(prefix)
        async for info in super().list(prefix):
            yield info


class WritesAfterACancellation(MemoryStore):
    """As a thread does, or a request, that nobody waits for any more."""

    async def put(self, key, body):
        try:
            await super().put(key, body)
        except anyio.get_cancelled_exc_class():
            _later(self._objects.__setitem__, key, self._entry(key, body))
            raise


class CreatesAfterACancellation(MemoryStore):
    async def put_if_absent(self, key, body):
        try:
            await super().put_if_absent(key, body)
        except anyio.get_cancelled_exc_class():
            _later(self._objects.setdefault, key, self._entry(key, body))
            raise


class DeletesAfterACancellation(MemoryStore):
    async def delete(self, key):
        try:
            await super().delete(key)
        except anyio.get_cancelled_exc_class():
            _later(self._objects.pop, key, None)
            raise


class TellsNoTime(MemoryStore):
    def _entry(self, key, body):
        data, info = super()._entry(key, body)
        return data, ObjectInfo(key, info.size_bytes, 0.0)


class TellsMilliseconds(MemoryStore):
    def _entry(self, key, body):
        data, info = super()._entry(key, body)
        return data, ObjectInfo(key, info.size_bytes, info.modified_s * 1000)


class ListsNoTime(MemoryStore):
    async def list(self, prefix):
        async for info in super().list(prefix):
            yield ObjectInfo(info.key, info.size_bytes, 0.0)


class RemembersWhatWasNotThere(MemoryStore):
    """Until it makes an object there itself."""

    def __init__(self, place: MemoryStore | None = None) -> None:
        super().__init__()
        self.place = place or self
        self._objects = self.place._objects
        self.missing: set[str] = set()

    async def put(self, key, body):
        self.missing.discard(key)
        await super().put(key, body)

    async def head(self, key):
        info = None if key in self.missing else await super().head(key)
        if info is None:
            self.missing.add(key)
        return info


class RemembersThatItIsGone(RemembersWhatWasNotThere):
    """For ever, whoever puts an object there."""

    async def put(self, key, body):
        await MemoryStore.put(self, key, body)


class GetsWhatItLookedAt(MemoryStore):
    """`head` reads the object, for the `get` that is to come."""

    def __init__(self):
        super().__init__()
        self.read_ahead: dict[str, bytes] = {}

    async def head(self, key):
        info = await super().head(key)
        if info is not None:
            self.read_ahead[key] = await super().get(key)
        return info

    async def get(self, key):
        found = self.read_ahead.pop(key, None)
        return await super().get(key) if found is None else found


class SleepsOnTheLoop(MemoryStore):
    """Waits for a server, as a client does that was not made for a loop."""

    async def get(self, key):
        time.sleep(0.001)  # noqa: ASYNC251  # that is the bug
        return await super().get(key)


class ReadsFilesOnTheLoop(MemoryStore):
    async def head(self, key):
        with Path(__file__).open("rb"):  # noqa: ASYNC230  # as above
            return await super().head(key)


class ConnectsOnTheLoop(MemoryStore):
    async def delete(self, key):
        with socket.socket() as connection, suppress(OSError):
            connection.connect(("127.0.0.1", 1))
        await super().delete(key)


class ReadsSocketsOnTheLoop(MemoryStore):
    async def get_range(self, key, offset, length):
        server, client = socket.socketpair()
        with server, client:
            server.sendall(b"x")
            client.recv(1)
        return await super().get_range(key, offset, length)


class OpensApart(MemoryStore):
    """In memory all loops share it: this one is right."""

    @asynccontextmanager
    async def apart(self):
        yield self


class IsApartAsItWas(OpensApart):
    """As a client does that has listed the objects, or a replica that is behind."""

    first = None

    @asynccontextmanager
    async def apart(self):
        if self.first is None:
            self.first = MemoryStore()
            self.first._objects = dict(self._objects)
        yield self.first


class WaitsForItsOwnLoop(OpensApart):
    """Whoever waits there for a look-up waits for ever."""

    patience_s = 0.1

    async def put(self, key, body):
        self.loop = asyncio.get_running_loop()
        await super().put(key, body)

    async def get(self, key):
        if asyncio.get_running_loop() is not self.loop:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(anyio.lowlevel.checkpoint(), self.loop))
        return await super().get(key)


class HasOnePlaceForAllApart(OpensApart):
    """A file that is sought in, and then read."""

    async def get_range(self, key, offset, length):
        self.at = offset
        await anyio.lowlevel.checkpoint()
        return await super().get_range(key, self.at, length)


class EndsWithWhatWasApart(OpensApart):
    @asynccontextmanager
    async def apart(self):
        try:
            yield self
        finally:
            self._objects.clear()


def _later(function, *args):
    asyncio.get_running_loop().call_later(0.01, function, *args)


def kit_of(store: type[MemoryStore]) -> type[ObjectStoreConformance]:
    """The kit for one of these."""

    class Kit(ObjectStoreConformance):
        capabilities = frozenset({Capability.LIST, Capability.PUT_IF_ABSENT})
        patience_s = getattr(store, "patience_s", ObjectStoreConformance.patience_s)

        @asynccontextmanager
        async def open_store(self) -> AsyncGenerator[MemoryStore]:
            await anyio.lowlevel.checkpoint()
            yield store()

        @asynccontextmanager
        async def open_other(self, store) -> AsyncGenerator[MemoryStore]:
            await anyio.lowlevel.checkpoint()
            yield type(store)(store.place) if hasattr(store, "place") else store

    return Kit
