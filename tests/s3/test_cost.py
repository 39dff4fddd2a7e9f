"""What an S3 store counts is what S3 charges for: every request of an upload in parts, and a page of a listing."""

from pathlib import Path

import msgspec
import pytest

import statebackend as sb
from statebackend import Settings
from statebackend._log.log_writer import HINT_EVERY
from statebackend.abc import CountsRequests
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import MiB
from tests.cloud.http_proxy import FaultProxy


async def test_an_upload_in_parts_is_charged_for_each_request(settings: Settings) -> None:
    """11 MiB in parts of 5 MiB: three parts, a begin and an end, at the price of a PUT each."""
    async with open_s3_store(settings.primary, settings.s3) as store:
        assert isinstance(store, CountsRequests)
        await store.put("large", [bytes(11 * MiB)])
        assert store.priced_requests == {"put": 5}
        await store.put("small", [b"x"])
        await store.put_if_absent("smaller", [b""])
        assert await store.get_range("small", 0, 1) == b"x"
        assert [info.key async for info in store.list("")] == ["large", "small", "smaller"]
        await store.delete_many(["large", "small"])
        assert store.priced_requests == {"put": 7, "get": 1, "list": 1, "delete_many": 1}
        assert round(settings.prices.usd(store.priced_requests) * 1e7) == 8 * 50 + 4


@pytest.mark.parametrize("copied", [False, True])
async def test_a_small_checkpoint_is_one_put_and_is_priced(
    by_proxy: Settings, proxy: FaultProxy, tmp_path: Path, copied: bool
) -> None:
    """As the server sees it. The hint's comes on top, with every so many entries; merging, beside it, is off here."""
    settings = msgspec.structs.replace(by_proxy, local=(str(tmp_path),) if copied else (), materialize_fan_in=0)
    usd = settings.prices.put_usd_per_1000 / 1000
    async with sb.open_backend(settings) as backend:
        for number in range(1, HINT_EVERY + 2):
            before = len(proxy.requests)
            backend.value_state("n", int)[number] = number
            info = await backend.checkpoint(number)
            puts = 2 if info.sequence == HINT_EVERY else 1
            assert info.requests_by_kind == {"put": puts}
            assert info.requests == len(proxy.requests) - before == puts
            assert info.usd == pytest.approx(puts * usd)
            assert info.usd_month > info.usd


@pytest.mark.parametrize(("inline", "per_commit"), [(None, 1), (0, 2)])
async def test_the_log_of_a_key_reads_each_commit_once(
    by_proxy: Settings, proxy: FaultProxy, inline: int | None, per_commit: int
) -> None:
    """As the server sees it: its entry, and its segment where the entry does not carry the changes itself."""
    commits = 150
    settings = msgspec.structs.replace(by_proxy, inline_bytes_max=inline, materialize_fan_in=0)
    async with sb.open_backend(settings) as backend:
        for number in range(1, commits + 1):
            backend.value_state("n", int).update({"ada": number, "bob": number})
            await backend.checkpoint(number)
    before = len(proxy.requests)
    found = await sb.history_of(settings, "n", "ada")
    assert len(found.changes) == commits
    sent = len(proxy.requests) - before
    assert commits * per_commit <= sent <= commits * per_commit + 20  # the others find the end of the log
