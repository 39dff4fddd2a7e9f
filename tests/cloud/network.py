"""What the network does to requests, in any cloud: lost answers, cut connections, servers that are silent or busy."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend import Settings
from statebackend._log.names import PROBE_KEY
from statebackend.errors import ObjectExistsError, ObjectNotFoundError, StoreUnavailableError, UnfitStoreError
from statebackend.objectstore.cloud.cloud_store import CloudStore
from statebackend.testing.faults import Moment
from statebackend.testing.kits.cancellation import cancelled
from tests.cloud.http_proxy import Answer, Cut, FaultProxy, HttpFault, Silence
from tests.knobs import replaced

PATIENCE_S = 60.0


class AnyCloud:
    """A cloud, by the name of its settings, what opens a store there, and its words. `by_proxy` is a fixture."""

    cloud: str
    fact: str
    """How its errors call the place of its objects."""
    open_cloud: Callable[..., AbstractAsyncContextManager[CloudStore]]
    busy: Mapping[str, Any]
    """The answer of a server that has too much to do, and has done nothing."""
    created: Mapping[str, Any]
    """Its answer when it has stored an object."""

    def open(self, settings: Settings, **options: Any) -> AbstractAsyncContextManager[CloudStore]:
        """The store of these settings."""
        return type(self).open_cloud(settings.primary, getattr(settings, self.cloud), **options)

    def hasty(self, settings: Settings, **changes: Any) -> Settings:
        """Settings that repeat nothing, with these changes to those of the cloud."""
        changes["outage_s"] = 0.0
        return replaced(settings, **{f"{self.cloud}__{name}": value for name, value in changes.items()})

    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_a_put_whose_connection_is_cut_is_sent_again(
        self, by_proxy: Settings, proxy: FaultProxy, moment: Moment
    ) -> None:
        """Whether the server had stored it or not: it is the same object. By us, and not by the client beneath."""
        proxy.plan.append(Cut(method="PUT", nth=1, moment=moment))
        async with self.open(by_proxy) as store:
            await store.put("object", [b"content"])
            assert await store.get("object") == b"content"
            assert store.priced_requests["put"] == proxy.count("PUT") == 2

    async def test_a_lost_answer_of_put_if_absent_is_not_hidden(self, by_proxy: Settings, proxy: FaultProxy) -> None:
        """Sent again it would say "there is one already" of its own success: the caller has to be the one who asks."""
        async with self.open(by_proxy) as store:
            await store.put("other", [b"so that the connection is one that was used"])
            proxy.plan.append(Cut(header="if-none-match", nth=1, moment="after"))
            with pytest.raises(StoreUnavailableError):
                await store.put_if_absent("object", [b"mine"])
            assert proxy.count("PUT") == 2
            with pytest.raises(ObjectExistsError):
                await store.put_if_absent("object", [b"mine"])
            assert await store.get("object") == b"mine"

    async def test_a_commit_whose_answer_is_lost_is_one_commit(self, by_proxy: Settings, proxy: FaultProxy) -> None:
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

    async def test_in_a_storm_of_throttling_nothing_fails(self, by_proxy: Settings, proxy: FaultProxy) -> None:
        """Each request is refused twice, commits and what a restore reads included, and each is done in the end."""
        storm = Answer(**self.busy, times_each=2)
        proxy.plan.append(storm)
        async with sb.open_backend(by_proxy) as backend:
            total = backend.value_state("total", int)
            for number in range(3):
                total[str(number)] = number
                await backend.checkpoint(number)
        async with sb.open_backend(by_proxy) as backend:
            assert dict(backend.value_state("total", int)) == {"0": 0, "1": 1, "2": 2}
        assert storm.struck > 10

    async def test_a_throttled_put_if_absent_is_sent_again(self, by_proxy: Settings, proxy: FaultProxy) -> None:
        """The server said that it did nothing."""
        proxy.plan.append(Answer(**self.busy, method="PUT", nth=1))
        async with self.open(by_proxy) as store:
            await store.put_if_absent("object", [b"content"])
        assert proxy.count("PUT") == 2

    @pytest.mark.parametrize("operation", ["put", "put_if_absent"])
    async def test_a_cancelled_put_that_the_server_has_not_got_leaves_nothing(
        self, by_proxy: Settings, proxy: FaultProxy, operation: str
    ) -> None:
        """And it sends nothing any more when its caller has gone."""
        silence = Silence(method="PUT")
        proxy.plan.append(silence)
        async with self.open(by_proxy) as store:
            await cancelled(
                lambda: getattr(store, operation)("object", [b"x" * 100]),
                how="scope",
                after=silence.reached.wait,
                patience_s=PATIENCE_S,
            )
            assert proxy.count("PUT") == 1
            assert [info async for info in store.list("")] == []

    @pytest.mark.parametrize("operation", ["put", "put_if_absent", "get", "head", "delete"])
    async def test_a_silent_server_is_not_waited_for_for_ever(
        self, by_proxy: Settings, proxy: FaultProxy, operation: str
    ) -> None:
        """Each request ends by the read timeout, as a store that does not answer."""
        proxy.plan.append(Silence())
        arguments = ([b"x"],) if operation.startswith("put") else ()
        async with self.open(self.hasty(by_proxy, read_timeout_s=0.1)) as store:
            with anyio.fail_after(PATIENCE_S), pytest.raises(StoreUnavailableError):
                await getattr(store, operation)("object", *arguments)

    @pytest.mark.parametrize("inline_bytes_max", [0, 10_000])
    @pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "throttled"])
    async def test_an_outage_in_the_middle_of_a_job_costs_time_and_nothing_else(
        self, by_proxy: Settings, proxy: FaultProxy, is_cut: bool, inline_bytes_max: int
    ) -> None:
        """Every request fails more often than an upload has attempts, all of which are late: the checkpoint is whole.

        The repeats are the store's, and the commit log's: nothing late is given up before `upload.primary_outage_s`.
        """
        hasty = replaced(by_proxy, upload__timeout_s=0.001, inline_bytes_max=inline_bytes_max)
        async with sb.open_backend(hasty) as backend:
            total = backend.value_state("total", int)
            total["a"] = 1
            await backend.checkpoint(1)
            times = hasty.upload.attempts_max + 1
            outage: HttpFault = Cut(times_each=times) if is_cut else Answer(**self.busy, times_each=times)
            proxy.plan.append(outage)
            total["a"] = 2
            await backend.checkpoint(2)
            assert outage.struck > hasty.upload.attempts_max
        async with sb.open_backend(by_proxy) as backend:
            assert dict(backend.value_state("total", int)) == {"a": 2}

    async def test_an_object_that_was_deleted_behind_our_back_is_not_found(self, settings: Settings) -> None:
        """Not an access error, and not an empty object."""
        async with self.open(settings) as store:
            with pytest.raises(ObjectNotFoundError):
                await store.get("gone")

    async def test_a_server_that_ignores_the_condition_is_not_used(self, by_proxy: Settings, proxy: FaultProxy) -> None:
        """It says yes to every creator, and nothing looks wrong until two drivers overwrite each other's commits."""
        proxy.plan.append(Answer(**self.created, header="if-none-match"))
        with pytest.raises(UnfitStoreError, match="If-None-Match") as caught:
            async with sb.open_backend(by_proxy):
                pass
        assert caught.value.facts[self.fact] in by_proxy.primary.split("/")

    async def test_whether_the_condition_is_kept_is_asked_once_per_job(
        self, by_proxy: Settings, proxy: FaultProxy
    ) -> None:
        """Two requests for a new job, one ever after, none for who only reads; and it is the job's own object."""
        for expected in (2, 3, 4):
            async with self.open(by_proxy, probe_key=f"fleet/{PROBE_KEY}"):
                pass
            assert proxy.count("PUT") == expected
        async with self.open(by_proxy) as store:
            assert [info.key async for info in store.list("")] == [f"fleet/{PROBE_KEY}"]
        assert proxy.count("PUT") == 4

    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_a_lost_answer_to_that_question_is_asked_for_again(
        self, by_proxy: Settings, proxy: FaultProxy, moment: Moment
    ) -> None:
        """The first answer may be lost: what is asked is whether *anybody's* object is respected."""
        proxy.plan.append(Cut(method="PUT", nth=1, moment=moment))
        async with self.open(by_proxy, probe_key=f"fleet/{PROBE_KEY}"):
            pass
