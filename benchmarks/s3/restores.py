"""A thousand segments come back through a network of 20 ms a request.

Envelope. Sixteen at a time are sixty-three turns of 20 ms, for any client. What we add is verifying and decoding,
in worker threads beside the requests, and applying in order: a third of the time is allowed for that.
"""

import dataclasses
import time

import anyio

import statebackend as sb
from benchmarks.contest import Line, Report, ratio
from benchmarks.s3.places import BUCKET, settings_of
from benchmarks.servers import Server, make_bucket, open_client
from tests.cloud.http_proxy import open_fault_proxy

LATENCY_S = 0.020
SEGMENTS = 1000
AT_A_TIME = 16
JOB = "restore"


def run(report: Report, server: Server, rounds: int) -> None:
    """Our time over that of as many bare requests, as many at a time."""
    anyio.run(make_bucket, server, BUCKET)
    anyio.run(_write, server)
    found = report.contest(
        "a restore",
        "s",
        {"bare": lambda: anyio.run(_bare, server), "ours": lambda: anyio.run(_ours, server)},
        rounds=rounds,
    )
    report.add(
        Line(
            f"restore of {SEGMENTS:,} segments, time over bare GETs {AT_A_TIME} at a time",
            "at most 1.3x",
            ratio(found["ours"], found["bare"]).median,
            "x",
            1.3,
            detail=f"seconds: bare {found['bare']}, ours {found['ours']}",
        )
    )


def _settings(server: Server) -> sb.Settings:
    return settings_of(
        server,
        job=JOB,
        persist_delay_s=0.0,
        inline_bytes_max=0,
        restore_concurrency_max=AT_A_TIME,
        materialize_interval_s=0.0,
        materialize_changelog_ratio=0.0,
        materialize_handles_max=0,
        materialize_fan_in=0,
    )


async def _write(server: Server) -> None:
    """A segment for each checkpoint, and no base."""
    async with sb.open_backend(_settings(server)) as backend:
        numbers = backend.value_state("numbers", int)
        for checkpoint in range(SEGMENTS):
            numbers[checkpoint] = checkpoint
            await backend.checkpoint(checkpoint)


async def _ours(server: Server) -> float:
    async with open_fault_proxy(server.endpoint, latency_s=LATENCY_S) as proxy:
        far = dataclasses.replace(server, endpoint=proxy.endpoint)
        async with sb.open_backend(_settings(far), read_only=True) as backend:
            assert backend.restored is not None
            assert backend.restored.files_primary == SEGMENTS
            return backend.restored.seconds


async def _bare(server: Server) -> float:
    prefix = f"ours/{JOB}/segments/"
    room = anyio.Semaphore(AT_A_TIME)
    async with (
        open_fault_proxy(server.endpoint, latency_s=LATENCY_S) as proxy,
        open_client(dataclasses.replace(server, endpoint=proxy.endpoint)) as client,
    ):
        listed = await client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        keys = [found["Key"] for found in listed["Contents"]]
        assert len(keys) == SEGMENTS

        async def fetch(key: str) -> None:
            async with room:
                answer = await client.get_object(Bucket=BUCKET, Key=key)
                async with answer["Body"] as body:
                    await body.read()

        begun = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(fetch, key)
        return time.perf_counter() - begun
