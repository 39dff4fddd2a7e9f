"""The one border where what S3 and its client say becomes an error of a store: by what the caller can do about it.

Which codes there are: the S3 API reference, "Error responses"; servers of others add a few. A code that is not known is
judged by its HTTP status: 5xx may pass, 4xx will not.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from botocore import exceptions as client
from botocore.parsers import ResponseParserError

from statebackend.errors import (
    BucketNotFoundError,
    ClockSkewError,
    InputError,
    ObjectExistsError,
    ObjectNotFoundError,
    StateBackendError,
    StoreAccessError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    UnfitStoreError,
)

_THROTTLED: Final = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
    }
)
_FULL: Final = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"})
_MAY_PASS: Final = frozenset(
    {
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestTimeout",
        "BadDigest",  # the body was damaged on its way
        "XAmzContentChecksumMismatch",
        "IncompleteBody",
        "InternalError",
    }
)
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


@contextmanager
def store_errors(bucket: str, key: str | None = None) -> Generator[None]:
    """Inside, foreign exceptions become `StoreError`s that name the bucket, and the key as S3 knows it."""
    facts: dict[str, Any] = {"bucket": bucket} if key is None else {"bucket": bucket, "key": key}
    try:
        yield
    except StateBackendError:
        raise
    except client.ClientError as error:
        raise _answered(error, facts) from error
    except _REFUSED as error:
        raise StoreAccessError("S3 cannot be asked", **facts, reason=str(error)) from error
    except _NO_ANSWER as error:
        raise StoreUnavailableError("S3 gives no usable answer", **facts, reason=_words(error)) from error
    except client.BotoCoreError as error:
        raise StoreAccessError("the S3 client refuses", **facts, reason=str(error)) from error


def code_of(error: BaseException | None) -> str:
    """The code that S3 gave, empty where there is none."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, client.ClientError) else ""


def _answered(error: client.ClientError, facts: dict[str, Any]) -> StateBackendError:
    code, status = code_of(error), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = str(error.response.get("Error", {}).get("Message", ""))
    # S3 repeats a refused session token and what was signed with the key: what goes on lives here, nothing else does.
    error.response["Error"] = {"Code": code, "Message": text}
    facts = {**facts, "code": code or str(status), "reason": text}
    if status == 412 or code == "PreconditionFailed":
        return ObjectExistsError("there is an object at that key already", **facts)
    if code == "NoSuchBucket":
        return BucketNotFoundError("there is no such bucket: make it, or correct the primary", **facts)
    if code == "RequestTimeTooSkewed":
        return ClockSkewError("this machine's clock is too far from S3's: set it", **facts)
    if code == "KeyTooLongError":
        return InputError("S3 takes keys of at most 1024 bytes, the primary's prefix included", **facts)
    if code in _FULL or status == 507:
        return StoreFullError("S3 has no room", **facts)
    if code in _THROTTLED or status in (429, 503):
        return StoreThrottledError("S3 asks for fewer requests", **facts)
    if code == "NotImplemented" or status == 501:
        return UnfitStoreError("this S3 cannot do what is asked of it", **facts)
    if code in _MAY_PASS or status >= 500 or status in (408, 409):
        return StoreUnavailableError("S3 failed", **facts)
    if status == 404:
        return ObjectNotFoundError("no object at that key", **facts)
    if status in (301, 307, 308) or code == "AuthorizationHeaderMalformed":
        return StoreAccessError(
            "the bucket is in another region, or at another endpoint: correct the settings", **facts
        )
    return StoreAccessError("S3 refuses", **facts)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
