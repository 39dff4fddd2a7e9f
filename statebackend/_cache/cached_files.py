"""Decides which files the download cache has, who uses them, and which are evicted. Pure.

    begin ──> DOWNLOADING ──> READY ──> CONDEMNED ──> GONE        condemned: damaged, and still in use
                   │            └─────────────────────> GONE      evicted
                   └────────> ABANDONED ──────────────> GONE      nobody waits, and the download has yet to stop

A file in use never goes, except when its download fails or the cache closes. There is at most one download of a file at
a time, an abandoned one included.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from statebackend.ids import Handle


class FileState(Enum):
    """The stage a file is in."""

    DOWNLOADING = "downloading"
    READY = "ready"
    CONDEMNED = "condemned"
    ABANDONED = "abandoned"
    GONE = "gone"


class CachedFile(msgspec.Struct, eq=False):
    """One file of the cache. Each download has its own `number`, also of a file that was downloaded before."""

    handle: Handle
    number: int
    state: FileState = FileState.DOWNLOADING
    users: int = 1
    idle_since_s: float = 0.0
    """When its last user released it."""


class Eviction(msgspec.Struct, frozen=True):
    """A file to be deleted. `reason`: it was `idle`, its `room` is needed, or it is `damaged`."""

    file: CachedFile
    reason: str


class CachedFiles:
    """The account of one cache. Times are those of one clock that never goes back.

    A file without users stays for `idle_s` after its last release, or until its room is needed: the file that has been
    idle longest goes first. Only files in use make the cache exceed `bytes_max`; 0 means no limit.
    """

    def __init__(self, *, bytes_max: int, idle_s: float) -> None:
        self.bytes_max: Final = bytes_max
        self.idle_s: Final = idle_s
        self.held_bytes = 0
        self._files: dict[Handle, CachedFile] = {}  # those that `find` finds: one for each handle
        self._idle: dict[int, CachedFile] = {}  # in the order in which they were released
        self._condemned: dict[int, CachedFile] = {}
        self._begun = 0

    @property
    def held(self) -> Sequence[CachedFile]:
        """Every file that takes room, or is about to."""
        return [*self._files.values(), *self._condemned.values()]

    @property
    def next_eviction_s(self) -> float | None:
        """When the first file will have been idle for too long; `None` while all are in use."""
        return next((file.idle_since_s + self.idle_s for file in self._idle.values()), None)

    def find(self, handle: Handle) -> CachedFile | None:
        """The file, whether it is ready or not."""
        return self._files.get(handle)

    def begin(self, handle: Handle) -> CachedFile:
        """Begin the download of a file that is not here, for one user. It takes its room from now on."""
        assert handle not in self._files, "a second download of one file"
        file = self._files[handle] = CachedFile(handle, self._begun)
        self._begun += 1
        self.held_bytes += handle.length
        return file

    def use(self, file: CachedFile) -> None:
        """Add a user to a file that is ready or being downloaded."""
        assert file.state in (FileState.DOWNLOADING, FileState.READY)
        file.users += 1
        self._idle.pop(file.number, None)

    def downloaded(self, file: CachedFile) -> None:
        """The download has succeeded, and a user waits for it."""
        assert file.state is FileState.DOWNLOADING
        file.state = FileState.READY

    def stopped(self, file: CachedFile) -> None:
        """The download has ended without a file: it failed, or was abandoned. Those who waited use nothing."""
        if file.state is not FileState.GONE:
            assert file.state in (FileState.DOWNLOADING, FileState.ABANDONED)
            self._drop(file)

    def release(self, file: CachedFile, now_s: float) -> None:
        """Remove a user. Without one, a download is abandoned. Does nothing for a file that is gone."""
        if file.state is FileState.GONE:
            return
        assert file.users > 0, "released more often than used"
        file.users -= 1
        if file.users == 0 and file.state is FileState.DOWNLOADING:
            file.state = FileState.ABANDONED
        elif file.users == 0 and file.state is FileState.READY:
            file.idle_since_s = now_s
            self._idle[file.number] = file

    def condemn(self, file: CachedFile) -> None:
        """A user has found the file damaged: it is not found any more, and goes with its last user."""
        if file.state is FileState.READY:
            file.state = FileState.CONDEMNED
            del self._files[file.handle]
            self._condemned[file.number] = file

    def evict(self, now_s: float) -> Sequence[Eviction]:
        """Drop and return the files that have to go now. Called after a file was released or has taken room."""
        evictions: list[Eviction] = []
        for file in [file for file in self._condemned.values() if not file.users]:
            evictions.append(Eviction(file, "damaged"))
            self._drop(file)
        for file in list(self._idle.values()):
            if now_s >= file.idle_since_s + self.idle_s:
                evictions.append(Eviction(file, "idle"))
            elif self.bytes_max and self.held_bytes > self.bytes_max:
                evictions.append(Eviction(file, "room"))
            else:
                break
            self._drop(file)
        return evictions

    def close(self) -> None:
        """Drop every file, in use or not."""
        for file in self.held:
            self._drop(file)

    def check_invariants(self) -> None:
        """Assert what always holds between two calls."""
        assert self.held_bytes == sum(file.handle.length for file in self.held), "bytes miscounted"
        for handle, file in self._files.items():
            assert file.handle == handle
            assert file.state in (FileState.DOWNLOADING, FileState.READY, FileState.ABANDONED)
            assert (file.users > 0) == (file.number not in self._idle and file.state is not FileState.ABANDONED)
        assert all(file.state is FileState.CONDEMNED and file.users >= 0 for file in self._condemned.values())
        assert all(file.state is FileState.READY and file.users == 0 for file in self._idle.values())
        since = [file.idle_since_s for file in self._idle.values()]
        assert since == sorted(since), "not in the order in which they were released"

    def _drop(self, file: CachedFile) -> None:
        self._idle.pop(file.number, None)
        self._condemned.pop(file.number, None)
        if self._files.get(file.handle) is file:
            del self._files[file.handle]
        self.held_bytes -= file.handle.length
        file.state, file.users = FileState.GONE, 0
