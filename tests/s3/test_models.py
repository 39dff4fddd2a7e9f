"""The machine of `tests/models` over a bucket, in a very short form: on a real loop, with real requests."""

import asyncio
import itertools
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import statebackend as sb
from benchmarks.servers import Server
from statebackend.objectstore.s3 import open_s3_store
from tests.models.crew import Held
from tests.models.machine import Machine
from tests.models.places import OnDisk
from tests.s3.clients import settings_for


def test_the_state_is_always_the_dictionaries(server: Server, bucket: str) -> None:
    """With the truth in a bucket, and local copies on disks."""
    numbers = itertools.count()

    class InBucket(OnDisk):
        def new_loop(self) -> asyncio.AbstractEventLoop:
            return asyncio.new_event_loop()

        async def begin(self) -> None:
            self._held = Held(
                open_s3_store(settings_for(server, bucket, prefix=f"models/{next(numbers)}"), commits=True)
            )
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

    class InBucketMachine(Machine):
        places_type = InBucket

    run_state_machine_as_test(
        InBucketMachine,
        settings=settings(
            max_examples=3, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
