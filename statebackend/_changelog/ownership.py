"""Decides when an uploaded segment that no checkpoint owns yet is to be deleted. Pure.

A segment stays as long as one change set in it is wanted. Each is released on its own, possibly by different writers
(FLINK-28440: a count per writer deleted files that were still needed); with the last one the segment is to be deleted.
A confirmed checkpoint takes the segment over: it is forgotten here, and later releases have no effect.
"""

from collections.abc import Iterable, Sequence

import msgspec

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend.abc import UploadedSegment
from statebackend.errors import UploadError
from statebackend.ids import SequenceNumber

ChangeSetId = tuple[str, SequenceNumber]
"""Log id and sequence number: together they name a change set."""


class _Owned(msgspec.Struct):
    segment: UploadedSegment
    wanted: set[ChangeSetId]


class Ownership:
    """The segments uploaded by this process that no confirmed checkpoint owns yet."""

    def __init__(self) -> None:
        self._owned: dict[str, _Owned] = {}

    def start(self, uploaded: UploadedSegment, change_sets: Iterable[ChangeSetId]) -> None:
        """Own a new segment that holds these change sets. Raises `UploadError` if another segment has its key."""
        wanted = set(change_sets)
        assert wanted, "an empty segment"
        if uploaded.primary.key in self._owned:
            raise UploadError("the uploader has stored two segments at one key", key=uploaded.primary.key)
        self._owned[uploaded.primary.key] = _Owned(uploaded, wanted)

    def release(self, released: Iterable[UploadedChangeSet]) -> Sequence[UploadedSegment]:
        """These change sets are not needed any more; saying so twice is fine. Returns the segments to delete."""
        unused: list[UploadedSegment] = []
        for change_set in released:
            key = change_set.handle.segment.key
            if (owned := self._owned.get(key)) is None:
                continue
            owned.wanted.discard((change_set.handle.log_id, change_set.handle.sequence_number))
            if not owned.wanted:
                del self._owned[key]
                unused.append(owned.segment)
        return unused

    def confirm(self, confirmed: Iterable[UploadedChangeSet]) -> None:
        """A committed checkpoint owns the segments of these change sets from now on."""
        for change_set in confirmed:
            self._owned.pop(change_set.handle.segment.key, None)

    def __len__(self) -> int:
        return len(self._owned)
