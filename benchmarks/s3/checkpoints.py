"""Small checkpoints through a network of 20 ms a request.

Envelope. A checkpoint of a hundred keys is one request if its changes ride in the commit, two in a row if they are a
segment of their own: one round trip, or two. Round it lie some milliseconds of encoding and of the client.
"""

import dataclasses
import statistics
import time

import anyio

import statebackend as sb
from benchmarks.contest import Line, Report
from benchmarks.s3.places import BUCKET, settings_of
from benchmarks.servers import Server, make_bucket, open_client
from tests.cloud.http_proxy import open_fault_proxy

LATENCY_S = 0.020
CHECKPOINTS = 40
KEYS = 100


def run(report: Report, server: Server) -> None:
    """The median checkpoint above the median bare request, both through the same network; and its requests."""
    anyio.run(make_bucket, server, BUCKET)
    round_trip_s, checkpoint_s, requests = anyio.run(_measure, server)
    report.add(
        Line(
            "p50 of a small checkpoint, above one round trip",
            "at most 15 ms",
            (checkpoint_s - round_trip_s) * 1000,
            "ms",
            15.0,
            detail=f"p50 ms: one bare put {round_trip_s * 1000:.1f}, one checkpoint {checkpoint_s * 1000:.1f}",
        )
    )
    report.add(Line("requests of a small checkpoint", "1", requests, "requests", 1.0))


async def _measure(server: Server) -> tuple[float, float, float]:
    puts: list[float] = []
    checkpoints: list[float] = []
    requests: list[int] = []
    async with open_fault_proxy(server.endpoint, latency_s=LATENCY_S) as proxy:
        far = dataclasses.replace(server, endpoint=proxy.endpoint)
        async with (
            open_client(far) as client,
            sb.open_backend(settings_of(far, job="small", persist_delay_s=0.0)) as backend,
        ):
            numbers = backend.value_state("numbers", int)
            for checkpoint in range(CHECKPOINTS):
                begun = time.perf_counter()
                await client.put_object(Bucket=BUCKET, Key=f"bare/{checkpoint}", Body=b"x" * 2000)
                puts.append(time.perf_counter() - begun)
                for key in range(KEYS):
                    numbers[key] = checkpoint * key
                begun = time.perf_counter()
                info = await backend.checkpoint(checkpoint)
                checkpoints.append(time.perf_counter() - begun)
                requests.append(info.requests)
    return statistics.median(puts), statistics.median(checkpoints), statistics.median(requests)
