"""The local copies of RocksDB bases: one directory each, complete or not there.

    <root i>/job_<job>/op_state_kg_<first>_<last>/chk_<id>/    i = id mod roots; see `layout`, `snapshots`

A file that never changes is a link to RocksDB's own file: it takes no room until RocksDB removes that. Every file is
checked against the commit when it is read, so a damaged directory saves what it can. All of this is best effort, and a
root that hangs is no longer used.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import msgspec

from statebackend._codec.local_snapshot import LocalSnapshot, decode_local_snapshot
from statebackend._local.disk import is_ours, linked
from statebackend._local.layout import LocalLayout, checkpoint_of, job_directory, owner_of
from statebackend._local.segments import LocalSegments
from statebackend._local.snapshot_directories import SNAPSHOT_NAME, LocalSnapshots, open_local_snapshots
from statebackend._once import OnceLog, reason_of
from statebackend._threads import WorkerThreads
from statebackend.errors import DataError, ObjectNotFoundError, StoreError, StoreFullError, StoreUnavailableError
from statebackend.ids import Handle, KeyGroupRange, RocksDBBase, RocksDBFile
from statebackend.settings import MiB

T = TypeVar("T")
Verify = Callable[[bytes, Handle], None]
"""Raises a `DataError` unless the bytes are exactly those that the handle points to. Runs in a worker thread."""

OPERATOR: Final = "state"
"""There is one operator so far."""
STORED_BYTES_PER_S: Final = 16 * MiB
"""Storing a base may take one second more per this many bytes: its files may have to be copied, and are synced."""
_logger = logging.getLogger(__name__)


class RocksDBCopies:
    """The RocksDB bases of one job on this host, of all its owners. `writable`: this backend owns the `roots`.

    `bytes_max` limits the bytes in one root, including the copies of `segments` there; 0 for no limit. A call takes at
    most `timeout_s`, and `store` longer for a larger base; a root that takes longer is not used any more. Calls raise
    `StoreError`s, and the caller goes on without the copy.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        job: str,
        threads: WorkerThreads,
        *,
        writable: bool,
        timeout_s: float,
        bytes_max: int = 0,
        segments: LocalSegments | None = None,
        hanging: Collection[int] = (),
    ) -> None:
        """`hanging`: the indexes of the roots that are not used from the start."""
        self.writable: Final = writable
        self._roots = tuple(roots)
        self._job = job
        self._timeout_s = timeout_s
        self._bytes_max = bytes_max
        self._segments = segments
        self._snapshots: dict[tuple[int, KeyGroupRange], LocalSnapshots] = {}  # one per root: another root may hang
        self._slow = set(hanging)
        self._log = OnceLog(_logger)
        self._threads = threads

    async def place(self, base: RocksDBBase, file: RocksDBFile, target: Path, verify: Verify) -> None:
        """Link or copy the local copy of the file to `target`, if `verify` accepts it.

        `target` must not be used for anything else: an abandoned thread may write there after the call has ended.
        Raises `ObjectNotFoundError` where there is no copy, what `verify` raises, or `StoreUnavailableError`.
        """
        source = self.path_of(base, file)

        def placed() -> None:
            content = _content(source)
            verify(content, file.handle)
            if not (file.never_changes and linked(source, target)):
                target.write_bytes(content)

        await self._in_time(self._root_of(base), placed)

    async def read(self, base: RocksDBBase, file: RocksDBFile) -> bytes:
        """The bytes of the local copy, unchecked. Raises what `place` raises, but for `verify`."""
        source = self.path_of(base, file)
        return await self._in_time(self._root_of(base), lambda: _content(source))

    async def is_of_another_run(self, base: RocksDBBase, file: RocksDBFile) -> bool:
        """True if the copy is whole for all that its directory says of itself, and not of this base.

        A run that was left open or killed may have made it: it had the same checkpoint, with other files.
        """
        record = self._directory(base) / SNAPSHOT_NAME
        try:
            content = await self._in_time(self._root_of(base), lambda: _content(record))
            found = decode_local_snapshot(content, str(record))
        except (DataError, StoreError):
            return False
        return file not in found.rocksdb

    def path_of(self, base: RocksDBBase, file: RocksDBFile) -> Path:
        """Where the local copy of the file lies, if there is one."""
        return self._directory(base) / file.name

    async def store(self, base: RocksDBBase, files: Path) -> None:
        """Store a copy of the base, whose files lie in `files`, replacing one that is there.

        Raises `StoreError`s. The log has them once for each root and reason.
        """
        root = self._root_of(base)
        try:
            await self._store(root, base, files)
        except StoreError as error:
            self._log.warning(
                root, reason_of(error), "a local copy of a RocksDB base was given up: root=%d reason=%s", root, error
            )
            raise

    async def _store(self, root: int, base: RocksDBBase, files: Path) -> None:
        if self._bytes_max:
            await self._in_time(root, lambda: self._check_room(base))
        snapshot = self._snapshot_of(base)

        async def store() -> None:
            snapshots = await self._snapshots_of(root, base.owner)
            await snapshots.store(snapshot, files)
            if base.checkpoint_id not in snapshots.checkpoints:
                raise StoreUnavailableError("a newer base has a local copy", checkpoint_id=base.checkpoint_id)

        await self._bounded(root, self._timeout_s + base.size_bytes / STORED_BYTES_PER_S, store)
        await self._count(root)

    async def confirm(self, base: RocksDBBase) -> None:
        """A commit has this base: remove the copies of its owner's older bases. Errors are logged."""

        async def confirm(root: int) -> None:
            snapshots = self._snapshots.get((root, base.owner))
            if snapshots is not None:  # else there are none: `prune` has opened all that existed
                await self._bounded(root, self._timeout_s, partial(snapshots.confirm, base.checkpoint_id))

        await self._in_each_root(confirm)

    async def abort(self, base: RocksDBBase) -> None:
        """No commit will ever have this base: remove its copy. Raises `StoreError`s."""
        root = self._root_of(base)

        async def abort() -> None:
            await (await self._snapshots_of(root, base.owner)).abort(base.checkpoint_id)

        await self._bounded(root, self._timeout_s, abort)
        await self._count(root)

    async def prune(self, needed: Collection[RocksDBBase], *, among: KeyGroupRange | None = None) -> None:
        """Remove every base that is not `needed`, and every incomplete directory; with `among`, of owners within it.

        The damaged record of a base that is needed is written anew: its files are checked when they are read. Called
        once by the owner of the roots, after the restore. Errors are logged.
        """

        async def prune(root: int) -> None:
            for owner in await self._in_time(root, partial(self._owners, root)):
                if among is None or owner.intersection(among):
                    await self._bounded(root, self._timeout_s, partial(self._prune_owner, root, owner, needed))

        await self._in_each_root(prune)

    async def _prune_owner(self, root: int, owner: KeyGroupRange, needed: Collection[RocksDBBase]) -> None:
        snapshots = await self._snapshots_of(root, owner)
        wanted = {base.checkpoint_id: base for base in needed if base.owner == owner and self._root_of(base) == root}
        keep = {
            checkpoint_id
            for checkpoint_id in list(snapshots.checkpoints)
            if checkpoint_id in wanted and await snapshots.mend(self._snapshot_of(wanted[checkpoint_id]))
        }
        await snapshots.prune(keep.__contains__)

    def _snapshot_of(self, base: RocksDBBase) -> LocalSnapshot:
        return LocalSnapshot(
            job=self._job,
            operator=OPERATOR,
            checkpoint_id=base.checkpoint_id,
            key_groups=base.owner,
            changelog=(),
            rocksdb=base.files,
        )

    async def _in_each_root(self, remove: Callable[[int], Awaitable[None]]) -> None:
        for root in range(len(self._roots)):
            try:
                await remove(root)
                await self._count(root)
            except StoreError as error:
                _logger.warning("could not prune the RocksDB bases of one root: root=%d reason=%s", root, error)

    async def _snapshots_of(self, root: int, owner: KeyGroupRange) -> LocalSnapshots:
        if (root, owner) not in self._snapshots:
            layout = msgspec.structs.replace(self._layout(owner), roots=(self._roots[root],))
            self._snapshots[root, owner] = await open_local_snapshots(
                layout, self._threads.of_root(self._roots[root]), abandon_after_s=0.0
            )
        return self._snapshots[root, owner]

    def _check_room(self, base: RocksDBBase) -> None:
        index = self._root_of(base)
        held_bytes = _bytes_in(self._roots[index], self._job)
        if self._segments is not None:
            held_bytes += self._segments.held_bytes[index]
        if held_bytes + base.size_bytes > self._bytes_max:
            raise StoreFullError("the local root is full", held_bytes=held_bytes, local_bytes_max=self._bytes_max)

    async def _count(self, root: int) -> None:
        """Tell the budget of the root how many bytes the bases take."""
        if self._segments is not None and self._bytes_max:
            size_bytes = await self._in_time(root, lambda: _bytes_in(self._roots[root], self._job))
            self._segments.set_apart(root, size_bytes)

    def _owners(self, index: int) -> Sequence[KeyGroupRange]:
        names = sorted(path.name for path in job_directory(self._roots[index], self._job).glob("op_*") if is_ours(path))
        return [found[1] for name in names if (found := owner_of(name)) is not None and found[0] == OPERATOR]

    def _layout(self, owner: KeyGroupRange) -> LocalLayout:
        return LocalLayout(self._roots, self._job, OPERATOR, owner)

    def _directory(self, base: RocksDBBase) -> Path:
        return self._layout(base.owner).checkpoint_directory(base.checkpoint_id)

    def _root_of(self, base: RocksDBBase) -> int:
        return base.checkpoint_id % len(self._roots)

    async def _in_time(self, root: int, function: Callable[[], T]) -> T:
        threads = self._threads.of_root(self._roots[root])
        return await self._bounded(root, self._timeout_s, lambda: threads.io(function, abandon_after_s=0.0))

    async def _bounded(self, root: int, timeout_s: float, call: Callable[[], Awaitable[T]]) -> T:
        if root not in self._slow:
            try:
                with anyio.move_on_after(timeout_s):
                    return await call()
            except StoreError:
                raise
            except FileNotFoundError as error:
                raise ObjectNotFoundError("there is no local copy", path=error.filename) from error
            except OSError as error:
                raise StoreUnavailableError("the local copy cannot be used", reason=error.strerror) from error
            self._slow.add(root)
            _logger.warning("a local root is too slow for RocksDB bases, and is not used any more: root=%d", root)
        raise StoreUnavailableError("slow")


