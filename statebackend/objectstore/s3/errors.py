"""Translates errors of S3 and its client to errors of a store, by what the caller can do about them.

The codes are those of the S3 API reference, "Error responses", and a few of other servers. An unknown code is judged by
its HTTP status: 5xx may pass, 4xx will not.
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
from statebackend.objectstore.cloud.requests import BeyondTheEndError

Meaning = tuple[type[StateBackendError], str]

_EXISTS: Final[Meaning] = (ObjectExistsError, "there is already an object at that key")
_NO_BUCKET: Final[Meaning] = (BucketNotFoundError, "there is no such bucket: make it, or correct the primary")
_CLOCK: Final[Meaning] = (ClockSkewError, "this machine's clock is too far from S3's: set it")
_KEY: Final[Meaning] = (InputError, "S3 takes keys of at most 1024 bytes, including the primary's prefix")
_FULL: Final[Meaning] = (StoreFullError, "S3 has no room: make some")
_BUSY: Final[Meaning] = (StoreThrottledError, "S3 asks for fewer requests")
_UNFIT: Final[Meaning] = (UnfitStoreError, "this S3 cannot do what was asked of it: use another")
_MAY_PASS: Final[Meaning] = (StoreUnavailableError, "S3 failed")
_MISSING: Final[Meaning] = (ObjectNotFoundError, "no object at that key")
_ELSEWHERE: Final[Meaning] = (
    StoreAccessError,
    "the bucket is in another region or elsewhere: correct s3.region or s3.endpoint",
)
_BEYOND: Final[Meaning] = (BeyondTheEndError, "the range begins beyond the end of the object")
_NO: Final[Meaning] = (StoreAccessError, "S3 refuses: correct the credentials, or what they may do")

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
    "BadDigest": _MAY_PASS,  # the body was damaged on the way
    "XAmzContentChecksumMismatch": _MAY_PASS,
    "IncompleteBody": _MAY_PASS,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "InvalidRange": _BEYOND,
}
_BY_STATUS: Final[Mapping[int, Meaning]] = {
    301: _ELSEWHERE,
    307: _ELSEWHERE,
    308: _ELSEWHERE,
    404: _MISSING,
    408: _MAY_PASS,
    409: _MAY_PASS,
    412: _EXISTS,
    416: _BEYOND,
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
    kind, message = _BY_CODE.get(code) or _BY_STATUS.get(status) or (_MAY_PASS if status >= 500 else _NO)
    return kind(message, **facts, code=code or str(status), reason=text)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
