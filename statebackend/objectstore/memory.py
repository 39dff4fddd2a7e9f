"""Stores objects in this process's memory: for tests and first steps, and as the plainest reading of the contract.

Also holds the checks that every store of this room makes first: whether a key or a range is legal.
"""

from collections.abc import AsyncIterator
from typing import Final

import anyio.lowlevel
import msgspec

from statebackend.abc import Body, Capability, Clock, ObjectInfo, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import InputError, ObjectExistsError, ObjectNotFoundError

KEY_LENGTH_MAX: Final = 1024
PART_LENGTH_MAX: Final = 255
TEMPORARY_SUFFIX: Final = ".tmp"


def check_key(key: str) -> str:
    """Return `key`, or raise `InputError` if it is not legal.

    Legal: '/'-separated parts of printable ASCII, 1 to 255 characters each and at most 1024 in all. No part is '.' or
    '..', or looks like a temporary file ('.'...'.tmp'), so that a key means the same in every store.
    """
    if not key or len(key) > KEY_LENGTH_MAX:
        raise InputError(f"a key must have 1 to {KEY_LENGTH_MAX} characters", key=key)
    if not (key.isascii() and key.isprintable()):
        raise InputError("a key must be printable ASCII", key=key)
    for part in key.split("/"):
        if part in ("", ".", "..") or len(part) > PART_LENGTH_MAX or is_temporary(part):
            raise InputError("a part of the key is not a legal name", key=key, part=part)
    return key


def is_temporary(name: str) -> bool:
    """True if `name` is reserved for files that are still being written."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def check_range(offset: int, length: int) -> None:
    """Raise `InputError` for a range that begins before the object or has a negative length."""
    if offset < 0 or length < 0:
        raise InputError("a range must not be negative", offset=offset, length=length)


class MemoryStore:
    """An `ObjectStore` in memory. Its objects end with the process, so it is not durable.

    Every mutation is one dictionary operation: a cancelled call has either happened or not, and event loops in
    different threads can share a store.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.LIST, Capability.PUT_IF_ABSENT})

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`. A cancelled call has stored nothing."""
        check_key(key)
        await anyio.lowlevel.checkpoint()
        self._objects[key] = self._entry(key, body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body` unless `key` is taken: `ObjectExistsError`. A cancelled call has stored nothing."""
        check_key(key)
        await anyio.lowlevel.checkpoint()
        entry = self._entry(key, body)
        if self._objects.setdefault(key, entry) is not entry:
            raise ObjectExistsError("there is already an object at that key", key=key)

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """Store an object of another store in memory at `key` too. A cancelled call has stored nothing."""
        if not isinstance(source, MemoryStore):
            return False
        check_key(key)
        data, _ = await source._read(source_key)  # noqa: SLF001  # of the same class
        self._objects[key] = self._entry(key, (data,))
        return True

    async def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectNotFoundError`."""
        return (await self._read(key))[0]

    def age(self, by_s: float) -> None:
        """Make every object older by so many seconds: a sweep takes only what is old enough, and a test cannot wait."""
        for key, (data, info) in [*self._objects.items()]:
            self._objects[key] = data, msgspec.structs.replace(info, modified_s=info.modified_s - by_s)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end of the object. Raises `ObjectNotFoundError`."""
        check_range(offset, length)
        return (await self._read(key))[0][offset : offset + length]

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, or `None` if there is none."""
        check_key(key)
        await anyio.lowlevel.checkpoint()
        entry = self._objects.get(key)
        return None if entry is None else entry[1]

    async def delete(self, key: str) -> None:
        """Remove the object, if there is one. A cancelled call has removed nothing."""
        check_key(key)
        await anyio.lowlevel.checkpoint()
        self._objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects under `prefix` as they were when the iteration began, in the order of their keys."""
        await anyio.lowlevel.checkpoint()
        found = [info for key, (_, info) in self._objects.copy().items() if key.startswith(prefix)]
        for info in sorted(found, key=lambda info: info.key):
            yield info

    async def _read(self, key: str) -> tuple[bytes, ObjectInfo]:
        check_key(key)
        await anyio.lowlevel.checkpoint()
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError("no object at that key", key=key) from None

    def _entry(self, key: str, body: Body) -> tuple[bytes, ObjectInfo]:
        data = b"".join(body)
        return data, ObjectInfo(key=key, size_bytes=len(data), modified_s=self._clock.time())


_STORES: Final[dict[str, MemoryStore]] = {}
"""The stores behind `memory://NAME`. Global on purpose: the URL means a place outside any one backend, and a backend
that is closed and opened again must find its data there, as in a directory. Names are never removed."""


def open_memory_store(name: str) -> MemoryStore:
    """The store at `memory://NAME`, the same one for the same name as long as the process lives."""
    return _STORES.setdefault(name, MemoryStore())
