"""The files of a RocksDB base in the place of a database: what a slow local copy can do to them. Nothing."""

from contextlib import nullcontext, suppress
from pathlib import Path
from zlib import crc32

from statebackend._checkpoint.fetch import Fetcher, ignore_file
from statebackend._checkpoint.rocksdb_restore import RocksDBRestore
from statebackend._codec.commit import Commit
from statebackend._local.rocksdb_copies import RocksDBCopies, Verify
from statebackend._tables.files_copy import FilesCopy
from statebackend._threads import WorkerThreads
from statebackend.errors import StoreUnavailableError
from statebackend.ids import (
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    RangeState,
    RocksDBBase,
    RocksDBFile,
)
from statebackend.objectstore import MemoryStore

OWNER = KeyGroupRange(0, 63)
CONTENT = {"000008.sst": b"table " * 100, "CURRENT": b"MANIFEST-000005\n"}
FILES = tuple(RocksDBFile(name, Handle(name, 0, len(data), crc32(data))) for name, data in CONTENT.items())
PART = RangeState(OWNER, (), rocksdb=(RocksDBBase(OWNER, CheckpointId(1), (OWNER,), FILES),))
COMMIT = Commit(
    job="fleet",
    sequence=CommitSequence(1),
    checkpoint_id=CheckpointId(1),
    epoch=Epoch(1),
    parent=None,
    stamp="stamp",
    max_parallelism=64,
    ranges=(PART,),
    states=(),
)


class LateCopies(RocksDBCopies):
    """Gives up on each file, and has left a thread behind that goes on in the end."""

    def __init__(self, threads: WorkerThreads) -> None:
        super().__init__((), "fleet", threads, writable=False, timeout_s=0.0)
        self._targets: list[Path] = []

    async def place(self, base: RocksDBBase, file: RocksDBFile, target: Path, verify: Verify) -> None:
        self._targets.append(target)
        raise StoreUnavailableError("slow")

    def go_on(self) -> None:
        for target in self._targets:
            with suppress(FileNotFoundError):
                target.write_bytes(b"late")


class Tables:
    """Remembers what it was to take over."""

    adopted: Path

    def copy_files(self, directory: Path) -> FilesCopy:
        raise NotImplementedError

    def adopt(self, directory: Path) -> None:
        self.adopted = directory


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def contents_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def test_a_local_copy_that_comes_too_late_does_not_touch_the_database(tmp_path: Path) -> None:
    """By then the files are those of the primary, and the database may have them open, or have replaced them."""
    store, tables, threads = MemoryStore(), Tables(), WorkerThreads(cpu_threads_max=1, io_threads_max=1)
    copies = LateCopies(threads)
    for name, data in CONTENT.items():
        await store.put(name, (data,))
    restore = RocksDBRestore(
        Fetcher(store, at_hand={}, threads=threads),
        copies,
        tables=tables,
        open_scratch=lambda: nullcontext(tmp_path),
        concurrency_max=4,
        threads=threads,
    )
    await restore.run(PART, COMMIT, lambda _: (), ignore_file)
    copies.go_on()
    assert contents_of(tables.adopted) == CONTENT
    assert names_in(tmp_path) == [tables.adopted.name]
    assert [found.local for found in restore.fetched] == [False, False]
