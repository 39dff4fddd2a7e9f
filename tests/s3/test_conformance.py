"""A store in a bucket keeps the contract, against a real server. No test is overridden."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from statebackend import Settings
from statebackend.abc import Capability, ObjectStore
from statebackend.objectstore.s3 import open_s3_store
from statebackend.testing import ObjectStoreConformance


class TestS3Store(ObjectStoreConformance):
    """Each test has a bucket of its own, and the store lies below a prefix there."""

    capabilities = frozenset({Capability.LIST, Capability.PUT_IF_ABSENT, Capability.DURABLE})
    list_page_objects = 1000

    @pytest.fixture(autouse=True)
    def in_a_bucket(self, settings: Settings) -> None:
        self._settings = settings

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        async with open_s3_store(
            self._settings.primary, self._settings.s3
        ) as store:  # whose probe would be an object there
            yield store

    def open_other(self, store: ObjectStore) -> AbstractAsyncContextManager[ObjectStore]:
        return open_s3_store(self._settings.primary, self._settings.s3)
