"""Stores that many processes reach at once, over unreliable connections, until they are killed.

A `Place` holds the real objects. Each process has a `Connection` of its own, which is an `ObjectStore`: its requests
take virtual time, fail before or after their effect, get no answer, or are cut off by a cancellation or by the death of
their process. `CrashStore` and `FaultyStore` do this for one process and on command; here there are several processes,
zombies among them, and chance decides.

The fate of a request depends on the seed, its process, its key, and the number of requests of its kind: not on the
order of requests at the same instant. Object names are random; `Names` numbers them by first appearance.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Literal, TypeVar

import anyio
import xxhash

from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.errors import ObjectExistsError, ObjectNotFoundError, StoreAccessError, StoreUnavailableError
from statebackend.objectstore.memory import check_key, check_range
from statebackend.testing.crash_store import CrashedError, Write
from statebackend.testing.faults import Operation
from statebackend.testing.virtual_time import VirtualClock

T = TypeVar("T")

Trouble = Literal["fails", "loses answer", "hangs", "hangs after", "refuses"]
READS: Final = 0.3
"""Reads meet this much less trouble than writes: they are not retried, and a job that cannot be opened tests little."""
WRITES: Final = frozenset({"put", "put_if_absent", "delete"})
LATE_S: Final = 5.0
"""Most seconds after which the request of a dead process arrives, unless the weather says more."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """The behaviour of a place towards one process: latencies in seconds, chances per request from 0 to 1."""

    latency_s: float = 0.004
    slow: float = 0.0
    """The chance to take `slow_factor` times as long."""
    slow_factor: float = 100.0
    fails: float = 0.0
    """The chance to be refused for now, without effect."""
    loses: float = 0.0
    """The chance to take effect and lose the answer."""
    hangs: float = 0.0
    """The chance of no answer at all, with or without effect."""
    refuses: float = 0.0
    """The chance to be refused for good."""
    storms: tuple[tuple[float, float], ...] = ()
    """The share of time in which most requests are throttled: refused for now, at once."""
    late: bool = False
    """Beyond the contract of a store: a cancelled or failed request may take effect later."""
    late_max_s: float = LATE_S
    """How much later, and after how many seconds the request of a dead process arrives, at most."""
    disk: bool = False
    """Calls cannot be cancelled, like threads; the death of a process may tear a write; deletes meet no trouble and are
    not in the trace by name, since superseded copies are deleted in the order of random names or hashes."""

    def trouble(self, operation: str, drawn: float) -> Trouble | None:
        """What a request meets, by a number from 0 to 1 that was drawn for it."""
        troubles: list[tuple[Trouble, float]] = [
            ("fails", self.fails),
            ("loses answer", self.loses),
            ("hangs", self.hangs / 2),
            ("hangs after", self.hangs / 2),
            ("refuses", self.refuses),
        ]
        for trouble, share in troubles:
            drawn -= share if operation in WRITES else share * READS
            if drawn < 0:
                return trouble
        return None


class Names:
    """Numbers for random names, by first appearance; other names stay as they are."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, key: str) -> str:
        head, found, name = key.partition("segments/")
        if found:
            return f"segments/#{self._numbers.setdefault(name, len(self._numbers))}"
        mark, found, _stamp = key.partition("-") if "savepoints/" in key else (head, "", "")
        return f"{mark}-#{self._numbers.setdefault(key, len(self._numbers))}" if found else head


class Place:
    """Objects, and a watcher that sees every change before it happens."""

    def __init__(self, name: str, *, watch: Callable[[Write], None]) -> None:
        self.name: Final = name
        self.objects: Final[dict[str, bytes]] = {}
        self._infos: dict[str, ObjectInfo] = {}
        self._watch = watch

    def info(self, key: str) -> ObjectInfo | None:
        """Size and time of an object, if it exists."""
        return self._infos.get(key)

    def apply(self, write: Write) -> bool:
        """Carry out a write. Return false if `put_if_absent` finds an object."""
        if write.operation == "put_if_absent" and write.key in self.objects:
            return False
        self._watch(write)
        if write.operation == "delete":
            self.objects.pop(write.key, None)
            self._infos.pop(write.key, None)
        else:
            self.objects[write.key] = write.data
            self._infos[write.key] = ObjectInfo(write.key, len(write.data), VirtualClock().time())
        return True

    def damage(self, key: str, left: bytes | None) -> None:
        """Put `left` in the place of an object, or nothing, as no process does: unseen by the watcher."""
        if left is None:
            del self.objects[key], self._infos[key]
        else:
            self.objects[key] = left
            self._infos[key] = ObjectInfo(key, len(left), VirtualClock().time())


