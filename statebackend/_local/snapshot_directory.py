"""The directory of one checkpoint while it is being filled, and what becomes of it.

    ongoing -> complete -> completed        stays until somebody deletes it
       └----> clean_up -> deleted

Every method blocks on the disk: call it in a worker thread.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from statebackend._local.job_directories import make_directory
from statebackend.errors import StoreUnavailableError

State = Literal["ongoing", "completed", "deleted"]


class SnapshotDirectory:
    """A directory that is handed out complete or not at all. Making the object makes nothing on the disk.

    A `temporary` one is never handed out: it goes with `clean_up`, completed or not.
    """

    def __init__(self, path: Path, *, temporary: bool = False) -> None:
        self.path: Final = path
        self.temporary: Final = temporary
        self.state: State = "ongoing"

    def exists(self) -> bool:
        """Whether it is there now, whoever made or removed it."""
        return self.path.is_dir()

    def make(self) -> None:
        """Make it, and what it lies in, for this user only. One that is there already is fine."""
        make_directory(self.path)

    def names(self) -> Sequence[str]:
        """What lies in it, sorted. Raises `FileNotFoundError` where it is not there."""
        return sorted(entry.name for entry in self.path.iterdir())

    def take_in(self, name: str, source: Path, *, never_changes: bool) -> None:
        """Have a file in it as well, synced: the very file where it never changes and is of this file system."""
        target = self.path / name
        if not (never_changes and linked(source, target)):
            shutil.copyfile(source, target)
        sync_file(target)

    def complete(self) -> Path | None:
        """What was written to it stays, through a power cut. The path to hand out, `None` for a temporary one.

        Whoever wrote its files has synced them. Completing again is fine. Raises `StoreUnavailableError`, an `OSError`,
        where it was cleaned up before.
        """
        if self.state == "deleted":
            raise StoreUnavailableError("the snapshot directory was cleaned up before it was complete", path=self.path)
        if self.state == "ongoing":
            sync_directory(self.path)
            sync_directory(self.path.parent)
            self.state = "completed"
        return None if self.temporary else self.path

    def clean_up(self) -> None:
        """Remove it with all that is in it, unless it is complete. Again is fine."""
        if self.state == "ongoing" or self.temporary:
            self.state = "deleted"
            remove_directory(self.path)


def remove_directory(path: Path) -> None:
    """Remove a directory with all that is in it; one that is not there is fine."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


def linked(source: Path, target: Path) -> bool:
    """Give a file another name, if its file system can. Raises `FileNotFoundError` where it is not there."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, one without links, or too many of them
        return False
    return True


def sync_file(path: Path) -> None:
    """Make what a file holds survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
