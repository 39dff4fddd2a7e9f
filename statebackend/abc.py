"""The extension points: what a user may implement, and what the library promises to each.

`ObjectStore` holds bytes at keys, `StateChangeUploader` makes a segment durable, `Serializer` turns values into
bytes, `Observer` watches, `Clock` tells the time. Each docstring says when a method is called, how often, what it
may raise, and what a cancelled call may leave behind. All methods run on one event loop unless said otherwise.
"""

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from statebackend.ids import ChangeSetHandle, CheckpointId, CommitSequence, Handle

Buffer = bytes | bytearray | memoryview
Body = Sequence[Buffer]
"""The content of an object, in chunks that follow each other. A single piece is a sequence of one."""

T = TypeVar("T")


class Capability(enum.Enum):
    """What a store can do beyond put, get and delete."""

    LIST = "list"
    PUT_IF_ABSENT = "put_if_absent"
    """Creating an object is atomic: of any number of concurrent creators exactly one succeeds."""
    DURABLE = "durable"
    """What `put` acknowledged survives the end of this process."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object's key and size. `modified_s` is seconds since the epoch by the store's clock."""

    key: str
    size_bytes: int
    modified_s: float


class ObjectStore(Protocol):
    """Immutable bytes at keys. Give your own to `open_backend(store=...)`; whoever opened it closes it afterwards.

    Keys are '/'-separated names of printable ASCII, case counts, at most 1024 characters in all and 255 in a name. No
    name is empty, '.' or '..', none begins with '.' and ends with '.tmp', and where 'a' is a key 'a/b' is none. So a
    key can be a file's path.

    Calls come concurrently, from one event loop, and an implementation must not block that loop. What a call did is
    seen by every call that begins after it has returned, in whatever process. Calls are cancelled by anyio scopes, at
    any moment: a cancelled call has let go of what it held when it returns, and what it has not done by then it never
    does. The library bounds how long it waits for an upload or a commit; other calls take as long as they take.

    Foreign exceptions are translated into `StoreError`s: `StoreUnavailableError` for what may succeed later,
    `StoreAccessError` for what will not. Proven by `statebackend.testing.ObjectStoreConformance`.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this store can do. Constant over its life. A primary needs `Capability.PUT_IF_ABSENT`, to commit."""
        ...

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, replacing what is there. Called once per upload attempt.

        Returns when the object is durable, and keeps no reference to `body`, whose chunks are not to be changed. At
        every moment, and after a cancelled or failed call, `key` holds either the former object, or none if there was
        none, or the whole new one; never a part.
        """
        ...

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body` at `key` if there is no object yet, atomically. Called once per commit.

        Raises `ObjectExistsError` if there is one, whoever made it, even if an earlier lost response of this very call
        did: the caller tells by content. Of any number of concurrent calls, in whatever processes, exactly one
        succeeds. After a cancelled or failed call the object may or may not be there, whole.
        """
        ...

    async def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectNotFoundError`. Called once per segment and commit that a restore needs."""
        ...

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer or none where the object ends. Raises `ObjectNotFoundError`.

        Called where a small part of a large segment is wanted. Neither number is negative.
        """
        ...

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, `None` if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object. Not an error if there is none, so that a delete can be repeated."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects whose key starts with `prefix`, in the order of their keys. Needs `Capability.LIST`.

        An async generator. `prefix` may be empty, end within a name, or be one that no key has. What is put or deleted
        during the iteration is listed or not; all else is, however many requests that takes. The caller may stop early.
        """
        ...


@runtime_checkable
class DeletesMany(Protocol):
    """What an `ObjectStore` may have besides, where many objects can be removed at less than a request each."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects; what is not there is no error. Called by a sweep, with any number of keys.

        Raises for the first that stays, when all have been tried. After a failed or cancelled call some are gone.
        """
        ...


@runtime_checkable
class CountsRequests(Protocol):
    """What an `ObjectStore` may have besides, where one call is not one request: parts, pages, requests sent again.

    What such a store counts is what requests cost; calls of other stores count as one request each. A store that wraps
    another passes it on.
    """

    @property
    def priced_requests(self) -> Mapping[str, int]:
        """Requests sent so far, by the method of `ObjectStore` that has their price. Only grows; read often.

        So a part of a multipart upload, its begin and its end are each a `put`, and a page of a listing is a `list`.
        """
        ...


def _nothing() -> None:
    """For a segment that no attempt of ours uploads."""


class Segment(msgspec.Struct, frozen=True):
    """One object to upload: the encoded change sets of one or more writers.

    Made anew for each attempt; attempts at the same content share its `body`, so nobody may change that.
    """

    name: str
    """Unique to the attempt: no other attempt of any process has it. Fit to be a name within a key."""
    body: tuple[Buffer, ...]
    """The content, complete, in chunks that follow each other."""
    size_bytes: int
    """Length of the content, never 0."""
    checksum: int
    """`zlib.crc32` of the content."""
    log_ids: tuple[str, ...]
    """The writers whose change sets are in it."""
    durable: Callable[[], None] = _nothing
    """Say that the primary copy is durable, where `upload` goes on for another: then it is not late for
    `upload_timeout_s` more, and no attempt joins it. Need not be called; again, or too late, changes nothing."""


class UploadedSegment(msgspec.Struct, frozen=True):
    """Where the copies of a segment lie, in terms of what a restore reads there.

    A restore asks the primary (the `store` of `open_backend`) for `primary.key`, the whole of it or a part, and expects
    the segment's body. So, whatever is really stored, `primary` is `Handle(key, 0, segment.size_bytes,
    segment.checksum)` with a key of the uploader's choice, relative to the job's root, which is `<job>/` in the store.
    An uploader that encrypts, say, goes with a store that decrypts.

    `local` is there only if that copy is complete and durable too, and then equals `primary`: a restore looks for the
    local copy at the primary's key, and drops one that does not verify.
    """

    primary: Handle
    local: Handle | None = None
    dropped: str | None = None
    """Why there is no local copy where there was to be one, for `Observer.local_copy_dropped`. Goes without `local`."""


@runtime_checkable
class StateChangeUploader(Protocol):
    """Makes segments durable. Give your own to `open_backend(uploader=...)`.

    Or a function of the primary and the local store, if any, that returns one: it is called once, when the backend
    opens, and both stores are confined to the job by then. The library neither opens nor closes an uploader.

    All calls come from the backend's loop, which they must not block. `upload` is called once per attempt, possibly
    several at once, also several attempts with the same body under different names: a slow attempt is not cancelled
    but joined by another. What is in flight is bounded by `Settings.in_flight_bytes_max`. Proven by
    `statebackend.testing.UploaderConformance`.
    """

    async def upload(self, segment: Segment) -> UploadedSegment:
        """Store the segment under a name of its own; return only when its primary copy is durable and can be read.

        The local copy is best effort: without it the upload succeeds all the same.

        Raise an `OSError` (every `StoreError` is one) for what a retry may cure; anything else is final, an exception
        group of `OSError`s too. A failed or cancelled call ends soon, and before that removes what it wrote as far as
        it can: a second is enough, shielded from the cancellation. Names are unique, so what remains is unreferenced.
        """
        ...

    async def discard(self, uploaded: UploadedSegment) -> None:
        """Remove every copy of a segment that lost against another attempt or is not needed any more.

        Leaves every other segment alone. The library calls it at most once per result of `upload`, and not for what a
        committed checkpoint owns; a second call is not an error, and removes what a cancelled or failed one left.
        Errors are logged, not retried: a sweep finds what remains.
        """
        ...


class Serializer(Protocol[T]):
    """Values to bytes and back, without side effects. Runs on whatever thread touches the state."""

    @property
    def schema(self) -> str:
        """Describes the type in words that stay equal from run to run. Stored with each commit and compared."""
        ...

    def encode(self, value: T) -> bytes:
        """Bytes of `value`. Raises `ValueEncodeError`."""
        ...

    def decode(self, data: Buffer) -> T:
        """A fresh value. Raises `ValueDecodeError`."""
        ...


class CheckpointInfo(msgspec.Struct, frozen=True):
    """What a committed checkpoint cost.

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
    """How a backend came back. Files and bytes by the copy they were read from; sizes are stored sizes."""

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
        """So many bytes are queued or being uploaded. Once when an upload is admitted, once when its bytes are free."""

    def queue_changed(self, waiting: int) -> None:
        """So many uploads wait to share a segment. Whenever one joins, is cancelled, or all of them are sent."""

    def batch_sent(self, *, uploads: int, change_sets: int, size_bytes: int) -> None:
        """So many uploads share a segment of `size_bytes`, compressed. Once per segment, before its first attempt."""

    def upload_started(self, segment: Segment, *, attempt: int) -> None:
        """An attempt begins, the first or another one. `attempt` counts from 1. Once per attempt."""

    def upload_failed(self, segment: Segment, error: BaseException, *, attempt: int) -> None:
        """One attempt failed; another may follow. At most once per attempt; never for one that is only late."""

    def upload_succeeded(
        self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float, raw_bytes: int
    ) -> None:
        """One attempt has stored the segment, in so many seconds. `raw_bytes`: its size without compression.

        At most once per attempt. Told of losers too: what another attempt was faster with is discarded after this.
        """

    def upload_decided(self, *, attempt: int | None, attempts: int) -> None:
        """An attempt has won, or `None` has, and then everybody who waited for the segment is told the error.

        Once per segment. `attempts`: those begun by then, and one that was only waiting to begin.
        """

    def segment_uploaded(self, segment: Segment, uploaded: UploadedSegment, *, attempt: int, seconds: float) -> None:
        """A segment is durable in the primary, by the attempt that won. Once per segment, unless it failed."""

    def local_copy_dropped(self, name: str, reason: str) -> None:
        """The local copy of a segment was given up. The primary has it. At most once per attempt that succeeds.

        Told by our own uploader, and of one of yours that gives the reason: `UploadedSegment.dropped`.
        """

    def primary_requested(self, requests: Mapping[str, int], *, usd: float) -> None:
        """So many requests went to the primary since the last time, by kind: the names of `ObjectStore`'s methods.

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
        """Bases of so many key groups are being written, behind the checkpoints. At most one such thing at a time."""

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        """The bases are durable, in so many segments of that size together; the next commit has them.

        None, where nothing is left in these key groups.
        """

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        """The bases could not be written, for the `failures`th time in a row. Not told of one that is cancelled."""

    def restored(self, report: RestoreReport) -> None:
        """A backend was restored. Once, while it opens; not for a job without a commit."""

    def cache_downloaded(self, size_bytes: int, *, seconds: float) -> None:
        """A download cache has a file of `size_bytes` now, after so many seconds. Once per download that succeeds."""

    def cache_download_failed(self, handle: Handle, error: BaseException) -> None:
        """A download failed, and so did all that waited for it. Not for one that was cancelled."""

    def cache_hit(self, size_bytes: int) -> None:
        """A file of a download cache was wanted, and was there or on its way already. Once for each that wants it."""

    def cache_evicted(self, size_bytes: int, *, reason: str) -> None:
        """A file went from a download cache: it was "idle", its "room" was needed, or it was found "damaged"."""

    def cache_changed(self, held_bytes: int) -> None:
        """So many bytes lie in a download cache, or are being downloaded. Whenever that changes, 0 at its end."""


class Clock(Protocol):
    """Tells the time. A test gives its own."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...


__all__ = [
    "Body",
    "Buffer",
    "Capability",
    "ChangeSetHandle",
    "CheckpointInfo",
    "Clock",
    "CountsRequests",
    "DeletesMany",
    "Fallback",
    "ObjectInfo",
    "ObjectStore",
    "Observer",
    "RestoreReport",
    "Segment",
    "Serializer",
    "StateChangeUploader",
    "UploadedSegment",
]