@dataclass(frozen=True)
class _Fate:
    there_s: float
    back_s: float
    trouble: Trouble | None


@dataclass(eq=False)
class _SimulatedRequest:
    operation: Operation
    key: str
    fate: _Fate
    write: Write | None
    chance: Random
    arrived: bool = field(default=False)


class Connection:
    """One process's connection to a place. `die` cuts it in the middle of whatever is in progress."""

    def __init__(
        self,
        place: Place,
        weather: Weather,
        *,
        seed: int,
        process: str,
        names: Names,
        tell: Callable[[str], None],
        later: Callable[[float, Write], object],
    ) -> None:
        self.requests = 0
        self.stored: Final[set[str]] = set()
        """Keys of the objects that it put and has not deleted since, as far as that took effect."""
        self.removed_in_vain: Final[set[str]] = set()
        """Keys whose deletion it requested and that failed."""
        self.in_doubt: Final[set[str]] = set()
        """Keys that it tried to create without learning the outcome; cleared once that is known."""
        self.troubled: Final[set[str]] = set()
        """Keys of requests that the weather did not let through, or whose answer it lost or delayed for ever."""
        self._place = place
        self._weather = weather
        self._seed = seed
        self._label = f"{process} {place.name}"
        self._names = names
        self._tell = tell
        self._later = later
        self._counts: Counter[str] = Counter()
        self._under_way: list[_SimulatedRequest] = []
        self._dead = anyio.Event()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    @property
    def alive(self) -> bool:
        """True while the process is alive."""
        return not self._dead.is_set()

    @property
    def late(self) -> bool:
        """True while an abandoned request may still take effect."""
        return self._weather.late

    def die(self) -> None:
        """Requests in progress take effect, or not, or later, or in part; from now on every call fails."""
        if self.alive:
            self._dead.set()
            for request in self._under_way:
                self._cut_off(request, died=True)

    async def put(self, key: str, body: Body) -> None:
        await self._write(Write("put", check_key(key), b"".join(body)))

    async def put_if_absent(self, key: str, body: Body) -> None:
        await self._write(Write("put_if_absent", check_key(key), b"".join(body)))

    async def delete(self, key: str) -> None:
        await self._write(Write("delete", check_key(key)))

    async def get(self, key: str) -> bytes:
        return await self._request("get", check_key(key), lambda: self._read(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        return await self._request("get_range", check_key(key), lambda: self._read(key)[offset : offset + length])

    async def head(self, key: str) -> ObjectInfo | None:
        return await self._request("head", check_key(key), lambda: self._place.info(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        def find() -> list[ObjectInfo]:
            found = sorted(key for key in self._place.objects if key.startswith(prefix))
            return [info for key in found if (info := self._place.info(key)) is not None]

        for info in await self._request("list", prefix, find):
            yield info

    def _read(self, key: str) -> bytes:
        try:
            return self._place.objects[key]
        except KeyError:
            raise ObjectNotFoundError("no object with that key", key=key) from None

    async def _write(self, write: Write) -> None:
        def carry_out() -> None:
            if not self._apply(write):
                raise ObjectExistsError("there is an object with that key already", key=write.key)

        if write.operation == "delete":
            self.removed_in_vain.add(write.key)
        elif write.operation == "put_if_absent":
            self.in_doubt.add(write.key)
        await self._request(write.operation, write.key, carry_out, write)
        self.in_doubt.discard(write.key)

    async def _request(self, operation: Operation, key: str, effect: Callable[[], T], write: Write | None = None) -> T:
        self._check()
        self.requests += 1
        chance = self._chance_of(operation, key)
        request = _SimulatedRequest(operation, key, self._fate(operation, chance), write, chance)
        self._under_way.append(request)
        if request.fate.trouble is not None:
            self.troubled.add(key)
        try:
            if not self._weather.disk:
                return await self._carry(request, effect)
            results: list[T] = []
            with anyio.CancelScope(shield=True):
                results.append(await self._carry(request, effect))
            return results[0]
        except (anyio.get_cancelled_exc_class(), StoreUnavailableError):
            if self.alive:
                self._cut_off(request, died=False)
            raise
        finally:
            self._under_way.remove(request)

    async def _carry(self, request: _SimulatedRequest, effect: Callable[[], T]) -> T:
        """Travel to the place, take effect, and travel back. Trouble may strike on either way."""
        trouble = request.fate.trouble
        await self._travel(request.fate.there_s, hangs=trouble == "hangs")
        if trouble == "fails":
            raise StoreUnavailableError("the simulated store does not answer", key=request.key)
        if trouble == "refuses":
            raise StoreAccessError("the simulated store refuses", key=request.key)
        request.arrived = True
        try:
            result = effect()
        except (ObjectExistsError, ObjectNotFoundError):
            self._note(request, "no")
            raise
        self._note(request, trouble or "done")
        await self._travel(request.fate.back_s, hangs=trouble == "hangs after")
        if trouble == "loses answer":
            raise StoreUnavailableError("the simulated store's answer is lost", key=request.key)
        return result

    async def _travel(self, seconds: float, *, hangs: bool) -> None:
        if hangs:
            await self._dead.wait()
        await anyio.sleep(seconds)
        self._check()

    def _check(self) -> None:
        if not self.alive:
            raise CrashedError("this process has crashed")

    def _cut_off(self, request: _SimulatedRequest, *, died: bool) -> None:
        """The answer is lost: draw the outcome of a write that has not arrived."""
        if request.arrived:
            return
        request.arrived = True
        if request.write is None:
            self._note(request, request.fate.trouble or "cut off")
            return
        refused = request.fate.trouble in ("fails", "refuses")
        outcomes = ["lost"]
        if not refused or self._weather.late:
            outcomes.append("kept")
        if self._weather.late or (died and not refused and not self._weather.disk):
            outcomes.append("late")
        if died and self._weather.disk and request.operation == "put":
            outcomes.append("torn")
        outcome = request.chance.choice(outcomes)
        self._note(request, f"{request.fate.trouble or 'cut off'}, {outcome}")
        self._settle(request.write, outcome, request.chance)

    def _settle(self, write: Write, outcome: str, chance: Random) -> None:
        if outcome == "late":
            self._later(chance.uniform(0, self._weather.late_max_s), write)
        elif outcome == "torn":
            self._apply(replace(write, data=write.data[: chance.randrange(len(write.data) + 1)]))
        elif outcome == "kept":
            self._apply(write)

    def _apply(self, write: Write) -> bool:
        if not self._place.apply(write):
            return False
        if write.operation == "delete":
            self.stored.discard(write.key)
            self.removed_in_vain.discard(write.key)
        else:
            self.stored.add(write.key)
        return True

    def _note(self, request: _SimulatedRequest, outcome: str) -> None:
        self._tell(f"{self._label} {request.operation} {self._name(request.operation, request.key)}: {outcome}")

    def _name(self, operation: Operation, key: str) -> str:
        return "one" if self._weather.disk and operation == "delete" else self._names(key)

    def _chance_of(self, operation: Operation, key: str) -> Random:
        what = f"{operation} {self._name(operation, key)}"
        self._counts[what] += 1
        label = f"{self._label} {what} {self._counts[what]}"
        return Random(xxhash.xxh64_intdigest(label.encode(), seed=self._seed))  # to be replayed

    def _fate(self, operation: Operation, chance: Random) -> _Fate:
        weather = self._weather
        there_s, back_s = (weather.latency_s * chance.expovariate(1.0) for _ in range(2))
        if chance.random() < weather.slow:
            there_s *= weather.slow_factor
        if weather.disk and operation == "delete":
            return _Fate(there_s, back_s, None)
        now = anyio.current_time()
        if any(begin <= now < end for begin, end in weather.storms) and chance.random() < 0.8:
            return _Fate(0.0, 0.0, "fails")
        return _Fate(there_s, back_s, weather.trouble(operation, chance.random()))
