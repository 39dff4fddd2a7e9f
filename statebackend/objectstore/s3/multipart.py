"""Uploads one object in parts: several parts at a time, completed in one atomic step or aborted without a trace.

    create -> upload_part ... upload_part -> complete
                    any failure or cancellation -> abort

Only a completed upload is an object. One that is neither completed nor aborted costs money and shows in no listing, so
every upload ends in one of the two, unless the process is killed. A lifecycle rule removes what a kill leaves.
"""

import base64
import contextlib
import logging
import math
import secrets
import zlib
from collections.abc import Mapping
from typing import Any, Final

import anyio

from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import Body
from statebackend.errors import (
    ObjectNotFoundError,
    StoreAccessError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
)
from statebackend.objectstore.cloud.cutting import Part, send_parts
from statebackend.objectstore.s3.bucket import Bucket
from statebackend.settings import S3Settings

PARTS_MAX: Final = 10_000
ABORT_TIMEOUT_S: Final = 5.0
_STAMP: Final = "statebackend-upload"

_logger = logging.getLogger(__name__)


class MultipartUpload:
    """Uploads `body` to the key `name`, once. Holds `part_concurrency_max` parts in memory.

    The parts are joined and checksummed in `threads`.
    """

    def __init__(self, bucket: Bucket, name: str, body: Body, *, settings: S3Settings, threads: WorkerThreads) -> None:
        self._bucket = bucket
        self._name = name
        self._body = body
        size = sum(memoryview(chunk).nbytes for chunk in body)
        self._part_bytes = max(settings.part_bytes, math.ceil(size / PARTS_MAX))
        self._concurrency_max = settings.part_concurrency_max
        self._threads = threads
        self._stamp = secrets.token_hex(16)
        self._upload_id = ""
        self._nameless = False  # an upload may have begun, whose id we do not know
        self._parts: dict[int, dict[str, Any]] = {}

    async def run(self) -> None:
        """Upload. A failed or cancelled call aborts the upload, if S3 answers within `ABORT_TIMEOUT_S`.

        If cancelled during the last step, the whole object may exist.
        """
        try:
            await self._bucket.retries.run(self._create)
            await self._send_all()
            await self._complete()
        except ObjectNotFoundError as error:  # aborted by hand, by a lifecycle rule or by `_abort_nameless`
            await self._abort()
            raise StoreUnavailableError(
                "the upload in parts was aborted elsewhere: by another writer, by hand, or by a lifecycle rule",
                key=self._name,
            ) from error
        except BaseException:
            await self._abort()
            raise

    async def _send_all(self) -> None:
        await send_parts(
            self._body, self._send_part, part_bytes=self._part_bytes, concurrency_max=self._concurrency_max
        )

    async def _create(self) -> None:
        if self._nameless:
            await self._abort_nameless()
        self._nameless = True
        try:
            created = await self._bucket.ask(
                "create_multipart_upload", Key=self._name, ChecksumAlgorithm="CRC32", Metadata={_STAMP: self._stamp}
            )
        except (StoreAccessError, StoreThrottledError):  # S3 said that it did nothing
            self._nameless = False
            raise
        self._upload_id = created["UploadId"]
        self._nameless = False

    async def _send_part(self, number: int, part: Part) -> None:
        data, checksum = await self._threads.cpu(joined, part)
        self._note(number, await self._ask_for("upload_part", number, Body=data, ChecksumCRC32=checksum))

    async def _ask_for(self, operation: str, number: int, **arguments: Any) -> Any:
        arguments["PartNumber"] = number + 1  # S3 counts from 1
        return await self._bucket.request(operation, Key=self._name, UploadId=self._upload_id, **arguments)

    def _note(self, number: int, sent: Any) -> None:
        """Note what S3 says of a part that it has, for the last step."""
        self._parts[number] = {"PartNumber": number + 1, "ETag": sent["ETag"]}
        if "ChecksumCRC32" in sent:  # a server that verified it wants it back
            self._parts[number]["ChecksumCRC32"] = sent["ChecksumCRC32"]

    async def _complete(self) -> None:
        listed = {"Parts": [self._parts[number] for number in sorted(self._parts)]}
        try:
            await self._bucket.request(
                "complete_multipart_upload", Key=self._name, UploadId=self._upload_id, MultipartUpload=listed
            )
        except ObjectNotFoundError:
            if not await self._is_there():  # else it was completed by a request whose answer was lost
                raise

    async def _is_there(self) -> bool:
        try:
            found = await self._bucket.request("head_object", Key=self._name)
        except ObjectNotFoundError:
            return False
        return bool(found["Metadata"].get(_STAMP) == self._stamp)

    async def _abort(self) -> None:
        """Abort, best effort and shielded. Errors are logged: they must not hide the one that led here."""
        with anyio.move_on_after(ABORT_TIMEOUT_S, shield=True) as bounded:
            try:
                if self._nameless:
                    await self._abort_nameless()
                if self._upload_id:
                    await self._abort_upload(self._upload_id)
            except StoreError as error:
                _logger.warning("could not abort an upload in parts: key=%s reason=%r", self._name, error)
        if bounded.cancelled_caught:
            _logger.warning("gave up aborting an upload in parts: key=%s timeout_s=%s", self._name, ABORT_TIMEOUT_S)

    async def _abort_upload(self, upload_id: str) -> None:
        """Abort until S3 no longer knows the upload: a part under way may arrive after the first abort."""
        upload: dict[str, Any] = {"Key": self._name, "UploadId": upload_id}
        with contextlib.suppress(ObjectNotFoundError):
            while True:
                await self._bucket.request("abort_multipart_upload", **upload)
                await self._bucket.request("list_parts", MaxParts=1, **upload)

    async def _abort_nameless(self) -> None:
        """Abort every upload to this key, because the id of ours was in an answer that was lost.

        This also hits other writers that upload to the same key just now: they get an error and begin again. Keys of
        segments are unique to their attempt.
        """
        found = await self._bucket.request("list_multipart_uploads", Prefix=self._name)
        for upload in found.get("Uploads", ()):
            if upload["Key"] == self._name:
                await self._abort_upload(upload["UploadId"])


class MultipartCopy(MultipartUpload):
    """Has S3 copy `source`, in its notation, an object of that size, to the key `name`, `part_bytes` at a time."""

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        source: Mapping[str, str],
        size_bytes: int,
        *,
        part_bytes: int,
        settings: S3Settings,
        threads: WorkerThreads,
    ) -> None:
        super().__init__(bucket, name, (), settings=settings, threads=threads)
        self._source = source
        self._size_bytes = size_bytes
        self._part_bytes = max(part_bytes, math.ceil(size_bytes / PARTS_MAX))

    async def _send_all(self) -> None:
        async def copy(first: int) -> Any:
            last = min(first + self._part_bytes, self._size_bytes) - 1
            answer = await self._ask_for(
                "upload_part_copy",
                first // self._part_bytes,
                CopySource=self._source,
                CopySourceRange=f"bytes={first}-{last}",
            )
            return answer["CopyPartResult"]

        async def note(first: int, sent: Any) -> None:
            self._note(first // self._part_bytes, sent)

        begins = range(0, self._size_bytes, self._part_bytes)
        await in_order(begins, copy, note, concurrency_max=self._concurrency_max)


def joined(chunks: Body) -> tuple[bytes, str]:
    """The content of `chunks`, and its CRC32 in S3's notation."""
    data = b"".join(chunks)
    return data, base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
