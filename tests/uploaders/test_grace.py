"""How long a local copy can delay what: at most the grace, in virtual time, to the microsecond."""

import errno
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._tasks import open_tasks
from statebackend.abc import Segment
from statebackend.errors import StoreAccessError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, Fault, FaultyStore, Slow
from statebackend.testing.virtual_time import VirtualClock, run_virtual
from statebackend.uploaders import DuplicatingUploader

GRACE_S = 0.5
BODY = b"change sets"


@dataclass(kw_only=True, eq=False)
class Stuck(Slow):
    """As a thread that is stuck in fsync: nobody can cancel it."""

    async def strike(self) -> None:
        with anyio.CancelScope(shield=True):
            await super().strike()


def segment(name: str) -> Segment:
    return Segment(name, (BODY,), len(BODY), 0, ("log",))


class Bench:
    """Two stores in memory, each with its faults, and the time that uploads took."""

    def __init__(self, primary: list[Fault], secondary: list[Fault]) -> None:
        self.primary, self.secondary = FaultyStore(MemoryStore(), primary), FaultyStore(MemoryStore(), secondary)
        self.dropped: list[str] = []

    @asynccontextmanager
    async def uploader(self, *, secondary_grace_s: float = GRACE_S) -> AsyncGenerator[DuplicatingUploader]:
        async with open_tasks() as tasks:
            yield DuplicatingUploader(
                self.primary,
                self.secondary,
                secondary_grace_s=secondary_grace_s,
                dropped=lambda name, _: self.dropped.append(name),
                tasks=tasks,
            )

    async def keys(self) -> tuple[list[str], list[str]]:
        return [i.key async for i in self.primary.list("")], [i.key async for i in self.secondary.list("")]


@pytest.mark.parametrize("slow", [Slow, Stuck])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("primary_s", "secondary_s", "expected_s", "local"),
    [
        (1.0, 0.2, 1.0, True),
        (1.0, 1.3, 1.3, True),
        (1.0, 1.6, 1.5, False),
        (1.0, 60.0, 1.5, False),
        (0.0, 0.4, 0.4, True),
        (0.0, 60.0, 0.5, False),
    ],
)
def test_an_upload_takes_as_long_as_the_slower_copy_and_at_most_the_grace_longer_than_the_primary(
    primary_s: float, secondary_s: float, expected_s: float, *, local: bool, moment, slow: type[Slow]
) -> None:
    """Not the sum of the two; and what comes too late is dropped, counted and removed."""

    @run_virtual
    async def proof() -> None:
        bench = Bench([Slow(seconds=primary_s)], [slow(operation="put", seconds=secondary_s, moment=moment)])
        async with bench.uploader() as uploader:
            begun = anyio.current_time()
            uploaded = await uploader.upload(segment("a"))
            assert anyio.current_time() - begun == pytest.approx(expected_s)
            assert (uploaded.local is not None) is local
            await anyio.sleep(100.0)
        assert bench.dropped == ([] if local else ["a"])
        assert await bench.keys() == (["segments/a"], ["segments/a"] if local else [])

    proof()


@run_virtual
async def test_a_disk_that_is_stuck_costs_a_grace_for_each_time_it_gets_stuck_and_not_for_each_segment() -> None:
    """A hundred segments against a disk that takes ten seconds for each: one grace in ten seconds."""
    bench = Bench([Slow(operation="put", seconds=0.1)], [Stuck(operation="put", seconds=10.0)])
    async with bench.uploader() as uploader:
        begun = anyio.current_time()
        for number in range(100):
            await uploader.upload(segment(str(number)))
        took_s = anyio.current_time() - begun
        assert took_s == pytest.approx(100 * 0.1 + 2 * GRACE_S)
        assert [operation for operation, _ in bench.secondary.calls].count("put") == 2
        await anyio.sleep(100.0)
    assert len(bench.dropped) == 100
    assert (await bench.keys())[1] == []


