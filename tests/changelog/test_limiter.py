"""The bound on bytes in flight: first come first served, and nobody who has gone away holds or blocks anything."""

import asyncio

import anyio
import pytest
from anyio.abc import TaskGroup
from hypothesis import given
from hypothesis import strategies as st

from statebackend._changelog.limiter import ByteLimiter
from statebackend.testing.virtual_time import run_virtual, settle


class Callers:
    """Callers of one limiter, in tasks of their own: `order` is in which order they were admitted."""

    def __init__(self, limiter: ByteLimiter, tasks: TaskGroup) -> None:
        self.order: list[str] = []
        self._limiter = limiter
        self._tasks = tasks
        self._scopes: dict[str, anyio.CancelScope] = {}

    async def arrive(self, name: str, size_bytes: int) -> None:
        """One more asks for room. Returns when it has it, or stands in the queue."""
        self._scopes[name] = anyio.CancelScope()
        self._tasks.start_soon(self._acquire, name, size_bytes)
        await settle()

    async def leave(self, name: str) -> None:
        """Cancel it, wherever it is."""
        self._scopes[name].cancel()
        await settle()

    async def _acquire(self, name: str, size_bytes: int) -> None:
        with self._scopes[name]:
            await self._limiter.acquire(size_bytes)
            self.order.append(name)


@run_virtual
async def test_one_piece_larger_than_the_limit_is_admitted() -> None:
    """Strictly "is there any room": otherwise it could never be sent. Nothing else is, until it is given back."""
    limiter = ByteLimiter(10)
    async with anyio.create_task_group() as tasks:
        callers = Callers(limiter, tasks)
        await callers.arrive("oversized", 1000)
        assert limiter.held_bytes == 1000
        await callers.arrive("small", 1)
        assert callers.order == ["oversized"]
        limiter.release(1000)
        await settle()
        assert callers.order == ["oversized", "small"]


@run_virtual
async def test_the_last_one_admitted_may_overshoot() -> None:
    """7.2: a caller that comes while there is any room passes with all it has."""
    limiter = ByteLimiter(10)
    await limiter.acquire(9)
    await limiter.acquire(9)
    assert limiter.held_bytes == 18
    assert not limiter.has_room


@run_virtual
async def test_waiters_are_served_in_the_order_of_their_arrival() -> None:
    """A small one does not overtake a large one that came first."""
    limiter = ByteLimiter(10)
    async with anyio.create_task_group() as tasks:
        callers = Callers(limiter, tasks)
        await limiter.acquire(10)
        for name, size in (("large", 50), ("small", 1), ("medium", 5)):
            await callers.arrive(name, size)
        limiter.release(10)
        await settle()
        assert callers.order == ["large"]
        limiter.release(50)
        await settle()
        assert callers.order == ["large", "small", "medium"]


@pytest.mark.parametrize("leaving", ["first", "second", "third"])
@run_virtual
async def test_a_waiter_that_is_cancelled_holds_nothing_and_blocks_nobody(leaving: str) -> None:
    """Wherever it stands in the queue: the others are served as if it had never come."""
    limiter = ByteLimiter(10)
    async with anyio.create_task_group() as tasks:
        callers = Callers(limiter, tasks)
        await limiter.acquire(10)
        for name in ("first", "second", "third"):
            await callers.arrive(name, 1)
        await callers.leave(leaving)
        assert limiter.waiting == 2
        limiter.release(10)
        await settle()
        assert callers.order == [name for name in ("first", "second", "third") if name != leaving]
        assert limiter.held_bytes == 2


@run_virtual
async def test_a_waiter_cancelled_as_it_is_admitted_gives_its_room_to_the_next() -> None:
    """Admitted and cancelled in the same turn of the loop: it holds nothing, and the next one is admitted."""
    limiter = ByteLimiter(10)
    async with anyio.create_task_group() as tasks:
        callers = Callers(limiter, tasks)
        await limiter.acquire(10)
        unlucky = asyncio.ensure_future(limiter.acquire(10))
        await settle()
        await callers.arrive("next", 10)
        limiter.release(10)  # admits it
        unlucky.cancel()  # before it has come to know
        await settle()
        assert unlucky.cancelled()
        assert callers.order == ["next"]
        assert limiter.held_bytes == 10


