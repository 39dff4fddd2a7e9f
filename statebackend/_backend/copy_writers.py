"""Chooses the writers of both copies, of segments and of commits, and says which local copies stay."""

from collections.abc import Callable

import msgspec
from anyio.abc import TaskGroup

from statebackend._checkpoint.restore import LocalCopies
from statebackend._codec.commit import Commit
from statebackend._local.removal import LocalRetention
from statebackend._log.names import data_name_of, entry_key
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.ids import Epoch
from statebackend.settings import Settings
from statebackend.uploaders import DuplicatingUploader, PrimaryUploader
from statebackend.uploaders.local_copies import CopyWriter

OpenUploader = Callable[[ObjectStore, ObjectStore | None], StateChangeUploader]


class Copies(msgspec.Struct, frozen=True):
    """`uploader` is for segments; `of_commits` writes local copies of commits, `None` where we may not write.

    `of_files` is for files of RocksDB bases, `None` for the same one: ours leaves their local copies to others.
    `inline_bytes_max`: how much a commit may carry by itself. Nothing passes by an uploader that is not ours.
    """

    uploader: StateChangeUploader
    of_commits: CopyWriter | None
    inline_bytes_max: int
    of_files: StateChangeUploader | None = None


def choose_copies(
    uploader: StateChangeUploader | OpenUploader | None,
    primary: ObjectStore,
    local: LocalCopies | None,
    *,
    settings: Settings,
    tasks: TaskGroup,
    observer: Observer,
) -> Copies:
    """Our own writers, unless `uploader` is given. Copies of commits lie in the same roots as those of segments.

    By the same writer, where it is ours: a disk that hangs costs a checkpoint one `secondary_grace_s`, and not two.
    """
    if local is None or not local.writable:
        if uploader is None:
            return Copies(PrimaryUploader(primary), None, settings.inline_bytes)
        return Copies(_opened(uploader, primary, None), None, 0)
    if uploader is None:
        both = DuplicatingUploader(
            primary,
            local.store,
            secondary_grace_s=settings.secondary_grace_s,
            dropped=observer.local_copy_dropped,
            root_of=local.store.root_of,
            log=local.store.given_up,
            tasks=tasks,
        )
        return Copies(both, both.copies, settings.inline_bytes, PrimaryUploader(primary))
    of_commits = CopyWriter(
        local.store,
        grace_s=settings.secondary_grace_s,
        dropped=observer.local_copy_dropped,
        root_of=local.store.root_of,
        log=local.store.given_up,
        tasks=tasks,
    )
    return Copies(_opened(uploader, primary, local.store), of_commits, 0)


def _opened(
    uploader: StateChangeUploader | OpenUploader, primary: ObjectStore, secondary: ObjectStore | None
) -> StateChangeUploader:
    if isinstance(uploader, StateChangeUploader) and not isinstance(uploader, type):  # a class has the methods too
        return uploader
    return uploader(primary, secondary)


def retain(local: LocalCopies | None, tasks: TaskGroup, epoch: Epoch, *commits: Commit | None) -> LocalRetention | None:
    """Keeps the local copies of these commits until a newer one does not use them. `None` where we may not write.

    Of shared roots it removes only what was made in `epoch`: other owners may need what they all began with.
    """
    if local is None or not local.writable:
        return None

    def is_of_epoch(key: str) -> bool:
        return (name := data_name_of(key)) is not None and name.epoch == epoch

    if local.shared:
        return LocalRetention(local.store, tasks=tasks, is_own=is_of_epoch)
    retention = LocalRetention(local.store, tasks=tasks)
    for commit in commits:
        if commit is not None:
            retention.register(needed(commit), commit.checkpoint_id)
    return retention


def needed(*commits: Commit | None) -> frozenset[str]:
    """The keys that have a local copy: the commits themselves, and every file they point into."""
    present = [commit for commit in commits if commit is not None]
    own = frozenset(entry_key(commit.sequence) for commit in present)
    return own.union(*(commit.segments() for commit in present))
