"""The eight metrics that Flink's changelog storage has, with the meanings they have there."""

from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from statebackend.errors import BackendClosedError, StoreUnavailableError, UploadError
from statebackend.objectstore import LocalStore
from statebackend.observers import Metrics
from statebackend.settings import Compression
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle
from statebackend.uploaders import PrimaryUploader
from tests.changelog.fakes import (
    FailingUploader,
    Log,
    SlowUploader,
    Uploader,
    change,
    open_log,
    open_scheduler,
    scheduler_of,
    set_of,
    writer_on,
)

NEVER_BYTES = 100_000_000


async def append_and_persist(log: Log, size_bytes: int) -> None:
    """A change set of its own, made durable."""
    from_ = log.writer.next_sequence_number()
    log.writer.append(change(bytes(size_bytes)))
    await log.writer.persist(from_)


@run_virtual
async def test_each_attempt_is_a_request_and_has_a_latency() -> None:
    """Row: ChangelogStorageMetricsTest.testUploadsCounter. Seconds by the backend's clock."""
    metrics = Metrics()
    async with open_log(SlowUploader(0.2, 0.5, 0.1, 0.4, 0.3), observer=metrics) as log:
        for _ in range(5):
            await append_and_persist(log, 4)
    assert metrics.number_of_upload_requests == 5
    assert metrics.upload_latencies_seconds.last == pytest.approx((0.2, 0.5, 0.1, 0.4, 0.3))
    assert metrics.upload_latencies_seconds.min > 0


@run_virtual
async def test_sizes_are_those_of_segments() -> None:
    """Row: ChangelogStorageMetricsTest.testUploadSizes. What surrounds a change adds the same to each."""
    metrics = Metrics()
    async with open_log(Uploader(), observer=metrics) as log:
        await append_and_persist(log, 1)
        surrounding_bytes = metrics.upload_sizes.min - 1
        for _ in range(5):
            await append_and_persist(log, 33)
    assert metrics.upload_sizes.max == 33 + surrounding_bytes
    assert metrics.upload_sizes.count == 6


@pytest.mark.parametrize("compression", ["lz4", "snappy", "zstd"])
@run_virtual
async def test_sizes_are_those_before_compression(compression: Compression) -> None:
    """But for the offsets in the index, which take fewer bytes where they are smaller."""
    metrics, plain, uploader = Metrics(), Metrics(), Uploader()
    for observer, how in ((plain, "none"), (metrics, compression)):
        async with open_scheduler(uploader, observer, compression=how) as scheduler:
            await scheduler.upload([set_of(10_000, number=number) for number in range(3)])
    assert plain.upload_sizes.last == (uploader.attempts[0].size_bytes,)
    assert plain.upload_sizes.max - 30 <= metrics.upload_sizes.max <= plain.upload_sizes.max
    assert uploader.attempts[1].size_bytes < 3000
    assert metrics.uploaded_bytes == {"primary": uploader.attempts[1].size_bytes}


@run_virtual
async def test_an_attempt_that_ends_in_an_io_error_is_a_failure(tmp_path: Path) -> None:
    """Row: ChangelogStorageMetricsTest.testUploadFailuresCounter. The store's root is a file, so nothing is created."""
    root = tmp_path / "file"
    root.touch()
    metrics = Metrics()
    async with open_log(PrimaryUploader(LocalStore(root, io_threads_max=1)), observer=metrics) as log:
        for _ in range(5):
            with pytest.raises(UploadError):
                await append_and_persist(log, 4)
    assert metrics.number_of_upload_failures == 5
    assert metrics.number_of_upload_requests == 5
    assert metrics.uploads_failed == 5
    assert metrics.upload_sizes.count == metrics.upload_latencies_seconds.count == 0


@run_virtual
async def test_a_batch_is_as_large_as_the_number_of_its_uploads() -> None:
    """Row: ChangelogStorageMetricsTest.testUploadBatchSizes. Five writers, one segment a round; not its change sets."""
    metrics = Metrics()
    async with anyio.create_task_group() as tasks:
        scheduler = scheduler_of(
            Uploader(), tasks, metrics, persist_delay_s=1, persist_size_threshold_bytes=NEVER_BYTES
        )
        logs = [Log(writer_on(scheduler, tasks, log=name), scheduler, tasks) for name in "abcde"]
        for _ in range(5):
            async with anyio.create_task_group() as calls:
                for log in logs:
                    log.writer.append(change())  # two change sets, and one upload
                    calls.start_soon(append_and_persist, log, 4)
    assert metrics.upload_batch_sizes.last == (5,) * 5
    assert metrics.upload_batch_sizes.min == metrics.upload_batch_sizes.max == 5


@run_virtual
async def test_the_number_of_the_attempt_that_won() -> None:
    """Row: ChangelogStorageMetricsTest.testAttemptsPerUpload. Two failures, then a success, seven times."""

    class ThirdSucceeds(Uploader):
        async def store(self, number: int, segment: object) -> None:
            if number % 3:
                raise StoreUnavailableError("no answer")

    metrics = Metrics()
    async with open_scheduler(ThirdSucceeds(), metrics, upload__attempts_max=3) as scheduler:
        for number in range(7):
            await scheduler.upload([set_of(4, number=number)])
    assert metrics.attempts_per_upload.last == (3,) * 7
    assert metrics.attempts_per_upload.min == metrics.attempts_per_upload.max == 3
    assert metrics.number_of_upload_requests == 21
    assert metrics.number_of_upload_failures == 14