@run_virtual
async def test_waiting_for_room_takes_none() -> None:
    """`room` returns when there is some, and leaves it to the first call of `acquire`."""
    limiter = ByteLimiter(10)
    heard: list[str] = []

    async def listen() -> None:
        await limiter.room()
        heard.append("room")

    await limiter.room()
    await limiter.acquire(10)
    async with anyio.create_task_group() as tasks:
        callers = Callers(limiter, tasks)
        tasks.start_soon(listen)
        await callers.arrive("waiter", 10)
        limiter.release(10)  # the waiter takes it all
        await settle()
        assert heard == []
        limiter.release(10)
        await settle()
    assert heard == ["room"]
    assert limiter.held_bytes == 0


# ------------------------------------------------------------------------------------------------------------- property

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 25)),
        st.tuples(st.just("release"), st.integers(0, 10)),
        st.tuples(st.just("leave"), st.integers(0, 10)),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(1, 20))
@run_virtual
async def test_it_does_what_a_queue_and_a_sum_would(events: list[tuple[str, int]], bytes_max: int) -> None:
    """Against a naive model: who is admitted, who waits, and how much is held, after each event."""
    limiter = ByteLimiter(bytes_max)
    holding: list[tuple[str, int]] = []
    queue: list[tuple[str, int]] = []
    admitted: list[str] = []

    def admit() -> None:
        while queue and sum(size for _, size in holding) < bytes_max:
            holding.append(queue.pop(0))
            admitted.append(holding[-1][0])

    async with anyio.create_task_group() as tasks:
        callers = Callers(limiter, tasks)
        for number, (event, value) in enumerate(events):
            if event == "arrive":
                queue.append((f"caller {number}", value))
                await callers.arrive(*queue[-1])
            elif event == "release" and holding:
                limiter.release(holding.pop(value % len(holding))[1])
                await settle()
            elif event == "leave" and queue:
                await callers.leave(queue.pop(value % len(queue))[0])
            admit()
            assert callers.order == admitted
            assert limiter.held_bytes == sum(size for _, size in holding)
            assert limiter.waiting == len(queue)
            assert limiter.has_room == (limiter.held_bytes < bytes_max)
            assert not (queue and limiter.has_room)
        tasks.cancel_scope.cancel()
    assert limiter.waiting == 0


@run_virtual
async def test_spare_room_is_what_others_leave_of_half_of_it() -> None:
    """The call waits while it would be more, and while anybody waits; others overtake it meanwhile."""
    limiter = ByteLimiter(100)
    async with anyio.create_task_group() as tasks:
        callers = Callers(limiter, tasks)
        await callers.arrive("first", 60)
        tasks.start_soon(limiter.acquire_spare, 30)
        await settle()
        assert limiter.held_bytes == 60
        await callers.arrive("second", 70)
        await callers.arrive("third", 10)
        limiter.release(60)  # the third goes on waiting for nobody: both are admitted, 80 are held
        await settle()
        assert callers.order == ["first", "second", "third"]
        assert limiter.held_bytes == 80
        limiter.release(70)
        await settle()
        assert limiter.held_bytes == 10 + 30
        limiter.release(10)
        tasks.start_soon(limiter.acquire_spare, 21)
        await settle()
        assert limiter.held_bytes == 30, "51 would be more than half"
        limiter.release(30)
        await settle()
        assert limiter.held_bytes == 21
        tasks.cancel_scope.cancel()


@run_virtual
async def test_spare_room_for_more_than_half_of_all_is_all_there_is() -> None:
    """Otherwise it could never be had. A cancelled call holds nothing."""
    limiter = ByteLimiter(100)
    await limiter.acquire(1)
    with anyio.move_on_after(1):
        await limiter.acquire_spare(1000)
    assert limiter.held_bytes == 1
    limiter.release(1)
    await limiter.acquire_spare(1000)
    assert limiter.held_bytes == 1000
