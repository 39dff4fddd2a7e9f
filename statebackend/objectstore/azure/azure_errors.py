"""Translates errors of Azure and its client to errors of a store, by what the caller can do about them.

The codes are those of Azure's reference, "Common REST API error codes" and "Blob Storage error codes".
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from azure.core import exceptions as client

from statebackend.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.objectstore.cloud.answers import Meaning, Meanings

_MEANS: Final = Meanings("Azure", "container", keys="1024 characters")
_BY_CODE: Final[Mapping[str, Meaning]] = {
    "BlobAlreadyExists": _MEANS.exists,
    "ConditionNotMet": _MEANS.exists,
    "BlobNotFound": _MEANS.missing,
    "ContainerNotFound": _MEANS.nowhere,
    "ContainerBeingDeleted": _MEANS.nowhere,
    "ContainerDisabled": _MEANS.refused,
    "ServerBusy": _MEANS.busy,
    "OperationTimedOut": _MEANS.may_pass,
    "InternalError": _MEANS.may_pass,
    "Md5Mismatch": _MEANS.may_pass,  # the body was damaged on the way
    "InvalidRange": _MEANS.beyond,
    "InvalidBlockList": _MEANS.may_pass,  # another writer of the same key has committed its blocks, and dropped ours
    "OutOfRangeInput": _MEANS.long_key,
    "UnsupportedHeader": _MEANS.unfit,
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
    except StateBackendError:
        raise
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
    kind, said = _MEANS.of(status, code, _BY_CODE)
    if kind in (ObjectExistsError, ObjectNotFoundError):
        return kind(said, **facts)
    return kind(said, **facts, status=status, code=code)


def _refused(error: client.ClientAuthenticationError, facts: Mapping[str, Any]) -> StateBackendError:
    if _SKEWED in str(error):
        kind, said = _MEANS.skewed
        return kind(said, **facts)
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
