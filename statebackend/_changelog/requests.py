"""Requests to upload change sets: one for each call of `UploadScheduler.upload`, from the queue to its results."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import anyio

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._codec.segment import EncodedFrame, EncodedSegment, SealedSet
from statebackend.abc import UploadedSegment
from statebackend.errors import BackendClosedError
from statebackend.ids import ChangeSetHandle

Encode = Callable[[list[SealedSet]], Awaitable[Sequence[EncodedFrame]]]


class Request:
    """The change sets of one call; `done` is set when there are results, or an error."""

    __slots__ = ("_change_sets", "abandoned", "count", "done", "early", "error", "may_join", "results", "size_bytes")

    def __init__(self, change_sets: Sequence[SealedSet], may_join: Callable[[], bool] | None) -> None:
        self._change_sets = change_sets
        self.may_join: Final = may_join
        self.count: Final = len(change_sets)
        self.size_bytes: Final = sum(change_set.size_bytes for change_set in change_sets)
        self.early: EarlyFrames | None = None
        self.done = anyio.Event()
        self.results: Sequence[UploadedChangeSet] = ()
        self.error: Exception | None = None
        self.abandoned = False

    def take(self) -> Sequence[SealedSet]:
        """Return the change sets, once, to be encoded: with another reference they would be in memory twice."""
        taken, self._change_sets = self._change_sets, ()
        return taken

    @property
    def is_encoding(self) -> bool:
        """True if it is being encoded early, or could not be."""
        return self.early is not None and self.early.found is None

    def take_back(self) -> Sequence[SealedSet]:
        """End the call without results; return its change sets, as frames if they were encoded early."""
        self.end()
        return self.take() if self.early is None else self.early.found or ()

    def end(self, results: Sequence[UploadedChangeSet] = (), error: Exception | None = None) -> None:
        """Tell the call how its upload ended. Only the first time counts."""
        if not self.done.is_set():
            self.results, self.error = results, error
            self.done.set()


class EarlyFrames:
    """The frames of a request that is encoded while it is in the queue. `found` once they are there."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self.found: Sequence[EncodedFrame] | None = None
        self._error: Exception = BackendClosedError("the backend ended before the changes were encoded")
        self.ended: Final = anyio.Event()

    async def run(self, change_sets: list[SealedSet]) -> None:
        """Encode; never raises an `Exception`. The list is emptied."""
        try:
            self.found = await self._encode(change_sets)
        except Exception as error:  # noqa: BLE001  # for `frames`
            self._error = error
        finally:
            self.ended.set()

    async def frames(self) -> Sequence[EncodedFrame]:
        """Return the frames when they are there, or raise the error of `encode`. A cancelled call changes nothing."""
        await self.ended.wait()
        if self.found is None:
            raise self._error
        return self.found


def end_all(batch: Iterable[Request], error: Exception) -> None:
    """Tell the calls of these requests that their upload has failed."""
    for request in batch:
        request.end(error=error)


def results_of(encoded: EncodedSegment, uploaded: UploadedSegment) -> Iterable[UploadedChangeSet]:
    """The change sets of a stored segment, in order."""
    for entry in encoded.entries:
        handle = ChangeSetHandle(
            segment=uploaded.primary,
            log_id=entry.log_id,
            sequence_number=entry.sequence_number,
            offset=entry.offset,
            length=entry.length,
            key_groups=entry.key_groups,
            records=entry.records,
        )
        yield UploadedChangeSet(handle, uploaded.local is not None)
