"""The observer, and the records of checkpoints and restores, which callers get, too."""

from collections.abc import Mapping

import msgspec

from statebackend.abc.uploader import Segment, UploadedSegment
from statebackend.ids import CheckpointId, CommitSequence, Handle, SourceMark, StagedOutput


class CheckpointInfo(msgspec.Struct, frozen=True):
    """The size and the cost of a committed checkpoint.

    `requests` counts the requests to the primary while it ran, `requests_by_kind` by the method of `ObjectStore`; `usd`
    is their price. `local` is true if every byte of it has a local copy, too. On executors `local_bytes` does not count
    the copies of the commit, and what is inline in it: each host makes its copy with the next batch.

    `usd_month` is the cost of 30 days of requests at the rate of the last ten minutes. `persist_delay_s` is the persist
    delay, as lengthened by `put_budget_usd_month`: about the wait at the beginning of the next checkpoint, so a caller
    loses nothing by waiting that long before it asks for one.
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
    """Watches a backend: subclass it, override the events you want, and pass it to `open_backend(observer=...)`.

    Methods are called on the backend's loop, right after the event, and must be quick: the whole backend waits for
    them. An exception is logged once per method and has no other effect. A cancelled or killed backend sends no further
    events. `statebackend.observers` has an observer that counts, one for Prometheus, and one that combines several.

    A later release may tell a new fact of an event, as a keyword with a default. A method without that keyword is
    called without the fact.

    The methods stand in the order in which a checkpoint calls them.
    """

    def waited_for_room(self, seconds: float) -> None:
        """An upload or an append has waited `seconds` for room below `in_flight_bytes_max`.

        Once per wait, at its end, cancelled waits included. Not called if there was room at once.
        """

    def in_flight_changed(self, in_flight_bytes: int) -> None:
        """Bytes queued or being uploaded now. Called once when an upload is admitted, once when its bytes are free."""

    def queue_changed(self, waiting: int) -> None:
        """Uploads waiting to share a segment. Called whenever one joins, is cancelled, or all of them are sent."""

    def batch_sent(self, *, uploads: int, change_sets: int, size_bytes: int) -> None:
        """`uploads` share a segment of `size_bytes`, compressed. Called once per segment, before its first attempt."""

    def upload_started(self, segment: Segment, *, attempt: int) -> None:
        """An upload attempt begins. `attempt` counts from 1. Once per attempt."""

    def upload_failed(self, segment: Segment, error: BaseException, *, attempt: int) -> None:
        """An upload attempt failed; another may follow. At most once per attempt, never for one that is only late."""

    def upload_succeeded(
        self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float, raw_bytes: int
    ) -> None:
        """An upload attempt has stored the segment in `seconds`. `raw_bytes`: its size without compression.

        At most once per attempt, losers included: their segments are discarded after this.
        """

    def upload_decided(self, *, attempt: int | None, attempts: int) -> None:
        """`attempt` is the winner, or `None` if all failed: then every call that waits for the segment gets the error.

        Once per segment. `attempts`: those started by then, plus one that was waiting to start.
        """

    def segment_uploaded(self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float) -> None:
        """A segment is durable in the primary, stored by the attempt that won. Once per segment, unless it failed."""

    def local_copy_dropped(self, name: str, reason: str) -> None:
        """The local copy of a segment was given up; the primary has it. At most once per successful upload attempt.

        Called by the built-in uploader, and for your own if it gives the reason in `UploadedSegment.dropped`.
        """

    def primary_requested(self, requests: Mapping[str, int], *, usd: float) -> None:
        """Requests to the primary since the last call, by method of `ObjectStore`; only methods that were called.

        `usd`: their cost by the prices in the settings. Called before `restored`, before each `checkpoint_committed`,
        and when the backend has closed.
        """

    def checkpoint_committed(self, info: CheckpointInfo) -> None:
        """A checkpoint is committed. Once per checkpoint, before `checkpoint` returns."""

    def fenced(self, error: Exception) -> None:
        """A checkpoint was refused, because a newer writer owns the job. At most once per backend, before it raises."""

    def swept(self, *, deleted: int, failures: int, seconds: float) -> None:
        """A sweep beside the writer has ended: so many objects are deleted, and so many could not be."""

    def sweep_failed(self, error: Exception) -> None:
        """A sweep beside the writer has raised; the next one tries again. Until one ends, the primary grows."""

    def range_opened(self, found: str) -> None:
        """An attempt at a range of key groups begins. `found` is the place of its state.

        "process", "host", "primary" if at least a part came from there, or "new" if there was none. Once per attempt,
        in the attempt's process.
        """

    def batches_missed(self, delivered: SourceMark, *, after: int) -> None:
        """The batch `delivered` is not the one that follows batch `after`, the newest of its query in the state.

        The state lacks those between, as `first_batch_id` or `fall_back_to_older` allows. Once per such batch, before
        it is processed.
        """

    def rows_late(self, rows: int) -> None:
        """So many rows of a batch were older than the job's clock was before it. Once per batch that has any."""

    def batch_progressed(
        self, batch_id: int, *, rows: int, of_rows: int, seconds: float, keys_under_way: int = 0
    ) -> None:
        """A processor has been given `rows` of the `of_rows` of a batch in the `seconds` since it began with them.

        `keys_under_way`: the calls of `process` that have begun and not ended; 1 at most for a synchronous one, 0 for
        `process_table`. Once a second while a `KeyedProcessor` is at work in the driver, even if all its calls wait;
        not for a batch that is quicker.
        """

    def output_published(self, output: StagedOutput, *, seconds: float) -> None:
        """The outbox's function has returned, `seconds` after it was called with this output of a batch.

        Once per publication, those included that repeat an earlier one.
        """

    def publication_failed(self, output: StagedOutput, error: BaseException, *, seconds: float) -> None:
        """The outbox's function has raised instead, or was cancelled: the next run calls it again."""

    def materialization_begun(self, key_groups: int) -> None:
        """Bases of `key_groups` key groups are being written in the background, or a layer over their bases.

        A layer has changes of these key groups, or of some of them. At most one run at a time.
        """

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        """The bases, or the layer, are durable, in `segments` segments of `size_bytes` together.

        The next commit lists them. `key_groups`: as for `materialization_begun`. `segments` is 0 if these key groups
        have no entries left.
        """

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        """They could not be written, for the `failures`th time in a row. Not called for a cancelled run."""

    def restored(self, report: RestoreReport) -> None:
        """The state was restored. Once, while the backend opens; not for a job without a commit."""

    def older_checkpoint_opened(self, checkpoint_id: CheckpointId, reason: Exception) -> None:
        """The newest checkpoint cannot be read, for that `reason`, and `fall_back_to_older` is set: this one is open.

        Once, while the backend opens, after `restored`; or while a coordinator opens.
        """

    def commits_followed(self, commits: int, *, changes: int, size_bytes: int, seconds: float) -> None:
        """A follower has applied some commits at once: `changes` of `size_bytes`, which took so many `seconds`."""

    def follower_jumped(self, reason: str) -> None:
        """A follower has read the newest commit anew, for that reason, in place of what led to it."""

    def follower_looked(self, staleness_s: float) -> None:
        """A follower has looked at the log, or has tried to: its answers may be older than now by so many seconds."""

    def mirrored(self, mirror: str, *, commits: int, rows: int, seconds: float, anew: str | None) -> None:
        """A mirror has written a step to its table: `rows` of some `commits`. `anew`: why it was the whole state."""

    def mirror_lagged(self, mirror: str, *, commits: int, seconds: float) -> None:
        """After each look of a mirror: the commits that its table lacks, and for how long it has lacked any."""

    def mirror_failed(self, mirror: str, error: Exception) -> None:
        """A mirror could not look, read or write, and will try again."""

    def cache_downloaded(self, size_bytes: int, *, seconds: float) -> None:
        """A download cache has downloaded a file of `size_bytes` in `seconds`. Once per successful download."""

    def cache_download_failed(self, handle: Handle, error: BaseException) -> None:
        """A download failed, for every reader that waits for it. Not called for a cancelled download."""

    def cache_hit(self, size_bytes: int) -> None:
        """A reader found its file in a download cache, or joined its download. Once per reader."""

    def cache_evicted(self, size_bytes: int, *, reason: str) -> None:
        """A file was removed from a download cache: "idle" for too long, to make "room", or "damaged"."""

    def cache_changed(self, held_bytes: int) -> None:
        """Bytes in a download cache or being downloaded. Called at each change, and with 0 at its end."""
