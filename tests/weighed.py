"""Objects of a store that are weighed as long as somebody has them."""

from typing import Any

import anyio

from statebackend.objectstore import MemoryStore


class Weighed(bytes):
    """An object that was read. `held`: bytes of all that somebody has; `most`: since somebody set it to 0."""

    held = most = 0

    def __init__(self, *_: Any) -> None:
        Weighed.held += len(self)
        Weighed.most = max(Weighed.most, Weighed.held)

    def __del__(self) -> None:
        Weighed.held -= len(self)


class WeighedStore(MemoryStore):
    """Each `get` takes a second, and returns what is `Weighed`."""

    async def get(self, key: str) -> bytes:
        data = Weighed(await super().get(key))
        await anyio.sleep(1)
        return data
