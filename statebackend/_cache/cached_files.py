"""Which files the download cache holds, who uses them, and which have to go. Pure.

    begin ──> DOWNLOADING ──> READY ──> CONDEMNED ──> GONE        condemned: damaged, and still in use
                   │            └─────────────────────> GONE      evicted
                   └────────> ABANDONED ──────────────> GONE      nobody waits, and the download has yet to stop

Nothing that is in use ever goes, except when its download fails and when the cache closes. Of one file there is at most
one download at a time, an abandoned one included.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from statebackend.ids import Handle


class FileState(Enum):
    """How far a file has come."""

    DOWNLOADING = "downloading"
    READY = "ready"
    CONDEMNED = "condemned"
    ABANDONED = "abandoned"
    GONE = "gone"


class HeldFile(msgspec.Struct, eq=False):
    """One file of the cache. `number` is its own, also among files that were downloaded again."""

    handle: Handle
    number: int
    state: FileState = FileState.DOWNLOADING
    users: int = 1
    idle_since_s: float = 0.0
    """When its last user let go of it."""


class Eviction(msgspec.Struct, frozen=True):
    """A file that has to be deleted, and why: it was `idle`, its `room` is needed, or it is `damaged`."""

    file: HeldFile
    reason: str


class CachedFiles:
    """The account of one cache. Times are those of one clock that never goes back.

    A file without users is kept for `idle_s` after the last one has let go, and no longer than there is room: what goes
    first is what has been idle longest. `bytes_max`, 0 for no limit, is exceeded only by files in use.
    """

    def __init__(self, *, bytes_max: int, idle_s: float) -> None:
        self.bytes_max: Final = bytes_max
        self.idle_s: Final = idle_s
        self.held_bytes = 0
        self._files: dict[Handle, HeldFile] = {}  # what can be found: one for each handle
        self._idle: dict[int, HeldFile] = {}  # in the order in which they were let go
        self._condemned: dict[int, HeldFile] = {}
        self._begun = 0

    @property
    def held(self) -> Sequence[HeldFile]:
        """Every file that takes room, or is about to."""
        return [*self._files.values(), *self._condemned.values()]

    @property
    def next_eviction_s(self) -> float | None:
        """When the first file will have been idle for too long. `None` while all are in use."""
        return next((file.idle_since_s + self.idle_s for file in self._idle.values()), None)

    def find(self, handle: Handle) -> HeldFile | None:
        """The file, whether it can be used yet or not."""
        return self._files.get(handle)

    def begin(self, handle: Handle) -> HeldFile:
        """A download of a file that is not there begins, for one user. Its room is taken from now on."""
        assert handle not in self._files, "a second download of one file"
        file = self._files[handle] = HeldFile(handle, self._begun)
        self._begun += 1
        self.held_bytes += handle.length
        return file

    def use(self, file: HeldFile) -> None:
        """One more user of a file that is there, or on its way."""
        assert file.state in (FileState.DOWNLOADING, FileState.READY)
        file.users += 1
        self._idle.pop(file.number, None)

    def downloaded(self, file: HeldFile) -> None:
        """The download has succeeded, and somebody waits for it."""
        assert file.state is FileState.DOWNLOADING
        file.state = FileState.READY

    def stopped(self, file: HeldFile) -> None:
        """The download has ended, and there is no file: it failed, or was abandoned. Who waited uses nothing."""
        if file.state is not FileState.GONE:
            assert file.state in (FileState.DOWNLOADING, FileState.ABANDONED)
            self._drop(file)

    def release(self, file: HeldFile, now_s: float) -> None:
        """One user less. The last one of a download abandons it. Nothing happens to a file that is gone."""
        if file.state is FileState.GONE:
            return
        assert file.users > 0, "released more often than used"
        file.users -= 1
        if file.users == 0 and file.state is FileState.DOWNLOADING:
            file.state = FileState.ABANDONED
        elif file.users == 0 and file.state is FileState.READY:
            file.idle_since_s = now_s
            self._idle[file.number] = file

    def condemn(self, file: HeldFile) -> None:
        """A user has found it damaged: nobody else finds it, and it goes with its last user."""
        if file.state is FileState.READY:
            file.state = FileState.CONDEMNED
            del self._files[file.handle]
            self._condemned[file.number] = file

    def evict(self, now_s: float) -> Sequence[Eviction]:
        """What has to go now. Called after whatever may have made a file unused, or taken room."""
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
        """Everything is gone, in use or not."""
        for file in self.held:
            self._drop(file)

    def check_invariants(self) -> None:
        """What always holds, between any two calls."""
        assert self.held_bytes == sum(file.handle.length for file in self.held), "bytes miscounted"
        for handle, file in self._files.items():
            assert file.handle == handle
            assert file.state in (FileState.DOWNLOADING, FileState.READY, FileState.ABANDONED)
            assert (file.users > 0) == (file.number not in self._idle and file.state is not FileState.ABANDONED)
        assert all(file.state is FileState.CONDEMNED and file.users >= 0 for file in self._condemned.values())
        assert all(file.state is FileState.READY and file.users == 0 for file in self._idle.values())
        since = [file.idle_since_s for file in self._idle.values()]
        assert since == sorted(since), "not in the order in which they were let go"

    def _drop(self, file: HeldFile) -> None:
        self._idle.pop(file.number, None)
        self._condemned.pop(file.number, None)
        if self._files.get(file.handle) is file:
            del self._files[file.handle]
        self.held_bytes -= file.handle.length
        file.state, file.users = FileState.GONE, 0
