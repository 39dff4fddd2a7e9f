"""What `tests/models` say of any store, over a bucket: on a real loop, with real requests, in a very short form."""

import asyncio
import itertools
from collections.abc import Callable, Generator, Sequence
from typing import get_args

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test

import statebackend as sb
from benchmarks.servers import Server
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import Compression, TableKind
from tests.examples import name_of
from tests.models.coming_back import assert_comes_back
from tests.models.crew import Held
from tests.models.machine import Machine
from tests.models.places import OnDisk
from tests.s3.clients import settings_for

_numbers = itertools.count()


class InBucket(OnDisk):
    """The truth in a bucket, and local copies on disks."""

    def __init__(self, server: Server, bucket: str) -> None:
        super().__init__()
        self._settings = settings_for(server, bucket, prefix=f"models/{next(_numbers)}")

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    async def begin(self) -> None:
        self._held = Held(open_s3_store(self._settings.primary, self._settings.s3, probe_key="probe"))
        self._store = await self._held.enter()

    async def end(self) -> None:
        await self._held.leave()

    async def settle(self) -> None:
        """There is no telling when."""

    def primary(self) -> sb.ObjectStore:
        return self._store

    def objects(self, host: int | None) -> Sequence[str]:
        return () if host is None else super().objects(host)  # nobody damages a bucket

    async def pass_night(self) -> None:
        """Its objects stay young."""


@pytest.fixture
def in_bucket(server: Server, bucket: str) -> Generator[Callable[[int], InBucket]]:
    """Makes places, for a seed that there is no use for."""
    made: list[InBucket] = []

    def make(_: int = 0) -> InBucket:
        made.append(InBucket(server, bucket))
        return made[-1]

    yield make
    for each in made:
        each.remove()


def test_the_state_is_always_the_dictionaries(in_bucket: Callable[[int], InBucket]) -> None:
    """With the truth in a bucket."""

    class InBucketMachine(Machine):
        places_type = staticmethod(in_bucket)

    run_state_machine_as_test(
        InBucketMachine,
        settings=hypothesis_settings(
            max_examples=3, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize(
    ("table", "codec"), [*zip(itertools.cycle(get_args(TableKind)), get_args(Compression), strict=False)], ids=name_of
)
async def test_every_kind_comes_back(
    in_bucket: Callable[[int], InBucket], table: TableKind, codec: Compression
) -> None:
    """Each table, each codec."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    places = in_bucket(0)
    await places.begin()
    await assert_comes_back(places, table, codec)
    await places.end()
