"""Asynchronous generators that a call leaves half way fail its batch, though they touch no state."""

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import statebackend as sb
from statebackend.errors import InputError
from statebackend.testing import ProcessorTester, run_virtual
from tests.processing.test_async_process import run, runner_of, table
from tests.processing.test_own_state import Job, open_job

closed: list[str] = []


async def pages(name: str = "pages") -> Any:
    """Two pages, and a connection to close."""
    try:
        yield 1
        await anyio.lowlevel.checkpoint()
        yield 2
    finally:
        await anyio.lowlevel.checkpoint()
        closed.append(name)


async def lines() -> Any:
    """As libraries do it: their generators iterate others, and are the only ones that their user can close."""
    async for page in pages("within"):
        yield page


@contextlib.asynccontextmanager
async def connection() -> Any:
    yield 1


async def breaks(p: Any, key: str) -> None:
    async for _ in pages():
        break


async def raises(p: Any, key: str) -> None:
    with contextlib.suppress(LookupError):
        async for _ in pages():
            raise LookupError


async def keeps_it_in_a_variable(p: Any, key: str) -> None:
    each = pages()
    await anext(each)


async def breaks_in_a_task(p: Any, key: str) -> None:
    await asyncio.create_task(breaks(p, key))


async def breaks_at_a_librarys(p: Any, key: str) -> None:
    async for _ in lines():
        break


async def never_leaves_a_context(p: Any, key: str) -> None:
    await connection().__aenter__()


@pytest.mark.parametrize(
    "use", [breaks, raises, keeps_it_in_a_variable, breaks_in_a_task, breaks_at_a_librarys, never_leaves_a_context]
)
@run_virtual
async def test_a_generator_that_is_left_half_way_fails_the_batch(use: Any) -> None:
    """The error has its name, its key and what to do."""

    async def use_for_one(p: Any, key: str) -> None:
        if key == "b":
            await use(p, key)

    async with open_job() as backend:
        with pytest.raises(InputError, match="left half way") as raised:
            await Job(backend, use_for_one).batch("a", "b", "c")
    assert "contextlib.aclosing" in str(raised.value)
    assert raised.value.facts["key"] == "b"


def test_nothing_of_such_a_batch_is_committed_and_the_next_goes_on() -> None:
    """As of any batch that fails."""

    class Leaving(sb.spark.KeyedProcessor):
        def open(self, context):
            self.counts = context.value_state("counts", int)

        async def process(self, key, rows, context):
            self.counts[key] = self.counts.get(key, 0) + len(rows)
            async for _ in pages():
                if rows[0]["leaves"]:
                    break

    def rows(keys: str, leaves: str) -> list[dict[str, Any]]:
        return [{"key": key, "leaves": key in leaves} for key in keys]

    with ProcessorTester(Leaving(), key="key") as tester:
        tester.batch(rows("ab", ""))
        with pytest.raises(InputError, match="left half way"):
            tester.batch(rows("abc", "b"))
        tester.batch(rows("b", ""))
        assert dict(tester.backend().value_state("counts", int).items()) == {"a": 1, "b": 2}


@run_virtual
async def test_process_itself_may_be_the_generator_that_leaves_one() -> None:
    """Of all generators that iterate others only `process` is the user's for sure."""

    class Paging(sb.spark.KeyedProcessor):
        async def process(self, key, rows, context):
            async for _ in pages():
                break
            if key == "nobody":
                yield {}

    async with open_job() as backend:
        with pytest.raises(InputError, match="left half way"):
            await run(runner_of(Paging()), table([("a", 1)]), 0, backend)


async def takes_all(p: Any, key: str) -> None:
    assert [page async for page in pages()] == [1, 2]


async def closes(p: Any, key: str) -> None:
    async with contextlib.aclosing(pages()) as each:
        async for _ in each:
            break


async def closes_a_librarys(p: Any, key: str) -> None:
    async with contextlib.aclosing(lines()) as each:
        async for _ in each:
            break


async def never_begins(p: Any, key: str) -> None:
    pages()


async def keeps_a_client(p: Any, key: str) -> None:
    if not hasattr(p, "client"):
        p.client = connection()
        await p.client.__aenter__()


@pytest.mark.parametrize("use", [takes_all, closes, closes_a_librarys, never_begins, keeps_a_client])
@run_virtual
async def test_a_generator_that_is_taken_to_its_end_closed_or_kept_is_none_that_is_left(
    use: Callable[[Any, str], Any],
) -> None:
    """What a closed one iterates is not the user's to close, and a client may last as long as its processor."""
    async with open_job() as backend:
        job = Job(backend, use)
        await job.batch("a", "b")
        await job.batch("a")


@run_virtual
async def test_one_that_is_dropped_after_its_batch_fails_the_next_one() -> None:
    """As one in a cycle of references, which goes with the next collection."""

    async def use(p: Any, key: str) -> None:
        if key == "a":
            cycle: list[Any] = [pages()]
            cycle.append(cycle)
            await anext(cycle[0])

    async with open_job() as backend:
        job = Job(backend, use)
        gc.disable()
        try:
            await job.batch("a")
        finally:
            gc.enable()
        gc.collect()
        with pytest.raises(InputError, match="left half way"):
            await job.batch("b")
        await job.batch("b")


@run_virtual
async def test_generators_of_others_on_the_loop_are_theirs() -> None:
    """Also while a batch is under way, and those are closed by the loop as ever: its hooks are back at the end."""

    async def beside() -> None:
        async for _ in pages("beside"):
            await anyio.sleep(1)
            break

    closed.clear()
    async with open_job() as backend:
        before = _hooks()
        other = asyncio.create_task(beside())
        await Job(backend, lambda p, key: anyio.sleep(2)).batch("a")
        await other
        assert _hooks() == before
    assert closed == ["beside"]


@run_virtual
async def test_batches_that_overlap_notice_their_own() -> None:
    """Two queries share the loop of their process. The first to end leaves the other one watched."""

    async def late(p: Any, key: str) -> None:
        await anyio.sleep(2)
        await breaks(p, key)

    async with open_job() as one, open_job() as other:
        leaving = asyncio.create_task(Job(one, late).batch("a"))
        await Job(other, lambda p, key: anyio.sleep(1)).batch("b")
        with pytest.raises(InputError, match="left half way"):
            await leaving


def _hooks() -> Any:
    return sys.get_asyncgen_hooks()
