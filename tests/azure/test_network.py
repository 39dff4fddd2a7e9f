"""What the network and the account do to requests: lost answers, refusals, and what is told of them."""

import logging
import pickle
import sys
from types import ModuleType
from typing import Self

import pytest

import statebackend as sb
from benchmarks.azurite import Azurite
from statebackend import Settings
from statebackend.errors import (
    BucketNotFoundError,
    InputError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreThrottledError,
    StoreUnavailableError,
    UnfitStoreError,
)
from statebackend.objectstore import PROBE_KEY
from statebackend.objectstore.azure import open_azure_store
from statebackend.settings import AzureSettings, MiB, Secret
from statebackend.testing.faults import Moment
from statebackend.testing.http_proxy import Answer, Cut, FaultProxy
from tests.azure.clients import settings_for
from tests.knobs import replaced

LARGE = [b"abc" * MiB, b"de" * MiB, b"f"]  # six blocks
WRONG_KEY = "d3Jvbmcga2V5IG9mIGFuIGFjY291bnQ="


async def test_a_lost_answer_of_put_if_absent_is_not_hidden(by_proxy: Settings, proxy: FaultProxy) -> None:
    """Sent again it would say "there is one already" of its own success: the caller has to be the one who asks."""
    async with open_azure_store(by_proxy.primary, by_proxy.azure) as store:
        await store.put("other", [b"so that the connection is one that was used"])
        proxy.plan.append(Cut(header="if-none-match", nth=1, moment="after"))
        with pytest.raises(StoreUnavailableError):
            await store.put_if_absent("object", [b"mine"])
        assert proxy.count("PUT") == 2
        with pytest.raises(ObjectExistsError):
            await store.put_if_absent("object", [b"mine"])
        assert await store.get("object") == b"mine"


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_put_whose_connection_is_cut_is_sent_again(
    by_proxy: Settings, proxy: FaultProxy, moment: Moment
) -> None:
    """Whether the server had stored it or not: it is the same object. By us, and not by the client beneath."""
    proxy.plan.append(Cut(method="PUT", nth=1, moment=moment))
    async with open_azure_store(by_proxy.primary, by_proxy.azure) as store:
        await store.put("object", [b"content"])
        assert await store.get("object") == b"content"
        assert store.requests["put_blob"] == proxy.count("PUT") == 2


async def test_a_commit_whose_answer_is_lost_is_one_commit(by_proxy: Settings, proxy: FaultProxy) -> None:
    """The writer finds its own stamp there: nobody is fenced, and nothing is committed twice."""
    async with sb.open_backend(by_proxy) as backend:
        total = backend.value_state("total", int)
        proxy.plan.append(Cut(header="if-none-match", nth=1, moment="after"))
        total["a"] = 1
        first = await backend.checkpoint(1)
        total["a"] = 2
        second = await backend.checkpoint(2)
    assert proxy.plan[0].struck == 1
    assert second.sequence == first.sequence + 1
    async with sb.open_backend(by_proxy) as backend:
        assert dict(backend.value_state("total", int)) == {"a": 2}


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


async def test_in_a_storm_of_throttling_nothing_fails(by_proxy: Settings, proxy: FaultProxy) -> None:
    """Each request is refused once, commits and what a restore reads included, and each is done in the end."""
    proxy.plan.append(Answer(status=503, code="ServerBusy", times_each=1))
    async with sb.open_backend(by_proxy) as backend:
        backend.value_state("total", int)["a"] = 1
        await backend.checkpoint(1)
    async with sb.open_backend(by_proxy) as backend:
        assert dict(backend.value_state("total", int)) == {"a": 1}


async def test_a_server_that_ignores_the_condition_is_not_used(by_proxy: Settings, proxy: FaultProxy) -> None:
    """It says yes to every creator, and nothing looks wrong until two drivers overwrite each other's commits."""
    proxy.plan.append(Answer(header="if-none-match", status=201, code="Created"))
    with pytest.raises(UnfitStoreError):
        async with sb.open_backend(by_proxy):
            pass


async def test_whether_the_condition_is_kept_is_asked_once_per_job(by_proxy: Settings, proxy: FaultProxy) -> None:
    """Two requests for a new job, one ever after, none for who only reads."""
    for expected in (2, 3):
        async with open_azure_store(by_proxy.primary, by_proxy.azure, probe_key=f"fleet/{PROBE_KEY}"):
            pass
        assert proxy.count("PUT") == expected
    async with open_azure_store(by_proxy.primary, by_proxy.azure):
        pass
    assert proxy.count("PUT") == 3


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


async def test_an_object_that_was_deleted_behind_our_back_is_not_found(settings: Settings) -> None:
    """Not an access error, and not an empty object."""
    async with open_azure_store(settings.primary, settings.azure) as store:
        with pytest.raises(ObjectNotFoundError):
            await store.get("gone")


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
