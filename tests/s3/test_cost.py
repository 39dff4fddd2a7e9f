"""What an S3 store counts is what S3 charges for: every request of an upload in parts, and a page of a listing."""

from statebackend import Settings
from statebackend._cost import Prices
from statebackend.abc import CountsRequests
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import MiB


async def test_an_upload_in_parts_is_charged_for_each_request(settings: Settings) -> None:
    """11 MiB in parts of 5 MiB: three parts, a begin and an end, at the price of a PUT each."""
    async with open_s3_store(settings, commits=False) as store:
        assert isinstance(store, CountsRequests)
        await store.put("large", [bytes(11 * MiB)])
        assert store.priced_requests == {"put": 5}
        await store.put("small", [b"x"])
        await store.put_if_absent("smaller", [b""])
        assert await store.get_range("small", 0, 1) == b"x"
        assert [info.key async for info in store.list("")] == ["large", "small", "smaller"]
        await store.delete_many(["large", "small"])
        assert store.priced_requests == {"put": 7, "get": 1, "list": 1, "delete_many": 1}
        assert round(Prices(settings).usd(store.priced_requests) * 1e7) == 8 * 50 + 4
