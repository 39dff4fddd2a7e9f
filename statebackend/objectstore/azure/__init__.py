"""A container of Azure Blob Storage as a primary: `azure://ACCOUNT/CONTAINER/PREFIX`. Needs the extra `azure`.

`store.py` keeps the contract of `ObjectStore`, `container.py` sends requests, `client.py` makes the client, `errors.py`
translates errors. Only this room imports Azure's libraries, and only `_backend/stores.py` imports this room, when a
primary begins with `azure://`.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from statebackend._threads import WorkerThreads
from statebackend.objectstore.azure.client import open_client
from statebackend.objectstore.azure.container import Container
from statebackend.objectstore.azure.store import AzureStore
from statebackend.objectstore.cloud.limited import RequestRate
from statebackend.objectstore.cloud.retrying import Retries
from statebackend.settings import AzureSettings

__all__ = ["AzureStore", "open_azure_store"]


@asynccontextmanager
async def open_azure_store(
    url: str, settings: AzureSettings, *, probe_key: str | None = None, threads: WorkerThreads | None = None
) -> AsyncGenerator[AzureStore]:
    """Open the store at `url`, with a client of its own, which belongs to the running loop.

    With a `probe_key`, for callers that will commit: first checks that the server honours put-if-absent, by creating
    that key, and so that there is a container and a permission at all. One request, two the first time. Raises
    `UnfitStoreError`, `BucketNotFoundError`, `ClockSkewError`, `StoreAccessError`, and `StoreUnavailableError` after
    `outage_s`.

    `threads`: shared with other components, instead of two threads of the store's own.
    """
    place = urlsplit(url)
    container, _, prefix = place.path.strip("/").partition("/")
    retries = Retries(
        RequestRate(settings.requests_per_s_max),
        retries_per_s_max=settings.retries_per_s_max,
        outage_s=settings.outage_s,
        chance=random.Random(),  # noqa: S311  # spreads pauses
    )
    async with open_client(settings, place.netloc, container) as client:
        store = AzureStore(
            Container(client, container, retries=retries, timeout_s=settings.request_timeout_s),
            f"{prefix}/" if prefix else "",
            settings=settings,
            threads=threads or WorkerThreads(cpu_threads_max=2, io_threads_max=1),
        )
        if probe_key is not None:
            await store.check_put_if_absent(probe_key)
        yield store
