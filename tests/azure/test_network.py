"""What the network and the account do to requests: lost answers, refusals, and what is told of them."""

import logging
import pickle
import sys
from types import MappingProxyType, ModuleType
from typing import Self

import pytest

import statebackend as sb
from benchmarks.azurite import Azurite
from statebackend import Settings
from statebackend.errors import (
    BucketNotFoundError,
    InputError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    UnfitStoreError,
)
from statebackend.objectstore.azure import open_azure_store
from statebackend.settings import AzureSettings, MiB, Secret
from statebackend.testing.faults import Moment
from tests.azure.clients import settings_for
from tests.cloud.http_proxy import Answer, Cut, FaultProxy
from tests.cloud.network import AnyCloud
from tests.knobs import replaced

LARGE = [b"abc" * MiB, b"de" * MiB, b"f"]  # six blocks
WRONG_KEY = "d3Jvbmcga2V5IG9mIGFuIGFjY291bnQ="


class TestAzure(AnyCloud):
    """Over a container."""

    cloud = "azure"
    fact = "container"
    open_cloud = staticmethod(open_azure_store)
    busy = MappingProxyType({"status": 503, "code": "ServerBusy"})
    created = MappingProxyType({"status": 201, "code": "Created"})


async def test_an_account_with_a_hierarchical_namespace_is_refused(by_proxy: Settings, proxy: FaultProxy) -> None:
    """As Azure's reference says of Get Account Information; Azurite answers that it has none."""
    async with open_azure_store(by_proxy.primary, by_proxy.azure, probe_key="fleet/probe") as store:
        assert store.requests["get_account_information"] == 1
    kind = "x-ms-sku-name: Standard_LRS\r\nx-ms-account-kind: StorageV2\r\nx-ms-is-hns-enabled: true\r\n"
    proxy.plan.append(Answer(target="*comp=properties*", status=200, code="OK", more=kind))
    with pytest.raises(UnfitStoreError, match="hierarchical namespace"):
        async with sb.open_backend(by_proxy):
            pass
    async with open_azure_store(by_proxy.primary, by_proxy.azure) as store:  # who reads only does not ask
        assert await store.head("fleet/probe") is not None


