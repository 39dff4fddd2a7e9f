"""The page on Google Cloud Storage: its tests are these, on an honest server that is not Google's."""

import asyncio
import threading
from collections.abc import Generator

import pytest

from tests.howto.google_server import serving_bucket
from tests.howto.pages import claims_on


@pytest.fixture
def google() -> Generator[str]:
    """A server with a loop of its own: the kit looks whether the store blocks that of the test."""
    started, endpoint = threading.Event(), list[str]()
    over: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with serving_bucket() as at:
            over.append((asyncio.get_running_loop(), asyncio.Event()))
            endpoint.append(at)
            started.set()
            await over[0][1].wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    yield endpoint[0]
    loop, ended = over[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()


globals().update(claims_on("google"))
