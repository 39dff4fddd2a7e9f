"""What the network does to requests: lost answers, cut connections, servers that are silent or busy."""

from collections.abc import Callable
from types import MappingProxyType

import pytest

import statebackend as sb
from benchmarks.servers import Server
from statebackend import Settings
from statebackend.errors import StoreUnavailableError
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import MiB
from statebackend.testing.kits.cancellation import cancelled
from tests.cloud.http_proxy import Answer, Cut, FaultProxy, FlipBit, HttpFault, Silence
from tests.cloud.network import PATIENCE_S, AnyCloud
from tests.knobs import replaced
from tests.s3.clients import objects_of, uploads_of

LARGE = [b"abc" * MiB, b"defgh" * MiB, b"ij" * MiB]  # two parts


class TestS3(AnyCloud):
    """Over a bucket."""

    cloud = "s3"
    fact = "bucket"
    open_cloud = staticmethod(open_s3_store)
    busy = MappingProxyType({"status": 503, "code": "SlowDown"})
    created = MappingProxyType({"status": 200, "code": "OK"})


def impatient(settings: Settings) -> Settings:
    """Repeats nothing."""
    return replaced(settings, s3__outage_s=0.0)


@pytest.mark.parametrize(("status", "code"), [(429, "TooManyRequests"), (503, "")])
async def test_whatever_a_busy_server_calls_it(by_proxy: Settings, proxy: FaultProxy, status: int, code: str) -> None:
    """The server said that it did nothing."""
    proxy.plan.append(Answer(method="PUT", nth=1, status=status, code=code))
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        await store.put_if_absent("object", [b"content"])
    assert proxy.count("PUT") == 2


@pytest.mark.parametrize(
    "fault",
    [
        Cut(method="POST", target="*?uploads*", nth=1, moment="before"),
        Cut(method="POST", target="*?uploads*", nth=1, moment="after"),
        Cut(method="PUT", target="*partNumber=2*", nth=1, moment="before"),
        Cut(method="PUT", target="*partNumber=2*", nth=1, moment="after"),
        Cut(method="POST", target="*?uploadId=*", nth=1, moment="before"),
        Cut(method="POST", target="*?uploadId=*", nth=1, moment="after"),
        Answer(status=500, code="InternalError", times_each=1),
    ],
    ids=["create", "create, done", "part", "part, done", "complete", "complete, done", "each fails once"],
)
async def test_an_upload_in_parts_survives_a_cut(
    by_proxy: Settings, proxy: FaultProxy, server: Server, fault: HttpFault
) -> None:
    """Whichever step is struck, and whether it had been done: one object, whole, and no upload beside it."""
    proxy.plan.append(fault)
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        await store.put("object", LARGE)
        proxy.plan.clear()
        assert await store.get("object") == b"".join(LARGE)
    assert fault.struck >= 1
    assert await uploads_of(by_proxy, server) == []


@pytest.mark.parametrize("stored", [True, False])
async def test_an_upload_that_s3_knows_no_more_is_done_only_if_the_object_is_there(
    by_proxy: Settings, proxy: FaultProxy, stored: bool
) -> None:
    """The last step was sent twice. If the first one was done, the object has our stamp; another's object has not."""
    async with open_s3_store(by_proxy.primary, impatient(by_proxy).s3) as store:
        await store.put("object", [b"another's"])
    proxy.plan.append(Cut(method="POST", target="*?uploadId=*", nth=1, moment="after" if stored else "before"))
    proxy.plan.append(Answer(method="POST", target="*?uploadId=*", nth=2, status=404, code="NoSuchUpload"))
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        if stored:
            await store.put("object", LARGE)
        else:
            with pytest.raises(StoreUnavailableError):
                await store.put("object", LARGE)
        assert await store.get("object") == (b"".join(LARGE) if stored else b"another's")


@pytest.mark.parametrize(
    "fault",
    [
        Cut(method="POST", target="*?uploads*", moment="after"),
        Cut(method="PUT", target="*partNumber=1*"),
        Cut(method="PUT", target="*partNumber=2*", moment="after"),
        Answer(method="PUT", target="*partNumber=2*", status=403, code="AccessDenied"),
        Cut(method="POST", target="*?uploadId=*"),
    ],
    ids=["create, done", "first part", "last part, done", "part refused", "complete"],
)
async def test_an_upload_in_parts_that_fails_leaves_nothing(
    by_proxy: Settings, proxy: FaultProxy, server: Server, fault: HttpFault
) -> None:
    """No object, and no parts that cost money and show in no listing."""
    proxy.plan.append(fault)
    async with open_s3_store(by_proxy.primary, impatient(by_proxy).s3) as store:
        with pytest.raises(sb.StateBackendError):
            await store.put("object", LARGE)
    assert await objects_of(by_proxy, server) == {}
    assert await uploads_of(by_proxy, server) == []


@pytest.mark.parametrize(
    "silence",
    [
        lambda: Silence(method="POST", target="*?uploads*"),
        lambda: Silence(method="PUT", target="*partNumber=1*", moment="after"),
        lambda: Silence(method="PUT", target="*partNumber=2*"),
        lambda: Silence(method="POST", target="*?uploadId=*"),
    ],
    ids=["create", "first part, done", "last part", "complete"],
)
async def test_a_cancelled_upload_in_parts_leaves_nothing(
    by_proxy: Settings, proxy: FaultProxy, server: Server, silence: Callable[[], Silence]
) -> None:
    """At whichever step the caller gives up."""
    fault = silence()
    proxy.plan.append(fault)
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        assert (
            await cancelled(
                lambda: store.put("object", LARGE), how="scope", after=fault.reached.wait, patience_s=PATIENCE_S
            )
            == []
        )
    assert await objects_of(by_proxy, server) == {}
    assert await uploads_of(by_proxy, server) == []


async def test_a_damaged_answer_is_asked_for_again(by_proxy: Settings, proxy: FaultProxy, server: Server) -> None:
    """S3 sends the checksum of an object with it: bytes that were changed on their way are not believed."""
    if server.name == "radosgw":
        pytest.skip("this server keeps no checksums")
    damage = FlipBit(method="GET", nth=1)
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        await store.put("object", [b"content"])
        proxy.plan.append(damage)
        assert await store.get("object") == b"content"
    assert damage.struck == 1
    assert proxy.count("GET") == 2
