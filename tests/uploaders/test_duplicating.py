"""Two copies at once: the primary decides, the local copy neither fails nor delays an upload, and none is forgotten."""

import errno
import itertools
import os
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from statebackend.abc import ObjectStore, Segment, UploadedSegment
from statebackend.errors import StoreAccessError, StoreUnavailableError
from statebackend.ids import Handle
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.testing import Fail, Fault, FaultyStore, Hold
from statebackend.uploaders import DuplicatingUploader

BODY = b"change sets"
NEVER_S = 3600.0
SAFETY_NET_S = 20.0  # ends a test that would otherwise hang; no test depends on it


def segment(name: str = "attempt-1") -> Segment:
    return Segment(name, (BODY[:6], BODY[6:]), len(BODY), zlib.crc32(BODY), ("log",))


HANDLE = Handle("segments/attempt-1", 0, len(BODY), zlib.crc32(BODY))
BOTH = UploadedSegment(primary=HANDLE, local=HANDLE)
PRIMARY_ONLY = UploadedSegment(primary=HANDLE, local=None)


async def settle() -> None:
    """Let every task go on until it waits for a hold: stores in memory need a few turns of the loop, no time."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


class Bench:
    """Two stores that fail on command, an uploader over them, and what it says was dropped.

    The uploader's tasks end when the context of `uploader()` does: after that the stores are as they will stay.
    """

    def __init__(self, secondary: ObjectStore | None = None) -> None:
        self.primary = FaultyStore(MemoryStore())
        self.secondary = FaultyStore(MemoryStore() if secondary is None else secondary)
        self.dropped: list[tuple[str, str]] = []

    @asynccontextmanager
    async def uploader(
        self, *, secondary_grace_s: float = NEVER_S, root_of: Callable[[str], int] = lambda _: 0
    ) -> AsyncGenerator[DuplicatingUploader]:
        with anyio.fail_after(SAFETY_NET_S):
            async with anyio.create_task_group() as tasks:
                try:
                    yield self._uploader(secondary_grace_s, root_of, tasks)
                except BaseException:
                    self.release()  # a test that fails must not hang on what it holds
                    raise

    def _uploader(
        self, secondary_grace_s: float, root_of: Callable[[str], int], tasks: TaskGroup
    ) -> DuplicatingUploader:
        return DuplicatingUploader(
            self.primary,
            self.secondary,
            secondary_grace_s=secondary_grace_s,
            dropped=lambda name, reason: self.dropped.append((name, reason)),
            root_of=root_of,
            tasks=tasks,
        )

    def release(self) -> None:
        for fault in [*self.primary.plan, *self.secondary.plan]:
            if isinstance(fault, Hold):
                fault.release()

    async def keys(self) -> tuple[list[str], list[str]]:
        self.primary.plan.clear()
        self.secondary.plan.clear()
        return [i.key async for i in self.primary.list("")], [i.key async for i in self.secondary.list("")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_both_copies_are_whole_and_have_equal_handles(bench: Bench) -> None:
    """From one body, in one request to each store."""
    async with bench.uploader() as uploader:
        assert await uploader.upload(segment()) == BOTH
    assert await bench.primary.get(HANDLE.key) == await bench.secondary.get(HANDLE.key) == BODY
    assert bench.primary.calls[:-1] == bench.secondary.calls[:-1] == [("put", HANDLE.key)]
    assert bench.dropped == []


async def test_both_copies_are_written_at_the_same_time(bench: Bench) -> None:
    """Each put has begun while the other has not returned: the cost is the slower one's, not the sum."""
    holds = Hold(operation="put"), Hold(operation="put")
    bench.primary.plan.append(holds[0])
    bench.secondary.plan.append(holds[1])
    async with bench.uploader() as uploader, anyio.create_task_group() as tasks:
        tasks.start_soon(uploader.upload, segment())
        for hold in holds:
            await hold.reached.wait()
        for hold in holds:
            hold.release()
    assert await bench.keys() == ([HANDLE.key], [HANDLE.key])


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("the disk is full"),
        StoreAccessError("another backend owns this root"),
        OSError(errno.EIO, "I/O error"),
        RuntimeError("a bug in somebody's store"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_local_copy_that_fails_is_dropped_and_the_upload_succeeds(
    bench: Bench, error: Exception, moment
) -> None:
    """Whatever the error: no local handle, one report with the reason, and nothing left on the local disk."""
    bench.secondary.plan.append(Fail(operation="put", moment=moment, error=error))
    async with bench.uploader() as uploader:
        assert await uploader.upload(segment()) == PRIMARY_ONLY
    assert [name for name, _ in bench.dropped] == ["attempt-1"]
    assert type(error).__name__ in bench.dropped[0][1]
    assert await bench.keys() == ([HANDLE.key], [])


def failing_below(root: Path, call: Callable[..., Any]) -> Callable[..., Any]:
    """The system call `call`, made to fail after it was done for what lies below `root`."""

    def failing(target: Any, *args: Any) -> Any:
        path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(target)
        result = call(target, *args)
        if path.is_relative_to(root):
            if call is os.open:
                os.close(result)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return result

    return failing


@pytest.mark.parametrize("step", ["open", "writev", "fsync", "close", "replace"])
async def test_no_step_of_the_local_copy_can_fail_the_upload(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real disks: open, write, sync, close and rename each fail in turn, on the local one only."""
    bench = Bench(LocalStore(tmp_path / "secondary"))
    bench.primary = FaultyStore(LocalStore(tmp_path / "primary"))
    monkeypatch.setattr(os, step, failing_below(tmp_path / "secondary", getattr(os, step)))
    async with bench.uploader() as uploader:
        assert await uploader.upload(segment()) == PRIMARY_ONLY
    monkeypatch.undo()
    assert len(bench.dropped) == 1
    assert [path for path in (tmp_path / "secondary").rglob("*") if path.is_file()] == []
    assert await bench.primary.get(HANDLE.key) == BODY


@pytest.mark.parametrize("stubborn", [False, True], ids=["cancellable", "stuck thread"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("secondary_grace_s", [0, 0.01])
async def test_a_local_copy_that_hangs_is_given_up_after_the_grace(
    bench: Bench, moment, secondary_grace_s: float, *, stubborn: bool
) -> None:
    """The upload returns while the copy still hangs; when it ends at last, what it wrote is removed."""
    hold = Hold(operation="put", moment=moment, stubborn=stubborn)
    bench.secondary.plan.append(hold)
    async with bench.uploader(secondary_grace_s=secondary_grace_s) as uploader:
        assert await uploader.upload(segment()) == PRIMARY_ONLY
        assert [name for name, _ in bench.dropped] == ["attempt-1"]
        if stubborn:
            hold.release()
    assert await bench.keys() == ([HANDLE.key], [])


async def test_the_grace_begins_when_the_primary_is_done(bench: Bench) -> None:
    """A primary that takes longer than the grace is no reason to give up the local copy."""
    hold = Hold(operation="put", moment="after")
    bench.primary.plan.append(hold)
    uploads: list[UploadedSegment] = []
    async with bench.uploader(secondary_grace_s=0) as uploader, anyio.create_task_group() as tasks:

        async def upload() -> None:
            uploads.append(await uploader.upload(segment()))

        tasks.start_soon(upload)
        await hold.reached.wait()
        await settle()
        hold.release()
    assert uploads == [BOTH]


async def test_a_local_copy_that_is_slower_but_within_the_grace_is_kept(bench: Bench) -> None:
    """The upload waits for it, and hands out both."""
    hold = Hold(operation="put")
    bench.secondary.plan.append(hold)
    uploads: list[UploadedSegment] = []
    async with bench.uploader() as uploader, anyio.create_task_group() as tasks:

        async def upload() -> None:
            uploads.append(await uploader.upload(segment()))

        tasks.start_soon(upload)
        await hold.reached.wait()
        await settle()
        assert await bench.primary.head(HANDLE.key) is not None
        assert uploads == []
        hold.release()
    assert uploads == [BOTH]


async def test_a_disk_that_hangs_costs_one_grace_and_not_one_for_each_segment(bench: Bench) -> None:
    """While a copy that was given up hangs, no other is begun; once it has ended, copies are made again."""
    stuck = Hold(operation="put", nth=1, stubborn=True)
    bench.secondary.plan.append(stuck)
    async with bench.uploader(secondary_grace_s=0) as uploader:
        await uploader.upload(segment("attempt-1"))
        await uploader.upload(segment("attempt-2"))
        assert [name for name, _ in bench.dropped] == ["attempt-1", "attempt-2"]
        assert bench.secondary.calls == [("put", "segments/attempt-1")]
        stuck.release()
        await settle()
        slow_primary = Hold(operation="put", moment="after")
        bench.primary.plan.append(slow_primary)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(uploader.upload, segment("attempt-3"))
            await settle()
            slow_primary.release()
    assert (await bench.keys())[1] == ["segments/attempt-3"]


async def test_a_disk_that_hangs_costs_only_the_copies_that_would_lie_there(bench: Bench) -> None:
    """There are two disks: the other one goes on getting its copies."""
    stuck = Hold(operation="put", nth=1, stubborn=True)
    bench.secondary.plan.append(stuck)
    slow_primary = Hold(operation="put", key="*/sound", moment="after")
    bench.primary.plan.append(slow_primary)
    async with bench.uploader(secondary_grace_s=0, root_of=lambda key: int("sound" in key)) as uploader:
        await uploader.upload(segment("hangs"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(uploader.upload, segment("sound"))
            await settle()
            slow_primary.release()
        await uploader.upload(segment("waits"))
        assert [name for name, _ in bench.dropped] == ["hangs", "waits"]
        stuck.release()
    assert (await bench.keys())[1] == ["segments/sound"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), StoreAccessError("no"), RuntimeError("a bug")])
async def test_a_primary_that_fails_raises_its_own_error_and_both_copies_go(
    bench: Bench, moment, error: Exception
) -> None:
    """Never an exception group, and nothing is reported as dropped: there is no upload to lack a copy."""
    bench.primary.plan.append(Fail(operation="put", moment=moment, error=error))
    async with bench.uploader() as uploader:
        with pytest.raises(type(error)) as caught:
            await uploader.upload(segment())
        assert caught.value is error
    assert await bench.keys() == ([], [])
    assert bench.dropped == []


async def test_a_primary_that_fails_does_not_wait_for_a_local_copy_that_hangs(bench: Bench) -> None:
    """The retry may begin at once."""
    hold = Hold(operation="put", moment="after", stubborn=True)
    bench.secondary.plan.append(hold)
    bench.primary.plan.append(Fail(operation="put"))
    async with bench.uploader() as uploader:
        with pytest.raises(StoreUnavailableError):
            await uploader.upload(segment())
        hold.release()
    assert await bench.keys() == ([], [])


async def test_when_both_fail_the_primary_is_the_one_that_is_raised(bench: Bench) -> None:
    """One error, the one that matters."""
    error = StoreAccessError("no")
    bench.primary.plan.append(Fail(operation="put", error=error))
    bench.secondary.plan.append(Fail(operation="put", error=RuntimeError("a bug")))
    async with bench.uploader() as uploader:
        with pytest.raises(StoreAccessError) as caught:
            await uploader.upload(segment())
    assert caught.value is error


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("held", ["primary", "secondary"])
async def test_a_cancelled_upload_removes_both_copies(bench: Bench, held: str, moment, *, stubborn: bool) -> None:
    """Whether it waited for the primary or, within the grace, for the local copy; complete copies go as well."""
    hold = Hold(operation="put", moment=moment, stubborn=stubborn)
    getattr(bench, held).plan.append(hold)
    async with bench.uploader() as uploader:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(uploader.upload, segment())
            await hold.reached.wait()
            await settle()
            tasks.cancel_scope.cancel()
            hold.release()
        hold.release()
    assert await bench.keys() == ([], [])
    assert bench.dropped == []


async def test_an_owner_that_is_cancelled_leaves_neither_tasks_nor_copies(bench: Bench) -> None:
    """Closing in the middle of an upload ends, and cleans up on its way."""
    hold = Hold(operation="put", moment="after")
    bench.secondary.plan.append(hold)
    async with anyio.create_task_group() as tasks:
        uploader = DuplicatingUploader(
            bench.primary, bench.secondary, secondary_grace_s=NEVER_S, dropped=lambda *_: None, tasks=tasks
        )
        tasks.start_soon(uploader.upload, segment())
        await hold.reached.wait()
        tasks.cancel_scope.cancel()
    assert await bench.keys() == ([], [])


async def test_discard_removes_both_copies(bench: Bench) -> None:
    """A loser leaves no local twin behind, which is what the original of this design forgot."""
    async with bench.uploader() as uploader:
        await uploader.discard(await uploader.upload(segment()))
    assert await bench.keys() == ([], [])


async def test_discard_of_a_segment_without_a_local_copy_leaves_the_local_store_alone(bench: Bench) -> None:
    """No request for what was never there."""
    async with bench.uploader() as uploader:
        await uploader.discard(PRIMARY_ONLY)
    assert bench.secondary.calls == []
    assert bench.primary.calls == [("delete", HANDLE.key)]


async def test_discard_keeps_errors_of_either_store_to_itself(bench: Bench) -> None:
    """What could not be removed is unreferenced: a sweep finds it."""
    async with bench.uploader() as uploader:
        uploaded = await uploader.upload(segment())
        bench.primary.plan.append(Fail(operation="delete"))
        bench.secondary.plan.append(Fail(operation="delete", error=RuntimeError("a bug")))
        await uploader.discard(uploaded)
    assert await bench.keys() == ([HANDLE.key], [HANDLE.key])


async def test_a_cancelled_discard_removes_both_copies(bench: Bench) -> None:
    """Nobody would call it again."""
    async with bench.uploader() as uploader:
        uploaded = await uploader.upload(segment())
        with anyio.CancelScope() as scope:
            scope.cancel()
            await uploader.discard(uploaded)
    assert await bench.keys() == ([], [])


async def test_discard_does_not_wait_for_a_local_disk_that_hangs(bench: Bench) -> None:
    """The local copy is removed by the owner's tasks, behind the caller's back, whom it does not concern."""
    hold = Hold(operation="delete", stubborn=True)
    async with bench.uploader() as uploader:
        uploaded = await uploader.upload(segment())
        bench.secondary.plan.append(hold)
        await uploader.discard(uploaded)
        assert await bench.primary.head(HANDLE.key) is None
        hold.release()
    assert await bench.keys() == ([], [])


async def test_uploads_of_many_segments_run_side_by_side(bench: Bench) -> None:
    """No upload waits for another one, and each has both copies."""
    holds = [Hold(operation="put", key=f"segments/attempt-{number}") for number in range(16)]
    bench.primary.plan.extend(holds)
    async with bench.uploader() as uploader, anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(uploader.upload, segment(f"attempt-{number}"))
        for hold in reversed(holds):
            await hold.reached.wait()
            hold.release()
    expected = sorted(f"segments/attempt-{number}" for number in range(16))
    assert await bench.keys() == (expected, expected)


FAULTS: dict[str, Callable[[], list[Fault]]] = {
    "well": list,
    "fails": lambda: [Fail(operation="put")],
    "loses the response": lambda: [Fail(operation="put", moment="after")],
    "hangs": lambda: [Hold(operation="put")],
    "hangs when done": lambda: [Hold(operation="put", moment="after")],
    "is stuck": lambda: [Hold(operation="put", stubborn=True)],
    "is stuck when done": lambda: [Hold(operation="put", moment="after", stubborn=True)],
}


@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
@pytest.mark.parametrize(("primary", "secondary"), list(itertools.product(FAULTS, FAULTS)))
async def test_a_copy_exists_exactly_if_somebody_was_given_its_handle(
    bench: Bench, primary: str, secondary: str, *, cancelled: bool
) -> None:
    """Every combination of troubles: after the owner's tasks have ended there is no orphan and no dangling handle."""
    bench.primary.plan, bench.secondary.plan = FAULTS[primary](), FAULTS[secondary]()
    results: list[UploadedSegment] = []
    async with bench.uploader(secondary_grace_s=0) as uploader:

        async def upload() -> None:
            with suppress(StoreUnavailableError):
                results.append(await uploader.upload(segment()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upload)
            await settle()
            if cancelled:
                tasks.cancel_scope.cancel()
            bench.release()
    handed_out = [
        [result.primary.key for result in results],
        [result.local.key for result in results if result.local is not None],
    ]
    assert [*await bench.keys()] == handed_out
    assert len(bench.dropped) == sum(result.local is None for result in results)
