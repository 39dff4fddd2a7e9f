"""The settings of the jobs that are measured."""

from typing import Any

from benchmarks.servers import Server
from statebackend import Settings
from statebackend.settings import S3Settings, Secret

BUCKET = "benchmark"


def settings_of(server: Server, **changes: Any) -> Settings:
    """A job in a bucket of `server`, with the defaults in everything else."""
    values: dict[str, Any] = {
        "job": "benchmark",
        "primary": f"s3://{BUCKET}/ours",
        "s3": S3Settings(
            endpoint=server.endpoint,
            region="us-east-1",
            access_key_id=server.access_key_id,
            secret_access_key=Secret(server.secret_access_key),
        ),
    }
    return Settings(**values | changes)
