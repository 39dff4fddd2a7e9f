"""Directories on this host in which the state of a range outlives the process that has worked on it.

    <parent>/job_<job>/kg_<first>_<last>/lock      held by the process that works on the range; dies with it
    <parent>/job_<job>/kg_<first>_<last>/mark      what the files are; not there while somebody works on them
    <parent>/job_<job>/kg_<first>_<last>/files/    the state
    <parent>/job_<job>/kg_<first>_<last>/scratch/  what whoever has the lock needs besides

    mark := checksum:u32 manifest                  little-endian crc32; msgpack map of the fields of `Mark`

Whoever has the lock takes the mark away before he touches a file, and puts one there when all is written and closed. So
files without a mark are those of somebody who was killed, or is at work: they are removed, and never believed. Nothing
is synced: a mark counts until the machine is started again, for a kill loses nothing that was written, and a power cut
may lose anything.
"""

import logging
import struct
import zlib
from collections.abc import AsyncGenerator, Collection
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

import anyio
import msgspec

from statebackend._local.disk import make_directory, remove_directory
from statebackend._local.layout import job_directory
from statebackend._local.locks import lock_file
from statebackend._local.scratch import check_ours
from statebackend._tasks import in_thread
from statebackend.errors import LocalRootError
from statebackend.ids import Epoch, KeyGroupRange

LAYOUT: Final = 1
"""Of the files. A release that writes them otherwise has another number."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_CHECKSUM: Final = struct.Struct("<I")
_logger = logging.getLogger(__name__)


class Mark(msgspec.Struct, frozen=True):
    """What the files of a range are: of which job, and made by whom; the rest is known to who has put it there."""

    primary: str
    max_parallelism: int
    epoch: Epoch
    content: bytes
    layout: int = LAYOUT


class RangeDirectory:
    """The directory of a range, which is ours. All methods block on the disk."""

    def __init__(self, path: Path, boot: str) -> None:
        self.files: Final = path / "files"
        self.scratch: Final = path / "scratch"
        self._path = path
        self._mark = path / "mark"
        self._boot = boot

    def take_mark(self) -> Mark | None:
        """What the files are, which may be changed from now on; `None` where nobody can say."""
        mark = _read_mark(self._mark, self._boot)
        self._mark.unlink(missing_ok=True)
        return mark

    def put_mark(self, mark: Mark) -> None:
        """The files are closed, and this is what they are. Raises `OSError`."""
        manifest = self._boot.encode() + b"\n" + msgspec.msgpack.encode(mark)
        temporary = self._path / "mark.tmp"
        temporary.write_bytes(_CHECKSUM.pack(zlib.crc32(manifest)) + manifest)
        temporary.replace(self._mark)

    def settle(self, directory: Path) -> None:
        """The files are closed, and lie in `directory`: bring them to their place. The scratch directory goes."""
        if directory != self.files:
            remove_directory(self.files)
            directory.rename(self.files)
        remove_directory(self.scratch)

    def make_scratch(self) -> None:
        """Make the scratch directory, empty. Raises `OSError`."""
        remove_directory(self.scratch)
        self.scratch.mkdir()

    def clear(self) -> None:
        """Remove the files. Raises `OSError`."""
        remove_directory(self.files)
        remove_directory(self.scratch)


@asynccontextmanager
async def open_range_directory(
    parent: Path, job: str, key_groups: KeyGroupRange
) -> AsyncGenerator[RangeDirectory | None]:
    """The directory of a range, for as long as the context lasts. `None`: another process has it, or none can be kept.

    Raises `LocalRootError` where it cannot be made. Failed or cancelled, it leaves no lock.
    """
    limiter = anyio.CapacityLimiter(1)
    with ExitStack() as claims:  # entered in the thread, so that a cancelled call cannot lose it
        yield await in_thread(lambda: _claimed(parent, job, key_groups, claims), limiter=limiter)


async def remove_ranges(
    parent: Path, job: str, epoch: Epoch, *, but: Collection[KeyGroupRange] = (), timeout_s: float
) -> None:
    """Remove what older epochs have kept of the job on this host, unless it is of these ranges.

    Best effort, for `timeout_s`; a thread that hangs is left behind, and does no harm when it goes on.
    """
    limiter = anyio.CapacityLimiter(1)
    with anyio.move_on_after(timeout_s) as bounded:
        await in_thread(remove_other_ranges, parent, job, but, epoch, limiter=limiter, abandon_after_s=0.0)
    if bounded.cancelled_caught:
        _logger.warning("the directory of the ranges hangs, and what is left of them stays: directory=%s", parent)


def remove_other_ranges(parent: Path, job: str, owners: Collection[KeyGroupRange], epoch: Epoch) -> int:
    """Remove the files of ranges that there are no more; say of how many. Blocks on the disk.

    Not of one that somebody works on, or that was put there in `epoch` or later. Best effort.
    """
    removed, names = 0, {_name(key_groups) for key_groups in owners}
    with suppress(OSError, LocalRootError):
        check_ours(parent)
        for path in job_directory(parent, job).iterdir():
            if path.name not in names and path.name.startswith("kg_"):
                removed += _remove_older(path, epoch)
    return removed


def _remove_older(path: Path, epoch: Epoch) -> bool:
    """The lock file stays: who removes it could hold a lock on a file that the next one does not see."""
    try:
        with closing(lock_file(path / "lock")) as lock:
            if not lock.held:
                return False
            directory = RangeDirectory(path, _boot())
            mark = _read_mark(path / "mark", _boot())
            is_empty = not (directory.files.exists() or directory.scratch.exists())
            if is_empty or (mark is not None and mark.epoch >= epoch):
                return False
            directory.take_mark()
            directory.clear()
    except OSError as error:
        _logger.warning("could not remove the files of a range that there is no more: path=%s reason=%s", path, error)
        return False
    return True


def _claimed(parent: Path, job: str, key_groups: KeyGroupRange, claims: ExitStack) -> RangeDirectory | None:
    if not (boot := _boot()):
        return None
    path = job_directory(parent, job) / _name(key_groups)
    try:
        make_directory(parent)
        check_ours(parent)
        make_directory(path)
        lock = lock_file(path / "lock")
    except OSError as error:
        raise LocalRootError(
            "the directory of a range cannot be used", directory=str(path), reason=error.strerror
        ) from error
    claims.callback(lock.close)
    return RangeDirectory(path, boot) if lock.held else None


def _read_mark(path: Path, boot: str) -> Mark | None:
    try:
        data = path.read_bytes()
        (checksum,), manifest = _CHECKSUM.unpack_from(data), data[_CHECKSUM.size :]
        if zlib.crc32(manifest) != checksum:
            return None
        found, _, encoded = manifest.partition(b"\n")
        mark = msgspec.msgpack.decode(encoded, type=Mark)
    except (OSError, struct.error, ValueError):
        return None
    return mark if found.decode() == boot and mark.layout == LAYOUT else None


def _boot() -> str:
    """Which start of the machine this is, empty where the system does not say."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _name(key_groups: KeyGroupRange) -> str:
    return f"kg_{key_groups.first}_{key_groups.last}"
