"""Eight readers of the same sixteen files, through one download cache.

Envelope. The first reader of a file downloads it, and the others wait for that: sixteen downloads. A count, and exact.
"""

import anyio

import statebackend as sb
from benchmarks.contest import Line, Report
from benchmarks.restore.parts import directory, settings_of, write
from statebackend.objectstore import MemoryStore
from statebackend.testing import FaultyStore

KEYS, FILES, READERS = 16_000, 16, 8


def run(report: Report) -> None:
    """Count the requests for segments, of any kind."""
    with directory() as parent:
        downloads = anyio.run(_downloads, settings_of(parent, local=()))
    report.add(
        Line(
            f"downloads, {READERS} readers of the same {FILES} files through one cache",
            f"exactly {FILES}",
            downloads,
            "downloads",
            FILES,
            detail=f"without the cache {FILES * READERS}",
        )
    )


async def _downloads(settings: sb.Settings) -> int:
    store = FaultyStore(MemoryStore())
    await write(settings, keys=KEYS, checkpoints=FILES, store=store)
    store.calls.clear()

    async def restore(cache: sb.owners.DownloadCache, owned: sb.owners.KeyGroupRange) -> None:
        async with sb.open_backend(settings, store=store, cache=cache, key_groups=owned) as backend:
            assert backend.restored is not None
            assert backend.restored.files_primary == FILES

    each = settings.max_parallelism // READERS
    async with sb.owners.open_download_cache(settings, store=store) as cache, anyio.create_task_group() as tasks:
        for first in range(0, settings.max_parallelism, each):
            tasks.start_soon(restore, cache, sb.owners.KeyGroupRange(first, first + each - 1))
    downloads = sum("segments/" in key for _, key in store.calls)
    assert downloads >= FILES, "something was not read at all"
    return downloads
