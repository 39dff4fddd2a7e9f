"""Requests and USD as a backend tells of them, and a budget kept by a real backend on a virtual clock."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend._checkpoint.put_budget import MONTH_S
from statebackend._checkpoint.spending import Spending
from statebackend.abc import Body, Buffer, Capability, ObjectInfo, ObjectStore, Observer
from statebackend.errors import CheckpointNotFoundError
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from statebackend.observers import Metrics
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock

PUT_USD = 5e-6
PART_BYTES = 100_000


class InParts:
    """A store as one in a cloud would be: a large object takes several requests. It counts them itself."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.priced_requests = Counter[str]()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._store.capabilities

    async def put(self, key: str, body: Body) -> None:
        parts = -(-sum(map(_length, body)) // PART_BYTES)
        self.priced_requests["put"] += 1 if parts == 1 else parts + 2
        await self._store.put(key, body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        self.priced_requests["put_if_absent"] += 1
        await self._store.put_if_absent(key, body)

    async def get(self, key: str) -> bytes:
        self.priced_requests["get"] += 1
        return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.priced_requests["get"] += 1
        return await self._store.get_range(key, offset, length)

    async def head(self, key: str) -> ObjectInfo | None:
        self.priced_requests["head"] += 1
        return await self._store.head(key)

    async def delete(self, key: str) -> None:
        self.priced_requests["delete"] += 1
        await self._store.delete(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.priced_requests["list"] += 1
        async for info in self._store.list(prefix):
            yield info


def _length(chunk: Buffer) -> int:
    return memoryview(chunk).nbytes


def settings_of(**changed: Any) -> sb.Settings:
    plain: dict[str, Any] = {
        "job": "fleet",
        "primary": "memory://unused",
        "persist_delay_s": 0.0,
        "inline_bytes_max": 0,
        "materialize_fan_in": 0,  # what is written beside the checkpoints is counted, but is no checkpoint's
    }
    return sb.Settings(**(plain | changed))


def puts(requests: Any) -> int:
    return requests.get("put", 0) + requests.get("put_if_absent", 0)


# -------------------------------------------------------------------------------------------------- what is counted


async def test_a_store_that_counts_its_requests_is_believed() -> None:
    """Three parts, a begin and an end: five PUTs of one call. Those of before it was wrapped are not ours."""
    store = InParts(MemoryStore())
    await store.put("before", [b"x"])
    counting = CountingStore(store)
    await counting.put("small", [b"x"])
    assert counting.requests == {"put": 1}
    await counting.put("large", [b"x" * 200_000, b"y" * 100_000])
    assert [each.key async for each in counting.list("")] == ["before", "large", "small"]
    assert counting.requests == {"put": 6, "list": 1}


async def test_other_stores_are_counted_by_their_calls() -> None:
    """One call, one request. What was read does not change."""
    counting = CountingStore(MemoryStore())
    before = counting.requests
    await counting.put("a", [b"x"])
    assert await counting.get("a") == b"x"
    assert await counting.head("a") is not None
    assert (before, counting.requests) == ({}, {"put": 1, "get": 1, "head": 1})


@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_checkpoint_says_what_it_cost(in_parts: bool) -> None:
    """Its requests by kind and their price; and metrics have the same numbers, and those of the rest besides."""
    store = MemoryStore()
    metrics = Metrics()
    async with sb.open_backend(
        settings_of(compression="none"), store=InParts(store) if in_parts else store, observer=metrics
    ) as backend:
        backend.value_state("n", str)["k"] = "x" * 1_000_000
        infos = [await backend.checkpoint(1), await backend.checkpoint(2)]
    for info in infos:
        assert info.requests == sum(info.requests_by_kind.values())
        assert info.usd == pytest.approx(settings_of().prices.usd(info.requests_by_kind))
        assert info.usd >= puts(info.requests_by_kind) * PUT_USD > 0
    assert puts(infos[0].requests_by_kind) >= (13 if in_parts else 1)
    assert metrics.checkpoint_usd.last == tuple(info.usd for info in infos)
    assert metrics.usd_month == infos[-1].usd_month > 0
    assert metrics.primary_usd >= sum(info.usd for info in infos)


@run_virtual
async def test_the_month_at_the_current_rate() -> None:
    """A checkpoint every ten seconds for an hour: the requests of one, times the tens of seconds in a month."""
    metrics = Metrics()
    async with sb.open_backend(settings_of(), store=MemoryStore(), clock=VirtualClock(), observer=metrics) as backend:
        infos: list[sb.CheckpointInfo] = []
        for checkpoint_id in range(360):
            backend.value_state("n", int)["k"] = checkpoint_id
            infos.append(await backend.checkpoint(checkpoint_id))
            await anyio.sleep(10)
    info = infos[-1]
    assert info.usd_month == pytest.approx(metrics.checkpoint_usd.mean * MONTH_S / 10, rel=0.05)
    assert (info.persist_delay_s, metrics.persist_delay_seconds) == (0, 0)


# ------------------------------------------------------------------------------------------------------- the budget


@pytest.mark.parametrize("changing", [True, False])
@run_virtual
async def test_puts_stay_within_the_budget(changing: bool) -> None:
    """A sink without a pause, for an hour, with changes and with none: a commit alone is a PUT too.

    At most the budget of an hour and a few steps, for nothing was saved up before. And the budget is used.
    """
    store, budget, limit_s = CountingStore(MemoryStore()), 2.0, 30.0
    infos: list[sb.CheckpointInfo] = []
    clock = VirtualClock()
    async with sb.open_backend(
        settings_of(put_budget_usd_month=budget, persist_delay_max_s=limit_s, persist_delay_s=0.01),
        store=store,
        clock=clock,
    ) as backend:
        state = backend.value_state("n", int)
        while clock.monotonic() < 3600 and len(infos) < 2000:
            if changing:
                state["k"] = len(infos)
            infos.append(await backend.checkpoint(len(infos)))
    spent_usd, due_usd = puts(store.requests) * PUT_USD, budget * 3600 / MONTH_S
    assert 0.9 * due_usd <= spent_usd <= due_usd + 10 * PUT_USD
    assert max(info.seconds for info in infos) <= limit_s + 1
    assert max(info.persist_delay_s for info in infos) <= limit_s
    assert infos[-1].usd_month == pytest.approx(budget, rel=0.2)


@run_virtual
async def test_what_a_caller_lets_pass_he_does_not_wait_again() -> None:
    """`persist_delay_s` of the last checkpoint is the pace: who keeps it by himself is not held back."""
    clock = VirtualClock()
    async with sb.open_backend(settings_of(put_budget_usd_month=20.0), store=MemoryStore(), clock=clock) as backend:
        await anyio.sleep(10)  # opening has cost something too
        state = backend.value_state("n", int)
        for checkpoint_id in range(20):
            state["k"] = checkpoint_id
            info = await backend.checkpoint(checkpoint_id)
            assert info.seconds == pytest.approx(0, abs=1e-3)
            await anyio.sleep(info.persist_delay_s)
    assert clock.monotonic() > 10  # what was saved up at first has not been enough


@run_virtual
async def test_an_idle_job_is_at_its_own_delay_again() -> None:
    """After a day the persist delay is what the settings say."""
    async with sb.open_backend(
        settings_of(put_budget_usd_month=5.0, persist_delay_s=0.25), store=MemoryStore(), clock=VirtualClock()
    ) as backend:
        state = backend.value_state("n", int)
        for checkpoint_id in range(50):
            state["k"] = checkpoint_id
            info = await backend.checkpoint(checkpoint_id)
            assert info.seconds > 1 or checkpoint_id == 0
        await anyio.sleep(24 * 3600)
        state["k"] = -1
        free = await backend.checkpoint(50)
        assert free.seconds <= 0.26
        assert free.persist_delay_s == 0.25


@run_virtual
async def test_a_full_segment_does_not_wait_for_the_budget() -> None:
    """Memory is bounded first: changes of the size threshold are sent at once, whatever is owed."""
    async with sb.open_backend(
        settings_of(put_budget_usd_month=0.5, persist_size_threshold_bytes=1_000_000, compression="none"),
        store=MemoryStore(),
        clock=VirtualClock(),
    ) as backend:
        state = backend.value_state("n", str)
        await backend.checkpoint(0)
        state["k"] = "x" * 2_000_000
        info = await backend.checkpoint(1)
        assert info.seconds == pytest.approx(0, abs=1e-3)
        assert info.persist_delay_s > 1


@run_virtual
async def test_a_budget_that_cannot_be_kept_stops_nothing_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every checkpoint takes `persist_delay_max_s`, commits, and tells what a month costs; the log has one warning."""
    async with sb.open_backend(
        settings_of(put_budget_usd_month=0.01, persist_delay_max_s=2.0), store=MemoryStore(), clock=VirtualClock()
    ) as backend:
        state = backend.value_state("n", int)
        infos: list[sb.CheckpointInfo] = []
        for checkpoint_id in range(40):
            state["k"] = checkpoint_id
            infos.append(await backend.checkpoint(checkpoint_id))
    assert [info.seconds for info in infos[1:]] == pytest.approx([2.0] * 39, abs=0.01)
    assert infos[-1].persist_delay_s == 2.0
    assert infos[-1].usd_month > 0.01
    assert len([record for record in caplog.records if "put_budget_usd_month" in record.message]) == 1


@run_virtual
async def test_a_cancelled_wait_loses_nothing() -> None:
    """Cancelled while the budget holds it back, a checkpoint has committed nothing, and the next one has it all."""
    store = MemoryStore()
    settings = settings_of(put_budget_usd_month=0.5)
    async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
        state = backend.value_state("n", int)
        await backend.checkpoint(0)
        for changed in (True, False):  # held back as a segment, and as a commit alone
            if changed:
                state["k"] = 1
            with anyio.move_on_after(1) as scope:
                await backend.checkpoint(1)
            assert scope.cancelled_caught
            assert backend.newest is not None
            assert backend.newest.checkpoint_id == 0
        await backend.checkpoint(1)
    async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
        assert backend.value_state("n", int)["k"] == 1


async def test_an_opening_that_fails_before_it_has_found_its_commit_is_not_told_of() -> None:
    """The observer of a backend hears of its requests, the earlier ones included, once its position is known."""
    store, metrics = CountingStore(MemoryStore()), Metrics()
    with pytest.raises(CheckpointNotFoundError):
        async with sb.open_backend(settings_of(), store=store, observer=metrics, checkpoint_id=7):
            pass
    assert store.requests
    assert metrics.primary_usd == 0


@pytest.mark.parametrize(("kind", "waits"), [("nothing", True), ("head", True), ("get", True), ("put", False)])
@run_virtual
async def test_only_a_put_has_waited_for_the_budget(kind: str, waits: bool) -> None:
    """A commit after it need not wait once more. What was read before a commit has not waited."""
    store, clock = CountingStore(MemoryStore()), VirtualClock()
    spending = Spending(
        store, settings_of().prices, put_budget_usd_month=0.5, persist_delay_s=0.0, persist_delay_max_s=60.0,
        clock=clock, observer=Observer(),
    )  # fmt: skip
    await store.put("a", [b"x"])
    before, begun_s = spending.requests, clock.monotonic()
    match kind:
        case "head":
            await store.head("a")
        case "get":
            await store.get("a")
        case "put":
            await store.put("b", [b"x"])
    await spending.hold(before)
    assert (clock.monotonic() - begun_s > 1.0) == waits
