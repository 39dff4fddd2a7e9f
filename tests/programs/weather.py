"""The weather in which a program runs: the requests to its primary fail, lose their answers, or are its last.

The kinds of trouble are the simulation's `Weather`, here of a directory and without waiting: a request fails before it
has an effect, or its answer is lost. The fate of a request depends on its number and key, and on the number of the
batch, so that a seed says it all; but for names that the library draws, which are left out.
"""

import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from statebackend._backend import stores
from statebackend.abc import Body, ObjectInfo
from statebackend.errors import (
    OutcomeUnknownError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    UploadError,
)
from statebackend.objectstore.local import LocalStore
from statebackend.testing.crash_store import CrashedError
from tests.simulation.store import WRITES, Weather

if TYPE_CHECKING:
    from tests.programs.running import Running

T = TypeVar("T")

WEATHERS = {
    "store fails": Weather(fails=0.3),
    "answers lost": Weather(loses=0.3),
    "store refuses": Weather(refuses=0.15),
}
"""By the mishap."""
FOLLOWED = {"store fails": Weather(fails=0.5), "store refuses": Weather(refuses=0.3)}
"""For a follower, which reads: of those weathers only a third meets a read."""
LAST = (1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12)
"""By the fate of a batch: which write is the last one of its process."""
IN_WEATHER = (StoreError, UploadError, OutcomeUnknownError, CrashedError)
"""What a sink may raise in bad weather."""
_RANDOM_NAME = re.compile(r"[0-9a-f]{8,}")


@dataclass
class Sky:
    """What requests meet now. `die` is called at the write of number `last`; from then on the store is gone.

    `ends_before`: that write has no effect. `left`: so many more requests meet the weather; `None`: all of them.
    """

    weather: Weather | None = None
    seed: int = 0
    last: int | None = None
    ends_before: bool = False
    die: Callable[[], None] = lambda: None
    is_dead: bool = False
    ending: threading.Lock = field(default_factory=threading.Lock)
    """Held while `die` is under way: other requests find out before it has ended."""
    counts: dict[str, int] = field(default_factory=dict)
    writes: int = 0
    left: int | None = None

    async def request(self, operation: str, key: str, effect: Callable[[], Awaitable[T]]) -> T:
        """Carry it out, or not."""
        if self.is_dead:
            raise CrashedError("this process has crashed")
        trouble = self._trouble(operation, key)
        if trouble == "fails":
            raise StoreUnavailableError("the store does not answer, by the weather", key=key)
        if trouble == "refuses":
            raise StoreAccessError("the store refuses, by the weather", key=key)
        is_last = self._is_last(operation)
        if is_last and self.ends_before:
            self._end()
        result = await effect()
        if is_last:
            self._end()
        if trouble == "loses answer":
            raise StoreUnavailableError("the store's answer is lost, by the weather", key=key)
        return result

    def _is_last(self, operation: str) -> bool:
        self.writes += operation in WRITES
        return operation in WRITES and self.writes == self.last

    def _end(self) -> None:
        with self.ending:
            self.is_dead = True
            self.die()
        raise CrashedError("this process has crashed")

    def _trouble(self, operation: str, key: str) -> str | None:
        if self.weather is None or self.left == 0:
            return None
        what = f"{operation} {_RANDOM_NAME.sub('#', key)}"
        self.counts[what] = self.counts.get(what, 0) + 1
        chance = Random(f"{self.seed} {what} {self.counts[what]}")  # to be replayed
        trouble = self.weather.trouble(operation, chance.random())
        if trouble is not None and self.left is not None:
            self.left -= 1
        return trouble


SKY = Sky()
"""The weather of this process, which runs one program at a time."""


class PrimaryInWeather(LocalStore):
    """A directory as a primary. Other stores in directories, those of local copies, have no weather."""

    def __init__(
        self, root: Any, *, abandon_after_s: float | None = None, sky: Sky | None = None, **options: Any
    ) -> None:
        super().__init__(root, abandon_after_s=abandon_after_s, **options)
        self._sky = sky or SKY
        self._is_primary = abandon_after_s is None

    async def _through(self, operation: str, key: str, effect: Callable[[], Awaitable[T]]) -> T:
        return await (self._sky.request(operation, key, effect) if self._is_primary else effect())

    async def put(self, key: str, body: Body) -> None:
        await self._through("put", key, lambda: super(PrimaryInWeather, self).put(key, body))

    async def put_if_absent(self, key: str, body: Body) -> None:
        await self._through("put_if_absent", key, lambda: super(PrimaryInWeather, self).put_if_absent(key, body))

    async def get(self, key: str) -> bytes:
        return await self._through("get", key, lambda: super(PrimaryInWeather, self).get(key))

    async def get_many(self, keys: Sequence[str]) -> Sequence[bytes | StoreError]:
        return await self._through("get", "many", lambda: super(PrimaryInWeather, self).get_many(keys))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return await self._through("get", key, lambda: super(PrimaryInWeather, self).get_range(key, offset, length))

    async def head(self, key: str) -> ObjectInfo | None:
        return await self._through("head", key, lambda: super(PrimaryInWeather, self).head(key))

    async def delete(self, key: str) -> None:
        await self._through("delete", key, lambda: super(PrimaryInWeather, self).delete(key))

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._through("delete", "many", lambda: super(PrimaryInWeather, self).delete_many(keys))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async def nothing() -> None:
            return None

        await self._through("list", prefix, nothing)
        async for info in super().list(prefix):
            yield info


@contextmanager
def under_the_sky() -> Generator[None]:
    """In this context the primaries that are opened are reached through the weather, which is fine at first."""
    SKY.is_dead = False
    with mock.patch.object(stores, "LocalStore", PrimaryInWeather):
        yield


@contextmanager
def weather(mishap: str, seed: int, die: Callable[[], None]) -> Generator[None]:
    """In this context it is as the mishap says."""
    SKY.weather, SKY.seed, SKY.die = WEATHERS.get(mishap), seed, die
    SKY.last = LAST[seed % len(LAST)] if mishap == "killed at a request" else None
    SKY.ends_before = seed % 2 == 1
    SKY.writes, SKY.is_dead = 0, False
    SKY.counts.clear()
    try:
        yield
    finally:
        with SKY.ending:
            SKY.weather = SKY.last = None


def through_weather(running: "Running", step: Any, act: Callable[[], object], *, again: bool = True) -> bool:
    """Do it in the weather of a step. What did not come through is done once more in a fine one, if `again`.

    False if it did not come through. A process that was killed is gone, with all that was written since.
    """
    if not step.weather:
        act()
        return True
    is_through = True
    with weather(step.weather, step.fate, running.copy_home):
        try:
            act()
        except Exception as error:
            if not is_of_weather(error):
                raise
            is_through = False
    if running.is_copied:
        is_through = False
        running.go_back()
        running.next_run()
    SKY.is_dead = False
    if not is_through and again:
        act()
    return is_through


def is_of_weather(error: BaseException) -> bool:
    """True if this is what a sink may raise in bad weather, in the driver or from a worker."""
    while error is not None:
        if isinstance(error, IN_WEATHER) or "by the weather" in str(error) or "has crashed" in str(error):
            return True
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return False
