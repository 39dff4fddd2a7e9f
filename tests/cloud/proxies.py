"""A way to a server on which there may be trouble."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.cloud.http_proxy import FaultProxy, open_fault_proxy


@asynccontextmanager
async def proxy_to(endpoint: str) -> AsyncGenerator[FaultProxy]:
    """For a fixture: pytest ends one in another task than it began it in, which no task group bears."""
    opened, over = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def run() -> None:
        async with open_fault_proxy(endpoint) as proxy:
            opened.set_result(proxy)
            await over.wait()

    running = asyncio.create_task(run())
    yield await opened
    over.set()
    await running
