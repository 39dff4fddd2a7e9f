"""What can be wrong with a bucket and with what we know of it: a clear error, before anything is written."""

import resource
import zlib
from pathlib import Path

import msgspec
import pytest

import statebackend as sb
from benchmarks.servers import Server, open_client
from statebackend import Settings
from statebackend._codec.commit import VERSION
from statebackend._log.names import entry_key
from statebackend.errors import (
    BucketNotFoundError,
    ClockSkewError,
    CorruptCommitError,
    InputError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnfitStoreError,
    UnsupportedVersionError,
)
from statebackend.objectstore.s3 import open_s3_store
from tests.cloud.http_proxy import Answer, FaultProxy
from tests.knobs import replaced
from tests.s3.clients import objects_of, place_of, settings_for


async def test_a_missing_bucket_is_told_when_the_backend_opens(server: Server) -> None:
    """By its name, and before a batch is worked on."""
    with pytest.raises(BucketNotFoundError) as caught:
        async with sb.open_backend(settings_for(server, "nobody-made-this", prefix="x")):
            pass
    assert caught.value.facts["bucket"] == "nobody-made-this"


async def test_refused_credentials_are_told_when_the_backend_opens(server: Server, settings: Settings) -> None:
    """By a server that checks them."""
    if server.name == "MiniStack":
        pytest.skip("this server takes any")
    with pytest.raises(StoreAccessError):
        async with sb.open_backend(replaced(settings, s3__secret_access_key=sb.settings.Secret("wrong"))):
            pass


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", StoreAccessError),
        (403, "InvalidAccessKeyId", StoreAccessError),
        (403, "SignatureDoesNotMatch", StoreAccessError),
        (400, "ExpiredToken", StoreAccessError),
        (403, "RequestTimeTooSkewed", ClockSkewError),
        (404, "NoSuchBucket", BucketNotFoundError),
        (301, "PermanentRedirect", StoreAccessError),
        (400, "AuthorizationHeaderMalformed", StoreAccessError),
        (501, "NotImplemented", UnfitStoreError),
        (507, "InsufficientStorage", StoreFullError),
        (403, "QuotaExceeded", StoreFullError),
        (400, "KeyTooLongError", InputError),
        (500, "InternalError", StoreUnavailableError),
        (503, "SlowDown", StoreUnavailableError),
        (409, "ConditionalRequestConflict", StoreUnavailableError),
        (400, "BadDigest", StoreUnavailableError),
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
        async with sb.open_backend(replaced(by_proxy, s3__outage_s=0.0)):
            pass
    if error in {StoreAccessError, ClockSkewError, BucketNotFoundError, StoreFullError}:
        assert type(caught.value) is error
    assert caught.value.facts["bucket"] == place_of(by_proxy)[0]


async def test_an_endpoint_that_redirects_everything_is_a_wrong_one(by_proxy: Settings, proxy: FaultProxy) -> None:
    """As a web server does that wants https."""
    proxy.plan.append(Answer(status=301, code="MovedPermanently"))
    with pytest.raises(StoreAccessError):
        async with sb.open_backend(by_proxy):
            pass


async def test_foreign_objects_below_our_prefix_are_passed_over(settings: Settings, server: Server) -> None:
    """Folders that a console made, and names that are no keys: neither listed nor in the way."""
    bucket, prefix = place_of(settings)
    async with open_client(server) as client:
        for name in ("", "fleet/", "fleet//x", "fleet/commits/", "fleet/ümlaut", "elsewhere/x"):
            await client.put_object(Bucket=bucket, Key=prefix + name, Body=b"foreign")
    async with open_s3_store(settings.primary, settings.s3) as store:
        assert [info.key async for info in store.list("")] == ["elsewhere/x"]
    async with sb.open_backend(settings) as backend:
        backend.value_state("total", int)["a"] = 1
        await backend.checkpoint(1)
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("total", int)) == {"a": 1}


