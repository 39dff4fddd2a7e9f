"""`clock="batch"`, without Spark: frames that hold Arrow, as those of Spark Connect, and a clock that the test sets."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._processing.runner import ProcessorRunner
from statebackend.errors import InputError, SettingsError
from statebackend.ids import ClockMark
from statebackend.objectstore import MemoryStore
from statebackend.spark import batch_clock
from statebackend.spark.batch_clock import BatchClock
from statebackend.spark.executors.batch_job import OnExecutors
from tests.ranges.parts import open_run
from tests.spark.frames_without_spark import session_in

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", local=(), persist_delay_s=0.0)
ROWS = pa.table({"key": ["a"], "at": pa.array([5_000_000], pa.timestamp("us"))})


class WallClock:
    """A clock that goes by hand. It may go back, as those of hosts do."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    monotonic = time


class Frame:
    """A frame of one row, which takes Spark an hour to work out."""

    sparkSession = session_in("UTC")  # noqa: N815 - Spark's name

    def __init__(self, wall: WallClock, rows: Any = ROWS) -> None:
        self._wall = wall
        self._rows = rows

    def toArrow(self) -> Any:  # noqa: N802 - Spark's name
        self._wall.now_s += 3600
        return self._rows

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        return not self._rows.num_rows

    @property
    def write(self) -> Any:
        """What runs a batch without using its rows."""
        write = SimpleNamespace(save=lambda: None)
        write.format = write.mode = lambda _: write
        return write


class Noting(sb.spark.KeyedProcessor):
    """Notes its clock, and what it was before the batch."""

    def __init__(self, seen: list[Any]) -> None:
        self._seen = seen

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self._seen.append((context.clock_before_s, context.clock_s))


class Job:
    """A job under sinks that come and go."""

    def __init__(self, wall: WallClock) -> None:
        self.wall = wall
        self.store = MemoryStore()
        self.seen: list[tuple[float | None, float | None]] = []
        """For each batch that was processed: its clock before, and its clock."""
        self.moves: float | None = None
        """Where the function moves the clock."""

    def function(self, df: Any, batch_id: int, backend: sb.StateBackend) -> None:
        df.toArrow()
        if self.moves is not None:
            backend.advance_clock(self.moves, "processing")
        self.seen.append((backend.clock_before_s, backend.clock_s))

    def processor_sink(self, **times: Any) -> sb.spark.StatefulSink:
        return self._sink(Noting(self.seen), times, key="key")

    def function_sink(self, **times: Any) -> sb.spark.StatefulSink:
        return self._sink(self.function, times)

    def _sink(self, work: Any, times: dict[str, Any], **options: Any) -> sb.spark.StatefulSink:
        times = times or {"clock": "batch"}
        times = {} if times == {"clock": None} else times
        return sb.spark.StatefulSink(work, SETTINGS, query_id="q", store=self.store, **options, **times)

    def deliver(self, sink: sb.spark.StatefulSink, batch_id: int, at_s: float, rows: Any = ROWS) -> None:
        """A batch that begins when the wall clock shows `at_s`."""
        self.wall.now_s = at_s
        sink(Frame(self.wall, rows), batch_id)  # type: ignore[arg-type]

    async def committed(self) -> list[ClockMark | None]:
        """The clock of each commit, oldest first."""
        async with sb.open_backend(SETTINGS, store=self.store, read_only=True) as backend:
            return [commit.clock async for commit in backend.history()][::-1]


OpenSink = Callable[..., sb.spark.StatefulSink]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    wall = WallClock()
    monkeypatch.setattr(batch_clock, "SystemClock", lambda: wall)
    return Job(wall)


@pytest.fixture(params=[Job.function_sink, Job.processor_sink], ids=["function", "processor"])
def open_sink(request: pytest.FixtureRequest) -> OpenSink:
    open_: OpenSink = request.param
    return open_


def processing(now_s: float) -> ClockMark:
    return ClockMark(now_s, "processing")


async def test_the_clock_is_when_the_batch_began_and_is_in_its_commit(job: Job, open_sink: OpenSink) -> None:
    """Not when its rows were there, or when it ended."""
    with open_sink(job) as sink:
        job.deliver(sink, 0, 10_000)
        job.deliver(sink, 1, 20_000)
    assert [now_s for _, now_s in job.seen] == [10_000, 20_000]
    assert job.seen[1][0] == 10_000
    assert await job.committed() == [processing(10_000), processing(20_000)]


@pytest.mark.parametrize("again", [False, True], ids=["one run", "a run for each batch"])
async def test_the_clock_never_goes_back(job: Job, open_sink: OpenSink, *, again: bool) -> None:
    """A wall clock that does, also that of another host, leaves it where it is until it has caught up."""
    sink = open_sink(job)
    for batch_id, at_s in enumerate((10_000, 9_000, 9_999, 10_001)):
        job.deliver(sink, batch_id, at_s)
        if again:
            sink.close()
            sink = open_sink(job)
    sink.close()
    assert [now_s for _, now_s in job.seen] == [10_000, 10_000, 10_000, 10_001]
    assert await job.committed() == [processing(now_s) for _, now_s in job.seen]


async def test_a_replay_has_the_clock_of_its_commit(job: Job, open_sink: OpenSink) -> None:
    """It is not processed, and what follows begins there."""
    with open_sink(job) as sink:
        job.deliver(sink, 0, 10_000)
    with open_sink(job) as sink:
        job.deliver(sink, 0, 50_000)
        job.deliver(sink, 1, 20_000)
    assert len(job.seen) == 2
    assert job.seen[1] == (10_000, 20_000)
    assert await job.committed() == [processing(10_000), processing(20_000)]


