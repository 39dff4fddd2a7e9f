"""Uploads segments to the primary alone. Both uploaders share a segment's key, its handle and its quiet removal."""

import logging
from collections.abc import Callable
from typing import Final

import anyio

from statebackend.abc import ObjectStore, Segment, UploadedSegment
from statebackend.ids import Handle

SEGMENT_PREFIX: Final = "segments/"
REMOVE_TIMEOUT_S: Final = 1.0

_logger = logging.getLogger(__name__)


def segment_key(name: str) -> str:
    """The key of the segment `name`, the same in the primary and in the local copy."""
    return SEGMENT_PREFIX + name


def segment_handle(segment: Segment) -> Handle:
    """A handle on the whole object that holds `segment`, valid for either copy."""
    return Handle(segment_key(segment.name), 0, segment.size_bytes, segment.checksum)


async def remove_quietly(
    store: ObjectStore,
    key: str,
    *,
    timeout_s: float,
    failed: Callable[[BaseException], None] | None = None,
) -> None:
    """Try for `timeout_s` to remove an object that nothing refers to. Never raises an `Exception`.

    Errors are logged, or handed to `failed`. Shielded, so it also runs while the caller is being cancelled. An object
    that could not be removed is left to a sweep.
    """
    with anyio.move_on_after(timeout_s, shield=True) as scope:
        try:
            await store.delete(key)
        except Exception as error:  # noqa: BLE001  a user's store may raise anything, and must not hide the caller's error
            if failed is not None:
                failed(error)
                return
            _logger.warning("could not remove an unreferenced object: key=%s reason=%r", key, error)
    if scope.cancelled_caught:
        _logger.warning("gave up removing an unreferenced object: key=%s timeout_s=%s", key, timeout_s)


class PrimaryUploader:
    """A `StateChangeUploader` that writes one copy, to `store`, at the key `segments/<name>`.

    A failed or cancelled upload takes up to `remove_timeout_s` longer, to remove what it wrote.
    """

    def __init__(self, store: ObjectStore, *, remove_timeout_s: float = REMOVE_TIMEOUT_S) -> None:
        self._store = store
        self._remove_timeout_s = remove_timeout_s

    async def upload(self, segment: Segment) -> UploadedSegment:
        """Store the segment and return when it is durable. Raises what the store raises, unchanged."""
        handle = segment_handle(segment)
        try:
            await self._store.put(handle.key, segment.body)
        except BaseException:
            await self._remove(handle)
            raise
        return UploadedSegment(primary=handle)

    async def discard(self, uploaded: UploadedSegment) -> None:
        """Remove the segment within `remove_timeout_s`, even if cancelled. Errors are logged."""
        await self._remove(uploaded.primary)

    async def _remove(self, handle: Handle) -> None:
        await remove_quietly(self._store, handle.key, timeout_s=self._remove_timeout_s)
