"""Merges neighbouring change sets of a changelog into one: reads them, and uploads all their changes as one segment."""

from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.materialization.bases import Bases
from statebackend._checkpoint.materialization.tiers import Neighbours, due, merged_id
from statebackend._codec.change_sets.changes import Changes, change_set
from statebackend.abc import UploadedSegment
from statebackend.ids import ChangeSetHandle

ReadChanges = Callable[[Sequence[ChangeSetHandle], Collection[int]], Awaitable[Sequence[Changes] | None]]
"""Reads the changes of some change sets, in order, but for those of some states; `None` if they are too many."""


class ChangeSetMerging:
    """Merges what `tiers` says, for one owner. `fan_in`: the setting `materialize_fan_in`."""

    def __init__(self, read: ReadChanges, scheduler: UploadScheduler, *, fan_in: int) -> None:
        self._read = read
        self._scheduler = scheduler
        self._fan_in = fan_in
        self._too_large = frozenset[ChangeSetHandle]()

    def due(self, changelog: Sequence[ChangeSetHandle]) -> Neighbours | None:
        """The neighbours to be merged next, `None` if there are none."""
        if self._too_large:
            self._too_large &= frozenset(changelog)
        return due(changelog, self._fan_in, self._too_large)

    async def write(
        self,
        changelog: Sequence[ChangeSetHandle],
        place: Neighbours,
        uploaded: list[UploadedSegment],
        pause: Callable[[], None],
    ) -> Bases | None:
        """Make the change sets at `place` of a commit's changelog durable as one, which takes their place.

        `None` if they are too large for that, well as they are compressed; then these are not due again.
        Of a change set that was narrowed to some key groups only the changes of these are left. `pause` and `uploaded`:
        as for `EntryBases.write`. Raises as `Restore.read`, and what an upload raises.
        """
        merged = changelog[place.first : place.end]
        changes = await self._read(merged, ())
        if changes is None:
            self._too_large |= frozenset(merged)
            return None
        if not changes:
            return Bases((), frozenset(), place.end, frozenset(), first=place.first)
        found, entries = await self._scheduler.upload_listed([change_set(*merged_id(merged), changes)], pause)
        uploaded.append(found)
        handles = tuple(ChangeSetHandle(found.primary, *msgspec.structs.astuple(entry)) for entry in entries)
        only_primary = frozenset([found.primary.key] if found.local is None else [])
        return Bases((), frozenset(), place.end, only_primary, first=place.first, merged=handles)
