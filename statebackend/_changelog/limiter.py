"""A bound on bytes in flight, first come first served."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio


class ByteLimiter:
    """Admits a caller while fewer than `bytes_max` are held: the question is "any room?", not "enough room?".

    A piece larger than the limit could never be sent otherwise. No call waits while there is room.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: Final = bytes_max
        self.held_bytes = 0
        self._queue: deque[tuple[anyio.Event, int]] = deque()
        self._freed = anyio.Event()

    @property
    def waiting(self) -> int:
        """Number of callers in the queue."""
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        """True if `acquire` would return at once."""
        return self.held_bytes < self.bytes_max

    async def acquire(self, size_bytes: int) -> None:
        """Wait for room, then hold `size_bytes` until `release`. A cancelled call holds nothing."""
        if self.has_room:
            self.held_bytes += size_bytes
            return
        admitted = anyio.Event()
        self._queue.append((admitted, size_bytes))
        try:
            await admitted.wait()
        except BaseException:
            if admitted.is_set():  # admitted and cancelled in the same turn of the loop
                self.release(size_bytes)
            else:
                self._queue.remove((admitted, size_bytes))
            raise

    def has_spare(self, size_bytes: int) -> bool:
        """True if `acquire_spare` would return at once."""
        return not self._queue and (not self.held_bytes or 2 * (self.held_bytes + size_bytes) <= self.bytes_max)

    async def acquire_spare(self, size_bytes: int) -> None:
        """As `acquire`, with low priority: wait until at most half the limit would be held, or nothing else is held.

        So others always find room, unless these bytes alone exceed the limit. A cancelled call holds nothing.
        """
        while not self.has_spare(size_bytes):
            await self._freed.wait()
        self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give back bytes that were held, and admit the callers that have room now."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "given back more than was held"
        while self._queue and self.has_room:
            admitted, size = self._queue.popleft()
            self.held_bytes += size
            admitted.set()
        if self.has_room:
            self._freed.set()
            self._freed = anyio.Event()

    @asynccontextmanager
    async def held(self, size_bytes: int, *, spare: bool = False) -> AsyncGenerator[None]:
        """Hold `size_bytes` meanwhile: as `acquire`, or as `acquire_spare`."""
        await (self.acquire_spare(size_bytes) if spare else self.acquire(size_bytes))
        try:
            yield
        finally:
            self.release(size_bytes)

    async def room(self) -> None:
        """Wait until there is room, without holding any of it. A cancelled call leaves nothing behind."""
        while not self.has_room:
            await self._freed.wait()
