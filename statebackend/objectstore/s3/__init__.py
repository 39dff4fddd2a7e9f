"""A bucket of S3, or of a server that speaks its protocol, as a primary: `s3://BUCKET/PREFIX`.

`store.py` keeps the contract of `ObjectStore`, `multipart.py` uploads large objects, `bucket.py` sends requests,
`client.py` makes the client, `errors.py` translates errors. Only this room imports aiobotocore, and only
`_backend/stores.py` imports this room, when a primary begins with `s3://`: the import costs 0.25 s and 44 MiB.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from statebackend._threads import WorkerThreads
from statebackend.objectstore.cloud.limited import RequestRate
from statebackend.objectstore.cloud.retrying import Retries
from statebackend.objectstore.s3.bucket import Bucket
from statebackend.objectstore.s3.client import open_client
from statebackend.objectstore.s3.store import S3Store
from statebackend.settings import S3Settings

__all__ = ["S3Store", "open_s3_store"]


@asynccontextmanager
async def open_s3_store(
    url: str, settings: S3Settings, *, probe_key: str | None = None, threads: WorkerThreads | None = None
) -> AsyncGenerator[S3Store]:
    """Open the store at `url`, with a client of its own, which belongs to the running loop.

    With a `probe_key`, for callers that will commit: first checks that the server honours put-if-absent, by creating
    that key, and so that there is a bucket and a permission at all. One request, two the first time. Raises
    `UnfitStoreError`, `BucketNotFoundError`, `ClockSkewError`, `StoreAccessError`, and `StoreUnavailableError` after
    `outage_s`.

    `threads`: shared with other components, instead of two threads of the store's own.
    """
    place = urlsplit(url)
    prefix = place.path.strip("/")
    retries = Retries(
        RequestRate(settings.requests_per_s_max),
        retries_per_s_max=settings.retries_per_s_max,
        outage_s=settings.outage_s,
        chance=random.Random(),  # noqa: S311  # spreads pauses
    )
    async with open_client(settings, place.netloc) as client:
        bucket = Bucket(client, place.netloc, retries=retries, timeout_s=settings.request_timeout_s)
        store = S3Store(
            bucket,
            f"{prefix}/" if prefix else "",
            settings=settings,
            threads=threads or WorkerThreads(cpu_threads_max=2, io_threads_max=1),
        )
        if probe_key is not None:
            await store.check_put_if_absent(probe_key)
        yield store
