"""A process that works on ranges until somebody kills it, possibly it itself. Forked from one that has all modules.

Through its connection it is sent a `Request` at a time, and answers with the contribution, encoded.
"""

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

from statebackend._ranges.range_owners import RangeOwners, RangeTask, open_range_owners
from statebackend.objectstore import LocalStore
from statebackend.testing import FaultyStore
from tests.backend.killed_child import Suicide
from tests.ranges.parts import Changes, add, tick

Step = Literal["opened", "worked", "contributed", "left"]


class Request(msgspec.Struct, frozen=True):
    """A task and its rows. `dies`: at which step, or before or after which request to the primary; or not at all."""

    task: RangeTask
    changes: Changes
    dies: Step | tuple[int, Literal["before", "after"]] | None = None


def work(connection: Connection, directory: Path) -> None:
    """Until the other end is closed."""
    anyio.run(_serve, connection, directory)


async def _serve(connection: Connection, directory: Path) -> None:
    store = FaultyStore(LocalStore(directory / "primary"))
    async with open_range_owners(store=store) as owners:
        while True:
            try:
                request: Request = await anyio.to_thread.run_sync(connection.recv)
            except EOFError:
                return
            store.plan.clear()
            if isinstance(request.dies, tuple):
                store.plan.append(Suicide(nth=request.dies[0], moment=request.dies[1]))
            connection.send_bytes(await _answer(owners, request))


async def _answer(owners: RangeOwners, request: Request) -> bytes:
    async with owners.attempt(request.task) as attempt:
        _die_at("opened", request)
        add(attempt.backend, request.changes)
        if request.task.clock is not None:
            tick(attempt.backend, request.changes)
        _die_at("worked", request)
        contribution = await attempt.contribute()
        _die_at("contributed", request)
    _die_at("left", request)
    return msgspec.msgpack.encode(contribution)


def _die_at(step: Step, request: Request) -> None:
    if request.dies == step:
        os.kill(os.getpid(), signal.SIGKILL)
