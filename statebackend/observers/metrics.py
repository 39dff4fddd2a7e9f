"""Every number that is kept, defined once, and the events that change it.

Names and meanings of the first eight are those of Flink's changelog storage metrics, in snake_case; where a
duration is in another unit than there, the name says so. `docs/reference/metrics.md` is made from this class.
"""

from collections.abc import Mapping

from statebackend.abc import CheckpointInfo, Observer, RestoreReport, Segment, UploadedSegment
from statebackend.ids import Handle
from statebackend.observers.kinds import Counter, CounterByLabel, Gauge, Histogram, Level, Numbers, Total

MISSING = "missing"
"""The reason of a fallback where there was no local copy."""


class Metrics(Numbers, Observer):
    """Counts what a backend does: `open_backend(observer=metrics)`. Read it at any time, from any thread.

    Use it for one backend at a time; the next one of the same job goes on with the same numbers.
    """

    number_of_upload_requests = Counter("Upload attempts begun. Every retry counts.", unit="attempts")
    number_of_upload_failures = Counter(
        "Attempts that ended in an I/O error. One that is only late is none.", unit="attempts"
    )
    upload_sizes = Histogram(
        "Size of the segment that a successful attempt has stored, before compression.", unit="bytes"
    )
    upload_latencies_seconds = Histogram("Duration of a successful attempt, whether it won or lost.", unit="seconds")
    upload_batch_sizes = Histogram("Uploads that were batched into one segment.", unit="uploads")
    attempts_per_upload = Histogram("Number of the attempt that won. Nothing where none did.", unit="attempts")
    total_attempts_per_upload = Histogram(
        "Attempts that had begun when one won, and one that was waiting to begin. Nothing where none won.",
        unit="attempts",
    )
    upload_queue_size = Gauge("Uploads that wait to share a segment.", unit="uploads")

    uploads_failed = Counter("Segments that no attempt could store: whoever waited got the error.", unit="uploads")
    uploaded_bytes = CounterByLabel(
        "Stored size of the segments uploaded, compressed, by copy: `primary`, `local`.", unit="bytes", label="copy"
    )
    local_copies_dropped = CounterByLabel(
        "Local copies that were given up while the primary succeeded.", unit="copies", label="reason"
    )
    in_flight_bytes = Gauge(
        "Bytes queued or being uploaded, as `in_flight_bytes_max` limits them: before compression.", unit="bytes"
    )
    room_wait_seconds = Histogram(
        "How long an upload, or who appends, was held back by `in_flight_bytes_max`. Nothing where there was room.",
        unit="seconds",
    )
    primary_requests = CounterByLabel("Requests to the primary.", unit="requests", label="kind")
    primary_usd = Total("What these requests cost, by the prices of the settings.", unit="USD")

    checkpoints = Counter("Checkpoints committed.", unit="checkpoints")
    checkpoint_seconds = Histogram("Duration of a checkpoint, from the call to the commit.", unit="seconds")
    checkpoint_bytes = Histogram("Stored size of what a checkpoint added to the primary.", unit="bytes")
    checkpoint_usd = Histogram("What the requests made while a checkpoint ran cost.", unit="USD")
    usd_month = Level(
        "What 30 days of requests would cost at the rate of the last ten minutes. As of the last checkpoint.",
        unit="USD",
    )
    persist_delay_seconds = Level(
        "The persist delay, as `put_budget_usd_month` has lengthened it. As of the last checkpoint.", unit="seconds"
    )

    started_materializations = Counter("Times that the writing of bases has begun.", unit="materializations")
    completed_materializations = Counter("Times that all bases were written.", unit="materializations")
    failed_materializations = Counter("Times that they could not be. A cancelled one is none.", unit="materializations")
    materialization_seconds = Histogram("How long it took to write the bases.", unit="seconds")
    materialized_bytes = Histogram("Stored size of the bases written at a time.", unit="bytes")

    ranges_opened = CounterByLabel(
        "Attempts at a range of key groups, by where its state was: `process`, `host`, `primary`, or it was `new`.",
        unit="attempts",
        label="found",
    )

    restores = Counter("Backends that were restored from a commit.", unit="restores")
    restore_seconds = Histogram("Duration of a restore.", unit="seconds")
    restored_bytes = CounterByLabel(
        "Stored size of what restores have read, by source: `local`, `primary`.", unit="bytes", label="source"
    )
    local_hits = Counter("Files that a restore read from their local copy.", unit="files")
    local_misses = Counter(
        "Files that a restore looked for in the local copy, and had to read from the primary.", unit="files"
    )
    local_fallbacks = CounterByLabel(
        "The misses by reason: `missing` where there was no local copy, else what was wrong with it.",
        unit="files",
        label="reason",
    )
    local_repairs = Counter("Misses after which the local copy was written anew.", unit="files")

    cache_downloads = Counter("Files that a download cache fetched from the primary.", unit="files")
    cache_download_failures = Counter("Downloads that failed. A cancelled one is none.", unit="files")
    cache_downloaded_bytes = Counter("Size of the files that download caches fetched.", unit="bytes")
    cache_download_seconds = Histogram("Duration of a download that succeeded.", unit="seconds")
    cache_hits = Counter(
        "Readers that found their file in a download cache, or waited for a download under way.", unit="readers"
    )
    cache_evictions = CounterByLabel(
        "Files that went from a download cache: `idle` for too long, `room` needed, or found `damaged`.",
        unit="files",
        label="reason",
    )
    cache_bytes = Gauge("Bytes that lie in a download cache, or are being downloaded.", unit="bytes")

    def waited_for_room(self, seconds: float) -> None:
        self.record(Metrics.room_wait_seconds, seconds)

    def in_flight_changed(self, in_flight_bytes: int) -> None:
        self.record(Metrics.in_flight_bytes, in_flight_bytes)

    def queue_changed(self, waiting: int) -> None:
        self.record(Metrics.upload_queue_size, waiting)

    def batch_sent(self, *, uploads: int, change_sets: int, size_bytes: int) -> None:
        self.record(Metrics.upload_batch_sizes, uploads)

    def upload_started(self, segment: Segment, *, attempt: int) -> None:
        self.record(Metrics.number_of_upload_requests, 1)

    def upload_failed(self, segment: Segment, error: BaseException, *, attempt: int) -> None:
        if isinstance(error, OSError):
            self.record(Metrics.number_of_upload_failures, 1)

    def upload_succeeded(
        self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float, raw_bytes: int
    ) -> None:
        self.record(Metrics.upload_sizes, raw_bytes)
        self.record(Metrics.upload_latencies_seconds, seconds)

    def upload_decided(self, *, attempt: int | None, attempts: int) -> None:
        if attempt is None:
            self.record(Metrics.uploads_failed, 1)
        else:
            self.record(Metrics.attempts_per_upload, attempt)
            self.record(Metrics.total_attempts_per_upload, attempts)

    def segment_uploaded(self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float) -> None:
        self.record(Metrics.uploaded_bytes, segment.size_bytes, "primary")
        if uploaded.local is not None:
            self.record(Metrics.uploaded_bytes, segment.size_bytes, "local")

    def local_copy_dropped(self, name: str, reason: str) -> None:
        self._count(Metrics.local_copies_dropped, _without_facts(reason))

    def primary_requested(self, requests: Mapping[str, int], *, usd: float) -> None:
        for kind, count in requests.items():
            self._count(Metrics.primary_requests, kind, count)
        self.record(Metrics.primary_usd, usd)

    def checkpoint_committed(self, info: CheckpointInfo) -> None:
        self.record(Metrics.checkpoints, 1)
        self.record(Metrics.checkpoint_seconds, info.seconds)
        self.record(Metrics.checkpoint_bytes, info.primary_bytes)
        self.record(Metrics.checkpoint_usd, info.usd)
        self.record(Metrics.usd_month, info.usd_month)
        self.record(Metrics.persist_delay_seconds, info.persist_delay_s)

    def range_opened(self, found: str) -> None:
        self._count(Metrics.ranges_opened, found)

    def materialization_begun(self, key_groups: int) -> None:
        self.record(Metrics.started_materializations, 1)

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self.record(Metrics.completed_materializations, 1)
        self.record(Metrics.materialization_seconds, seconds)
        self.record(Metrics.materialized_bytes, size_bytes)

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        self.record(Metrics.failed_materializations, 1)

    def restored(self, report: RestoreReport) -> None:
        self.record(Metrics.restores, 1)
        self.record(Metrics.restore_seconds, report.seconds)
        self.record(Metrics.restored_bytes, report.bytes_local, "local")
        self.record(Metrics.restored_bytes, report.bytes_primary, "primary")
        self.record(Metrics.local_hits, report.files_local)
        self.record(Metrics.local_misses, len(report.fallbacks))
        self.record(Metrics.local_repairs, sum(fallback.repaired for fallback in report.fallbacks))
        for fallback in report.fallbacks:
            self._count(Metrics.local_fallbacks, _without_facts(fallback.reason))

    def cache_downloaded(self, size_bytes: int, *, seconds: float) -> None:
        self.record(Metrics.cache_downloads, 1)
        self.record(Metrics.cache_downloaded_bytes, size_bytes)
        self.record(Metrics.cache_download_seconds, seconds)

    def cache_download_failed(self, handle: Handle, error: BaseException) -> None:
        self.record(Metrics.cache_download_failures, 1)

    def cache_hit(self, size_bytes: int) -> None:
        self.record(Metrics.cache_hits, 1)

    def cache_evicted(self, size_bytes: int, *, reason: str) -> None:
        self._count(Metrics.cache_evictions, reason)

    def cache_changed(self, held_bytes: int) -> None:
        self.record(Metrics.cache_bytes, held_bytes)

    def _count(self, metric: CounterByLabel, label: str, amount: int = 1) -> None:
        self.record(metric, amount, self.bounded(metric, label))


def _without_facts(reason: str) -> str:
    """The reason in words that come again: an error's message ends with its facts, which differ each time."""
    return reason.partition(" (")[0]
