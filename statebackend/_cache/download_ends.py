"""The two ends of a download: the primary, whose objects are verified, and a cached file for one reader."""

from collections.abc import Awaitable, Callable
from typing import Final

from statebackend._tasks import foreign
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.ids import Handle

Verify = Callable[[bytes, Handle], None]
"""Raises a `DataError` unless the bytes are exactly those that the handle points to. Runs in a worker thread."""


class VerifiedSource:
    """The primary, whose objects are verified when they are read."""

    def __init__(self, primary: ObjectStore, verify: Verify, threads: WorkerThreads) -> None:
        self._primary = primary
        self._verify = verify
        self._threads = threads

    async def get(self, handle: Handle) -> bytes:
        """The whole object. Raises what the primary raises, and what `check` does."""
        data = await foreign(self._primary.get(handle.key))
        await self.check(data, handle)
        return data

    async def check(self, data: bytes, handle: Handle) -> None:
        """Raise a `DataError` unless `data` is exactly what the handle points to."""
        await self._threads.cpu(self._verify, data, handle)


class FileReader:
    """A file of the cache, for one reader. It is not evicted before it is released."""

    def __init__(
        self,
        handle: Handle,
        *,
        read: Callable[[int, int], Awaitable[bytes]],
        condemn: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self.handle: Final = handle
        self._read = read
        self._condemn = condemn
        self._release = release
        self._released = False

    async def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes from `offset`, by default up to the end. A file is read by one reader at a time; others wait.

        Raises `InputError` for a part that is not within the file, or after the release; `CacheDiskError` where the
        file was damaged or removed by others, and then condemns it; `BackendClosedError` where the cache is closed.
        """
        if length is None:
            length = self.handle.length - offset
        if self._released or offset < 0 or length < 0 or offset + length > self.handle.length:
            raise InputError(
                "not within the file, or the file was released",
                object=self.handle.key,
                offset=offset,
                length=length,
                size=self.handle.length,
                released=self._released,
            )
        return await self._read(offset, length)

    def condemn(self) -> None:
        """Say that the content is damaged: anyone who opens the file from now on gets a new download."""
        self._condemn()

    def release(self) -> None:
        """Stop using the file. Twice is fine, and so is after the cache was closed."""
        if not self._released:
            self._released = True
            self._release()
