"""Every store of the library keeps the contract, also behind the fault wrapper. No test is overridden."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from statebackend._local.segments import LocalSegments
from statebackend.abc import Capability, ObjectStore
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.testing import FaultyStore, ObjectStoreConformance

IN_MEMORY = frozenset({Capability.LIST, Capability.PUT_IF_ABSENT})
ON_DISK = IN_MEMORY | {Capability.DURABLE}


class TestMemoryStore(ObjectStoreConformance):
    capabilities = IN_MEMORY

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        yield MemoryStore()


class TestLocalStore(ObjectStoreConformance):
    capabilities = ON_DISK

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        with tempfile.TemporaryDirectory() as root:
            yield LocalStore(Path(root) / "not" / "yet" / "made")


class TestLocalStoreWithOneThread(ObjectStoreConformance):
    """A bound of one thread makes calls wait for each other, and nothing else."""

    capabilities = ON_DISK

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        with tempfile.TemporaryDirectory() as root:
            yield LocalStore(Path(root), io_threads_max=1)


class TestFaultyStoreWithoutFaults(ObjectStoreConformance):
    capabilities = IN_MEMORY

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        yield FaultyStore(MemoryStore())


class TestLocalSegments(ObjectStoreConformance):
    """Several roots behave as one store."""

    capabilities = IN_MEMORY

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        with tempfile.TemporaryDirectory() as root:
            yield LocalSegments([LocalStore(Path(root)), MemoryStore(), MemoryStore()])


class TestScopedStore(ObjectStoreConformance):
    """Seen from below a prefix, deleting many at once where the store below cannot."""

    capabilities = IN_MEMORY

    @asynccontextmanager
    async def open_store(self) -> AsyncGenerator[ObjectStore]:
        yield ScopedStore(MemoryStore(), "below/")
