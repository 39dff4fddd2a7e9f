"""Stores objects in a container as block blobs: small ones in one request, large ones in blocks.

Blocks that no list of blocks names are no object, and Azure drops them after a week.
"""

import base64
import datetime as dt
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from azure.storage.blob import BlobBlock, BlobSasPermissions, generate_blob_sas
from azure.storage.blob.aio import ContainerClient

from statebackend._threads import WorkerThreads
from statebackend.abc import Body, ObjectInfo, ObjectStore
from statebackend.errors import StoreAccessError, StoreUnavailableError, UnfitStoreError
from statebackend.objectstore.cloud.cloud_requests import CloudRequests
from statebackend.objectstore.cloud.cloud_store import CloudStore
from statebackend.objectstore.cloud.cutting import Part, send_parts
from statebackend.settings import AzureSettings, MiB

LIST_PAGE_OBJECTS: Final = 1000
_logger = logging.getLogger(__name__)
PRICED_AS: Final[Mapping[str, str]] = {
    "put_blob": "put",
    "put_block": "put",
    "put_block_list": "put",
    "copy_blob_from_url": "put",
    "get_blob": "get",
    "get_blob_properties": "head",
    "list_blobs": "list",
    "delete_blob": "delete",
    "get_account_information": "get",
}
"""Operations have the names of Azure's REST reference, in snake case."""
SETTLED: Final = frozenset({"put_blob", "put_block", "put_block_list", "copy_blob_from_url", "delete_blob"})
COPY_BYTES_MAX: Final = 256 * MiB
"""Azure copies no larger blob in one step, whole or not at all."""
SIGNED_FOR: Final = dt.timedelta(hours=1)
"""How long a copy may read its source."""


class AzureStore(CloudStore):
    """The objects of a container below `prefix`. Made by `open_azure_store`. `put_if_absent` takes at most 4 GiB."""

    def __init__(
        self,
        client: ContainerClient,
        requests: CloudRequests,
        prefix: str,
        *,
        settings: AzureSettings,
        threads: WorkerThreads | None = None,
    ) -> None:
        super().__init__(requests, prefix, whole_bytes_max=settings.block_threshold_bytes, threads=threads)
        self._client: Any = client  # its methods are typed in part
        self._settings = settings

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """Have Azure copy an object of a store whose settings have an account key or a shared access signature.

        Larger ones than `COPY_BYTES_MAX` it does not copy in one step. A cancelled call leaves behind what a cancelled
        `put` does.
        """
        if not isinstance(source, AzureStore) or size_bytes > COPY_BYTES_MAX:
            return False
        url = source._signed_url(source._name(source_key))  # noqa: SLF001  # of the same class
        if url is None:
            return False
        name, blob = self._blob(self._name(key))

        async def copy() -> None:
            await blob.start_copy_from_url(url, requires_sync=True)

        await self._requests.repeated("copy_blob_from_url", copy, name=name)
        return True

    async def check_namespace(self) -> None:
        """Raise `UnfitStoreError` if the account has a hierarchical namespace. One request.

        It lists directories beside objects and in an order of its own, and leaves them behind where objects are
        deleted. Credentials that may not ask for the account's properties are not refused: it is not known then.
        """
        try:
            ask: Callable[[], Awaitable[Mapping[str, object]]] = self._client.get_account_information
            told = await self._requests.repeated("get_account_information", ask)
        except StoreUnavailableError:
            raise
        except StoreAccessError as error:
            _logger.warning("whether the account has a hierarchical namespace is not known: reason=%s", error)
            return
        if str(told.get("is_hns_enabled", "")).lower() == "true":
            raise UnfitStoreError(
                "the account has a hierarchical namespace, which lists directories as objects: use an account without",
                container=self._client.container_name,
            )

    def _signed_url(self, name: str) -> str | None:
        """The address of an object, for Azure to read; `None` where the settings have nothing to sign it with."""
        name, blob = self._blob(name)
        if self._settings.account_key is not None:
            signature = generate_blob_sas(
                blob.account_name,
                blob.container_name,
                name,
                account_key=self._settings.account_key.reveal(),
                permission=BlobSasPermissions(read=True),
                expiry=dt.datetime.now(dt.UTC) + SIGNED_FOR,
            )
            return f"{blob.url}?{signature}"
        return blob.url if self._settings.sas_token is not None else None  # it is in the client's address

    async def _put_whole(self, name: str, body: Body, *, overwrite: bool, repeatable: bool = True) -> None:
        data = await self._off_the_loop(b"".join, body)
        name, blob = self._blob(name)

        async def send() -> None:
            await blob.upload_blob(data, length=len(data), overwrite=overwrite)

        await self._requests.repeated("put_blob", send, name=name, repeatable=repeatable)

    async def _put_parts(self, name: str, body: Body) -> None:
        """Send blocks, then the list of them. Their ids are ours alone, also if others write `name`."""
        name, blob = self._blob(name)
        drawn, ids = secrets.token_bytes(16), dict[int, str]()

        async def send(number: int, part: Part) -> None:
            block_id = ids[number] = base64.b64encode(drawn + number.to_bytes(4, "big")).decode()
            data = await self._off_the_loop(b"".join, part)
            await self._requests.repeated("put_block", lambda: blob.stage_block(block_id, data), name=name)

        settings = self._settings
        await send_parts(body, send, part_bytes=settings.block_bytes, concurrency_max=settings.block_concurrency_max)
        listed = [BlobBlock(ids[number]) for number in sorted(ids)]
        await self._requests.repeated("put_block_list", lambda: blob.commit_block_list(listed), name=name)

    async def _get(self, name: str, part: tuple[int, int] | None = None) -> bytes:
        name, blob = self._blob(name)
        what = {} if part is None else {"offset": part[0], "length": part[1]}

        async def read() -> bytes:
            content: bytes = await (await blob.download_blob(**what)).readall()
            return content

        return await self._requests.repeated("get_blob", read, name=name)

    async def _head(self, name: str) -> ObjectInfo:
        blob_name, blob = self._blob(name)
        found: Any = await self._requests.repeated("get_blob_properties", blob.get_blob_properties, name=blob_name)
        return ObjectInfo(name, int(found.size), found.last_modified.timestamp())

    async def _delete(self, name: str) -> None:
        name, blob = self._blob(name)
        await self._requests.repeated("delete_blob", blob.delete_blob, name=name)

    async def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        async def read() -> tuple[Sequence[ObjectInfo], str | None]:
            listing = self._client.list_blobs(name_starts_with=_as_blob(prefix), results_per_page=LIST_PAGE_OBJECTS)
            pages = listing.by_page(token)
            page = await anext(pages)
            found = [
                ObjectInfo(_as_name(each.name), int(each.size), each.last_modified.timestamp()) async for each in page
            ]
            return found, pages.continuation_token

        return await self._requests.repeated("list_blobs", read)

    def _blob(self, name: str) -> tuple[str, Any]:
        """The name of an object as Azure has it, and the client for it."""
        blob_name = _as_blob(name)
        return blob_name, self._client.get_blob_client(blob_name)


def _as_blob(name: str) -> str:
    r"""The name of a blob for that of an object, or for the beginning of one. Azure takes `\` for `/`: it is `[1`.

    So `[` is `[0`. Blobs have the order of their objects, in which they are listed.
    """
    return name.replace("[", "[0").replace("\\", "[1")


def _as_name(blob: str) -> str:
    return blob.replace("[1", "\\").replace("[0", "[")
