"""One object of 256 MiB, in parts.

Envelope. Both sides send the same parts, as many at a time. What we add is a checksum of each part (7 GB/s, in a
thread), a copy of it (out of the caller's chunks), and a turn for each request: a few milliseconds in some seconds. A
third of the time is allowed for that, because the machine's few processors serve both ends.
"""

import time
from collections.abc import Callable

import anyio

from benchmarks.contest import Line, Report, ratio
from benchmarks.s3.places import BUCKET, settings_of
from benchmarks.servers import Server, make_bucket, open_client
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import MiB

SIZE_BYTES = 256 * MiB
PART_BYTES = 8 * MiB
AT_A_TIME = 4
CHUNK = bytes(range(256)) * (MiB // 256)
BODY = [CHUNK] * (SIZE_BYTES // MiB)


def run(report: Report, server: Server, rounds: int) -> None:
    """Our rate over the bare client's."""
    anyio.run(make_bucket, server, BUCKET)
    found = report.contest(
        "an upload", "s", {"bare": _timed(_bare, server), "ours": _timed(_ours, server)}, rounds=rounds
    )
    report.add(
        Line(
            "upload of 256 MiB, rate over a bare aiobotocore loop's",
            "at least 0.7x",
            ratio(found["bare"], found["ours"]).median,
            "x",
            0.7,
            at_least=True,
            detail=f"seconds: bare {found['bare']}, ours {found['ours']}",
        )
    )


def _timed(upload: Callable[[Server], object], server: Server) -> Callable[[], float]:
    def run_once() -> float:
        seconds: float = anyio.run(upload, server)  # type: ignore[arg-type]  # each is a coroutine function
        return seconds

    return run_once


async def _ours(server: Server) -> float:
    async with open_s3_store(settings_of(server).primary, settings_of(server).s3) as store:
        await store.head("warm")
        begun = time.perf_counter()
        await store.put("large", BODY)
        seconds = time.perf_counter() - begun
        await store.delete("large")
        return seconds


async def _bare(server: Server) -> float:
    upload = {"Bucket": BUCKET, "Key": "bare"}
    sent: dict[int, str] = {}
    room = anyio.Semaphore(AT_A_TIME)
    async with open_client(server) as client:
        await client.list_objects_v2(Bucket=BUCKET)
        begun = time.perf_counter()
        upload["UploadId"] = (await client.create_multipart_upload(**upload))["UploadId"]

        async def send(number: int, part: bytes) -> None:
            async with room:
                sent[number] = (await client.upload_part(**upload, PartNumber=number, Body=part))["ETag"]

        async with anyio.create_task_group() as tasks:
            for number in range(SIZE_BYTES // PART_BYTES):
                tasks.start_soon(send, number + 1, CHUNK * (PART_BYTES // MiB))
        listed = [{"PartNumber": number, "ETag": sent[number]} for number in sorted(sent)]
        await client.complete_multipart_upload(**upload, MultipartUpload={"Parts": listed})
        seconds = time.perf_counter() - begun
        await client.delete_object(Bucket=BUCKET, Key="bare")
        return seconds
