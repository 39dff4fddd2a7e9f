"""Every uploader of the library keeps the contract, also behind the fault wrapper. No test is overridden."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from statebackend.abc import ObjectStore
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.testing import FaultyStore, FaultyUploader, UploaderConformance, UploaderUnderTest
from statebackend.uploaders import DuplicatingUploader, PrimaryUploader

REMOVE_TIMEOUT_S = 0.05


class TestPrimaryUploader(UploaderConformance):
    @asynccontextmanager
    async def open_uploader(self) -> AsyncGenerator[UploaderUnderTest]:
        inside = MemoryStore()
        place = FaultyStore(inside)
        uploader = PrimaryUploader(place, remove_timeout_s=REMOVE_TIMEOUT_S)
        yield UploaderUnderTest(uploader=uploader, primary=inside, places=[place])


class TestFaultyUploaderWithoutFaults(UploaderConformance):
    """Without places: what can be proved of an uploader whose stores the kit cannot get at."""

    @asynccontextmanager
    async def open_uploader(self) -> AsyncGenerator[UploaderUnderTest]:
        store = MemoryStore()

        class UnderTest(UploaderUnderTest):
            async def stored(self) -> set[str]:
                return {info.key async for info in store.list("")}

        yield UnderTest(uploader=FaultyUploader(PrimaryUploader(store)), primary=store)


@asynccontextmanager
async def duplicating(
    primary: ObjectStore, secondary: ObjectStore, grace_s: float
) -> AsyncGenerator[UploaderUnderTest]:
    places = FaultyStore(primary), FaultyStore(secondary)
    async with anyio.create_task_group() as tasks:
        uploader = DuplicatingUploader(
            *places,
            secondary_grace_s=grace_s,
            dropped=lambda *_: None,
            tasks=tasks,
            remove_timeout_s=REMOVE_TIMEOUT_S,
        )
        yield UploaderUnderTest(uploader=uploader, primary=primary, local=secondary, places=places)


class TestDuplicatingUploader(UploaderConformance):
    keeps_local = True

    @asynccontextmanager
    async def open_uploader(self) -> AsyncGenerator[UploaderUnderTest]:
        async with duplicating(MemoryStore(), MemoryStore(), grace_s=60) as tested:
            yield tested


class TestDuplicatingUploaderWithShortGrace(UploaderConformance):
    """A local copy that is late is given up, and removed when it comes at last."""

    keeps_local = True

    @asynccontextmanager
    async def open_uploader(self) -> AsyncGenerator[UploaderUnderTest]:
        async with duplicating(MemoryStore(), MemoryStore(), grace_s=0.000_1) as tested:
            yield tested


class TestDuplicatingUploaderOnDisks(UploaderConformance):
    keeps_local = True
    directory: ClassVar[Path]

    @pytest.fixture(autouse=True)
    def _in_directory(self, tmp_path: Path) -> None:
        type(self).directory = tmp_path
        self.opened = 0

    @asynccontextmanager
    async def open_uploader(self) -> AsyncGenerator[UploaderUnderTest]:
        self.opened += 1
        roots = [LocalStore(self.directory / str(self.opened) / name) for name in ("primary", "local")]
        async with duplicating(*roots, grace_s=60) as tested:
            yield tested
