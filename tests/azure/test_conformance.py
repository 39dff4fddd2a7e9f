"""A store in a container keeps the contract, against a real server. No test is overridden."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from statebackend import Settings
from statebackend.abc import Capability, ObjectStore
from statebackend.objectstore.azure import azure_store as store
from statebackend.objectstore.azure import open_azure_store
from statebackend.testing import ObjectStoreConformance


class TestAzureStore(ObjectStoreConformance):
    """Each test has a prefix of its own. Pages are short: Azurite takes long to fill one of a thousand."""

    capabilities = frozenset({Capability.LIST, Capability.PUT_IF_ABSENT, Capability.DURABLE})
    list_page_objects = 20

    @pytest.fixture(autouse=True)
    def in_a_container(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings = settings
        monkeypatch.setattr(store, "LIST_PAGE_OBJECTS", self.list_page_objects)

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        async with open_azure_store(
            self._settings.primary, self._settings.azure
        ) as opened:  # whose probe would be an object there
            yield opened

    def open_other(self, store: ObjectStore) -> AbstractAsyncContextManager[ObjectStore]:
        return open_azure_store(self._settings.primary, self._settings.azure)
