"""Credentials that end: renewed before they do, once for all, and never shown."""

import asyncio
import functools
import logging
import pickle
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aiohttp import web

from statebackend import Settings
from statebackend.errors import SettingsError, StoreAccessError, StoreUnavailableError
from statebackend.objectstore.cloud.renewal import RENEW_AGAIN_S, RENEW_BEFORE_S, Renewal, renewal_of
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import AzureCredentials, AzureSettings, CredentialSource, S3Credentials, S3Settings
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock

SECRET = "hush-hush-hush"
LIFE_S = 3600.0


class Issuing:
    """Gives credentials of an hour, each with a number of its own; fails or hangs when told to."""

    def __init__(self, clock: VirtualClock, life_s: float = LIFE_S) -> None:
        self.clock, self.life_s = clock, life_s
        self.asked = 0
        self.fails = self.hangs = False

    async def __call__(self) -> S3Credentials:
        self.asked += 1
        await asyncio.sleep(1)
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise ConnectionError("no answer")
        return S3Credentials(
            access_key_id=f"key-{self.asked}", secret_access_key=SECRET, ends_at_s=self.clock.time() + self.life_s
        )


def renewal_by(issuing: Issuing) -> Renewal[S3Credentials]:
    return Renewal(CredentialSource(issuing), S3Credentials, clock=issuing.clock)


@run_virtual
async def test_all_who_wait_share_one_request() -> None:
    """Also if the one who asks is cancelled: then another asks."""
    issuing = Issuing(VirtualClock())
    renewal = renewal_by(issuing)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(renewal.current)
    assert issuing.asked == 1
    first = await renewal.current()
    renewal.refuse(first)
    with anyio.move_on_after(0.5):
        await renewal.current()
    assert (await renewal.current()).access_key_id == "key-3"


@pytest.mark.parametrize(("life_s", "before_s"), [(LIFE_S, RENEW_BEFORE_S), (60.0, 20.0)])
@run_virtual
async def test_credentials_are_renewed_before_they_end(life_s: float, before_s: float) -> None:
    """Some minutes before, or a third of their time."""
    issuing = Issuing(VirtualClock(), life_s)
    renewal = renewal_by(issuing)
    await renewal.current()
    await asyncio.sleep(life_s - before_s - 2)
    assert (await renewal.current()).access_key_id == "key-1"
    await asyncio.sleep(4)
    assert (await renewal.current()).access_key_id == "key-2"


