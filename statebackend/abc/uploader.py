"""The uploader, and the segments that it is given."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from statebackend.abc.store import Buffer
from statebackend.ids import Handle


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
    `upload.timeout_s` more, and no attempt joins it. Need not be called; again, or too late, changes nothing."""


class UploadedSegment(msgspec.Struct, frozen=True):
    """The places of a segment's copies, in terms of what a restore reads there.

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