async def test_a_key_that_is_too_long_with_the_prefix_is_refused(settings: Settings, server: Server) -> None:
    """S3 counts the prefix too."""
    async with open_s3_store(settings.primary, settings.s3) as store:
        with pytest.raises(InputError):
            await store.put("/".join(["x" * 203] * 5), [b"x"])
    assert await objects_of(settings, server) == {}


async def test_nobody_listening_is_a_store_that_does_not_answer(settings: Settings) -> None:
    """A wrong port, or a server that is down."""
    nowhere = replaced(settings, s3__endpoint="http://127.0.0.1:1", s3__outage_s=0.0)
    with pytest.raises(StoreUnavailableError):
        async with sb.open_backend(nowhere):
            pass


async def test_a_commit_of_a_newer_release_stops_who_opens_it(settings: Settings, server: Server) -> None:
    """To write and to read: upgrade. Nothing is written."""
    await commit(settings, 1)
    bucket, prefix = place_of(settings)
    key = f"{prefix}fleet/{entry_key(1)}"
    async with open_client(server) as client:
        body = await (await client.get_object(Bucket=bucket, Key=key))["Body"].read()
        head = body[:7] + bytes([VERSION + 1])
        newer = head + zlib.crc32(head + body[12:]).to_bytes(4, "little") + body[12:]
        await client.put_object(Bucket=bucket, Key=key, Body=newer)
    before = await objects_of(settings, server)
    for read_only in (True, False):
        with pytest.raises(UnsupportedVersionError) as caught:
            async with sb.open_backend(settings, read_only=read_only):
                pass
        assert caught.value.facts["object"] == entry_key(1)
    assert await objects_of(settings, server) == before


async def test_a_foreign_object_in_the_next_place_of_the_log_is_named(settings: Settings, server: Server) -> None:
    """Whoever put it there: it is not overwritten, nothing is committed, and the job is as it was when it is gone."""
    bucket, prefix = place_of(settings)
    key = f"{prefix}fleet/{entry_key(2)}"
    async with open_client(server) as client:
        async with sb.open_backend(settings) as backend:
            backend.value_state("total", int)["a"] = 1
            await backend.checkpoint(1)
            await client.put_object(Bucket=bucket, Key=key, Body=b"foreign")
            backend.value_state("total", int)["a"] = 2
            with pytest.raises(CorruptCommitError) as caught:
                await backend.checkpoint(2)
            assert caught.value.facts["object"] == entry_key(2)
        assert (await objects_of(settings, server))[f"fleet/{entry_key(2)}"] == len(b"foreign")
        with pytest.raises(CorruptCommitError):
            await commit(settings, 3)
        await client.delete_object(Bucket=bucket, Key=key)
        entries = [name for name in await objects_of(settings, server) if name.startswith("fleet/commits/")]
        for name in entries[2:]:  # claims of those who tried meanwhile
            await client.delete_object(Bucket=bucket, Key=prefix + name)
    async with sb.open_backend(settings, read_only=True) as backend:
        assert dict(backend.value_state("total", int)) == {"a": 1}


async def test_a_local_disk_that_is_full_costs_the_local_copy_and_nothing_else(
    settings: Settings, tmp_path: Path
) -> None:
    """The kernel lets no file grow. The checkpoint says that it has no local copy, and comes back whole from S3."""
    copied = msgspec.structs.replace(settings, local=(str(tmp_path / "local"),), compression="none")
    values: dict[sb.Key, str] = dict.fromkeys(range(1000), "x" * 100)
    async with sb.open_backend(copied) as backend:
        backend.value_state("texts", str).update(values)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))
        try:
            info = await backend.checkpoint(1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not info.local
    async with sb.open_backend(copied) as backend:
        assert dict(backend.value_state("texts", str)) == values
        assert backend.restored is not None
        assert backend.restored.files_primary == 1


async def commit(settings: Settings, number: int) -> None:
    """Open the job, and commit one value."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("total", int)["a"] = number
        await backend.checkpoint(number)
