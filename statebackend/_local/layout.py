"""Paths below a local root. Pure: nothing here touches the disk.

    <root>/job_<job>/lock                                              see `job_directories`
    <root>/job_<job>/taskowned/<segment>                               the copies of segments, of all owners
    <root i>/job_<job>/op_<operator>_kg_<first>_<last>/chk_<id>/...    one owner's checkpoint; i = id mod roots

Checkpoints share the copies of segments, and so do the owners of key-group ranges in one process. The directory of a
checkpoint belongs to one owner, so it can be removed without touching the segments (FLINK-27692, 27693).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from statebackend.errors import LocalRootError, SettingsError
from statebackend.ids import CheckpointId, KeyGroupRange

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OWNER: Final = re.compile(r"op_([A-Za-z0-9][A-Za-z0-9._-]*)_kg_(0|[1-9][0-9]*)_(0|[1-9][0-9]*)")
_CHECKPOINT: Final = re.compile(r"chk_(0|[1-9][0-9]*)")


def job_directory(root: Path, job: str) -> Path:
    """The directory of a job in one root."""
    return root / f"job_{job}"


def segments_directory(root: Path, job: str) -> Path:
    """The directory of the copies of segments in one root."""
    return job_directory(root, job) / "taskowned"


class LocalLayout(msgspec.Struct, frozen=True):
    """The directories of one owner of key groups. Checkpoint `id` lies in root `id` mod the number of roots.

    Raises `LocalRootError` without a root, or where one is not an absolute path; `SettingsError` for a job or operator
    that cannot be the name of a directory.
    """

    roots: tuple[Path, ...]
    job: str
    operator: str
    key_groups: KeyGroupRange

    def __post_init__(self) -> None:
        if not self.roots:
            raise LocalRootError("a local layout needs at least one root")
        for root in self.roots:
            if not (isinstance(root, Path) and root.is_absolute()):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise LocalRootError("a local root must be an absolute path", root=str(root))
        for what, name in (("job", self.job), ("operator", self.operator)):
            if not _NAME.fullmatch(name):
                raise SettingsError(f"{what} must be 1 to 100 letters, digits, '.', '_' or '-'", **{what: name})

    @property
    def owner_directories(self) -> Sequence[Path]:
        """The owner's directories, one in each root."""
        first, last = self.key_groups.first, self.key_groups.last
        name = f"op_{self.operator}_kg_{first}_{last}"
        return [job_directory(root, self.job) / name for root in self.roots]

    def root_of(self, checkpoint_id: CheckpointId) -> Path:
        """The root that the checkpoint lies in."""
        return self.roots[checkpoint_id % len(self.roots)]

    def owner_directory(self, checkpoint_id: CheckpointId) -> Path:
        """The owner's directory in the root that the checkpoint lies in."""
        return self.owner_directories[checkpoint_id % len(self.roots)]

    def checkpoint_directory(self, checkpoint_id: CheckpointId) -> Path:
        """The directory of the owner's part of the checkpoint."""
        return self.owner_directory(checkpoint_id) / f"chk_{checkpoint_id}"


def owner_of(name: str) -> tuple[str, KeyGroupRange] | None:
    """The operator and key groups of an owner's directory, by its name; `None` for any other name."""
    found = _OWNER.fullmatch(name)
    if found is None or int(found[2]) > int(found[3]):
        return None
    return found[1], KeyGroupRange(int(found[2]), int(found[3]))


def checkpoint_of(name: str) -> CheckpointId | None:
    """The id of a checkpoint's directory, by its name; `None` for any other name."""
    found = _CHECKPOINT.fullmatch(name)
    return None if found is None else CheckpointId(int(found[1]))
