"""Makes the S3 client of one store, on the loop that uses it: configuration, credentials, lifetime.

The client repeats nothing (`total_max_attempts=1`, `SendsOnce`): a repeated conditional put would report its own
success as "there is already one", and pauses and budgets belong to `Retries`. Nor does it compute checksums: we do,
off the loop.
"""

import functools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session  # pyright: ignore[reportUnknownVariableType]
from botocore.credentials import ReadOnlyCredentials
from botocore.loaders import create_loader  # pyright: ignore[reportUnknownVariableType]

from statebackend.errors import StoreAccessError
from statebackend.objectstore.cloud.renewal import Renewal
from statebackend.objectstore.s3.s3_errors import store_errors
from statebackend.settings import S3Credentials, S3Settings

REGION_DEFAULT: Final = "us-east-1"
CLOSE_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def open_client(
    settings: S3Settings, bucket: str, renewal: Renewal[S3Credentials] | None = None
) -> AsyncGenerator[Any]:
    """Open a client for S3, which belongs to the running loop. Raises `StoreAccessError` if it finds no credentials.

    `renewal`: takes the place of credentials in the settings.

    The first client of a process blocks the loop for about 0.2 s.
    """
    session: Any = get_session()
    session.register_component("data_loader", _loader())
    keys = _keys(settings)
    stack = AsyncExitStack()
    try:
        with store_errors(bucket):
            if renewal is not None:
                session._credentials = _RenewedKeys(renewal)  # noqa: SLF001  # botocore's own way takes fixed ones only
            elif not keys and await session.get_credentials() is None:
                raise StoreAccessError(_no_credentials(settings), bucket=bucket)
            client = await stack.enter_async_context(
                session.create_client(
                    "s3",
                    region_name=settings.region or session.get_config_variable("region") or REGION_DEFAULT,
                    endpoint_url=settings.endpoint or None,
                    config=_config(settings),
                    **keys,
                )
            )
        yield client
    finally:
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await stack.aclose()


class _RenewedKeys(AioCredentials):  # type: ignore[misc]  # of a library without types
    """Credentials that the client asks for anew with each request it signs."""

    def __init__(self, renewal: Renewal[S3Credentials]) -> None:
        super().__init__("asked", "for", method="statebackend")  # pyright: ignore[reportUnknownMemberType]
        self._renewal = renewal

    async def get_frozen_credentials(self) -> Any:
        held = await self._renewal.current()
        return ReadOnlyCredentials(held.access_key_id, held.secret_access_key, held.session_token or None)


class SendsOnce(AIOHTTPSession):  # type: ignore[misc]  # of a library without types
    """aiobotocore's HTTP session, except that it does not send a request again after losing the connection.

    aiohttp resends a PUT on its own, and the answer to a conditional PUT would then be the answer to its repetition.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session: Any = await super()._get_session(proxy_url)  # pyright: ignore[reportUnknownMemberType]
        session._retry_connection = False  # noqa: SLF001  # there is no public way; a test fails if this one is gone
        return session


@functools.cache
def _loader() -> Any:
    """Return botocore's description of S3, read and parsed once per process instead of once per session."""
    return create_loader()


def _keys(settings: S3Settings) -> dict[str, str]:
    """The credentials in the settings. Empty if there are none, or if a pickle left them behind."""
    secret = settings.secret_access_key and settings.secret_access_key.reveal()
    if not secret:
        return {}
    keys = {"aws_access_key_id": settings.access_key_id, "aws_secret_access_key": secret}
    token = settings.session_token and settings.session_token.reveal()
    return {**keys, "aws_session_token": token} if token else keys


def _no_credentials(settings: S3Settings) -> str:
    if settings.secret_access_key is not None:
        return "credentials in settings do not travel in a pickle, and the usual AWS chain has none here"
    return "no credentials for S3: neither in the settings nor in the usual AWS chain"


def _config(settings: S3Settings) -> AioConfig:
    s3: dict[str, Any] = {"addressing_style": settings.addressing}
    if not settings.endpoint.startswith("http://"):
        # TLS and our checksum protect the body. Signing it would mean a SHA-256 of every byte, on the loop.
        s3["payload_signing_enabled"] = False
    return AioConfig(
        signature_version="s3v4",
        s3=s3,
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        max_pool_connections=settings.connections_max,
        retries={"mode": "standard", "total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="statebackend",
        http_session_cls=SendsOnce,
    )
