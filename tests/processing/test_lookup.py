"""Lookups: one request for each argument and batch, within limits on concurrency, rate and retries."""

import asyncio
import itertools
import pickle
import traceback
from collections import Counter
from typing import Any

import anyio
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._processing.runner import ProcessorRunner
from statebackend.errors import InputError, SettingsError
from statebackend.testing import run_virtual

jobs = itertools.count()


class Asking(sb.spark.KeyedProcessor):
    """Asks for the last letter of each key, and yields the answer."""

    output_schema = pa.schema([("key", pa.string()), ("answer", pa.string())])

    def __init__(self, lookup: Any) -> None:
        self.lookup = lookup

    async def process(self, key, rows, context):
        yield {"key": key, "answer": await self.lookup(key[-1])}


async def answers(processor: Any, *batches: list[str]) -> list[dict[str, str]]:
    """What the processor yields for these keys, by key and batch."""
    found = []
    async with sb.open_backend(sb.Settings(job="j", primary=f"memory://lookup-{next(jobs)}", local=())) as backend:
        runner = ProcessorRunner(processor, key="key", order_by=(), has_output=True)
        for number, keys in enumerate(batches):
            rows = await runner.run(runner.keys_of(pa.table({"key": keys})), number, backend)
            found.append({row["key"]: row["answer"] for row in rows})
    return found


class Service:
    """Answers in upper case after a second, and notes when it was asked what; fails as often as it is told to."""

    def __init__(self, failures: dict[str, list[Exception]] | None = None) -> None:
        self.asked: list[tuple[float, str]] = []
        self.at_a_time: list[int] = []
        self._under_way = 0
        self._failures = failures or {}

    async def __call__(self, letter: str) -> str:
        self.asked.append((anyio.current_time(), letter))
        self._under_way += 1
        self.at_a_time.append(self._under_way)
        try:
            await anyio.sleep(1)
            if self._failures.get(letter):
                raise self._failures[letter].pop(0)
            return letter.upper()
        finally:
            self._under_way -= 1

    @property
    def counts(self) -> Counter[str]:
        return Counter(letter for _, letter in self.asked)


@run_virtual
async def test_an_argument_is_asked_for_once_in_a_batch_however_many_keys_want_it() -> None:
    """And again in the next batch, where the answer may be another."""
    service = Service()
    keys = [f"{number}{letter}" for number in range(5) for letter in "xy"]
    first, second = await answers(Asking(sb.spark.lookup(service)), keys, ["1x"])
    assert first == {key: key[-1].upper() for key in keys}
    assert second == {"1x": "X"}
    assert service.counts == {"x": 2, "y": 1}


@run_virtual
async def test_requests_are_bounded_in_number_and_in_rate() -> None:
    """Four seconds for eight answers, two at a time; then one every three seconds, from batch to batch."""
    service = Service()
    await answers(Asking(sb.spark.lookup(service, concurrency=2)), list("abcdefgh"))
    assert max(service.at_a_time) == 2
    assert anyio.current_time() == pytest.approx(4, abs=0.1)
    slow = Service()
    begun = anyio.current_time()
    await answers(Asking(sb.spark.lookup(slow, rate_per_s=1 / 3)), ["a", "b"], ["a", "c"])
    assert [at - begun for at, _ in slow.asked] == pytest.approx([0, 3, 6, 9], abs=0.1)


@run_virtual
async def test_an_error_of_the_network_is_tried_again_after_a_pause() -> None:
    """Up to the last attempt, and nobody who asks notices."""
    service = Service({"x": [ConnectionError("1"), TimeoutError("2")]})
    assert await answers(Asking(sb.spark.lookup(service, retry_delay_s=7)), ["1x", "2x"]) == [{"1x": "X", "2x": "X"}]
    assert [at for at, _ in service.asked] == pytest.approx([0, 8, 16], abs=0.1)


