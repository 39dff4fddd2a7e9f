"""The observer, and the records of checkpoints and restores that callers get, too."""

from collections.abc import Mapping

import msgspec

from statebackend.abc.uploader import Segment, UploadedSegment
from statebackend.ids import CheckpointId, CommitSequence, Handle


class CheckpointInfo(msgspec.Struct, frozen=True):
    """The size and the cost of a committed checkpoint.

    `requests` counts what went to the primary while it ran, `requests_by_kind` by the method of `ObjectStore`; `usd` is
    their price. `local` is true when every byte of it has a local copy too.

    `usd_month` is what 30 days of requests would cost if all that the backend does went on at the rate of the last ten
    minutes. `persist_delay_s` is the persist delay as `put_budget_usd_month` has lengthened it: about how long the next
    checkpoint will take to begin, and what a caller may let pass at no loss before it asks for one.
    """

    checkpoint_id: CheckpointId
    sequence: CommitSequence
    changes: int
    primary_bytes: int
    local_bytes: int
    requests: int
    seconds: float
    local: bool
    requests_by_kind: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    usd: float = 0.0
    usd_month: float = 0.0
    persist_delay_s: float = 0.0


class Fallback(msgspec.Struct, frozen=True):
    """A file that came from the primary because its local copy could not be used, and whether it was repaired."""

    name: str
    reason: str
    repaired: bool


class RestoreReport(msgspec.Struct, frozen=True):
    """The sources of a restore. Files and bytes by the copy they were read from; sizes are stored sizes."""

    checkpoint_id: CheckpointId
    sequence: CommitSequence
    files_local: int
    files_primary: int
    bytes_local: int
    bytes_primary: int
    changes: int
    seconds: float
    fallbacks: tuple[Fallback, ...] = ()


class Observer:
    """Watches without a say: subclass it and override what you want to see. Give it to `open_backend(observer=...)`.

    Methods are called on the backend's loop, right after the fact, and must be quick: all of the backend waits
    for them. What they raise is logged, once for each of them, and harms nobody. What a cancelled or killed
    backend was about to tell is not told. `statebackend.observers` has one that counts, one for Prometheus, and
    one that passes on to several.

    The methods stand in the order in which a checkpoint calls them.
    """

    def waited_for_room(self, seconds: float) -> None:
        """`in_flight_bytes_max` was reached, and somebody was held back for `seconds`: an upload, or who appends.

        Once for each that waited, at the end of the wait; also of one that was cancelled. Never where there was room.
        """

    def in_flight_changed(self, in_flight_bytes: int) -> None:
        """Bytes queued or being uploaded now. Called once when an upload is admitted, once when its bytes are free."""

    def queue_changed(self, waiting: int) -> None:
        """Uploads that wait to share a segment. Called whenever one joins, is cancelled, or all of them are sent."""

    def batch_sent(self, *, uploads: int, change_sets: int, size_bytes: int) -> None:
        """`uploads` share a segment of `size_bytes`, compressed. Called once per segment, before its first attempt."""

    def upload_started(self, segment: Segment, *, attempt: int) -> None:
        """An attempt begins, the first or another one. `attempt` counts from 1. Once per attempt."""

    def upload_failed(self, segment: Segment, error: BaseException, *, attempt: int) -> None:
        """One attempt failed; another may follow. At most once per attempt; never for one that is only late."""

    def upload_succeeded(
        self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float, raw_bytes: int
    ) -> None:
        """One attempt has stored the segment in `seconds`. `raw_bytes`: its size without compression.

        At most once per attempt. Told of losers too: what another attempt was faster with is discarded after this.
        """

    def upload_decided(self, *, attempt: int | None, attempts: int) -> None:
        """`attempt` is the winner, or `None` if all failed: then all that waited for the segment get the error.

        Once per segment. `attempts`: those begun by then, and one that was only waiting to begin.
        """

    def segment_uploaded(self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float) -> None:
        """A segment is durable in the primary, by the attempt that won. Once per segment, unless it failed."""

    def local_copy_dropped(self, name: str, reason: str) -> None:
        """The local copy of a segment was given up. The primary has it. At most once per attempt that succeeds.

        Told by our own uploader, and of one of yours that gives the reason: `UploadedSegment.dropped`.
        """

    def primary_requested(self, requests: Mapping[str, int], *, usd: float) -> None:
        """Requests to the primary since the last call, by kind: the names of `ObjectStore`'s methods.

        `usd`: what they cost, by the prices of the settings.
        Before `restored`, before each `checkpoint_committed`, and when the backend has ended. Only kinds that occurred.
        """

    def checkpoint_committed(self, info: CheckpointInfo) -> None:
        """A checkpoint exists. Once per checkpoint, before `checkpoint` returns."""

    def range_opened(self, found: str) -> None:
        """An attempt at a range of key groups begins. `found`: where its state was.

        In this `process`, on this `host`, in the `primary` at least in part; or it is `new`. Once per attempt, in the
        process that makes it.
        """

    def materialization_begun(self, key_groups: int) -> None:
        """Bases of `key_groups` key groups are being written, behind the checkpoints. At most one run at a time."""

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        """The bases are durable, in `segments` segments of `size_bytes` together; the next commit has them.

        None, where nothing is left in these key groups.
        """

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        """The bases could not be written, for the `failures`th time in a row. Not told of one that is cancelled."""

    def restored(self, report: RestoreReport) -> None:
        """A backend was restored. Once, while it opens; not for a job without a commit."""

    def cache_downloaded(self, size_bytes: int, *, seconds: float) -> None:
        """A download cache has a file of `size_bytes` now, after `seconds`. Called once per download that succeeds."""

    def cache_download_failed(self, handle: Handle, error: BaseException) -> None:
        """A download failed, and so did all that waited for it. Not for one that was cancelled."""

    def cache_hit(self, size_bytes: int) -> None:
        """A file of a download cache was wanted, and was there or on its way already. Once for each that wants it."""

    def cache_evicted(self, size_bytes: int, *, reason: str) -> None:
        """A file went from a download cache: it was "idle", its "room" was needed, or it was found "damaged"."""

    def cache_changed(self, held_bytes: int) -> None:
        """Bytes that lie in a download cache or are being downloaded. Called at each change, with 0 at its end."""