@run_virtual
async def test_a_renewal_that_fails_costs_nothing_while_the_credentials_are_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried again after a pause. Afterwards it is an outage, which requests are repeated for."""
    issuing = Issuing(VirtualClock())
    renewal = renewal_by(issuing)
    await renewal.current()
    await asyncio.sleep(LIFE_S - RENEW_BEFORE_S)
    for issuing.fails, issuing.hangs in ((True, False), (False, True)):
        with caplog.at_level(logging.WARNING):
            assert (await renewal.current()).access_key_id == "key-1"
        asked = issuing.asked
        await renewal.current()
        assert issuing.asked == asked
        assert "could not be renewed" in caplog.text
        await asyncio.sleep(RENEW_AGAIN_S)
    issuing.fails, issuing.hangs = True, False
    await asyncio.sleep(RENEW_BEFORE_S)
    with pytest.raises(StoreUnavailableError, match="gave no credentials"):
        await renewal.current()
    issuing.fails = False
    assert (await renewal.current()).access_key_id == f"key-{issuing.asked}"


@run_virtual
async def test_what_is_no_answer_is_told() -> None:
    """At once where another call would not help; with no value shown."""
    clock = VirtualClock()
    for wrong in (lambda: SECRET, lambda: None):
        with pytest.raises(StoreAccessError, match="must return S3Credentials") as caught:
            await Renewal(CredentialSource(wrong), S3Credentials, clock=clock).current()
        assert SECRET not in str(caught.value)
    with pytest.raises(StoreUnavailableError, match="have ended"):
        await renewal_by(Issuing(clock, -10.0)).current()
    with pytest.raises(SettingsError, match="cannot be imported here: No module"):
        await Renewal(CredentialSource("no_such_module:fetch"), S3Credentials, clock=clock).current()


def fetch() -> S3Credentials:
    """Synchronous, and found by name."""
    return S3Credentials(access_key_id="by-name", secret_access_key=SECRET, ends_at_s=4e9)


@pytest.mark.parametrize("source", [fetch, "tests.objectstore.test_renewal:fetch"])
async def test_settings_that_were_pickled_share_what_was_asked(source: Any) -> None:
    """As on executors, where each batch brings them anew."""
    settings = S3Settings(credentials=source)
    copies = [pickle.loads(pickle.dumps(settings)) for _ in range(3)]
    assert copies == [settings] * 3
    found = [await renewal_of(each.credentials, S3Credentials).current() for each in (settings, *copies)]
    assert found[0].access_key_id == "by-name"
    assert all(each is found[0] for each in found)


def test_credentials_come_from_text_or_a_function_and_instead_of_keys() -> None:
    """And nothing of them is shown."""
    named = Settings.from_mapping({"job": "j", "primary": "s3://bucket/p", "s3.credentials": "a.b:c"})
    assert named.s3.credentials == CredentialSource("a.b:c")
    for kind, keys in ((S3Settings, {"access_key_id": "me"}), (AzureSettings, {"sas_token": "sig=x"})):
        with pytest.raises(SettingsError, match="one or the other"):
            Settings.from_mapping(
                {
                    "job": "j",
                    "primary": "s3://bucket/p",
                    **{f"{'s3' if kind is S3Settings else 'azure'}.{name}": value for name, value in keys.items()},
                    f"{'s3' if kind is S3Settings else 'azure'}.credentials": "a.b:c",
                }
            )
    for wrong in ("no-colon", "a:", 5):
        with pytest.raises(SettingsError, match="module:function"):
            S3Settings(credentials=wrong)
    hidden = S3Settings(credentials=functools.partial(print, SECRET))
    shown = S3Credentials(access_key_id="id", secret_access_key=SECRET, session_token=SECRET, ends_at_s=1.0)
    also = AzureCredentials(sas_token=SECRET, ends_at_s=1.0)
    assert SECRET not in f"{hidden!r} {shown!r} {also} {Settings(job='j', primary='s3://bucket/p', s3=hidden)}"


@asynccontextmanager
async def bucket_that_takes(keys: set[str], seen: list[str]) -> AsyncGenerator[str]:
    """A server that answers a PUT or GET by one of `keys`, and says of others that they have ended."""
    objects: dict[str, bytes] = {}

    async def answer(request: web.Request) -> web.Response:
        key = request.headers["Authorization"].split("Credential=")[1].split("/")[0]
        seen.append(f"{request.method} {key}")
        if key not in keys:
            return web.Response(status=400, text="<Error><Code>ExpiredToken</Code><Message>m</Message></Error>")
        if request.method == "PUT":
            if request.path in objects:
                return web.Response(status=412, text="<Error><Code>PreconditionFailed</Code></Error>")
            objects[request.path] = await request.read()
            return web.Response(headers={"ETag": '"e"'})
        return web.Response(body=objects[request.path], headers={"ETag": '"e"'})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_request_that_is_refused_for_its_credentials_is_sent_again_with_new_ones() -> None:
    """Also a conditional one: refused, it had no effect. The function promised more than S3 kept."""
    given, seen, keys = list[str](), list[str](), {"key-1"}

    async def issue() -> S3Credentials:
        given.append(f"key-{len(given) + 1}")
        return S3Credentials(access_key_id=given[-1], secret_access_key=SECRET, ends_at_s=4e9)

    async with bucket_that_takes(keys, seen) as endpoint:
        settings = S3Settings(endpoint=endpoint, addressing="path", credentials=CredentialSource(issue))
        async with open_s3_store("s3://bucket/prefix", settings) as store:
            await store.put_if_absent("a", [b"1"])
            keys.clear()
            keys.add("key-2")
            await store.put_if_absent("b", [b"2"])
            assert seen == ["PUT key-1", "PUT key-1", "PUT key-2"]
            keys.clear()
            with pytest.raises(StoreAccessError) as caught:
                await store.put_if_absent("c", [b"3"])
            assert SECRET not in str(caught.value)
    assert given == ["key-1", "key-2", "key-3"]