@pytest.mark.parametrize(
    ("failures", "options", "asked"),
    [
        ([ValueError("wrong")], {}, 1),
        ([OSError("wrong")] * 9, {"attempts_max": 4}, 4),
        ([OSError("wrong")] * 9, {"attempts_max": 4, "retries_max": 2}, 3),
        ([OSError("wrong")] * 9, {"retry_on": (KeyError,)}, 1),
        ([KeyError("wrong")] * 9, {"retry_on": (KeyError,), "retries_max": 0}, 1),
    ],
)
@run_virtual
async def test_an_error_is_raised_to_all_that_ask_when_there_is_no_attempt_left(failures, options, asked) -> None:
    """As it is, and without asking again: for each argument attempts are bounded, and retries for all of them."""
    service, expected = Service({"x": [*failures]}), type(failures[0])

    class Enduring(Asking):
        async def process(self, key, rows, context):
            try:
                await self.lookup(key)
            except expected as error:
                yield {"key": key, "answer": str(error).strip("'")}
            with pytest.raises(expected):
                await self.lookup(key)

    assert await answers(Enduring(sb.spark.lookup(service, **options)), ["x"]) == [{"x": "wrong"}]
    assert service.counts == {"x": asked}


@run_virtual
async def test_retries_of_all_arguments_are_paid_from_one_budget() -> None:
    """A service that is down is not asked by each key as often as one key may ask."""
    service = Service({letter: [OSError(letter)] * 9 for letter in "abcdefgh"})

    class Enduring(Asking):
        async def process(self, key, rows, context):
            with pytest.raises(OSError, match=key):
                await self.lookup(key)

    await answers(Enduring(sb.spark.lookup(service, attempts_max=9, retries_max=3)), list("abcdefgh"))
    assert len(service.asked) == 8 + 3


@run_virtual
async def test_a_request_that_takes_too_long_is_cancelled_and_made_again() -> None:
    """The time runs from when the request begins, not while it waits for its place."""
    hangs = [3600.0, 3600.0]

    async def function(letter: str) -> str:
        await anyio.sleep(hangs.pop() if hangs else 1)
        return letter

    assert await answers(Asking(sb.spark.lookup(function, timeout_s=10, concurrency=1)), ["a", "b"]) == [
        {"a": "a", "b": "b"}
    ]
    assert anyio.current_time() == pytest.approx(10 + 0.5 + 10 + 0.5 + 1 + 1, abs=0.1)


@run_virtual
async def test_if_the_call_that_asks_is_cancelled_the_next_one_asks() -> None:
    """It had a shorter time limit of its own."""
    service = Service()

    class Hasty(Asking):
        async def process(self, key, rows, context):
            with anyio.move_on_after(0.5 if key == "1x" else 3600):
                return [{"key": key, "answer": await self.lookup("x")}]
            return None

    assert await answers(Hasty(sb.spark.lookup(service)), ["1x", "2x", "3x"]) == [{"2x": "X", "3x": "X"}]
    assert [at for at, _ in service.asked] == pytest.approx([0, 0.5], abs=0.1)


@run_virtual
async def test_a_lookup_may_ask_another_one_and_uses_no_state() -> None:
    """Its answer goes to all keys, so none of them is its own."""
    inner = sb.spark.lookup(Service())

    class Peeking(Asking):
        def open(self, context):
            self.counts = context.value_state("counts", int)
            self.seen = context.operator_state("seen", str)
            self.lookup = sb.spark.lookup(self._ask)

        async def _ask(self, letter: str) -> str:
            found = await inner(letter)
            if letter == "y":
                self.counts.get("1y")
            if letter == "z":
                self.seen.append("z")
            return found

    assert await answers(Peeking(None), ["1x"]) == [{"1x": "X"}]
    for key in ("1y", "1z"):
        with pytest.raises(InputError, match="answer goes to all keys"):
            await answers(Peeking(None), [key])


