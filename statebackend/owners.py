"""For a job whose key groups are shared by several owners, each in a process of its own.

    open_coordinator            one process claims the job: it commits what the owners contribute
    open_backend(key_groups=)   each owner: read and write state, `snapshot`, then `notify_complete` or `notify_aborted`
    open_download_cache         owners in one process that restore from the same files download each of them once

`docs/how-to/own-a-part.md` walks through a run.
"""

from statebackend._backend.coordinating import open_coordinator, open_download_cache
from statebackend._cache.download_cache import DownloadCache
from statebackend._checkpoint.owner_backend import OwnerBackend
from statebackend._log.coordinator import CheckpointCoordinator, Committed
from statebackend._tables.key_groups import key_group
from statebackend.ids import KeyGroupRange, SnapshotResult

__all__ = [
    "CheckpointCoordinator",
    "Committed",
    "DownloadCache",
    "KeyGroupRange",
    "OwnerBackend",
    "SnapshotResult",
    "key_group",
    "open_coordinator",
    "open_download_cache",
]
