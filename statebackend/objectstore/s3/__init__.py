"""A bucket of S3, or of a server that speaks its language, as a primary: `s3://BUCKET/PREFIX`.

`store.py` keeps the contract of `ObjectStore`, `multipart.py` uploads large objects, `bucket.py` sends requests,
`client.py` makes the client, `errors.py` translates. Only this room imports aiobotocore, and only `_backend/stores.py`
imports this room, where a primary begins with `s3://`: the import takes a quarter of a second and 44 MiB.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from statebackend._threads import WorkerThreads
from statebackend.objectstore import PROBE_KEY
from statebackend.objectstore.limited import RequestRate
from statebackend.objectstore.retrying import Retries
from statebackend.objectstore.s3.bucket import Bucket
from statebackend.objectstore.s3.client import open_client
from statebackend.objectstore.s3.store import S3Store
from statebackend.settings import Settings

__all__ = ["S3Store", "open_s3_store"]


@asynccontextmanager
async def open_s3_store(
    settings: Settings, *, commits: bool = True, threads: WorkerThreads | None = None
) -> AsyncGenerator[S3Store]:
    """The store that an `s3://` primary names, with a client of its own, which belongs to the running loop.

    Opened by one who `commits` it first asks whether put-if-absent is kept, and so whether there is a bucket and a
    permission at all: one request, two for a job that is new. Raises `UnfitStoreError`, `BucketNotFoundError`,
    `ClockSkewError`, `StoreAccessError`, and `StoreUnavailableError` after `s3.outage_s`.

    `threads`: shared with other components, instead of the store's own.
    """
    url = urlsplit(settings.primary)
    prefix = url.path.strip("/")
    retries = Retries(
        RequestRate(settings.s3.requests_per_s_max),
        retries_per_s_max=settings.s3.retries_per_s_max,
        outage_s=settings.s3.outage_s,
        chance=random.Random(),  # noqa: S311  # spreads pauses
    )
    async with open_client(settings, url.netloc) as client:
        bucket = Bucket(client, url.netloc, retries=retries, timeout_s=settings.s3.request_timeout_s)
        threads = threads or WorkerThreads(
            cpu_threads_max=settings.cpu_threads_max, io_threads_max=settings.io_threads_max
        )
        store = S3Store(bucket, f"{prefix}/" if prefix else "", settings=settings, threads=threads)
        if commits:
            await store.check_put_if_absent(f"{settings.job}/{PROBE_KEY}")
        yield store
