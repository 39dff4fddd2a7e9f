"""Translates errors of Azure and its client to errors of a store, by what the caller can do about them.

The codes are those of Azure's reference, "Common REST API error codes" and "Blob Storage error codes". An unknown code
is judged by its HTTP status: 5xx may pass, 4xx will not.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from azure.core import exceptions as client

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
_MISSING: Final[Meaning] = (ObjectNotFoundError, "no object at that key")
_NO_CONTAINER: Final[Meaning] = (BucketNotFoundError, "there is no such container: make it, or correct the primary")
_BUSY: Final[Meaning] = (StoreThrottledError, "Azure asks for fewer requests")
_FULL: Final[Meaning] = (StoreFullError, "the storage account has no room: make some")
_MAY_PASS: Final[Meaning] = (StoreUnavailableError, "Azure failed")
_BEYOND: Final[Meaning] = (BeyondTheEndError, "the range begins beyond the end of the object")
_NO: Final[Meaning] = (StoreAccessError, "Azure refuses: correct the credentials, or what they may do")

_BY_CODE: Final[Mapping[str, Meaning]] = {
    "BlobAlreadyExists": _EXISTS,
    "ConditionNotMet": _EXISTS,
    "BlobNotFound": _MISSING,
    "ContainerNotFound": _NO_CONTAINER,
    "ContainerBeingDeleted": _NO_CONTAINER,
    "ContainerDisabled": _NO,
    "ServerBusy": _BUSY,
    "OperationTimedOut": _MAY_PASS,
    "InternalError": _MAY_PASS,
    "Md5Mismatch": _MAY_PASS,  # the body was damaged on the way
    "InvalidRange": _BEYOND,
    "InvalidBlockList": _MAY_PASS,  # another writer of the same key has committed its blocks, and dropped ours
    "OutOfRangeInput": (InputError, "Azure takes keys of at most 1024 characters, including the primary's prefix"),
    "UnsupportedHeader": (UnfitStoreError, "this server cannot do what was asked of it: use another"),
}
_BY_STATUS: Final[Mapping[int, Meaning]] = {
    404: _MISSING,
    408: _MAY_PASS,
    412: _EXISTS,
    429: _BUSY,
    501: (UnfitStoreError, "this server cannot do what was asked of it: use another"),
    503: _BUSY,
    507: _FULL,
}
_SKEWED: Final = "Request date header too old"
"""In the text of a 403 for a clock that is a quarter of an hour off: its code is that of a wrong key."""
_NO_ANSWER: Final = (client.AzureError, aiohttp.ClientError, asyncio.TimeoutError, OSError)


@contextmanager
def store_errors(container: str, key: str | None = None) -> Generator[None]:
    """Turn foreign exceptions into `StoreError`s that name the container, and the key as Azure knows it."""
    facts: dict[str, Any] = {"container": container} if key is None else {"container": container, "key": key}
    try:
        yield
    except client.ClientAuthenticationError as error:  # also what azure-identity raises, without an answer of Azure's
        raise _refused(error, facts) from error
    except client.HttpResponseError as error:
        if error.status_code is None:
            raise StoreUnavailableError("Azure gave no usable answer", **facts, reason=_words(error)) from error
        raise _answered(error, facts) from error
    except _NO_ANSWER as error:
        raise StoreUnavailableError("Azure gave no usable answer", **facts, reason=_words(error)) from error


def _answered(error: client.HttpResponseError, facts: Mapping[str, Any]) -> StateBackendError:
    status, code = error.status_code or 0, _code_of(error)
    if (meaning := _BY_CODE.get(code) or _BY_STATUS.get(status)) is None:
        meaning = _MAY_PASS if status >= 500 else _NO
    kind, said = meaning
    if kind in (ObjectExistsError, ObjectNotFoundError):
        return kind(said, **facts)
    return kind(said, **facts, status=status, code=code)


def _refused(error: client.ClientAuthenticationError, facts: Mapping[str, Any]) -> StateBackendError:
    if _SKEWED in str(error):
        return ClockSkewError("this machine's clock is too far from Azure's: set it", **facts)
    return StoreAccessError(
        "Azure refuses the credentials: correct them, or what they may do",
        **facts,
        status=error.status_code,
        code=_code_of(error),
    )


def _code_of(error: client.HttpResponseError) -> str:
    """Azure's code, empty if there is none."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _words(error: BaseException) -> str:
    """Of the error itself, which has no address in it, unlike its text."""
    return type(error).__name__
