"""What becomes of a request whose caller gives up, on a virtual clock; and where a body is cut into parts."""

import random
from array import array
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.errors import StoreUnavailableError
from statebackend.objectstore.cloud.cloud_requests import CANCEL_GRACE_S
from statebackend.objectstore.cloud.cutting import parts
from statebackend.objectstore.cloud.retrying import RateLimit, Retries
from statebackend.objectstore.s3.bucket import Bucket
from statebackend.testing import run_virtual


class Client:
    """Answers after `seconds`, and notes what it has answered and what was cut off."""

    def __init__(self, seconds: float) -> None:
        self.answered: list[str] = []
        self.cut: list[str] = []
        self._seconds = seconds

    async def put_object(self, **arguments: Any) -> dict[str, Any]:
        return await self._answer("put_object")

    async def get_object(self, **arguments: Any) -> dict[str, Any]:
        return await self._answer("get_object")

    async def _answer(self, operation: str) -> dict[str, Any]:
        try:
            await anyio.sleep(self._seconds)
        except anyio.get_cancelled_exc_class():
            self.cut.append(operation)
            raise
        self.answered.append(operation)
        return {}


def bucket_of(client: Client, *, timeout_s: float = 60.0) -> Bucket:
    rate = RateLimit(1e6)
    retries = Retries(rate, retries_per_s_max=1e6, outage_s=0.0, chance=random.Random(1))
    return Bucket(client, "bucket", retries=retries, timeout_s=timeout_s)


async def given_up_after(seconds: float, bucket: Bucket, operation: str) -> float:
    """How long it took to end after its caller gave it up."""
    with anyio.move_on_after(seconds):
        await bucket.request(operation)
    return anyio.current_time() - seconds


@run_virtual
async def test_a_change_that_is_given_up_is_waited_for_a_little() -> None:
    """So that what its caller does next, such as a delete, is not overtaken by it."""
    client = Client(CANCEL_GRACE_S / 2 + 3.0)
    begun = anyio.current_time()
    assert await given_up_after(3.0, bucket_of(client), "put_object") - begun == pytest.approx(CANCEL_GRACE_S / 2)
    assert client.answered == ["put_object"]


@run_virtual
async def test_a_change_that_is_given_up_and_gets_no_answer_is_cut_off() -> None:
    """A caller who gave up is not held for long."""
    client = Client(1000.0)
    begun = anyio.current_time()
    assert await given_up_after(3.0, bucket_of(client), "put_object") - begun == pytest.approx(CANCEL_GRACE_S)
    assert client.cut == ["put_object"]


@run_virtual
async def test_a_read_that_is_given_up_ends_at_once() -> None:
    """Nobody is waiting for what it changes."""
    client = Client(1000.0)
    begun = anyio.current_time()
    assert await given_up_after(3.0, bucket_of(client), "get_object") - begun == pytest.approx(0.0)
    assert client.cut == ["get_object"]


@pytest.mark.parametrize("operation", ["put_object", "get_object"])
@run_virtual
async def test_a_request_is_bounded_as_a_whole(operation: str) -> None:
    """Also where a server takes its time with every byte, which no read timeout notices."""
    client = Client(1000.0)
    begun = anyio.current_time()
    with pytest.raises(StoreUnavailableError):
        await bucket_of(client, timeout_s=7.0).request(operation)
    assert anyio.current_time() - begun == pytest.approx(7.0)


@given(chunks=st.lists(st.binary(max_size=40), max_size=12), part_bytes=st.integers(1, 30))
def test_parts_are_all_of_a_body_in_order_and_of_one_size_but_the_last(chunks: list[bytes], part_bytes: int) -> None:
    """However it was cut before: S3 refuses a small part anywhere but at the end."""
    cut = [b"".join(part) for part in parts(chunks, part_bytes)]
    assert b"".join(cut) == b"".join(chunks)
    assert all(len(part) == part_bytes for part in cut[:-1])
    assert all(0 < len(part) <= part_bytes for part in cut)


def test_parts_are_measured_in_bytes_whatever_the_items_of_a_buffer_are() -> None:
    """A view of numbers has fewer items than bytes, and an empty one can be seen as nothing else."""
    numbers = memoryview(array("q", range(8)))
    cut = [b"".join(part) for part in parts([numbers[:0], numbers], 24)]
    assert [len(part) for part in cut] == [24, 24, 16]
    assert b"".join(cut) == numbers.tobytes()
