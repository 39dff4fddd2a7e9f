"""What tests do to a server beside the library, and settings for it."""

from typing import Any

from benchmarks.servers import Server, open_client
from statebackend import Settings
from statebackend.settings import MiB, Secret
from tests.knobs import settings_with


def settings_for(server: Server, bucket: str, *, prefix: str, **changes: Any) -> Settings:
    """A job in `bucket`, with the smallest parts, and without the persist delay."""
    values: dict[str, Any] = {
        "job": "fleet",
        "primary": f"s3://{bucket}/{prefix}",
        "s3__endpoint": server.endpoint,
        "s3__region": "us-east-1",
        "s3__access_key_id": server.access_key_id,
        "s3__secret_access_key": Secret(server.secret_access_key),
        "s3__part_bytes": 5 * MiB,
        "s3__multipart_threshold_bytes": 5 * MiB,
        "persist_delay_s": 0.0,
    }
    return settings_with(**{**values, **changes})


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