async def test_beside_a_commit_with_event_time_it_is_refused(job: Job, open_sink: OpenSink) -> None:
    """Nothing is processed or committed; the other way round, too."""
    by_rows = {"event_time": "at", "lateness_s": 0}
    with job.processor_sink(**by_rows) as sink:
        job.deliver(sink, 0, 10_000)
    with open_sink(job) as sink, pytest.raises(InputError, match="another kind"):
        job.deliver(sink, 1, 20_000)
    assert (len(job.seen), await job.committed()) == (1, [ClockMark(5.0, "event")])

    job.store = MemoryStore()
    with open_sink(job) as sink:
        job.deliver(sink, 0, 10_000)
    with job.processor_sink(**by_rows) as sink, pytest.raises(InputError, match="another kind"):
        job.deliver(sink, 1, 20_000)
    assert (len(job.seen), await job.committed()) == (2, [processing(10_000)])


async def test_a_restart_that_forgets_the_clock_is_refused(job: Job, open_sink: OpenSink) -> None:
    """It would stand still, and time-to-live and timers with it. Nothing is committed, and the message has the ways."""
    with open_sink(job) as sink:
        job.deliver(sink, 0, 10_000)
    with open_sink(job, clock=None) as sink, pytest.raises(SettingsError, match="clock='batch', as it had") as caught:
        job.deliver(sink, 1, 20_000)
    assert caught.value.facts == {"kind": "processing", "clock_s": 10_000}
    assert await job.committed() == [processing(10_000)]
    with open_sink(job) as sink:
        job.deliver(sink, 1, 20_000)
    assert (job.seen[-1], await job.committed()) == ((10_000, 20_000), [processing(10_000), processing(20_000)])


async def test_the_clock_is_kept_where_it_stands_if_that_is_said(job: Job, open_sink: OpenSink) -> None:
    """Also in a job that has none."""
    with open_sink(job, clock="kept") as sink:
        job.deliver(sink, 0, 5_000)
    with open_sink(job) as sink:
        job.deliver(sink, 1, 10_000)
    with open_sink(job, clock="kept") as sink:
        job.deliver(sink, 2, 20_000)
        job.deliver(sink, 3, 30_000)
    assert job.seen == [(None, None), (None, 10_000), (10_000, 10_000), (10_000, 10_000)]
    assert await job.committed() == [None, *[processing(10_000)] * 3]


async def test_a_function_may_move_the_clock_itself(job: Job) -> None:
    """Then the sink asks for no other; but for one that does not, if there are rows."""
    with job.function_sink() as sink:
        job.deliver(sink, 0, 10_000)
    with job.function_sink(clock=None) as sink:
        job.deliver(sink, 1, 20_000, ROWS.slice(0, 0))
        job.moves = 20_000
        job.deliver(sink, 2, 20_000)
        job.moves = None
        job.deliver(sink, 3, 30_000)
    expected = [10_000, 10_000, 20_000, 20_000]
    assert await job.committed() == [processing(now_s) for now_s in expected]
    with (
        job.function_sink(clock=None) as sink,
        pytest.raises(SettingsError, match="or call advance_clock in the function"),
    ):
        job.deliver(sink, 4, 40_000)


async def test_executors_are_given_the_same_clock(tmp_path: Path) -> None:
    """With their tasks, by the driver, from the commit that they continue."""
    wall, frame = WallClock(), object()
    runner = ProcessorRunner(Noting([]), key="key", order_by=(), has_output=False)
    execution = OnExecutors(
        runner,
        msgspec.structs.replace(SETTINGS, primary=f"file://{tmp_path}"),
        parallelism=1,
        output=None,
        clock=BatchClock(None, wall),
        keeps_clock=False,
        observer=None,
        store=None,
        uploader=None,
    )
    async with open_run(SETTINGS, 1, MemoryStore()) as run:
        for at_s, expected in ((10_000.0, 10_000.0), (9_000.0, 10_000.0), (20_000.0, 20_000.0)):
            wall.now_s = at_s
            moved = execution._moved_clock(frame, run.coordinator)  # type: ignore[arg-type]
            assert moved == processing(expected)
            await run.commit([], clock=moved)
    async with open_run(SETTINGS, 1, MemoryStore()) as run:
        await run.commit([], clock=ClockMark(5.0, "event"))
        with pytest.raises(InputError, match="another kind"):
            execution._moved_clock(frame, run.coordinator)  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps_clock", [False, True])
async def test_executors_are_given_the_clock_that_is_kept_and_no_clock_is_forgotten(
    tmp_path: Path, *, keeps_clock: bool
) -> None:
    """As in the driver."""
    runner = ProcessorRunner(Noting([]), key="key", order_by=(), has_output=False)
    execution = OnExecutors(
        runner,
        msgspec.structs.replace(SETTINGS, primary=f"file://{tmp_path}"),
        parallelism=1,
        output=None,
        clock=None,
        keeps_clock=keeps_clock,
        observer=None,
        store=None,
        uploader=None,
    )
    async with open_run(SETTINGS, 1, MemoryStore()) as run:
        assert execution._moved_clock(object(), run.coordinator) is None  # type: ignore[arg-type]
        await run.commit([], clock=ClockMark(5.0, "event"))
        if keeps_clock:
            assert execution._moved_clock(object(), run.coordinator) == ClockMark(5.0, "event")  # type: ignore[arg-type]
        else:
            with pytest.raises(SettingsError, match="event_time and lateness_s, as it had"):
                execution._moved_clock(object(), run.coordinator)  # type: ignore[arg-type]