@run_virtual
async def test_copies_that_are_given_up_are_logged_once_for_each_root_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A full disk fails every copy, and says so with another path each time. The metrics count all of them."""
    bench = Bench([], [])
    full, broken = OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "Input/output error")
    async with open_tasks() as tasks:
        uploader = DuplicatingUploader(
            bench.primary,
            bench.secondary,
            secondary_grace_s=GRACE_S,
            dropped=lambda name, _: bench.dropped.append(name),
            root_of=lambda key: int(key[-1]) % 2,
            tasks=tasks,
        )
        for cause in (full, full, broken):
            for number in range(10):
                error = StoreUnavailableError("the file system failed", key=str(number))
                error.__cause__ = cause
                bench.secondary.plan[:] = [Fail(operation="put", error=error)]
                await uploader.upload(segment(str(number)))
    assert len(bench.dropped) == 30
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sorted("root=0" in text for text in logged) == [False, False, True, True]


TROUBLES = st.sampled_from(
    [None, StoreUnavailableError("full"), StoreAccessError("read-only"), OSError("broken"), RuntimeError("a bug")]
)
LATENCIES_S = st.floats(0.0, 3.0)


@settings(deadline=None)
@given(
    primary_s=LATENCIES_S,
    secondary_s=LATENCIES_S,
    grace_s=st.floats(0.0, 2.0),
    trouble=TROUBLES,
    moment=st.sampled_from(["before", "after"]),
    stuck=st.booleans(),
)
def test_whatever_the_local_copy_does_the_upload_takes_the_primarys_time_and_at_most_the_grace(
    primary_s: float, secondary_s: float, grace_s: float, trouble: Exception | None, moment, *, stuck: bool
) -> None:
    """It never fails, and there is a local copy exactly if there is a local handle; if not, that is counted once."""

    @run_virtual
    async def proof() -> None:
        faults: list[Fault] = [(Stuck if stuck else Slow)(operation="put", seconds=secondary_s, moment=moment)]
        if trouble is not None:
            faults.append(Fail(operation="put", moment=moment, error=trouble))
        bench = Bench([Slow(operation="put", seconds=primary_s)], faults)
        async with bench.uploader(secondary_grace_s=grace_s) as uploader:
            begun = anyio.current_time()
            uploaded = await uploader.upload(segment("a"))
            took_s = anyio.current_time() - begun
            assert primary_s - 1e-6 <= took_s <= primary_s + grace_s + 1e-5
            await anyio.sleep(100.0)
        assert bench.dropped == ([] if uploaded.local else ["a"])
        assert await bench.keys() == (["segments/a"], ["segments/a"] if uploaded.local else [])
        assert trouble is None or uploaded.local is None

    proof()


@run_virtual
async def test_a_primary_that_fails_is_not_delayed_at_all() -> None:
    """The retry begins when the primary says no, whatever the local copy does."""
    bench = Bench([Slow(seconds=0.1), Fail(operation="put")], [Stuck(operation="put", seconds=60.0)])
    async with bench.uploader() as uploader:
        with suppress(StoreUnavailableError):
            await uploader.upload(segment("a"))
        assert anyio.current_time() == pytest.approx(0.2)  # a put and a delete
        await anyio.sleep(100.0)
    assert await bench.keys() == ([], [])


class Dropped(sb.Observer):
    def __init__(self) -> None:
        self.names: list[str] = []

    def local_copy_dropped(self, name: str, reason: str) -> None:
        self.names.append(name)


def test_a_checkpoint_is_delayed_by_at_most_the_grace_and_each_lost_copy_is_counted(tmp_path: Path) -> None:
    """Four checkpoints of a job whose local disk gets stuck for 60 s in the second: that one takes 0.5 s longer."""

    @run_virtual
    async def proof() -> None:
        observer = Dropped()
        settings = sb.Settings(
            job="fleet",
            primary="memory://unused",
            local=(str(tmp_path / "local"),),
            persist_delay_s=0.0,
            secondary_grace_s=GRACE_S,
        )
        async with open_tasks() as tasks:

            def uploader(primary: sb.ObjectStore, local: sb.ObjectStore | None) -> sb.StateChangeUploader:
                assert local is not None
                return DuplicatingUploader(
                    primary,
                    FaultyStore(local, [Stuck(operation="put", seconds=60.0, nth=2)]),
                    secondary_grace_s=GRACE_S,
                    dropped=observer.local_copy_dropped,
                    tasks=tasks,
                )

            primary = FaultyStore(MemoryStore(), [Slow(operation="put", key="*/segments/*", seconds=0.1)])
            async with sb.open_backend(
                settings, store=primary, uploader=uploader, clock=VirtualClock(), observer=observer
            ) as backend:
                seen: list[tuple[float, int]] = []
                for number in range(4):
                    backend.value_state("n", int)["k"] = number
                    info = await backend.checkpoint(number)
                    seen.append((round(info.seconds, 6), len(observer.names)))
                    assert info.local == (number == 0)  # a checkpoint is local with all that it needs, or not
                    if number == 2:
                        await anyio.sleep(100.0)
                assert seen == [(0.1, 0), (0.6, 1), (0.1, 2), (0.1, 2)]

    proof()