@pytest.mark.parametrize("winner", [1, 3])
@run_virtual
async def test_attempts_begun_when_one_won(winner: int) -> None:
    """Row: ChangelogStorageMetricsTest.testTotalAttemptsPerUpload. The same number, whichever of 1 and 3 wins."""

    class FirstWaitsForThird(Uploader):
        async def store(self, number: int, segment: object) -> None:
            if number % 3 == 1:
                self.third = anyio.Event()
                await self.third.wait()
            elif number % 3 == 2:
                raise StoreUnavailableError("no answer")
            else:
                self.third.set()
                if winner == 1:
                    await anyio.sleep(0.01)

    metrics = Metrics()
    uploader = FirstWaitsForThird()
    async with open_scheduler(uploader, metrics, upload__attempts_max=3, upload__timeout_s=0.05) as scheduler:
        for number in range(10):
            await scheduler.upload([set_of(4, number=number)])
            await anyio.sleep(0.02)  # until the loser has gone
    assert metrics.attempts_per_upload.last == (winner,) * 10
    assert metrics.total_attempts_per_upload.last == (3,) * 10
    assert metrics.total_attempts_per_upload.min == metrics.total_attempts_per_upload.max == 3
    assert metrics.upload_latencies_seconds.count == 20  # of winners and losers: each has stored its segment
    assert metrics.upload_sizes.count == 20
    assert metrics.number_of_upload_failures == 10  # the timeouts of the first attempts are none


@run_virtual
async def test_an_attempt_that_waits_to_begin_counts_as_one() -> None:
    """Section 4: started or scheduled. The second has failed, the third pauses, and the late first one wins."""

    class FirstIsLate(Uploader):
        async def store(self, number: int, segment: object) -> None:
            await anyio.sleep(1.3 if number == 1 else 0)
            if number == 2:
                raise StoreUnavailableError("no answer")

    metrics = Metrics()
    async with open_scheduler(
        FirstIsLate(), metrics, upload__attempts_max=3, upload__timeout_s=1, upload__retry_delay_s=0.5
    ) as scheduler:
        await scheduler.upload([set_of(4)])
    assert metrics.attempts_per_upload.last == (1,)
    assert metrics.total_attempts_per_upload.last == (3,)
    assert metrics.number_of_upload_requests == 2


@run_virtual
async def test_the_queue_is_what_waits_to_be_batched() -> None:
    """Row: ChangelogStorageMetricsTest.testQueueSize. Eleven calls wait, then the timer fires. Hazard 13."""
    metrics = Metrics()
    async with open_log(
        Uploader(), company=True, observer=metrics, persist_delay_s=10, persist_size_threshold_bytes=NEVER_BYTES
    ) as log:
        async with anyio.create_task_group() as calls:
            for _ in range(11):
                calls.start_soon(append_and_persist, log, 4)
            await settle()
            assert metrics.upload_queue_size == 11
        assert metrics.upload_queue_size == 0
    assert metrics.upload_batch_sizes.last == (11,)


@run_virtual
async def test_the_queue_forgets_a_call_that_was_cancelled() -> None:
    """It waits for nothing any more, and holds nothing."""
    metrics = Metrics()
    async with open_scheduler(
        Uploader(), metrics, persist_delay_s=9, persist_size_threshold_bytes=NEVER_BYTES
    ) as scheduler:
        with anyio.move_on_after(1):
            await scheduler.upload([set_of(4)])
        assert (metrics.upload_queue_size, metrics.in_flight_bytes) == (0, 0)


@run_virtual
async def test_nothing_is_queued_when_the_backend_has_ended() -> None:
    """Those who wait get their error, and the gauges come back to zero, however the end came."""
    metrics = Metrics()
    async with anyio.create_task_group() as callers:

        async def call() -> None:
            with pytest.raises(BackendClosedError):
                await scheduler.upload([set_of(4)])
            assert (metrics.upload_queue_size, metrics.in_flight_bytes) == (0, 0)

        async with anyio.create_task_group() as tasks:
            scheduler = scheduler_of(
                Uploader(), tasks, metrics, persist_delay_s=9, persist_size_threshold_bytes=NEVER_BYTES
            )
            callers.start_soon(call)
            await settle()
            assert (metrics.upload_queue_size, metrics.in_flight_bytes) == (1, 4)
            tasks.cancel_scope.cancel()


@run_virtual
async def test_a_failed_upload_has_no_number_of_attempts() -> None:
    """Section 4: where no attempt won, neither histogram is touched. A timeout alone is no failure."""
    metrics = Metrics()
    async with open_scheduler(
        SlowUploader(*[1000.0] * 2), metrics, upload__attempts_max=2, upload__timeout_s=1
    ) as scheduler:
        with pytest.raises(TimeoutError):
            await scheduler.upload([set_of(4)])
    assert metrics.attempts_per_upload.count == metrics.total_attempts_per_upload.count == 0
    assert metrics.number_of_upload_requests == 2
    assert metrics.number_of_upload_failures == 0
    assert metrics.uploads_failed == 1


@run_virtual
async def test_only_io_errors_are_failures() -> None:
    """Section 4. Another error ends the upload at once, and is counted there."""
    metrics = Metrics()
    async with open_scheduler(FailingUploader(1, ValueError("a defect")), metrics, upload__attempts_max=3) as scheduler:
        with suppress(ValueError):
            await scheduler.upload([set_of(4)])
    assert metrics.number_of_upload_failures == 0
    assert (metrics.number_of_upload_requests, metrics.uploads_failed) == (1, 1)