async def test_credentials_that_may_not_ask_for_the_account_are_good_enough(
    by_proxy: Settings, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says that it is not known; while Azure is busy, it is asked again."""
    proxy.plan += [
        Answer(target="*comp=properties*", status=503, code="ServerBusy", nth=1),
        Answer(target="*comp=properties*", status=403, code="AuthorizationPermissionMismatch", nth=2),
    ]
    with caplog.at_level(logging.WARNING):
        async with open_azure_store(by_proxy.primary, by_proxy.azure, probe_key="fleet/probe") as store:
            assert store.requests["get_account_information"] == 2
    assert "hierarchical namespace is not known" in caplog.text


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_blocks_and_their_list_are_sent_again(by_proxy: Settings, proxy: FaultProxy, moment: Moment) -> None:
    """A large object is there as a whole, or not at all; each block and the list of them is priced as a put."""
    async with open_azure_store(by_proxy.primary, by_proxy.azure) as store:
        await store.put("object", [b"former"])
        proxy.plan += [
            Cut(target="*comp=block&*", nth=2, moment=moment),
            Cut(target="*comp=blocklist*", nth=1, moment=moment),
        ]
        await store.put("object", LARGE)
        assert [fault.struck for fault in proxy.plan] == [1, 1]
        assert await store.get("object") == b"".join(LARGE)
        assert await store.get_range("object", 3 * MiB - 1, 2) == b"cd"
        assert store.requests == {"put_blob": 1, "put_block": 7, "put_block_list": 2, "get_blob": 2}
        assert store.priced_requests == {"put": 10, "get": 2}


async def test_a_block_that_is_refused_fails_the_put_and_leaves_the_former_object(
    by_proxy: Settings, proxy: FaultProxy
) -> None:
    """With the error that it met, and no other block is sent for nothing."""
    async with open_azure_store(by_proxy.primary, by_proxy.azure) as store:
        await store.put("object", [b"former"])
        proxy.plan.append(Answer(target="*comp=block&*", nth=1, status=403, code="AuthorizationFailure"))
        with pytest.raises(StoreAccessError):
            await store.put("object", LARGE)
        assert await store.get("object") == b"former"


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AuthorizationPermissionMismatch", StoreAccessError),
        (403, "AuthenticationFailed", StoreAccessError),
        (404, "ContainerNotFound", BucketNotFoundError),
        (409, "ContainerBeingDeleted", BucketNotFoundError),
        (409, "AccountIsDisabled", StoreAccessError),
        (400, "OutOfRangeInput", InputError),
        (400, "UnsupportedHeader", UnfitStoreError),
        (507, "InsufficientStorage", StoreFullError),
        (500, "InternalError", StoreUnavailableError),
        (500, "OperationTimedOut", StoreUnavailableError),
        (503, "ServerBusy", StoreThrottledError),
        (418, "NobodyKnows", StoreAccessError),
        (599, "NobodyKnows", StoreUnavailableError),
    ],
)
async def test_a_refusal_becomes_the_error_for_what_to_do_about_it(
    by_proxy: Settings, proxy: FaultProxy, status: int, code: str, error: type[StoreError]
) -> None:
    """When the backend opens, and of that very class."""
    proxy.plan.append(Answer(method="PUT", status=status, code=code))
    with pytest.raises(error) as caught:
        async with sb.open_backend(replaced(by_proxy, azure__outage_s=0.0)):
            pass
    assert type(caught.value) is error
    assert caught.value.facts["container"] == by_proxy.primary.split("/")[3]


async def test_a_missing_container_is_told_when_the_backend_opens(server: Azurite) -> None:
    """By its name, and before a batch is worked on."""
    with pytest.raises(BucketNotFoundError) as caught:
        async with sb.open_backend(settings_for(server, "nobody-made-this", prefix="x")):
            pass
    assert caught.value.facts["container"] == "nobody-made-this"


@pytest.mark.parametrize(
    "secret", [{"azure__account_key": Secret(WRONG_KEY)}, {"azure__sas_token": Secret("sv=2024-11-04&sig=hush")}]
)
async def test_credentials_that_are_refused_are_told_and_never_shown(
    settings: Settings, secret: dict[str, Secret], caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the error, nor in the client's own logs at their loudest."""
    caplog.set_level(logging.DEBUG)
    wrong = replaced(settings, **{"azure__account_key": None, **secret})
    with pytest.raises(StoreAccessError) as caught:
        async with sb.open_backend(wrong):
            pass
    told = f"{caught.value!s} {caught.value.__cause__!r} {wrong!r} {caplog.text}"
    assert WRONG_KEY not in told
    assert "hush" not in told


async def test_a_pickle_leaves_credentials_behind_and_says_so(settings: Settings) -> None:
    """On a worker they come from azure-identity, which is not installed here."""
    carried = pickle.loads(pickle.dumps(settings))
    with pytest.raises(StoreAccessError, match="do not travel in a pickle"):
        async with sb.open_backend(carried):
            pass
    with pytest.raises(StoreAccessError, match="install azure-identity"):
        async with sb.open_backend(replaced(settings, azure__account_key=None)):
            pass


async def test_without_a_secret_the_credentials_come_from_azure_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is installed. They are closed with the store. Whether Azure likes them nobody has tried here."""
    open_credentials: list[str] = []

    class DefaultAzureCredential:
        async def __aenter__(self) -> Self:
            open_credentials.append("open")
            return self

        async def __aexit__(self, *raised: object) -> None:
            open_credentials.clear()

        async def get_token(self, *scopes: str) -> None:
            raise AssertionError("nothing is sent")

    identity = ModuleType("azure.identity.aio")
    monkeypatch.setattr(identity, "DefaultAzureCredential", DefaultAzureCredential, raising=False)
    monkeypatch.setitem(sys.modules, "azure.identity", ModuleType("azure.identity"))
    monkeypatch.setitem(sys.modules, "azure.identity.aio", identity)
    async with open_azure_store("azure://account1/container", AzureSettings()):
        assert open_credentials == ["open"]
    assert open_credentials == []
