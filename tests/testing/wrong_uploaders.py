"""One uploader that keeps its contract, and many that break it in one way each. All keep two copies."""

import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from statebackend.abc import Body, Segment, UploadedSegment
from statebackend.errors import StoreUnavailableError
from statebackend.ids import Handle
from statebackend.objectstore import MemoryStore
from statebackend.testing import FaultyStore, UploaderConformance, UploaderUnderTest


class Right:
    """The primary's copy, then the local one."""

    remove_timeout_s = 0.02

    def __init__(self, primary: FaultyStore, local: FaultyStore, tasks: TaskGroup) -> None:
        self.primary = primary
        self.local = local
        self.tasks = tasks

    async def upload(self, segment: Segment) -> UploadedSegment:
        handle = self.handle(segment)
        try:
            await self.store(handle, segment.body)
            kept = await self.store_local(handle, segment.body)
        except BaseException:
            await self.clean_up(handle)
            raise
        return UploadedSegment(handle, handle if kept else None)

    async def discard(self, uploaded: UploadedSegment) -> None:
        await self.remove(uploaded.primary)

    def handle(self, segment: Segment) -> Handle:
        return Handle(f"segments/{segment.name}", 0, segment.size_bytes, segment.checksum)

    async def store(self, handle: Handle, body: Body) -> None:
        await self.primary.put(handle.key, body)

    async def store_local(self, handle: Handle, body: Body) -> bool:
        with suppress(Exception):
            await self.local.put(handle.key, body)
            return True
        with suppress(Exception):
            await self.local.delete(handle.key)
        return False

    async def clean_up(self, handle: Handle) -> None:
        await self.remove(handle)

    async def remove(self, handle: Handle) -> None:
        with anyio.move_on_after(self.remove_timeout_s, shield=True):
            for place in (self.primary, self.local):
                with suppress(Exception):
                    await place.delete(handle.key)


class Patient(Right):
    """The same, on a machine that is busy: it does remove what it can."""

    remove_timeout_s = 0.5


# -------------------------------------------------------------------------------------------- what is stored


class AcknowledgesEarly(Right):
    async def upload(self, segment):
        handle = self.handle(segment)
        self.tasks.start_soon(self.primary.put, handle.key, segment.body)
        await anyio.lowlevel.checkpoint()
        return UploadedSegment(handle)


class AcknowledgesThePrimaryEarly(Right):
    """But waits for the local copy."""

    async def store(self, handle, body):
        self.tasks.start_soon(self.primary.put, handle.key, body)


class ReturnsAtTheFirstCopy(Right):
    """Which may be the local one."""

    async def upload(self, segment):
        handle, done = self.handle(segment), anyio.Event()

        async def put(place):
            with suppress(OSError):
                await place.put(handle.key, segment.body)
            done.set()

        for place in (self.primary, self.local):
            self.tasks.start_soon(put, place)
        await done.wait()
        return UploadedSegment(handle, handle)


class DropsAllButTheFirstChunk(Right):
    async def store(self, handle, body):
        await self.primary.put(handle.key, body[:1])


class CutsTheEnd(Right):
    async def store(self, handle, body):
        await self.primary.put(handle.key, [b"".join(body)[:1_000_000]])


class WrongChecksum(Right):
    def handle(self, segment):
        return msgspec.structs.replace(super().handle(segment), checksum=zlib.adler32(b"".join(segment.body)))


class WrongLength(Right):
    """Counts items, which in a view may be larger than a byte."""

    def handle(self, segment):
        return msgspec.structs.replace(super().handle(segment), length=sum(len(chunk) for chunk in segment.body))


class AddsAHeader(Right):
    """And says so in the offset, which no restore looks at."""

    def handle(self, segment):
        return msgspec.structs.replace(super().handle(segment), offset=4)

    async def store(self, handle, body):
        await self.primary.put(handle.key, [b"mine", *body])


class SpoilsTheBody(Right):
    async def store(self, handle, body):
        await self.primary.put(handle.key, body)
        for chunk in body:
            if isinstance(chunk, bytearray):
                chunk[:] = bytes(len(chunk))


class OneAtATimeByMistake(Right):
    """Keeps the segment under way in an attribute."""

    async def upload(self, segment):
        self.segment = segment
        await anyio.lowlevel.checkpoint()
        return await super().upload(self.segment)


class NamesByContent(Right):
    def handle(self, segment):
        return msgspec.structs.replace(super().handle(segment), key=f"segments/{segment.checksum}")


class OneNameForAll(Right):
    def handle(self, segment):
        return msgspec.structs.replace(super().handle(segment), key="segments/current")


class SaysThatACopyWasDroppedAndKeepsIt(Right):
    async def upload(self, segment):
        return msgspec.structs.replace(await super().upload(segment), dropped="no room")


