"""A container of Azure Blob Storage as a primary: `azure://ACCOUNT/CONTAINER/PREFIX`. Needs the extra `azure`.

`azure_store.py` says which requests are sent, `azure_client.py` makes the client, `azure_errors.py` translates errors;
the rest is in the room `cloud`. Only this room imports Azure's libraries, and only `_backend/stores.py` imports this
room, when a primary begins with `azure://`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

from statebackend._threads import WorkerThreads
from statebackend.objectstore.azure.azure_client import open_client
from statebackend.objectstore.azure.azure_errors import store_errors
from statebackend.objectstore.azure.azure_store import PRICED_AS, SETTLED, AzureStore
from statebackend.objectstore.cloud.cloud_requests import CloudRequests
from statebackend.objectstore.cloud.renewal import renewal_of
from statebackend.objectstore.cloud.retrying import Retries
from statebackend.settings import AzureCredentials, AzureSettings

__all__ = ["AzureStore", "open_azure_store"]


@asynccontextmanager
async def open_azure_store(
    url: str, settings: AzureSettings, *, probe_key: str | None = None, threads: WorkerThreads | None = None
) -> AsyncGenerator[AzureStore]:
    """Open the store at `url`, with a client of its own, which belongs to the running loop.

    With a `probe_key`, for callers that will commit: first checks that the server honours put-if-absent, by creating
    that key, and so that there is a container and a permission at all; then that the account has no hierarchical
    namespace. Two requests, three the first time. Raises
    `UnfitStoreError`, `BucketNotFoundError`, `ClockSkewError`, `StoreAccessError`, and `StoreUnavailableError` after
    `outage_s`.

    `threads`: shared with other components, instead of two threads of the store's own.
    """
    place = urlsplit(url)
    name, _, prefix = place.path.strip("/").partition("/")
    renewal = None if settings.credentials is None else renewal_of(settings.credentials, AzureCredentials)
    async with open_client(settings, place.netloc, name, renewal) as client:
        requests = CloudRequests(
            {"container": name},
            priced_as=PRICED_AS,
            settled=SETTLED,
            errors=partial(store_errors, name),
            retries=Retries.of(settings),
            timeout_s=settings.request_timeout_s,
        )
        store = AzureStore(client, requests, prefix, settings=settings, threads=threads)
        if probe_key is not None:
            await store.check_put_if_absent(probe_key)
            await store.check_namespace()
        yield store
