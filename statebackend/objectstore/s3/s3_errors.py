"""Translates errors of S3 and its client to errors of a store, by what the caller can do about them.

The codes are those of the S3 API reference, "Error responses", and a few of other servers.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

import aiohttp
from botocore import exceptions as client
from botocore.parsers import ResponseParserError

from statebackend.errors import StateBackendError, StoreAccessError, StoreUnavailableError
from statebackend.objectstore.cloud.answers import Meaning, Meanings

_MEANS: Final = Meanings("S3", "bucket", keys="1024 bytes")
_ELSEWHERE: Final[Meaning] = (
    StoreAccessError,
    "the bucket is in another region or elsewhere: correct s3.region or s3.endpoint",
)
_BY_CODE: Final[Mapping[str, Meaning]] = {
    "PreconditionFailed": _MEANS.exists,
    "NoSuchBucket": _MEANS.nowhere,
    "RequestTimeTooSkewed": _MEANS.skewed,
    "KeyTooLongError": _MEANS.long_key,
    "QuotaExceeded": _MEANS.full,
    "InsufficientStorage": _MEANS.full,
    "XMinioStorageFull": _MEANS.full,
    "SlowDown": _MEANS.busy,
    "ServiceUnavailable": _MEANS.busy,
    "Throttling": _MEANS.busy,
    "ThrottlingException": _MEANS.busy,
    "TooManyRequests": _MEANS.busy,
    "TooManyRequestsException": _MEANS.busy,
    "RequestLimitExceeded": _MEANS.busy,
    "BandwidthLimitExceeded": _MEANS.busy,
    "NotImplemented": _MEANS.unfit,
    "ConditionalRequestConflict": _MEANS.may_pass,
    "OperationAborted": _MEANS.may_pass,
    "RequestTimeout": _MEANS.may_pass,
    "BadDigest": _MEANS.may_pass,  # the body was damaged on the way
    "XAmzContentChecksumMismatch": _MEANS.may_pass,
    "IncompleteBody": _MEANS.may_pass,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "InvalidRange": _MEANS.beyond,
}
_BY_STATUS: Final[Mapping[int, Meaning]] = {
    301: _ELSEWHERE,
    307: _ELSEWHERE,
    308: _ELSEWHERE,
    409: _MEANS.may_pass,
    416: _MEANS.beyond,
}
_ENDED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_REFUSED: Final = (
    client.NoCredentialsError,
    client.PartialCredentialsError,
    client.CredentialRetrievalError,
    client.SSLError,
    client.ProfileNotFound,
    client.ConfigNotFound,
    client.ConfigParseError,
)
_NO_ANSWER: Final = (
    client.HTTPClientError,
    client.ConnectionError,
    client.IncompleteReadError,
    client.ResponseStreamingError,
    client.FlexibleChecksumError,
    ResponseParserError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)


def has_ended(error: Exception) -> bool:
    """True if S3 has refused a request because of credentials that were good once. It had no effect."""
    if not isinstance(error, client.ClientError):
        return False
    response = cast("dict[str, Any]", error.response)  # pyright: ignore[reportUnknownMemberType]
    return response.get("Error", {}).get("Code", "") in _ENDED


@contextmanager
def store_errors(bucket: str, key: str | None = None) -> Generator[None]:
    """Turn foreign exceptions into `StoreError`s that name the bucket, and the key as S3 knows it."""
    facts: dict[str, Any] = {"bucket": bucket} if key is None else {"bucket": bucket, "key": key}
    try:
        yield
    except StateBackendError:
        raise
    except client.ClientError as error:
        raise _answered(error, facts) from error
    except _REFUSED as error:
        raise StoreAccessError(
            "S3 cannot be asked: correct the credentials, the profile or the certificates", **facts, reason=str(error)
        ) from error
    except _NO_ANSWER as error:
        raise StoreUnavailableError("S3 gave no usable answer", **facts, reason=_words(error)) from error
    except RecursionError as error:  # botocore asks for the bucket's region, which is redirected too, and so on
        raise StoreAccessError("the endpoint redirects every request: correct s3.endpoint", **facts) from error
    except client.BotoCoreError as error:
        raise StoreAccessError("the S3 client refuses", **facts, reason=str(error)) from error


def _answered(error: client.ClientError, facts: dict[str, Any]) -> StateBackendError:
    response = cast("dict[str, Any]", error.response)  # pyright: ignore[reportUnknownMemberType]
    said: dict[str, str] = response.get("Error", {})  # in the answer's body; botocore has no type for it
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code, text = said.get("Code", ""), said.get("Message", "")
    # S3's answer may repeat the session token and what was signed with the key: only code and message leave here.
    response["Error"] = {"Code": code, "Message": text}
    kind, message = _MEANS.of(status, code, _BY_CODE, _BY_STATUS)
    return kind(message, **facts, code=code or str(status), reason=text)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
