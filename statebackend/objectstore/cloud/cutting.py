"""Sends a large object in parts: cuts its body without copying it, and sends some of the parts at a time."""

from collections.abc import Awaitable, Callable, Iterator, Sequence

import anyio

from statebackend.abc import Body

Part = Sequence[memoryview]


def parts(body: Body, part_bytes: int) -> Iterator[Part]:
    """Cut `body` into parts of exactly `part_bytes`, except the last one. Copies nothing."""
    part: list[memoryview] = []
    room = part_bytes
    for chunk in body:
        if not len(chunk):
            continue
        rest = memoryview(chunk).cast("B")
        while len(rest) >= room:
            yield [*part, rest[:room]]
            rest, part, room = rest[room:], [], part_bytes
        if len(rest):
            part.append(rest)
            room -= len(rest)
    if part:
        yield part


async def send_parts(
    body: Body, send: Callable[[int, Part], Awaitable[None]], *, part_bytes: int, concurrency_max: int
) -> None:
    """Have `send` send each part, by its number from 0 on, up to `concurrency_max` at a time.

    Raises the first error of `send`, and cancels its other calls then.
    """
    room = anyio.Semaphore(concurrency_max)
    failures: list[Exception] = []

    async def send_one(number: int, part: Part) -> None:
        try:
            await send(number, part)
        except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
            failures.append(error)
            tasks.cancel_scope.cancel()
        else:
            room.release()

    async with anyio.create_task_group() as tasks:
        for number, part in enumerate(parts(body, part_bytes)):
            await room.acquire()
            tasks.start_soon(send_one, number, part)
    if failures:
        raise failures[0]
