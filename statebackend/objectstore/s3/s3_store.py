"""Stores objects in a bucket: small ones in one request, large ones in parts, all with a checksum that S3 verifies."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from statebackend._threads import WorkerThreads
from statebackend.abc import Body, ObjectInfo, ObjectStore
from statebackend.errors import StoreAccessError, StoreUnavailableError, UnfitStoreError
from statebackend.objectstore.cloud.cloud_store import CloudStore
from statebackend.objectstore.s3.bucket import Bucket
from statebackend.objectstore.s3.multipart import MultipartCopy, MultipartUpload, joined
from statebackend.settings import GiB, S3Settings

DELETES_PER_REQUEST: Final = 1000
COPY_BYTES_MAX: Final = 5 * GiB
"""S3 copies no larger object in one request, and no larger part."""


class S3Store(CloudStore):
    """The objects in `bucket` below `prefix`. Made by `open_s3_store`. `put_if_absent` takes at most 5 GiB."""

    def __init__(
        self, bucket: Bucket, prefix: str, *, settings: S3Settings, threads: WorkerThreads | None = None
    ) -> None:
        super().__init__(bucket, prefix, whole_bytes_max=settings.multipart_threshold_bytes, threads=threads)
        self._bucket = bucket
        self._settings = settings

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, a thousand per request. Tries all, then raises the error of the first that stayed.

        A cancelled call has removed some of them.
        """
        names = [self._name(key) for key in keys]
        refused: list[Mapping[str, str]] = []
        for first in range(0, len(names), DELETES_PER_REQUEST):
            some = [{"Key": name} for name in names[first : first + DELETES_PER_REQUEST]]
            answer = await self._bucket.request("delete_objects", Delete={"Objects": some, "Quiet": True})
            refused += answer.get("Errors", [])
        if refused:
            raise self._refusal(refused)

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """Have S3 copy an object of a store at the same endpoint that has the same credentials, from any bucket there.

        A cancelled call leaves behind what a cancelled `put` does.
        """
        if not isinstance(source, S3Store) or source._access != self._access:  # noqa: SLF001  # of the same class
            return False
        name = self._name(key)
        place = {"Bucket": source._bucket.place["bucket"], "Key": source._name(source_key)}  # noqa: SLF001  # as above
        if size_bytes <= COPY_BYTES_MAX:
            await self._bucket.request("copy_object", Key=name, CopySource=place)
        else:
            copy = MultipartCopy(
                self._bucket,
                name,
                place,
                size_bytes,
                part_bytes=COPY_BYTES_MAX,
                settings=self._settings,
                threads=self._threads,
            )
            await copy.run()
        return True

    @property
    def _access(self) -> tuple[object, ...]:
        """The server, and who asks it."""
        each = self._settings
        return each.endpoint, each.access_key_id, each.secret_access_key, each.session_token, each.credentials

    async def _put_whole(self, name: str, body: Body, *, overwrite: bool, repeatable: bool = True) -> None:
        data, checksum = await self._off_the_loop(joined, body)
        arguments: dict[str, Any] = {"Key": name, "Body": data, "ChecksumCRC32": checksum}
        if overwrite:
            await self._bucket.request("put_object", repeatable=repeatable, **arguments)
            return
        try:
            await self._bucket.request("put_object", repeatable=repeatable, IfNoneMatch="*", **arguments)
        except UnfitStoreError as error:
            raise UnfitStoreError(
                "this bucket's server does not support `If-None-Match: *`: use another", **error.facts
            ) from error

    async def _put_parts(self, name: str, body: Body) -> None:
        """Upload in parts, which a failed or cancelled call aborts, so that none stays."""
        await MultipartUpload(self._bucket, name, body, settings=self._settings, threads=self._threads).run()

    async def _get(self, name: str, part: tuple[int, int] | None = None) -> bytes:
        """Verified by the checksum that S3 stores. It has none of a range, nor of an object uploaded in parts.

        Each of those parts was verified when it arrived.
        """
        how: dict[str, Any] = (
            {"ChecksumMode": "ENABLED"} if part is None else {"Range": f"bytes={part[0]}-{sum(part) - 1}"}
        )
        content: bytes = await self._bucket.request("get_object", read=_content, Key=name, **how)
        return content

    async def _head(self, name: str) -> ObjectInfo:
        found = await self._bucket.request("head_object", Key=name)
        return ObjectInfo(name, int(found["ContentLength"]), found["LastModified"].timestamp())

    async def _delete(self, name: str) -> None:
        await self._bucket.request("delete_object", Key=name)

    async def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        after: dict[str, Any] = {} if token is None else {"ContinuationToken": token}
        page = await self._bucket.request("list_objects_v2", Prefix=prefix, **after)
        found = [
            ObjectInfo(entry["Key"], int(entry["Size"]), entry["LastModified"].timestamp())
            for entry in page.get("Contents", ())
        ]
        return found, page["NextContinuationToken"] if page.get("IsTruncated") else None

    def _refusal(self, refused: Sequence[Mapping[str, str]]) -> StoreAccessError | StoreUnavailableError:
        code, text = refused[0].get("Code"), refused[0].get("Message")
        facts = {**self._bucket.place, "key": refused[0].get("Key"), "objects": len(refused)}
        if code == "AccessDenied":
            return StoreAccessError("S3 refuses to delete objects", **facts, reason=text)
        return StoreUnavailableError("S3 did not delete all objects", **facts, reason=f"{code}: {text}")


async def _content(answer: Mapping[str, Any]) -> bytes:
    body = answer["Body"]
    async with body:  # entered, it gave the raw answer in earlier releases of aiobotocore, which verifies no checksum
        return bytes(await body.read())