class CopiedBase(msgspec.Struct, frozen=True):
    """A directory of a RocksDB base. `keys`: the objects its files are copies of; empty if it was never complete."""

    path: Path
    keys: frozenset[str]
    size_bytes: int
    modified_s: float


def copied_bases(root: Path, job: str) -> Sequence[CopiedBase]:
    """Every directory of a RocksDB base in one root, of all owners. Blocks on the disk. Raises `OSError`."""
    paths = sorted(job_directory(root, job).glob(f"op_{OPERATOR}_kg_*/chk_*"))
    ours = [path for path in paths if owner_of(path.parent.name) and checkpoint_of(path.name) is not None]
    found = [_copied_base(path) for path in ours if not (path.parent.is_symlink() or path.is_symlink())]
    return [each for each in found if each is not None]


def _copied_base(path: Path) -> CopiedBase | None:
    """`None` where a living process has removed the directory, or a part of it, meanwhile."""
    keys = frozenset[str]()
    with suppress(FileNotFoundError, DataError):
        snapshot = decode_local_snapshot(_content(path / SNAPSHOT_NAME), str(path))
        keys = frozenset(file.handle.key for file in snapshot.rocksdb)
    with suppress(FileNotFoundError):
        sizes = [each.stat().st_size for each in path.iterdir()]
        return CopiedBase(path, keys, sum(sizes), path.stat().st_mtime)
    return None


def _content(path: Path) -> bytes:
    return path.read_bytes()


def _bytes_in(root: Path, job: str) -> int:
    """Bytes of all bases in the root. A file that several directories link to counts once."""
    found = (path.stat() for path in job_directory(root, job).glob(f"op_{OPERATOR}_kg_*/chk_*/*"))
    return sum({each.st_ino: each.st_size for each in found}.values())
