"""A backend that is made to stand on less than it has committed, as if bases had taken the rest over."""

import msgspec

from statebackend._checkpoint.backend import StateBackend
from statebackend.ids import ChangeSetHandle


def committed_handles(backend: StateBackend) -> tuple[ChangeSetHandle, ...]:
    """The change sets that the next commit lists before its own."""
    return backend._snapshots.committed.changelog


def stand_on(backend: StateBackend, *handles: ChangeSetHandle) -> None:
    """The next commit lists only these before its own."""
    snapshots = backend._snapshots
    snapshots.committed = msgspec.structs.replace(snapshots.committed, changelog=handles)
