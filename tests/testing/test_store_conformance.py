"""The library's durable store, with another way to its objects: what one process acknowledged, another one finds."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from statebackend.abc import Capability, ObjectStore
from statebackend.objectstore import LocalStore
from statebackend.testing import ObjectStoreConformance


class TestLocalStoreSeenFromTwoSides(ObjectStoreConformance):
    capabilities = frozenset(Capability)

    @pytest.fixture(autouse=True)
    def _in_directory(self, tmp_path: Path) -> None:
        self.root = tmp_path

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        yield LocalStore(self.root)

    @asynccontextmanager
    async def open_other(self, store: ObjectStore) -> AsyncGenerator[ObjectStore]:
        yield LocalStore(self.root)
