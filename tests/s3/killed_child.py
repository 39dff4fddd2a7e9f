"""The life of a process that keeps committing batches to S3 until somebody kills it, possibly it itself."""

import asyncio
from typing import Any

import statebackend as sb
from benchmarks.servers import Server
from statebackend.objectstore.s3 import open_s3_store
from tests.mortal_jobs import commit_for_ever
from tests.mortals import Report
from tests.s3.clients import settings_for


def settings_of(server: Server, bucket: str, prefix: str) -> sb.Settings:
    """Without a local copy: what comes back comes from S3."""
    return settings_for(server, bucket, prefix=prefix, preemptive_persist_threshold_bytes=2_000)


def live(report: Report, server: Server, bucket: str, prefix: str, **death: Any) -> None:
    """Commit batches for ever. With `nth` and `moment` it ends itself, once opened."""
    settings = settings_of(server, bucket, prefix)
    opening = open_s3_store(settings.primary, settings.s3, probe_key="probe")
    asyncio.run(commit_for_ever(report, settings, opening, death))
