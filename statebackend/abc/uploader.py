"""The uploader, and the segments that it uploads."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from statebackend.abc.store import Buffer
from statebackend.ids import Handle


def _nothing() -> None:
    """The default of `Segment.durable`, for a segment made outside of an upload attempt."""


class Segment(msgspec.Struct, frozen=True):
    """One object to upload: the encoded change sets of one or more writers.

    Each upload attempt gets one of its own. Attempts at the same content share its `body`, so it must not be changed.
    """

    name: str
    """Unique to the upload attempt, among all processes. Usable as a name within a key."""
    body: tuple[Buffer, ...]
    """The complete content, in consecutive chunks."""
    size_bytes: int
    """Length of the content in bytes, never 0."""
    checksum: int
    """`zlib.crc32` of the content."""
    log_ids: tuple[str, ...]
    """The writers whose change sets it holds."""
    durable: Callable[[], None] = _nothing
    """Optional: call it when the primary copy is durable while `upload` still works on another copy. The attempt is
    then not late for another `upload.timeout_s`, and no other attempt joins it. A second or late call has no effect."""


class UploadedSegment(msgspec.Struct, frozen=True):
    """The handles of a segment's copies, as a restore reads them.

    A restore asks the primary (the `store` of `open_backend`) for `primary.key`, whole or in part, and expects the
    segment's body. So, whatever is really stored, `primary` is `Handle(key, 0, segment.size_bytes, segment.checksum)`
    with a key of the uploader's choice, relative to the job's root, which is `<job>/` in the store. An uploader that
    encrypts, for example, needs a store that decrypts.

    Set `local` only if that copy is complete and durable, too. It then equals `primary`: a restore looks for the local
    copy at the primary's key, and ignores one that does not verify.
    """

    primary: Handle
    local: Handle | None = None
    dropped: str | None = None
    """The reason why an intended local copy is missing, for `Observer.local_copy_dropped`. Excludes `local`."""


@runtime_checkable
class StateChangeUploader(Protocol):
    """Makes segments durable. Pass your own to `open_backend(uploader=...)`.

    Or pass a function that takes the primary and the local store, if any, and returns an uploader: it is called once,
    when the backend opens, with both stores confined to the job. The library neither opens nor closes an uploader.

    All calls come from the backend's loop, which they must not block. `upload` is called once per upload attempt, also
    concurrently, and also with the same body under different names: a slow attempt is not cancelled but joined by
    another. `Settings.in_flight_bytes_max` bounds the bytes in flight. Proven by
    `statebackend.testing.UploaderConformance`.
    """

    async def upload(self, segment: Segment) -> UploadedSegment:
        """Store the segment under a name of its own; return only when its primary copy is durable and can be read.

        The local copy is best effort: without it the upload succeeds all the same.

        Raise an `OSError` (every `StoreError` is one) if a retry may help; any other error is final, including an
        exception group of `OSError`s. A failed or cancelled call tries to remove what it wrote, shielded from the
        cancellation, and ends within about a second. Names are unique, so an object that remains is unreferenced.
        """
        ...

    async def discard(self, uploaded: UploadedSegment) -> None:
        """Remove every copy of a segment that lost against another upload attempt or is no longer needed.

        Leaves all other segments alone. The library calls it at most once per result of `upload`, and never for a
        segment that a committed checkpoint owns. A second call is no error, and removes what a cancelled or failed one
        left. Errors are logged, not retried: a sweep finds the rest.
        """
        ...
