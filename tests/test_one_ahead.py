"""What is fetched next comes while the one before it is consumed, and errors come out as they are."""

from collections.abc import Callable

import anyio
import pytest

from statebackend._tasks import StrayCancellationError, one_ahead
from statebackend.testing.virtual_time import VirtualClock, run_virtual
from tests.test_tasks import stray


async def _raise(error: Exception) -> None:
    raise error


@run_virtual
async def test_the_next_one_is_fetched_while_one_is_consumed() -> None:
    """Never more than one ahead: three that take 10 s to fetch and to consume take 40 s and not 60."""
    clock, waiting, consumed = VirtualClock(), iter(range(3)), list[int]()
    on_their_way = most = 0

    async def fetch() -> int | None:
        nonlocal on_their_way, most
        if (found := next(waiting, None)) is not None:
            on_their_way += 1
            most = max(most, on_their_way)
            await anyio.sleep(10)
        return found

    async def consume(item: int) -> None:
        nonlocal on_their_way
        await anyio.sleep(10)
        consumed.append(item)
        on_their_way -= 1

    await one_ahead(fetch, consume)
    assert (consumed, most, clock.monotonic()) == ([0, 1, 2], 2, 40)


@pytest.mark.parametrize("who", ["fetch", "consume"])
@pytest.mark.parametrize(
    ("fail", "error"), [(lambda: _raise(KeyError("gone")), KeyError), (stray, StrayCancellationError)]
)
def test_an_error_ends_it_once_the_other_has_ended(
    who: str, fail: Callable[[], object], error: type[Exception]
) -> None:
    """Nothing is cut short, nothing comes after it, and what was fetched last is not consumed."""
    waiting, consumed, fetched = iter(range(9)), list[int](), list[int]()

    async def fetch() -> int:
        number = next(waiting)
        if who == "fetch" and number == 2:
            await fail()  # type: ignore[misc]
        await anyio.sleep(5)
        fetched.append(number)
        return number

    async def consume(item: int) -> None:
        if who == "consume" and item == 1:
            await fail()  # type: ignore[misc]
        await anyio.sleep(5)
        consumed.append(item)

    @run_virtual
    async def run() -> None:
        await one_ahead(fetch, consume)

    with pytest.raises(error):
        run()
    assert (consumed, fetched) == (([0, 1], [0, 1]) if who == "fetch" else ([0], [0, 1, 2]))
