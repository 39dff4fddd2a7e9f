"""Azure's answers, and its client's errors, become errors of a store that say what to do: without a server."""

from typing import Any

import pytest

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
from statebackend.objectstore.cloud.cloud_requests import BeyondTheEndError

pytest.importorskip("azure.core", reason="no extra `azure`")

import aiohttp
from azure.core import exceptions as client

from statebackend.objectstore.azure.azure_errors import store_errors

ADDRESS = "https://account.blob.core.windows.net/container/key?sv=2024-11-04&sig=hush"


def answered(kind: Any, status: int | None, code: str | None, text: str = ADDRESS) -> Exception:
    """What the client raises for an answer of that status and code."""
    error = kind(message=text)
    error.status_code, error.error_code = status, code
    return error


def translated(error: BaseException, key: str | None = "key") -> StateBackendError:
    with pytest.raises(StateBackendError) as caught, store_errors("container", key):
        raise error
    assert caught.value.__cause__ is error
    return caught.value


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "BlobAlreadyExists", ObjectExistsError),
        (412, "ConditionNotMet", ObjectExistsError),
        (412, "NobodyKnows", ObjectExistsError),
        (404, "BlobNotFound", ObjectNotFoundError),
        (404, None, ObjectNotFoundError),  # of a HEAD, which has no body to say more
        (404, "ContainerNotFound", BucketNotFoundError),
        (409, "ContainerBeingDeleted", BucketNotFoundError),
        (403, "AuthorizationPermissionMismatch", StoreAccessError),
        (409, "ContainerDisabled", StoreAccessError),
        (418, "NobodyKnows", StoreAccessError),
        (499, "NobodyKnows", StoreAccessError),
        (503, "ServerBusy", StoreThrottledError),
        (500, "ServerBusy", StoreThrottledError),
        (429, "NobodyKnows", StoreThrottledError),
        (503, None, StoreThrottledError),
        (507, "InsufficientStorage", StoreFullError),
        (500, "InternalError", StoreUnavailableError),
        (500, "OperationTimedOut", StoreUnavailableError),
        (400, "Md5Mismatch", StoreUnavailableError),
        (400, "InvalidBlockList", StoreUnavailableError),
        (408, "NobodyKnows", StoreUnavailableError),
        (500, "NobodyKnows", StoreUnavailableError),
        (599, "NobodyKnows", StoreUnavailableError),
        (416, "InvalidRange", BeyondTheEndError),
        (400, "OutOfRangeInput", InputError),
        (400, "UnsupportedHeader", UnfitStoreError),
        (501, "NobodyKnows", UnfitStoreError),
        (None, None, StoreUnavailableError),
    ],
)
def test_an_answer_becomes_the_error_for_what_to_do_about_it(
    status: int | None, code: str | None, expected: type[StateBackendError]
) -> None:
    """Of that very class, by its code before its status. It names the place, and nothing that the client says."""
    found = translated(answered(client.HttpResponseError, status, code))
    assert type(found) is expected
    assert (found.facts["container"], found.facts["key"]) == ("container", "key")
    if expected not in (ObjectExistsError, ObjectNotFoundError) and status is not None:
        assert (found.facts["status"], found.facts["code"]) == (status, code or "")
    assert "hush" not in f"{found} {found.facts}"
    assert "key" not in translated(answered(client.HttpResponseError, status, code), key=None).facts


@pytest.mark.parametrize(
    "error",
    [
        client.AzureError(ADDRESS),
        client.ServiceRequestError(ADDRESS),
        client.ServiceResponseError(ADDRESS),
        client.IncompleteReadError(ADDRESS),
        aiohttp.ClientError(ADDRESS),
        aiohttp.InvalidURL(ADDRESS),
        aiohttp.ServerTimeoutError(ADDRESS),
        ConnectionResetError(ADDRESS),
        TimeoutError(ADDRESS),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_client_says_of_a_lost_answer_is_not_repeated(error: Exception) -> None:
    """Its text may have the address, and that a signature. The name of its class says as much."""
    found = translated(error)
    assert type(found) is StoreUnavailableError
    assert found.facts == {"container": "container", "key": "key", "reason": type(error).__name__}
    assert "hush" not in str(found)


def test_refused_credentials_are_told_from_a_wrong_clock() -> None:
    """Both are a 403 of one code: only Azure's text tells them apart. `azure-identity` refuses without an answer."""
    refused = translated(answered(client.ClientAuthenticationError, 403, "AuthenticationFailed"))
    assert type(refused) is StoreAccessError
    assert (refused.facts["status"], refused.facts["code"]) == (403, "AuthenticationFailed")
    late = f"Request date header too old: 'Mon, 01 Jan 2024' {ADDRESS}"
    skewed = translated(answered(client.ClientAuthenticationError, 403, "AuthenticationFailed", late))
    assert type(skewed) is ClockSkewError
    nobody = translated(client.ClientAuthenticationError(ADDRESS))
    assert type(nobody) is StoreAccessError
    assert all("hush" not in f"{each} {each.facts}" for each in (refused, skewed, nobody))


def test_a_defect_is_no_failure_of_the_store() -> None:
    """It passes as it is."""
    with pytest.raises(ZeroDivisionError), store_errors("container"):
        raise ZeroDivisionError
