"""A cache over a store that does as it is told, and the files that lie in it."""

import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statebackend._backend.stores import threads_of
from statebackend._cache.cached_files import CachedFiles
from statebackend._cache.download_cache import DownloadCache, open_cache
from statebackend._cache.download_ends import VerifiedSource
from statebackend.abc import ObjectStore
from statebackend.errors import CorruptSegmentError
from statebackend.ids import Handle
from statebackend.objectstore import MemoryStore
from statebackend.observers import Metrics
from statebackend.settings import Settings
from statebackend.testing import FaultyStore
from statebackend.testing.virtual_time import VirtualClock

IDLE_S = 60.0


@dataclass
class Setup:
    """A cache, the store it reads, what it counted, and the directory that its own lies in."""

    cache: DownloadCache
    primary: FaultyStore
    metrics: Metrics
    parent: Path

    @property
    def downloads(self) -> list[str]:
        """The keys that were asked of the primary, in order."""
        return [key for operation, key in self.primary.calls if operation == "get"]

    @property
    def files(self) -> list[Path]:
        """Whatever lies on the disk that is a file of the cache, or a part of one."""
        return files_below(self.parent)

    async def stored(self, key: str, content: bytes) -> Handle:
        """An object of the primary."""
        await self.primary.put(key, [content])
        return handle_of(key, content)


def handle_of(key: str, content: bytes) -> Handle:
    return Handle(key, 0, len(content), zlib.crc32(content))


def files_below(parent: Path) -> list[Path]:
    return sorted(path for path in parent.rglob("*") if path.is_file() and path.name != "lock")


def directories_in(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir())


def names_in(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def segment_below(parent: Path) -> Path:
    """The only segment there."""
    (path,) = parent.rglob("segments/*")
    return path


def check(data: bytes, handle: Handle) -> None:
    """As `reader.verify`, for content that is no segment."""
    if (len(data), zlib.crc32(data)) != (handle.length, handle.checksum):
        raise CorruptSegmentError("not what was uploaded", object=handle.key)


def settings_of(**changed: Any) -> Settings:
    plain: dict[str, Any] = {"job": "fleet", "primary": "memory://unused", "cache_idle_s": IDLE_S}
    return Settings(**{**plain, **changed})


@asynccontextmanager
async def open_setup(parent: Path, *, store: ObjectStore | None = None, **changed: Any) -> AsyncGenerator[Setup]:
    """A cache below `parent`; on a virtual loop, whose clock it goes by."""
    primary, metrics = FaultyStore(store or MemoryStore()), Metrics()
    settings = settings_of(**changed)
    threads = threads_of(settings)
    async with open_cache(
        VerifiedSource(primary, check, threads),
        [parent],
        CachedFiles(bytes_max=settings.cache_bytes_max, idle_s=settings.cache_idle_s),
        job=settings.job,
        downloads_max=settings.restore_concurrency_max,
        threads=threads,
        clock=VirtualClock(),
        observer=metrics,
    ) as cache:
        yield Setup(cache, primary, metrics, parent)
