"""Directories on this host in which the state of a range is cached from one process to the next.

    <parent>/job_<job>/kg_<first>_<last>/lock      locked by the process that works on the range; dies with it
    <parent>/job_<job>/kg_<first>_<last>/mark      the range manifest; not there while a process works on the files
    <parent>/job_<job>/kg_<first>_<last>/files/    the state
    <parent>/job_<job>/kg_<first>_<last>/scratch/  what else the process that has the lock needs

    mark  := checksum:u32 body              little-endian crc32 of body
    body  := boot_id newline manifest       msgpack map of the fields of `RangeManifest`

The process that has the lock removes the manifest before it touches a file, and writes one when all files are written
and closed. So files without a manifest belong to a process that was killed or is at work: they are removed, and never
believed. Nothing is synced, so a manifest counts only until the machine restarts: a kill loses nothing that was
written, a power cut may lose anything.
"""

import logging
import re
import struct
import zlib
from collections.abc import AsyncGenerator, Collection
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

import anyio
import msgspec

from statebackend._local.disk import check_ours, is_ours, make_directory, remove_directory
from statebackend._local.layout import job_directory
from statebackend._local.locks import lock_file
from statebackend._local.scratch import ADVICE
from statebackend._threads import FileThreads
from statebackend.errors import LocalRootError
from statebackend.ids import Epoch, KeyGroupRange

LAYOUT: Final = 1
"""The version of the files' layout: a release that writes them differently has another one."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_RANGE: Final = re.compile(r"kg_(0|[1-9][0-9]*)_(0|[1-9][0-9]*)")
_CHECKSUM: Final = struct.Struct("<I")
_logger = logging.getLogger(__name__)


class RangeManifest(msgspec.Struct, frozen=True):
    """Says which job's state the files of a range hold. `content` is for the caller alone to encode and decode."""

    primary: str
    max_parallelism: int
    epoch: Epoch
    content: bytes
    layout: int = LAYOUT


class RangeDirectory:
    """The directory of a range, locked by this process. All methods block on the disk."""

    def __init__(self, path: Path, boot: str) -> None:
        self.files: Final = path / "files"
        self.scratch: Final = path / "scratch"
        self._path = path
        self._manifest = path / "mark"
        self._boot = boot

    def take_manifest(self) -> RangeManifest | None:
        """Remove and return the manifest; the files may be changed from now on. `None`: they must not be used."""
        manifest = _read_manifest(self._manifest, self._boot)
        self._manifest.unlink(missing_ok=True)
        return manifest

    def put_manifest(self, manifest: RangeManifest) -> None:
        """Write the manifest. The files must be closed. Raises `OSError`."""
        body = self._boot.encode() + b"\n" + msgspec.msgpack.encode(manifest)
        temporary = self._path / "mark.tmp"
        temporary.write_bytes(_CHECKSUM.pack(zlib.crc32(body)) + body)
        temporary.replace(self._manifest)

    def settle(self, directory: Path) -> None:
        """Move the files, which are closed, from `directory` to their place, and remove the scratch directory."""
        if directory != self.files:
            remove_directory(self.files)
            directory.rename(self.files)
        remove_directory(self.scratch)

    def make_scratch(self) -> None:
        """Make the scratch directory, empty. Raises `OSError`."""
        remove_directory(self.scratch)
        self.scratch.mkdir()

    def clear(self) -> None:
        """Remove the files and the scratch directory. Raises `OSError`."""
        remove_directory(self.files)
        remove_directory(self.scratch)


@asynccontextmanager
async def open_range_directory(
    parent: Path, job: str, key_groups: KeyGroupRange, threads: FileThreads
) -> AsyncGenerator[RangeDirectory | None]:
    """The directory of a range, locked for as long as the context lasts.

    `None` where another process has it, or the system does not tell one start of the machine from the next. Raises
    `LocalRootError` where it cannot be made. A failed or cancelled call leaves no lock.
    """
    with ExitStack() as locks:  # entered in the thread, so that a cancelled call cannot lose the lock
        yield await threads.io(_locked, parent, job, key_groups, locks)


async def remove_ranges(
    parent: Path, job: str, epoch: Epoch, threads: FileThreads, *, but: Collection[KeyGroupRange] = (), timeout_s: float
) -> None:
    """Remove the state that older epochs of the job have cached on this host, except that of the ranges in `but`.

    Best effort, for `timeout_s`; a thread that hangs is abandoned, and does no harm when it goes on.
    """
    with anyio.move_on_after(timeout_s) as bounded:
        await threads.io(remove_other_ranges, parent, job, but, epoch, abandon_after_s=0.0)
    if bounded.cancelled_caught:
        _logger.warning("the directory of the ranges hangs, so old ranges stay: directory=%s", parent)


def remove_other_ranges(parent: Path, job: str, owners: Collection[KeyGroupRange], epoch: Epoch) -> int:
    """Remove the files of ranges not in `owners`; return how many ranges had some. Blocks on the disk.

    Leaves a range that a process works on, or that `epoch` or a later one has cached. Best effort.
    """
    removed, names = 0, {_name(key_groups) for key_groups in owners}
    with suppress(OSError, LocalRootError):
        check_ours(parent, ADVICE)
        check_ours(job_directory(parent, job), ADVICE)
        for path in job_directory(parent, job).iterdir():
            if path.name not in names and _RANGE.fullmatch(path.name) and is_ours(path):
                removed += _remove_older(path, epoch)
    return removed


def _remove_older(path: Path, epoch: Epoch) -> bool:
    """True if files were removed. The lock file stays: see `job_directories`."""
    try:
        with closing(lock_file(path / "lock")) as lock:
            if not lock.held:
                return False
            directory = RangeDirectory(path, _boot())
            manifest = _read_manifest(path / "mark", _boot())
            is_empty = not (directory.files.exists() or directory.scratch.exists())
            if is_empty or (manifest is not None and manifest.epoch >= epoch):
                return False
            directory.take_manifest()
            directory.clear()
    except OSError as error:
        _logger.warning("could not remove the files of an old range: path=%s reason=%s", path, error)
        return False
    return True


def _locked(parent: Path, job: str, key_groups: KeyGroupRange, locks: ExitStack) -> RangeDirectory | None:
    if not (boot := _boot()):
        return None
    path = job_directory(parent, job) / _name(key_groups)
    try:
        make_directory(parent)
        check_ours(parent, ADVICE)
        make_directory(path)
        for directory in (path.parent, path):
            check_ours(directory, ADVICE)
        lock = lock_file(path / "lock")
    except OSError as error:
        raise LocalRootError(
            "the directory of a range cannot be used", directory=str(path), reason=error.strerror
        ) from error
    locks.callback(lock.close)
    return RangeDirectory(path, boot) if lock.held else None


def _read_manifest(path: Path, boot: str) -> RangeManifest | None:
    """The manifest; `None` where it is missing, damaged, or from another layout or start of the machine."""
    try:
        data = path.read_bytes()
        (checksum,), body = _CHECKSUM.unpack_from(data), data[_CHECKSUM.size :]
        if zlib.crc32(body) != checksum:
            return None
        found, _, encoded = body.partition(b"\n")
        manifest = msgspec.msgpack.decode(encoded, type=RangeManifest)
    except (OSError, struct.error, ValueError):
        return None
    return manifest if found.decode() == boot and manifest.layout == LAYOUT else None


def _boot() -> str:
    """The id of this start of the machine; empty where the system does not give one."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _name(key_groups: KeyGroupRange) -> str:
    return f"kg_{key_groups.first}_{key_groups.last}"