class GivesNoReasonForADroppedCopy(Right):
    async def upload(self, segment):
        uploaded = await super().upload(segment)
        return uploaded if uploaded.local else msgspec.structs.replace(uploaded, dropped="")


class ClaimsALocalCopy(Right):
    async def store_local(self, handle, body):
        with suppress(OSError):
            await self.local.put(handle.key, body)
        return True


class ClaimsALocalCopyTooEarly(Right):
    async def store_local(self, handle, body):
        self.tasks.start_soon(self.local.put, handle.key, body)
        return True


class NeverKeepsALocalCopy(Right):
    async def store_local(self, handle, body):
        return False


class LocalCopyElsewhere(Right):
    """Where no restore looks for it."""

    async def store_local(self, handle, body):
        return await super().store_local(msgspec.structs.replace(handle, key=f"copy-of/{handle.key}"), body)


# -------------------------------------------------------------------------------------------- discard


class DiscardsNothing(Right):
    async def discard(self, uploaded):
        pass


class DiscardForgetsTheLocalCopy(Right):
    async def discard(self, uploaded):
        await self.primary.delete(uploaded.primary.key)


class DiscardsByPrefix(Right):
    """What "starts with" the key, cut one short."""

    async def discard(self, uploaded):
        for place in (self.primary, self.local):
            for key in [info.key async for info in place.list(uploaded.primary.key[:-1])]:
                await place.delete(key)


class DiscardsOnce(Right):
    async def discard(self, uploaded):
        if await self.primary.head(uploaded.primary.key) is None:
            raise LookupError(uploaded.primary.key)
        await super().discard(uploaded)


class DiscardGivesUpHalfWay(Right):
    """Goes by the primary: once that is gone, the local copy is never looked for."""

    async def discard(self, uploaded):
        if await self.primary.head(uploaded.primary.key) is not None:
            for place in (self.primary, self.local):
                await place.delete(uploaded.primary.key)


# -------------------------------------------------------------------------------------------- trouble


class LeavesWhatFailed(Right):
    async def clean_up(self, handle):
        pass


class LeavesTheLocalCopyOfWhatFailed(Right):
    async def clean_up(self, handle):
        with suppress(OSError):
            await self.primary.delete(handle.key)


class CleansUpUnshielded(Right):
    """A cancelled call is cancelled again at the first thing it waits for."""

    async def clean_up(self, handle):
        for place in (self.primary, self.local):
            with suppress(OSError):
                await place.delete(handle.key)


class CleansUpForEver(Right):
    async def clean_up(self, handle):
        with anyio.CancelScope(shield=True), suppress(Exception), anyio.fail_after(2):
            await self.primary.delete(handle.key)
            await self.local.delete(handle.key)


class RaisesTheRemovalsError(Right):
    async def clean_up(self, handle):
        with anyio.CancelScope(shield=True):
            await self.primary.delete(handle.key)
            await self.local.delete(handle.key)


class RaisesAGroup(Right):
    async def store(self, handle, body):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.primary.put, handle.key, body)


class RaisesItsOwnError(Right):
    async def store(self, handle, body):
        try:
            await self.primary.put(handle.key, body)
        except OSError as error:
            raise RuntimeError("upload failed") from error


class SwallowsErrors(Right):
    async def store(self, handle, body):
        with suppress(Exception):
            await self.primary.put(handle.key, body)


class SwallowsCancellation(Right):
    async def store(self, handle, body):
        with suppress(anyio.get_cancelled_exc_class()):
            await self.primary.put(handle.key, body)


class IgnoresCancellation(Right):
    async def store(self, handle, body):
        with anyio.move_on_after(2, shield=True) as scope:
            await self.primary.put(handle.key, body)
        if scope.cancelled_caught:
            raise StoreUnavailableError("no answer")


class StaysLockedAfterAFailure(Right):
    busy = False

    async def upload(self, segment):
        if self.busy:
            raise StoreUnavailableError("busy")
        self.busy = True
        uploaded = await super().upload(segment)
        self.busy = False
        return uploaded


class NoUploader:
    """Has only half of it."""

    def __init__(self, *_):
        pass

    async def upload(self, segment):
        raise NotImplementedError


def kit_of(uploader: type[Right], *, patience_s: float) -> type[UploaderConformance]:
    """The kit for one of these."""
    patience = patience_s

    class Kit(UploaderConformance):
        keeps_local = True
        patience_s = patience

        @asynccontextmanager
        async def open_uploader(self) -> AsyncGenerator[UploaderUnderTest]:
            places = FaultyStore(MemoryStore()), FaultyStore(MemoryStore())
            async with anyio.create_task_group() as tasks:
                tested = uploader(*places, tasks)
                yield UploaderUnderTest(uploader=tested, primary=places[0], local=places[1], places=places)

    return Kit
