"""What an opening does at a time: bytes of segments that are fetched whole, and local copies that are opened."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from msgspec.structs import replace

from statebackend._checkpoint.fetch import Fetcher
from statebackend._checkpoint.run_files import RunFiles
from statebackend._local.segments import LocalSegments
from statebackend._tasks import in_order
from statebackend.errors import ObjectNotFoundError
from statebackend.ids import Base
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.at_work import plenty
from tests.runs.test_jobs_over_runs import Job
from tests.runs.test_layers import commits_of
from tests.weighed import Weighed, WeighedStore

COUNT = 16
THREADS = 8  # of `plenty`
T = TypeVar("T")


async def copies_of_a_base(directory: Path) -> tuple[Sequence[Base], RunFiles]:
    """The segment of a base under many keys, and what opens them, with memory for four at a time."""
    job = Job(directory)
    await job.with_a_base()
    (base,) = (await commits_of(job.settings))[-1].ranges[0].bases
    (path,) = job.segments("primary")
    store = WeighedStore()
    bases = [replace(base, segment=replace(base.segment, key=f"segments/{number}")) for number in range(COUNT)]
    for each in bases:
        await store.put(each.segment.key, (path.read_bytes(),))
    threads = plenty()
    fetcher = Fetcher(store, at_hand={}, threads=threads)
    memory_bytes = 4 * base.segment.length
    return bases, RunFiles(
        fetcher, None, writable=False, parents=(directory,), threads=threads, memory_bytes=memory_bytes
    )


@pytest.mark.parametrize("is_opening", [True, False])
@run_virtual
async def test_what_is_fetched_whole_takes_no_more_than_the_rows(tmp_path: Path, is_opening: bool) -> None:
    """At an opening all that rows may take, since there are none yet; of what comes in behind batches, half."""
    bases, files = await copies_of_a_base(tmp_path)
    Weighed.most = 0

    async def fetch(base: Base) -> None:
        await (files.open(base) if is_opening else files._bring_in(base.segment))

    async def taken(_base: Base, _: None) -> None:
        pass

    await in_order(bases, fetch, taken, concurrency_max=COUNT)
    size, count = bases[0].segment.length, 4 if is_opening else 2
    assert count * size <= Weighed.most <= (count + THREADS) * size, "and what idle threads have not let go yet"


class SlowCopies(LocalSegments):
    """Copies that take a second to be opened, and how many are at a time."""

    now = most = 0

    async def open_copy(self, key: str, open_: Callable[[Path], T]) -> T:
        self.now += 1
        self.most = max(self.most, self.now)
        await anyio.sleep(1)
        self.now -= 1
        raise ObjectNotFoundError("none", key=key)


@run_virtual
async def test_two_local_copies_are_opened_at_a_time(tmp_path: Path) -> None:
    """Sixteen threads that open 62 segments, all in small steps, took twice as long as one."""
    bases, files = await copies_of_a_base(tmp_path)
    files._local = local = SlowCopies([MemoryStore()])

    async def taken(_base: Base, _: Any) -> None:
        pass

    await in_order(bases, files.open, taken, concurrency_max=COUNT)
    assert local.most == 2
