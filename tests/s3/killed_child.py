"""The life of a process that keeps committing batches to S3 until somebody kills it, possibly it itself.

As in `tests.backend.killed_child`, whose batches these are.
"""

import asyncio
from typing import Any

import statebackend as sb
from benchmarks.servers import Server
from statebackend.objectstore.s3 import open_s3_store
from statebackend.testing import FaultyStore
from tests.backend.killed_child import Suicide, apply, batch_changes
from tests.mortals import Report
from tests.s3.clients import settings_for


def settings_of(server: Server, bucket: str, prefix: str) -> sb.Settings:
    """Without a local copy: what comes back comes from S3."""
    return settings_for(server, bucket, prefix=prefix, preemptive_persist_threshold_bytes=2_000)


def live(report: Report, server: Server, bucket: str, prefix: str, **death: Any) -> None:
    """Commit batches for ever, from the one after the newest. With `nth` and `moment` it ends itself, once opened."""
    asyncio.run(_commit(report, settings_of(server, bucket, prefix), Suicide(**death) if death else None))


async def _commit(report: Report, settings: sb.Settings, fault: Suicide | None) -> None:
    async with open_s3_store(settings.primary, settings.s3, probe_key="probe") as s3:
        store = FaultyStore(s3)
        async with sb.open_backend(settings, store=store) as backend:
            state = backend.value_state("n", int)
            newest = backend.newest.source if backend.newest is not None else None
            batch = 0 if newest is None else newest.batch_id + 1
            if fault is not None:
                store.plan.append(fault)
            while True:
                apply(state, batch_changes(batch))
                await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("q", batch))
                report(batch)
                batch += 1
