"""The library's own code on a store with S3's published limits, in virtual time: requests, and nothing else."""

import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

import anyio
import msgspec

import statebackend as sb
from benchmarks.owners import checkpoint
from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.ids import KeyGroupRange
from statebackend.objectstore import MemoryStore
from statebackend.owners import OwnerBackend, key_group
from statebackend.settings import KiB, MiB
from statebackend.testing.virtual_time import VirtualClock, run_virtual

JOB: Final = "how-far"
PUTS_PER_S: Final = 3_500
GETS_PER_S: Final = 5_500
"""What S3 promises for one prefix."""
LATENCY_S: Final = 0.100
LATENCY_SIGMA: Final = 0.6
"""S3 speaks of 100 to 200 ms for small objects. With this spread one request in a hundred takes 0.4 s, and the slowest
of a thousand 0.65 s."""
STREAM_BYTES_PER_S: Final = 85 * MiB
"""One request's share of the network, as S3's guide gives it."""


class S3InVirtualTime(MemoryStore):
    """A store whose requests take the time of S3's, with its tails, and queue where S3 would throttle them."""

    def __init__(self, seed: int) -> None:
        super().__init__(clock=VirtualClock())
        self._chance = random.Random(seed)
        self._free_s = {"put": 0.0, "get": 0.0}

    @property
    def capabilities(self) -> frozenset[Capability]:
        """As S3."""
        return frozenset(Capability)

    async def put(self, key: str, body: Body) -> None:
        """As the store, later."""
        await self._travel("put", sum(map(len, body)))
        await super().put(key, body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """As the store, later."""
        await self._travel("put", sum(map(len, body)))
        await super().put_if_absent(key, body)

    async def get(self, key: str) -> bytes:
        """As the store, later."""
        await self._travel("get", 0)
        content = await super().get(key)
        await anyio.sleep(len(content) / STREAM_BYTES_PER_S)
        return content

    async def head(self, key: str) -> ObjectInfo | None:
        """As the store, later."""
        await self._travel("get", 0)
        return await super().head(key)

    async def delete(self, key: str) -> None:
        """As the store, later."""
        await self._travel("put", 0)
        await super().delete(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """As the store, a thousand objects at a time."""
        number = 0
        async for info in super().list(prefix):
            if number % 1000 == 0:
                await self._travel("get", 0)
            number += 1
            yield info

    async def _travel(self, kind: str, size_bytes: int) -> None:
        """Wait for a turn under S3's limit, then for the answer."""
        now_s = anyio.current_time()
        turn_s = max(now_s, self._free_s[kind])
        self._free_s[kind] = turn_s + 1 / (PUTS_PER_S if kind == "put" else GETS_PER_S)
        latency_s = LATENCY_S * math.exp(LATENCY_SIGMA * self._chance.gauss(0, 1))
        await anyio.sleep(turn_s - now_s + latency_s + size_bytes / STREAM_BYTES_PER_S)


class Times(msgspec.Struct, frozen=True):
    """Virtual seconds of one job."""

    batches: Sequence[float]
    host: float
    """To open the owners of a lost host again, elsewhere and without local copies, each from the store."""
    job: float
    """To open the coordinator, then all owners, likewise."""


@run_virtual
async def times_of(owners: int, batches: int, value_bytes: int, *, lost: int, seed: int = 1) -> Times:
    """Some batches of so many owners, each of which uploads its changes, then one commits; and two restores.

    In the first the last `lost` owners are lost, which cannot even say so. Each owner then has a change set of each
    batch to read, and no base.
    """
    store = S3InVirtualTime(seed)
    keys = _keys_of(owners)
    settings = sb.Settings(
        job=JOB,
        primary="memory://how-far",
        max_parallelism=owners,
        persist_delay_s=0.0,
        inline_bytes_max=4 * KiB,
        materialize_fan_in=0,
    )

    def value(batch: int) -> bytes:
        return random.Random(batch).randbytes(value_bytes)

    async def reopen(number: int) -> None:
        async with _opened(settings, store, number) as owner:
            times_s.append(anyio.current_time() - begun_s)
            assert owner.value_state("values", bytes)[keys[number]] == value(batches - 1)

    times_s, batches_s = list[float](), list[float]()
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(
            sb.owners.open_coordinator(settings, store=store, clock=VirtualClock())
        )
        opened = [await stack.enter_async_context(_opened(settings, store, number)) for number in range(owners)]
        states = [owner.value_state("values", bytes) for owner in opened]
        for number in range(batches):
            for state, key in zip(states, keys, strict=True):
                state[key] = value(number)
            begun_s = anyio.current_time()
            await checkpoint(coordinator, opened)
            batches_s.append(anyio.current_time() - begun_s)
        begun_s = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(owners - lost, owners):
                tasks.start_soon(reopen, number)
        host_s = max(times_s)
    begun_s = anyio.current_time()
    async with (
        sb.owners.open_coordinator(settings, store=store, clock=VirtualClock()),
        anyio.create_task_group() as tasks,
    ):
        for number in range(owners):
            tasks.start_soon(reopen, number)
    return Times(batches_s, host_s, max(times_s[lost:]))


def _opened(settings: sb.Settings, store: S3InVirtualTime, number: int) -> AbstractAsyncContextManager[OwnerBackend]:
    """The owner of one key group."""
    key_groups = KeyGroupRange(number, number)
    return sb.open_backend(settings, key_groups=key_groups, store=store, clock=VirtualClock())


def _keys_of(groups: int) -> Sequence[int]:
    """A key in each key group."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < groups:
        found.setdefault(key_group(key, groups), key)
        key += 1
    return [found[group] for group in range(groups)]
