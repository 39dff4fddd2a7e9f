"""A bucket of S3, or of a server that speaks its protocol, as a primary: `s3://BUCKET/PREFIX`.

`s3_store.py` says which requests are sent, `bucket.py` sends them, `multipart.py` uploads large objects, `s3_client.py`
makes the client, `s3_errors.py` translates errors; the rest is in the room `cloud`. Only this room imports aiobotocore,
and only `_backend/stores.py` imports this room, when a primary begins with `s3://`: the import costs 0.25 s and 44 MiB.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from statebackend._threads import WorkerThreads
from statebackend.objectstore.cloud.renewal import renewal_of
from statebackend.objectstore.cloud.retrying import Retries
from statebackend.objectstore.s3.bucket import Bucket
from statebackend.objectstore.s3.s3_client import open_client
from statebackend.objectstore.s3.s3_store import S3Store
from statebackend.settings import S3Credentials, S3Settings

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
    renewal = None if settings.credentials is None else renewal_of(settings.credentials, S3Credentials)
    async with open_client(settings, place.netloc, renewal) as client:
        bucket = Bucket(
            client,
            place.netloc,
            retries=Retries.of(settings),
            timeout_s=settings.request_timeout_s,
            renewal=renewal,
        )
        store = S3Store(bucket, place.path.strip("/"), settings=settings, threads=threads)
        if probe_key is not None:
            await store.check_put_if_absent(probe_key)
        yield store
