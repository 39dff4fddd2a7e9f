"""Calls of an asynchronous `process` leave no trace of which was the first to end: in logs, entries and the context."""

import asyncio
import operator
from collections.abc import Callable
from contextvars import ContextVar

import anyio
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._codec.change_sets.parts import encode_parts
from statebackend.testing import run_virtual
from tests.processing.test_async_process import SUMS, new_job, run, runner_of, table


class Backwards(sb.spark.KeyedProcessor):
    """Its calls get to `use` in the reverse order of their keys. States go by the number of the batch, in seconds."""

    def __init__(self, use: Callable[["Backwards", str, int], object]) -> None:
        self._use = use

    def open(self, context):
        ttl = sb.TimeToLive(1.5, now=lambda: float(context.batch_id), on_read=True)
        self.counts = context.value_state("counts", int)
        self.lists = context.list_state("lists", int)
        self.maps = context.map_state("maps", str, int)
        self.sums = context.reducing_state("sums", int, operator.add)
        self.due = context.timers("due")
        self.rows = context.columnar_state("rows", SUMS, key=pa.string(), ttl=ttl)

    async def process(self, key, rows, context):
        await anyio.sleep(ord("z") - ord(key))
        for row in rows:
            self._use(self, key, row["number"])


async def logged(use: Callable[[Backwards, str, int], object], batches: list[str], concurrency: int) -> list[bytes]:
    """What each batch logs, which has a row for each of these keys."""
    found = list[bytes]()
    async with sb.open_backend(new_job()) as backend:
        runner = runner_of(Backwards(use), concurrency=concurrency)
        for batch_id, keys in enumerate(batches):
            await run(runner, table([(key, batch_id) for key in keys]), batch_id, backend)
            found.append(bytes(encode_parts(backend._states.drain())))
    return found


USES: dict[str, Callable[[Backwards, str, int], object]] = {
    "values": lambda states, key, number: states.counts.__setitem__(key, number),
    "lists": lambda states, key, number: states.lists[key].append(number),
    "maps": lambda states, key, number: states.maps[key].update(a=number),
    "sums": lambda states, key, number: states.sums.add(key, number),
    "timers": lambda states, key, number: states.due.register(key, number),
    "rows": lambda states, key, number: states.rows.__setitem__(key, {"n": number, "last": number}),
    "rows that are read": lambda states, key, number: (
        states.rows[key] if number else states.rows.__setitem__(key, {"n": 0, "last": 0})
    ),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@run_virtual
async def test_changes_are_logged_in_the_order_of_the_keys(use) -> None:
    """Of keys that were there before. Where reading a row prolongs its life, that is a change, too."""
    one_by_one = await logged(use, ["abc", "abc"], 1)
    assert one_by_one[1] != await logged(use, ["abc", "cba"], 1), "else the order does not show in what is logged"
    assert await logged(use, ["abc", "abc"], 3) == one_by_one


@run_virtual
async def test_new_entries_lie_in_the_order_of_the_keys() -> None:
    """Behind those that were there before, whose order stays, also if they are touched."""
    names = ("values", "lists", "maps", "sums", "timers")

    def use_all(states: Backwards, key: str, number: int) -> None:
        for name in names:
            USES[name](states, key, number)

    async with sb.open_backend(new_job()) as backend:
        runner = runner_of(Backwards(use_all))
        for batch_id, (keys, expected) in enumerate((("ec", "ec"), ("bade", "ecbad"))):
            await run(runner, table([(key, 1) for key in keys]), batch_id, backend)
            (opened,) = runner._opened.values()
            states = opened.processor
            with opened.alone():
                for state in (states.counts, states.lists, states.maps, states.sums, states.due):
                    assert "".join(state) == expected, state.name
            list(backend._states.drain())


bound: ContextVar[str] = ContextVar("bound", default="by nobody")


@pytest.mark.parametrize("concurrency", [1, 2])
@run_virtual
async def test_a_call_sees_no_context_variable_that_another_has_set(concurrency) -> None:
    """Its own last as long as it does, over what it awaits, in its tasks, and when it is cancelled."""
    seen = list[str]()

    async def note() -> None:
        seen.append(bound.get())

    class Binding(sb.spark.KeyedProcessor):
        async def process(self, key, rows, context):
            await note()
            bound.set(key)
            with anyio.move_on_after(1):
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await asyncio.create_task(note())
            await note()

    async with sb.open_backend(new_job()) as backend:
        await run(runner_of(Binding(), concurrency=concurrency), table([("a", 1), ("b", 1)]), 0, backend)
    assert sorted(seen) == ["a", "a", "b", "b", "by nobody", "by nobody"]
    assert bound.get() == "by nobody"
