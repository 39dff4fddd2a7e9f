"""What the network does to requests: lost answers, cut connections, servers that are silent or busy."""

from collections.abc import Callable
from functools import partial

import anyio
import pytest

import statebackend as sb
from benchmarks.servers import Server
from statebackend import Settings
from statebackend.errors import ObjectExistsError, StoreUnavailableError
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import MiB
from statebackend.testing.cancellation import cancelled
from statebackend.testing.faults import Moment
from statebackend.testing.http_proxy import Answer, Cut, FaultProxy, FlipBit, HttpFault, Silence
from tests.knobs import replaced
from tests.s3.clients import objects_of, uploads_of

Throttled = partial(Answer, status=503, code="SlowDown")
LARGE = [b"abc" * MiB, b"defgh" * MiB, b"ij" * MiB]  # two parts
PATIENCE_S = 60.0


def impatient(settings: Settings) -> Settings:
    """Repeats nothing."""
    return replaced(settings, s3__outage_s=0.0)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_put_whose_connection_is_cut_is_sent_again(
    by_proxy: Settings, proxy: FaultProxy, moment: Moment
) -> None:
    """Whether the server had stored it or not: it is the same object."""
    proxy.plan.append(Cut(method="PUT", nth=1, moment=moment))
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        await store.put("object", [b"content"])
        assert await store.get("object") == b"content"
    assert proxy.count("PUT") == 2


async def test_a_lost_answer_of_put_if_absent_is_not_hidden(by_proxy: Settings, proxy: FaultProxy) -> None:
    """Sent again it would say "there is one already" of its own success: the caller has to be the one who asks."""
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        proxy.plan.append(Cut(header="if-none-match", nth=1, moment="after"))
        with pytest.raises(StoreUnavailableError):
            await store.put_if_absent("object", [b"mine"])
        assert proxy.count("PUT") == 1
        with pytest.raises(ObjectExistsError):
            await store.put_if_absent("object", [b"mine"])
        assert await store.get("object") == b"mine"


async def test_a_commit_whose_answer_is_lost_is_one_commit(
    by_proxy: Settings, proxy: FaultProxy, server: Server
) -> None:
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


async def test_in_a_storm_of_throttling_nothing_fails(by_proxy: Settings, proxy: FaultProxy) -> None:
    """Each request is refused twice, commits and what a restore reads included, and each is done in the end."""
    storm = Throttled(times_each=2)
    proxy.plan.append(storm)
    async with sb.open_backend(by_proxy) as backend:
        total = backend.value_state("total", int)
        for number in range(3):
            total[str(number)] = number
            await backend.checkpoint(number)
    async with sb.open_backend(by_proxy) as backend:
        assert dict(backend.value_state("total", int)) == {"0": 0, "1": 1, "2": 2}
    assert storm.struck > 10


@pytest.mark.parametrize(("status", "code"), [(429, "TooManyRequests"), (503, "SlowDown"), (503, "")])
async def test_a_throttled_put_if_absent_is_sent_again(
    by_proxy: Settings, proxy: FaultProxy, status: int, code: str
) -> None:
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


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
async def test_a_cancelled_put_that_the_server_has_not_got_leaves_nothing(
    by_proxy: Settings, proxy: FaultProxy, server: Server, operation: str
) -> None:
    """And it sends nothing any more when its caller has gone."""
    silence = Silence(method="PUT")
    proxy.plan.append(silence)
    async with open_s3_store(by_proxy.primary, by_proxy.s3) as store:
        await cancelled(
            lambda: getattr(store, operation)("object", [b"x" * 100]),
            how="scope",
            after=silence.reached.wait,
            patience_s=PATIENCE_S,
        )
    assert proxy.count("PUT") == 1
    assert await objects_of(by_proxy, server) == {}


@pytest.mark.parametrize("operation", ["put", "put_if_absent", "get", "head", "delete"])
async def test_a_silent_server_is_not_waited_for_for_ever(
    by_proxy: Settings, proxy: FaultProxy, operation: str
) -> None:
    """Each request ends by the read timeout, as a store that does not answer."""
    proxy.plan.append(Silence())
    silent = replaced(impatient(by_proxy), s3__read_timeout_s=0.1)
    arguments = ([b"x"],) if operation.startswith("put") else ()
    async with open_s3_store(silent.primary, silent.s3) as store:
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreUnavailableError):
            await getattr(store, operation)("object", *arguments)


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


@pytest.mark.parametrize("inline_bytes_max", [0, 10_000])
@pytest.mark.parametrize("fault", [Cut, Throttled], ids=["cut", "throttled"])
async def test_an_outage_in_the_middle_of_a_job_costs_time_and_nothing_else(
    by_proxy: Settings, proxy: FaultProxy, fault: Callable[..., HttpFault], inline_bytes_max: int
) -> None:
    """Every request fails more often than an upload has attempts, all of which are late, and the checkpoint is whole.

    The repeats are the store's, and the commit log's: what is late is not given up before `upload.primary_outage_s`.
    """
    hasty = replaced(by_proxy, upload__timeout_s=0.001, inline_bytes_max=inline_bytes_max)
    async with sb.open_backend(hasty) as backend:
        total = backend.value_state("total", int)
        total["a"] = 1
        await backend.checkpoint(1)
        outage = fault(times_each=hasty.upload.attempts_max + 1)
        proxy.plan.append(outage)
        total["a"] = 2
        await backend.checkpoint(2)
        assert outage.struck > hasty.upload.attempts_max
    async with sb.open_backend(by_proxy) as backend:
        assert dict(backend.value_state("total", int)) == {"a": 2}
