"""A store as a process sees it that is killed, on the loop of the test: nothing that it writes any more arrives."""

from collections.abc import Sequence

from statebackend.abc import Body
from statebackend.errors import StoreUnavailableError
from statebackend.objectstore.scoped import ScopedStore


class MortalStore(ScopedStore):
    """A process's connection to the store: once it is `dead`, nothing that it writes or deletes arrives.

    Unlike one of a `CrashStore`, it still reads: what is left of the process may look, and cannot change anything.
    """

    dead = False

    async def put(self, key: str, body: Body) -> None:
        self._check()
        await super().put(key, body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        self._check()
        await super().put_if_absent(key, body)

    async def delete(self, key: str) -> None:
        self._check()
        await super().delete(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        self._check()
        await super().delete_many(keys)

    def _check(self) -> None:
        if self.dead:
            raise StoreUnavailableError("killed")