@pytest.mark.parametrize("concurrency", [1, 16])
@run_virtual
async def test_a_lookup_that_asks_itself_is_told_at_once(concurrency) -> None:
    """Also by way of another one. With enough keys its calls would wait for each other's places until all are late."""

    async def go_on(letter: str) -> str:
        return await lookup(chr(ord(letter) + 1))

    async def go_another_way(letter: str) -> str:
        return await other(letter)

    lookup = other = sb.spark.lookup(go_on, concurrency=concurrency)
    with pytest.raises(InputError, match="a lookup asks itself"):
        await answers(Asking(lookup), list("abc"))
    lookup = sb.spark.lookup(go_another_way, concurrency=concurrency)
    with pytest.raises(InputError, match="a lookup asks itself"):
        await answers(Asking(other), list("abc"))
    assert anyio.current_time() < 1


@run_virtual
async def test_sinks_that_share_a_lookup_share_its_limits() -> None:
    """As one of a module: three batches on one loop, two answers at a time."""
    service = Service()
    lookup = sb.spark.lookup(service, concurrency=2)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(answers, Asking(lookup), list("abcd"))
    assert max(service.at_a_time) == 2
    assert anyio.current_time() == pytest.approx(6, abs=0.1)


def test_each_loop_has_its_own_places() -> None:
    """A lookup that is used on two loops in turn keeps to its limit on each."""
    limits = sb.spark.lookup(Service(), concurrency=2)._limits

    async def places() -> anyio.Semaphore:
        return limits.places()

    with asyncio.Runner() as one, asyncio.Runner() as other:
        first, second = one.run(places()), other.run(places())
        assert first is not second
        assert (one.run(places()), other.run(places())) == (first, second)


@run_virtual
async def test_an_error_has_the_frames_of_one_call_however_many_have_caught_it() -> None:
    """They hold what the calls had in hand, and a log of them would grow with the square of the keys."""
    frames = list[int]()

    class Catching(Asking):
        async def process(self, key, rows, context):
            try:
                await self.lookup("x")
            except ValueError as error:
                frames.append(len(list(traceback.walk_tb(error.__traceback__))))

    await answers(Catching(sb.spark.lookup(Service({"x": [ValueError("wrong")]}))), [str(key) for key in range(20)])
    assert len(frames) == 20
    assert len(set(frames[1:])) == 1


@run_virtual
async def test_a_function_that_is_not_asynchronous_is_told_so() -> None:
    """Some callables do not say it before they are called."""
    with pytest.raises(InputError, match="make it an `async def`"):
        await answers(Asking(sb.spark.lookup(str.upper)), ["x"])


@run_virtual
async def test_a_lookup_outside_of_a_call_and_one_that_cannot_be_remembered_are_refused() -> None:
    """The batch is what it remembers for, and the arguments are what it remembers by."""
    lookup = sb.spark.lookup(Service())
    with pytest.raises(InputError, match="in a call of an asynchronous process"):
        await lookup("x")

    class Unhashable(Asking):
        async def process(self, key, rows, context):
            return [{"key": key, "answer": await self.lookup([key])}]

    with pytest.raises(InputError, match="must have a hash"):
        await answers(Unhashable(lookup), ["x"])


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"attempts_max": 0},
        {"retries_max": -1},
        {"rate_per_s": 0},
        {"timeout_s": 0},
        {"retry_delay_s": -1},
        {"rate_per_s": "10"},
        {"timeout_s": "5"},
        {"retry_delay_s": None},
        {"retry_on": [OSError]},
        {"retry_on": (OSError, "TimeoutError")},
        {"retry_on": OSError("an instance")},
        {"function": None},
    ],
)
def test_a_limit_out_of_bounds_is_refused(options) -> None:
    """When the lookup is made."""
    with pytest.raises(SettingsError):
        sb.spark.lookup(**{"function": Service(), **options})


async def shout(letter: str) -> str:
    return letter.upper()


@run_virtual
async def test_a_lookup_pickles_with_its_limits_after_use() -> None:
    """So it can be sent to executors, with the processor."""
    lookup = sb.spark.lookup(shout, rate_per_s=1)
    await answers(Asking(lookup), ["a", "b", "c"])
    copy = pickle.loads(pickle.dumps(lookup))
    begun = anyio.current_time()
    assert await answers(Asking(copy), ["a", "b"]) == [{"a": "A", "b": "B"}]
    assert anyio.current_time() - begun == pytest.approx(1, abs=0.1)
