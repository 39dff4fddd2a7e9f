"""The one border where what S3 and its client say becomes an error of a store: by what the caller can do about it.

Which codes there are: the S3 API reference, "Error responses"; servers of others add a few. A code that is not known is
judged by its HTTP status: 5xx may pass, 4xx will not.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

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

Meaning = tuple[type[StateBackendError], str]

_EXISTS: Final[Meaning] = (ObjectExistsError, "there is an object at that key already")
_NO_BUCKET: Final[Meaning] = (BucketNotFoundError, "there is no such bucket: make it, or correct the primary")
_CLOCK: Final[Meaning] = (ClockSkewError, "this machine's clock is too far from S3's: set it")
_KEY: Final[Meaning] = (InputError, "S3 takes keys of at most 1024 bytes, the primary's prefix included")
_FULL: Final[Meaning] = (StoreFullError, "S3 has no room")
_BUSY: Final[Meaning] = (StoreThrottledError, "S3 asks for fewer requests")
_UNFIT: Final[Meaning] = (UnfitStoreError, "this S3 cannot do what is asked of it")
_MAY_PASS: Final[Meaning] = (StoreUnavailableError, "S3 failed")
_MISSING: Final[Meaning] = (ObjectNotFoundError, "no object at that key")
_ELSEWHERE: Final[Meaning] = (StoreAccessError, "the bucket is in another region, or elsewhere: correct the settings")
_NO: Final[Meaning] = (StoreAccessError, "S3 refuses")

_BY_CODE: Final[Mapping[str, Meaning]] = {
    "PreconditionFailed": _EXISTS,
    "NoSuchBucket": _NO_BUCKET,
    "RequestTimeTooSkewed": _CLOCK,
    "KeyTooLongError": _KEY,
    "QuotaExceeded": _FULL,
    "InsufficientStorage": _FULL,
    "XMinioStorageFull": _FULL,
    "SlowDown": _BUSY,
    "ServiceUnavailable": _BUSY,
    "Throttling": _BUSY,
    "ThrottlingException": _BUSY,
    "TooManyRequests": _BUSY,
    "TooManyRequestsException": _BUSY,
    "RequestLimitExceeded": _BUSY,
    "BandwidthLimitExceeded": _BUSY,
    "NotImplemented": _UNFIT,
    "ConditionalRequestConflict": _MAY_PASS,
    "OperationAborted": _MAY_PASS,
    "RequestTimeout": _MAY_PASS,
    "BadDigest": _MAY_PASS,  # the body was damaged on its way
    "XAmzContentChecksumMismatch": _MAY_PASS,
    "IncompleteBody": _MAY_PASS,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
}
_BY_STATUS: Final[Mapping[int, Meaning]] = {
    301: _ELSEWHERE,
    307: _ELSEWHERE,
    308: _ELSEWHERE,
    404: _MISSING,
    408: _MAY_PASS,
    409: _MAY_PASS,
    412: _EXISTS,
    429: _BUSY,
    501: _UNFIT,
    503: _BUSY,
    507: _FULL,
}
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
    except RecursionError as error:  # botocore asks for the bucket's region, which is redirected too, and so on
        raise StoreAccessError("the endpoint sends every request elsewhere: correct s3.endpoint", **facts) from error
    except client.BotoCoreError as error:
        raise StoreAccessError("the S3 client refuses", **facts, reason=str(error)) from error


def code_of(error: BaseException | None) -> str:
    """The code that S3 gave, empty where there is none."""
    return _said(error).get("Code", "") if isinstance(error, client.ClientError) else ""


def _said(error: client.ClientError) -> dict[str, str]:
    """What stands in the answer's body. Of no known type: botocore has none."""
    response = cast("dict[str, Any]", error.response)  # pyright: ignore[reportUnknownMemberType]
    said: dict[str, str] = response.get("Error", {})
    return said


def _answered(error: client.ClientError, facts: dict[str, Any]) -> StateBackendError:
    response = cast("dict[str, Any]", error.response)  # pyright: ignore[reportUnknownMemberType]
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code, text = code_of(error), _said(error).get("Message", "")
    # S3 repeats a refused session token and what was signed with the key: what goes on lives here, nothing else does.
    response["Error"] = {"Code": code, "Message": text}
    kind, message = _BY_CODE.get(code) or _BY_STATUS.get(status) or (_MAY_PASS if status >= 500 else _NO)
    return kind(message, **facts, code=code or str(status), reason=text)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
