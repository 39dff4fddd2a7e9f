"""What tests do to a server beside the library, and settings for it."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from aiobotocore.session import get_session

from benchmarks.servers import Server
from statebackend import Settings
from statebackend.settings import MiB, Secret


def open_client(server: Server) -> AbstractAsyncContextManager[Any]:
    """A client of its own."""
    return get_session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
    )


def settings_for(server: Server, bucket: str, *, prefix: str, **changes: Any) -> Settings:
    """A job in `bucket`, with the smallest parts, and without the persist delay."""
    values: dict[str, Any] = {
        "job": "fleet",
        "primary": f"s3://{bucket}/{prefix}",
        "s3_endpoint": server.endpoint,
        "s3_region": "us-east-1",
        "s3_access_key_id": server.access_key_id,
        "s3_secret_access_key": Secret(server.secret_access_key),
        "s3_part_bytes": 5 * MiB,
        "s3_multipart_threshold_bytes": 5 * MiB,
        "persist_delay_s": 0.0,
    }
    return Settings(**{**values, **changes})


async def make_bucket(server: Server, name: str) -> None:
    """A new bucket."""
    async with open_client(server) as client:
        await client.create_bucket(Bucket=name)


async def objects_of(settings: Settings, server: Server) -> dict[str, int]:
    """Every object below the primary, by its key there, and its size."""
    bucket, prefix = place_of(settings)
    async with open_client(server) as client:
        page = await client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        return {entry["Key"].removeprefix(prefix): entry["Size"] for entry in page.get("Contents", ())}


async def uploads_of(settings: Settings, server: Server) -> list[str]:
    """The keys below the primary of uploads in parts that are neither completed nor aborted."""
    bucket, prefix = place_of(settings)
    async with open_client(server) as client:
        page = await client.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
        return [upload["Key"].removeprefix(prefix) for upload in page.get("Uploads", ())]


def place_of(settings: Settings) -> tuple[str, str]:
    """The bucket, and the prefix of every key in it."""
    bucket, _, prefix = settings.primary.removeprefix("s3://").partition("/")
    return bucket, f"{prefix}/"
