"""A store that outlives the processes that write to it, and processes that crash in the middle of a request.

    world = CrashStore(seed=7)
    async with open_backend(settings, store=world.open(crash_at=5)) as backend: ...   # dies at its fifth request
    async with open_backend(settings, store=world.open()) as backend: ...             # and this finds what is there

Acknowledged writes survive. A write in progress when the process dies takes effect or does not: the seed decides for
each write. After that, no request of the dead process takes effect. The same seed and the same requests in the same
order give the same outcomes, which are in `history`.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

import anyio.lowlevel

from statebackend.abc import Body, Capability, Clock, ObjectInfo, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import ObjectExistsError, ObjectNotFoundError, StateBackendError
from statebackend.objectstore.memory import check_key, check_range
from statebackend.testing.faults import Operation

TURNS_MAX: Final = 3
"""Most turns of the loop that a write takes."""

Outcome = Literal["done", "refused", "lost", "kept", "torn"]
"""The caller learns of the first two. The others are unacknowledged: no effect, the full effect, or part of it."""


class CrashedError(StateBackendError):
    """The process is dead: its store is gone, and its requests have no effect."""


@dataclass(frozen=True, eq=False)
class Write:
    """A request that changes an object."""

    operation: Operation
    key: str
    data: bytes = b""


class CrashStore:
    """Objects for one process after the other.

    A write is never torn unless `torn` is set: then a put in progress at the crash may leave a part, as on a disk whose
    files are not written atomically. Everything is in memory. A write takes a few turns of the loop; the seed decides
    how many.
    """

    def __init__(self, *, seed: int, torn: bool = False, clock: Clock | None = None) -> None:
        self.history: Final[list[tuple[Operation, str, Outcome]]] = []
        """Every write, with its key and outcome."""
        self.objects: Final[dict[str, tuple[bytes, ObjectInfo]]] = {}
        """The objects as they are now."""
        self._chance = Random(seed)  # noqa: S311  # to be replayed, not to be unpredictable
        self._torn = torn
        self._clock: Clock = SystemClock() if clock is None else clock
        self._life: _ProcessStore | None = None

    def open(self, *, crash_at: int | None = None) -> ObjectStore:
        """Open the store for a new process; a process that is still alive dies first.

        With `crash_at`, the new process dies at its request of that number, counted from 1, reads included.
        """
        self.crash()
        self._life = _ProcessStore(self, crash_at)
        return self._life

    def crash(self) -> None:
        """Kill the process. No error if there is none."""
        if self._life is not None:
            self._life.end()
            self._life = None

    def turns(self) -> int:
        """Draw how many turns of the loop the next write takes."""
        return self._chance.randrange(TURNS_MAX + 1)

    def carry_out(self, write: Write) -> None:
        """Carry out a write that will be acknowledged. Raises `ObjectExistsError`."""
        done = self._apply(write)
        self._note(write, "done" if done else "refused")
        if not done:
            raise ObjectExistsError("there is an object with that key already", key=write.key)

    def cut_off(self, write: Write, *, crashed: bool) -> None:
        """Draw the outcome of a write that will not be acknowledged."""
        outcomes: list[Outcome] = ["lost", "kept"]
        if crashed and self._torn and write.operation == "put":
            outcomes.append("torn")
        outcome = self._chance.choice(outcomes)
        if outcome == "torn":
            write = replace(write, data=write.data[: self._chance.randrange(len(write.data) + 1)])
        if outcome != "lost" and not self._apply(write):
            outcome = "lost"
        self._note(write, outcome)

    def _apply(self, write: Write) -> bool:
        if write.operation == "delete":
            self.objects.pop(write.key, None)
        elif write.operation == "put_if_absent" and write.key in self.objects:
            return False
        else:
            info = ObjectInfo(key=write.key, size_bytes=len(write.data), modified_s=self._clock.time())
            self.objects[write.key] = (write.data, info)
        return True

    def _note(self, write: Write, outcome: Outcome) -> None:
        self.history.append((write.operation, write.key, outcome))


class _ProcessStore:
    """The `ObjectStore` of one process. It dies in the middle of whatever is in progress."""

    def __init__(self, store: CrashStore, crash_at: int | None) -> None:
        self._store = store
        self._crash_at = crash_at
        self._requests = 0
        self._under_way: list[Write] = []
        self._over = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    def end(self) -> None:
        """Cut off every request in progress; from now on every call fails."""
        self._over = True
        for write in self._under_way:
            self._store.cut_off(write, crashed=True)
        self._under_way.clear()

    async def put(self, key: str, body: Body) -> None:
        await self._write(Write("put", check_key(key), b"".join(body)))

    async def put_if_absent(self, key: str, body: Body) -> None:
        await self._write(Write("put_if_absent", check_key(key), b"".join(body)))

    async def delete(self, key: str) -> None:
        await self._write(Write("delete", check_key(key)))

    async def get(self, key: str) -> bytes:
        return (await self._read(key))[0]

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        return (await self._read(key))[0][offset : offset + length]

    async def head(self, key: str) -> ObjectInfo | None:
        check_key(key)
        await self._request()
        entry = self._store.objects.get(key)
        return None if entry is None else entry[1]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._request()
        found = sorted(key for key in self._store.objects if key.startswith(prefix))
        for info in [self._store.objects[key][1] for key in found]:
            self._check()
            yield info

    async def _read(self, key: str) -> tuple[bytes, ObjectInfo]:
        check_key(key)
        await self._request()
        try:
            return self._store.objects[key]
        except KeyError:
            raise ObjectNotFoundError("no object with that key", key=key) from None

    async def _write(self, write: Write) -> None:
        self._check()
        self._under_way.append(write)
        try:
            await self._request()
            for _ in range(self._store.turns()):
                await anyio.lowlevel.checkpoint()
            self._check()
        except BaseException:
            if write in self._under_way:  # cancelled: the request is on its way, and its answer is lost
                self._under_way.remove(write)
                self._store.cut_off(write, crashed=False)
            raise
        self._under_way.remove(write)
        self._store.carry_out(write)

    async def _request(self) -> None:
        self._check()
        self._requests += 1
        if self._requests == self._crash_at:
            self._store.crash()
            self._check()
        await anyio.lowlevel.checkpoint()
        self._check()

    def _check(self) -> None:
        if self._over:
            raise CrashedError("this process has crashed")
