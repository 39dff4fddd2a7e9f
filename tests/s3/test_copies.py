"""S3 copies objects itself, from other buckets too; no byte passes through here."""

import asyncio

import msgspec
import pytest

import statebackend as sb
from benchmarks.servers import Server, make_bucket
from statebackend import Settings
from statebackend.objectstore.s3 import S3Store, open_s3_store, s3_store
from statebackend.settings import MiB, Secret
from tests.s3.clients import settings_for, uploads_of


@pytest.fixture
def other(server: Server) -> Settings:
    """Another bucket."""
    asyncio.run(make_bucket(server, "other-bucket"))
    return settings_for(server, "other-bucket", prefix="below")


async def test_a_large_object_is_copied_in_parts(
    settings: Settings, other: Settings, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 copies 5 GiB in one request at most, here 5 MiB."""
    monkeypatch.setattr(s3_store, "COPY_BYTES_MAX", 5 * MiB)
    content = bytes(range(256)) * (12 * MiB // 256) + b"end"
    async with (
        open_s3_store(settings.primary, settings.s3) as source,
        open_s3_store(other.primary, other.s3) as target,
    ):
        await source.put("large", [content])
        assert await target.copy_from(source, "large", "copies/large", len(content))
        assert await target.get("copies/large") == content
        assert target.requests["upload_part_copy"] == 3
        assert target.requests["upload_part"] == target.requests["put_object"] == 0
    assert await uploads_of(other, server) == []


async def test_other_credentials_may_not_read_there(settings: Settings) -> None:
    """So the caller copies the bytes."""
    changed = msgspec.structs.replace(settings.s3, secret_access_key=Secret("another"))
    async with (
        open_s3_store(settings.primary, settings.s3) as source,
        open_s3_store(settings.primary, changed) as target,
    ):
        assert not await target.copy_from(source, "a", "b", 1)
        assert not target.requests


async def test_a_job_is_cloned_into_another_bucket(settings: Settings, other: Settings) -> None:
    """By one request for each object."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int).update({key: key for key in range(100)})
        await backend.checkpoint(0)
        backend.value_state("n", int)[1] = 7
        await backend.checkpoint(1)
    report = await sb.clone(other, from_=settings)
    async with sb.open_backend(other, read_only=True) as backend:
        assert dict(backend.value_state("n", int)) == {key: 7 if key == 1 else key for key in range(100)}
    assert report.checkpoint_id == 1


def test_the_store_is_one_that_copies() -> None:
    """By the contract that others may keep, too."""
    assert issubclass(S3Store, sb.abc.CopiesObjects)
