"""Every metric, defined once, and the events that change it.

The first eight have the names, in snake_case, and the meanings of Flink's changelog storage metrics; the name states
the unit of a duration if it differs from Flink's. `docs/reference/metrics.md` is generated from this class.
"""

from collections.abc import Mapping

from statebackend.abc import CheckpointInfo, Observer, RestoreReport, Segment, UploadedSegment
from statebackend.ids import CheckpointId, Handle, SourceMark, StagedOutput
from statebackend.observers.kinds import Counter, CounterByLabel, Gauge, Histogram, Level, Numbers, Total


class Metrics(Numbers, Observer):
    """Counts what a backend does: `open_backend(observer=metrics)`. Readable at any time, from any thread.

    Use it for one backend at a time. The next backend of the job continues with the same numbers.
    """

    number_of_upload_requests = Counter("Upload attempts started, retries included.", unit="attempts")
    number_of_upload_failures = Counter(
        "Upload attempts that ended in an I/O error. An attempt that is only late does not count.", unit="attempts"
    )
    upload_sizes = Histogram("Size of the segment that a successful attempt stored, before compression.", unit="bytes")
    upload_latencies_seconds = Histogram("Duration of a successful attempt, whether it won or lost.", unit="seconds")
    upload_batch_sizes = Histogram("Uploads that were batched into one segment.", unit="uploads")
    attempts_per_upload = Histogram("Number of the attempt that won. Not recorded if none did.", unit="attempts")
    total_attempts_per_upload = Histogram(
        "Attempts started when one won, plus one that was waiting to start. Not recorded if none won.",
        unit="attempts",
    )
    upload_queue_size = Gauge("Uploads waiting to share a segment.", unit="uploads")

    uploads_failed = Counter("Segments that no attempt could store; the waiting callers got the error.", unit="uploads")
    uploaded_bytes = CounterByLabel(
        "Stored size of the segments uploaded, compressed, by copy: `primary`, `local`.", unit="bytes", label="copy"
    )
    local_copies_dropped = CounterByLabel(
        "Local copies given up while the primary succeeded.", unit="copies", label="reason"
    )
    in_flight_bytes = Gauge(
        "Bytes queued or being uploaded, as `in_flight_bytes_max` limits them: before compression.", unit="bytes"
    )
    room_wait_seconds = Histogram(
        "Time that an upload or an append waited because of `in_flight_bytes_max`. Not recorded if there was room.",
        unit="seconds",
    )
    primary_requests = CounterByLabel("Requests to the primary.", unit="requests", label="kind")
    primary_usd = Total("Cost of these requests, by the prices in the settings.", unit="USD")

    checkpoints = Counter("Checkpoints committed.", unit="checkpoints")
    checkpoint_seconds = Histogram("Duration of a checkpoint, from the call to the commit.", unit="seconds")
    checkpoint_bytes = Histogram("Stored bytes that a checkpoint added to the primary.", unit="bytes")
    checkpoint_usd = Histogram("Cost of the requests made while a checkpoint ran.", unit="USD")
    fenced_checkpoints = Counter(
        "Checkpoints that were refused, because a newer writer owns the job.", unit="checkpoints"
    )
    usd_month = Level(
        "Cost of 30 days of requests at the rate of the last ten minutes, as of the last checkpoint.",
        unit="USD",
    )
    persist_delay_seconds = Level(
        "Current persist delay, lengthened by `put_budget_usd_month`, as of the last checkpoint.", unit="seconds"
    )

    started_materializations = Counter(
        "Materializations started: times that bases began to be written.", unit="materializations"
    )
    completed_materializations = Counter("Materializations completed: all bases were written.", unit="materializations")
    failed_materializations = Counter(
        "Materializations that failed. A cancelled one does not count.", unit="materializations"
    )
    materialization_seconds = Histogram("Duration of a completed materialization.", unit="seconds")
    materialized_bytes = Histogram("Stored size of the bases that one materialization wrote.", unit="bytes")

    sweeps = Counter("Sweeps beside the writer that have ended.", unit="sweeps")
    failed_sweeps = Counter("Sweeps beside the writer that have raised.", unit="sweeps")
    swept_objects = Counter("Objects of the primary that these sweeps have deleted.", unit="objects")
    unswept_objects = Counter("Objects that these sweeps could not delete; the next ones try again.", unit="objects")
    sweep_seconds = Histogram("Duration of a sweep that has ended.", unit="seconds")

    ranges_opened = CounterByLabel(
        "Attempts at a range of key groups, by where its state was: `process`, `host`, `primary`, or `new` if empty.",
        unit="attempts",
        label="found",
    )

    missed_batches = Counter(
        "Batch ids between a delivered batch and the newest of its query in the state, which the state lacks.",
        unit="batches",
    )

    late_rows = Counter("Rows that were older than the clock of their job was before their batch.", unit="rows")
    batch_rows = Level("Rows of the batch that was last under way for a second or more.", unit="rows")
    batch_rows_begun = Level("Those of its rows that the processor had been given by then.", unit="rows")
    batch_keys_under_way = Level("Calls of `process` that had begun by then, and had not ended.", unit="keys")
    publications = Counter("Outputs of batches that were published, repeated ones included.", unit="publications")
    failed_publications = Counter("Times that the function of an outbox has raised.", unit="publications")
    published_rows = Counter("Rows in the outputs that were published.", unit="rows")
    publication_seconds = Histogram("Duration of a publication that succeeded.", unit="seconds")

    restores = Counter("Backends restored from a commit.", unit="restores")
    restore_seconds = Histogram("Duration of a restore.", unit="seconds")
    restored_bytes = CounterByLabel(
        "Stored bytes that restores read, by source: `local`, `primary`.", unit="bytes", label="source"
    )
    local_hits = Counter("Files that a restore read from the local copy.", unit="files")
    local_misses = Counter(
        "Files that a restore looked for in the local copy but had to read from the primary.", unit="files"
    )
    local_fallbacks = CounterByLabel(
        "The misses by reason: `missing` if there was no local copy, else what was wrong with it.",
        unit="files",
        label="reason",
    )
    local_repairs = Counter("Misses after which the local copy was rewritten.", unit="files")

    older_checkpoints_opened = Counter(
        "Times that an older checkpoint was opened, because the newest could not be read.", unit="checkpoints"
    )

    followed_commits = Counter("Commits that a follower has applied.", unit="commits")
    followed_changes = Counter("Changes in the commits that a follower has applied.", unit="changes")
    followed_bytes = Counter("Stored bytes of the change sets that a follower has applied.", unit="bytes")
    follow_seconds = Histogram("From finding commits to having applied them, in a follower.", unit="seconds")
    follower_jumps = CounterByLabel(
        "Times that a follower read a commit anew in place of what led to it.", unit="jumps", label="reason"
    )
    follower_staleness_seconds = Level(
        "Age of a follower's answers: since a look at the log succeeded and found nothing newer.", unit="seconds"
    )

    mirrored_commits = CounterByLabel(
        "Commits that a mirror has carried over into its table.", unit="commits", label="mirror"
    )
    mirrored_rows = CounterByLabel("Rows that a mirror has written.", unit="rows", label="mirror")
    mirror_seconds = Histogram("Duration of one step of a mirror: reading and writing.", unit="seconds")
    mirror_restarts = CounterByLabel(
        "Times that a mirror wrote the whole state in place of what had changed.", unit="steps", label="reason"
    )
    mirror_lag_commits = Level("Commits that the table of a mirror lacks, as of its last look.", unit="commits")
    mirror_lag_seconds = Level(
        "For how long the table of a mirror has lacked commits. It stays while looks fail: watch the failures, too.",
        unit="seconds",
    )
    mirror_failures = CounterByLabel("Looks and steps of a mirror that failed.", unit="failures", label="mirror")

    cache_downloads = Counter("Files that a download cache fetched from the primary.", unit="files")
    cache_download_failures = Counter("Downloads that failed. A cancelled one does not count.", unit="files")
    cache_downloaded_bytes = Counter("Size of the files that download caches fetched.", unit="bytes")
    cache_download_seconds = Histogram("Duration of a download that succeeded.", unit="seconds")
    cache_hits = Counter(
        "Readers that found their file in a download cache or joined a running download.", unit="readers"
    )
    cache_evictions = CounterByLabel(
        "Files removed from a download cache: `idle` for too long, to make `room`, or `damaged`.",
        unit="files",
        label="reason",
    )
    cache_bytes = Gauge("Bytes in a download cache or being downloaded.", unit="bytes")

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

    def fenced(self, error: Exception) -> None:
        self.record(Metrics.fenced_checkpoints, 1)

    def swept(self, *, deleted: int, failures: int, seconds: float) -> None:
        self.record(Metrics.sweeps, 1)
        self.record(Metrics.swept_objects, deleted)
        self.record(Metrics.unswept_objects, failures)
        self.record(Metrics.sweep_seconds, seconds)

    def sweep_failed(self, error: Exception) -> None:
        self.record(Metrics.failed_sweeps, 1)

    def range_opened(self, found: str) -> None:
        self._count(Metrics.ranges_opened, found)

    def batches_missed(self, delivered: SourceMark, *, after: int) -> None:
        self.record(Metrics.missed_batches, delivered.batch_id - after - 1)

    def rows_late(self, rows: int) -> None:
        self.record(Metrics.late_rows, rows)

    def batch_progressed(
        self, batch_id: int, *, rows: int, of_rows: int, seconds: float, keys_under_way: int = 0
    ) -> None:
        self.record(Metrics.batch_rows, of_rows)
        self.record(Metrics.batch_rows_begun, rows)
        self.record(Metrics.batch_keys_under_way, keys_under_way)

    def output_published(self, output: StagedOutput, *, seconds: float) -> None:
        self.record(Metrics.publications, 1)
        self.record(Metrics.published_rows, output.rows)
        self.record(Metrics.publication_seconds, seconds)

    def publication_failed(self, output: StagedOutput, error: BaseException, *, seconds: float) -> None:
        self.record(Metrics.failed_publications, 1)

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

    def older_checkpoint_opened(self, checkpoint_id: CheckpointId, reason: Exception) -> None:
        self.record(Metrics.older_checkpoints_opened, 1)

    def commits_followed(self, commits: int, *, changes: int, size_bytes: int, seconds: float) -> None:
        self.record(Metrics.followed_commits, commits)
        self.record(Metrics.followed_changes, changes)
        self.record(Metrics.followed_bytes, size_bytes)
        self.record(Metrics.follow_seconds, seconds)

    def follower_jumped(self, reason: str) -> None:
        self._count(Metrics.follower_jumps, reason)

    def follower_looked(self, staleness_s: float) -> None:
        self.record(Metrics.follower_staleness_seconds, staleness_s)

    def mirrored(self, mirror: str, *, commits: int, rows: int, seconds: float, anew: str | None) -> None:
        self._count(Metrics.mirrored_commits, mirror, commits)
        self._count(Metrics.mirrored_rows, mirror, rows)
        self.record(Metrics.mirror_seconds, seconds)
        if anew is not None:
            self._count(Metrics.mirror_restarts, anew)

    def mirror_lagged(self, mirror: str, *, commits: int, seconds: float) -> None:
        self.record(Metrics.mirror_lag_commits, commits)
        self.record(Metrics.mirror_lag_seconds, seconds)

    def mirror_failed(self, mirror: str, error: Exception) -> None:
        self._count(Metrics.mirror_failures, mirror)

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
    """The sentence of an error message, without the facts at its end, which differ each time."""
    return reason.partition(" (")[0]
