"""Makes the client of one container, on the loop that uses it: configuration, credentials, lifetime.

The client repeats nothing (`retry_total=0`, `_retry_connection`): a repeated conditional put would report its own
success as "there is already one", and pauses and budgets belong to `Retries`. It computes no checksums either.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import anyio
from azure.core.pipeline.policies import AsyncHTTPPolicy
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob.aio import ContainerClient

from statebackend.errors import StoreAccessError
from statebackend.objectstore.cloud.renewal import Renewal
from statebackend.settings import AzureCredentials, AzureSettings, GiB

CLOSE_TIMEOUT_S: Final = 5.0
ONE_REQUEST_BYTES_MAX: Final = 4 * GiB
"""Up to this size the client reads or writes an object in one request. Azure's own limit for a write is 5,000 MiB."""


@asynccontextmanager
async def open_client(
    settings: AzureSettings, account: str, container: str, renewal: Renewal[AzureCredentials] | None = None
) -> AsyncGenerator[ContainerClient]:
    """Open a client, which belongs to the running loop. Raises `StoreAccessError` if it finds no credentials.

    `renewal`: takes the place of credentials in the settings.
    """
    stack = AsyncExitStack()
    try:
        credential = await _credential(settings, account, stack) if renewal is None else None
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=settings.connections_max),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=True,
            )
        )
        # aiohttp sends a PUT again after losing a connection, and there is no public way to forbid it.
        session._retry_connection = False  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        yield ContainerClient(
            settings.endpoint or f"https://{account}.blob.core.windows.net",
            container,
            credential=credential,
            transport=AioHttpTransport(
                session=session,
                session_owner=False,
                connection_timeout=settings.connect_timeout_s,  # given to the client, it would not reach a transport
                read_timeout=settings.read_timeout_s,
            ),
            retry_total=0,
            _additional_pipeline_policies=[] if renewal is None else [_RenewedToken(renewal)],
            max_single_put_size=ONE_REQUEST_BYTES_MAX,
            max_single_get_size=ONE_REQUEST_BYTES_MAX,
            user_agent="statebackend",
        )
    finally:
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await stack.aclose()


class _RenewedToken(AsyncHTTPPolicy[Any, Any]):
    """Puts credentials that are good now on each request: the last step before it is sent."""

    def __init__(self, renewal: Renewal[AzureCredentials]) -> None:
        super().__init__()
        self._renewal = renewal

    async def send(self, request: Any) -> Any:
        held = await self._renewal.current()
        if bool(held.sas_token) == bool(held.bearer_token):
            raise StoreAccessError("credentials for Azure are either a sas_token or a bearer_token")
        sent = request.http_request
        url = urlsplit(str(sent.url))
        if held.bearer_token:
            if url.scheme != "https":
                raise StoreAccessError("a bearer token is sent by https only: correct azure.endpoint")
            sent.headers["Authorization"] = f"Bearer {held.bearer_token}"
        else:
            sent.url += ("&" if url.query else "?") + held.sas_token.removeprefix("?")
        return await self.next.send(request)


async def _credential(settings: AzureSettings, account: str, stack: AsyncExitStack) -> Any:
    if settings.account_key is not None and (key := settings.account_key.reveal()):
        return {"account_name": account, "account_key": key}
    if settings.sas_token is not None and (token := settings.sas_token.reveal()):
        return token.removeprefix("?")
    try:
        identity: Any = import_module("azure.identity.aio")  # has no types, and is not needed by all
    except ImportError as error:
        raise StoreAccessError(_no_credentials(settings), account=account) from error
    return await stack.enter_async_context(identity.DefaultAzureCredential())


def _no_credentials(settings: AzureSettings) -> str:
    if settings.account_key is not None or settings.sas_token is not None:
        return "credentials in settings do not travel in a pickle, and azure-identity is not installed here"
    return "no credentials for Azure: give azure.account_key or azure.sas_token, or install azure-identity"
