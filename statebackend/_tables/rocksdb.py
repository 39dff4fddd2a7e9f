"""RocksDB: the files of one backend's tables, and all that rocksdict has to be told. The only place that imports it.

What lies here is a cache of what the changelog and the bases say: there is no write-ahead log, nothing is synced, and
what was not written to a file is gone with the process. Writes go in batches: rocksdict keeps the interpreter's lock
while RocksDB takes one, so a batch is small.
"""

import logging
import os
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from statebackend._tasks import breathe
from statebackend.errors import BackendClosedError, StoreUnavailableError
from statebackend.settings import MiB

_logger = logging.getLogger(__name__)

PENDING_WRITES_MAX: Final = 2048
"""Writes that wait for a batch: 400,000 at once would stop every other thread for half a second, these for 5 ms."""
PENDING_BYTES_MAX: Final = 4 * MiB
"""The same in bytes, of keys and entries."""
FIT_BATCHES: Final = 64
"""Batches after which the shape of the files is looked at again, while a table is being filled."""
LEVEL_FACTOR: Final = 4
"""How much larger than the level above it a level is."""


class Shape(NamedTuple):
    """How RocksDB divides what it holds: the size of a file, and of the first level below the newest files.

    Both are shares of the whole, so that touching a hundredth of the keys makes about as much of it new, however large
    it is, and the files are about as many. In powers of two, for it is not to change with every write.
    """

    file_bytes: int
    level_bytes: int

    @classmethod
    def of(cls, total_bytes: int) -> "Shape":
        """For so many bytes in files."""
        whole = 1 << max(1, total_bytes).bit_length() - 1
        return cls(min(max(whole // 512, MiB), 64 * MiB), max(whole // 32, 4 * MiB))


UNKNOWN: Final = Shape.of(2048 * MiB)


class Waiting(Protocol):
    """Where writes wait for their batch."""

    def writes(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Keys, and what they are to have: `None` for nothing."""
        ...

    def sent(self) -> None:
        """They need not wait any more."""
        ...


class RocksStore:
    """The database of one backend, in a directory that is its own, and empty or not there unless it is to `reopen` it.

    What is reopened is what `write_out` has written, or what `copy_files` has copied; `read_only`, it stays as it is.

    `memory_bytes` bounds what RocksDB keeps in memory: half for what was written last, half for what was read last.
    State is used by one thread at a time, copies by any. Raises `StoreUnavailableError` where the disk fails: what
    was written is then as written, in memory, and the next write tries again.

    A forked process cannot use it: there every access raises `BackendClosedError`, and the parent's files stay whole.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_bytes: int,
        pending_writes_max: int = PENDING_WRITES_MAX,
        reopen: bool = False,
        read_only: bool = False,
    ) -> None:
        self._pending_writes_max = pending_writes_max
        self._memory_bytes = memory_bytes
        self._directory = directory
        with self.errors():
            self._db = _opened(directory, memory_bytes, reopen=reopen or read_only, read_only=read_only)
        self._waiting: list[Waiting] = []
        self._writes = 0
        self._bytes = 0
        self._batches = 0
        self._shape = UNKNOWN
        _open_stores.add(self)

    @property
    def directory(self) -> Path:
        """Where the files lie: not where the store was opened, once it has adopted others."""
        return self._directory

    @property
    def waiting(self) -> int:
        """Writes that wait for the next batch."""
        return self._writes

    def register(self, waiting: Waiting) -> None:
        """What waits there goes with the next batch."""
        self._waiting.append(waiting)

    def get(self, key: bytes) -> bytes | None:
        """What was written in a batch."""
        try:
            return self._db.get(key)
        except Exception as error:
            raise self._failed(error) from error

    @property
    def room(self) -> int:
        """Writes until the next batch goes; none or less where the disk has refused it."""
        return self._pending_writes_max - self._writes

    def wrote(self, size_bytes: int, writes: int = 1) -> None:
        """More writes wait, one if not said otherwise: send all that do when they are many."""
        self._writes += writes
        self._bytes += size_bytes
        if self._writes >= self._pending_writes_max or self._bytes >= PENDING_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send what waits, all of it or, where the disk fails, nothing."""
        if not self._waiting:
            return
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for waiting in self._waiting:
            for key, data in waiting.writes():
                if data is None:
                    delete(key)
                else:
                    put(key, data)
        with self.errors():
            self._db.write(batch)
        self._drop()
        self._batches += 1
        if self._batches % FIT_BATCHES == 0:
            with self.errors():
                self._fit()

    def write_out(self) -> None:
        """Write all that was written so far to files, where `reopen` finds it. Blocks on the disk."""
        self.flush()
        with self.errors():
            self._db.flush(False)  # `True` would keep the interpreter's lock until it is done
            while self._db.property_int_value("rocksdb.num-immutable-mem-table"):
                if self._db.property_int_value("rocksdb.background-errors"):
                    break
                breathe()
            self._db.flush(True)  # nothing is left to do; raises what went wrong

    def copy_files(self, directory: Path) -> None:
        """All that was written so far, as files in `directory`, which must not be there yet. Blocks on the disk.

        Files that never change are links to ours where that directory is on the same file system, and copies elsewhere.
        """
        self.write_out()
        with self.errors():
            Checkpoint(self._db).create_checkpoint(str(directory))
            self._fit()

    def _fit(self) -> None:
        """Have what is compacted from now on in the shape that is right for as much as there is."""
        shape = Shape.of(self._db.property_int_value("rocksdb.live-sst-files-size") or 0)
        if shape != self._shape:
            self._db.set_options(
                {
                    "target_file_size_base": str(shape.file_bytes),
                    "max_bytes_for_level_base": str(shape.level_bytes),
                }
            )
            self._shape = shape

    def adopt(self, directory: Path) -> None:
        """From now on the database is that in `directory`, which `copy_files` made. For a store that is still empty.

        Blocks on the disk. Where it cannot be opened, the store is as it was.
        """
        assert not self._waiting, "written to before"
        with self.errors():
            adopted = _opened(directory, self._memory_bytes, reopen=True)
            empty, self._db, self._directory, self._shape = self._db, adopted, directory, UNKNOWN
            empty.close()

    def view(self) -> "View":
        """All that was written so far."""
        self.flush()
        with self.errors():
            return View(self, self._db.iter())

    def close(self) -> None:
        """Let go of the files, but for what copies hold. Twice is fine. Blocks on the disk, and needs no room on it."""
        _open_stores.discard(self)
        self._drop()
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001  # rocksdict's have no other class; what could not be written, nobody reads
            _logger.debug("closing the tables: directory=%s reason=%s", self._directory, error)

    def forget(self) -> None:
        """In a forked process: use it no more. Closing it would wait for threads that only the parent has."""
        _forked.append(self._db)
        self._db = cast("Rdict", _Forked())

    def _drop(self) -> None:
        for waiting in self._waiting:
            waiting.sent()
        self._waiting.clear()
        self._writes = self._bytes = 0

    @contextmanager
    def errors(self) -> Generator[None]:
        """The one border where rocksdict's errors become ours. `get` has its own: a context would cost more than it."""
        try:
            yield
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        if isinstance(error, BackendClosedError):
            return error
        if isinstance(error, DbClosedError):
            return BackendClosedError("the backend is closed: open a new one")
        return StoreUnavailableError("the disk of the tables failed", directory=str(self._directory), reason=str(error))


_open_stores: Final[weakref.WeakSet[RocksStore]] = weakref.WeakSet()
_forked: Final[list[Rdict]] = []  # never let go of: that would close them


class _Forked:
    """What is in the place of the database in a forked process."""

    def __getattr__(self, name: str) -> Any:
        raise BackendClosedError("RocksDB does not survive a fork: open a backend in this process", pid=os.getpid())


def _forget_in_forked_child() -> None:
    for store in list(_open_stores):
        store.forget()


os.register_at_fork(after_in_child=_forget_in_forked_child)


class View:
    """What was in the database at one moment, for any thread: an iterator, which sees that and nothing later.

    rocksdict's `Snapshot` would be the word for it. Asked for a key, it says what was; asked for all, what is now.
    """

    def __init__(self, store: RocksStore, cursor: RdictIter) -> None:
        self._store = store
        self._cursor = cursor
        self._seeking = threading.Lock()

    def get(self, raw: bytes) -> bytes | None:
        """What the key had."""
        with self._store.errors(), self._seeking:
            found = raw if self._at() == raw else self._seek(raw)
            return self._cursor.value() if found == raw else None

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """The keys that begin with `prefix`, in order, whoever else asks meanwhile."""
        found = None
        while True:
            with self._store.errors(), self._seeking:
                if found is None:
                    found = self._seek(prefix)
                elif self._at() == found:
                    self._cursor.next()
                    found = self._at()
                else:
                    found = self._seek(found + b"\0")
            if found is None or not found.startswith(prefix):
                return
            yield found

    def _seek(self, raw: bytes) -> bytes | None:
        """The first key that does not come before this one."""
        self._cursor.seek(raw)
        return self._at()

    def _at(self) -> bytes | None:
        """The key that the cursor is at, `None` at the end."""
        if self._cursor.valid():
            return cast("bytes", self._cursor.key())
        self._cursor.status()  # raises where it is not the end but an error
        return None


def _opened(directory: Path, memory_bytes: int, *, reopen: bool, read_only: bool = False) -> Rdict:
    access = AccessType.read_only() if read_only else AccessType.read_write()
    db = Rdict(str(directory), _options(memory_bytes, reopen=reopen), access_type=access)
    if not read_only:
        db.set_write_options(_without_log())
    return db


def _options(memory_bytes: int, *, reopen: bool) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(memory_bytes // 2))
    blocks.set_cache_index_and_filter_blocks(True)  # or else they are in memory too, and bounded by nothing
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, block_based=False)
    options = Options(raw_mode=True)  # or else it pickles
    options.create_if_missing(not reopen)
    options.set_error_if_exists(not reopen)
    options.set_block_based_table_factory(blocks)
    options.set_db_write_buffer_size(memory_bytes // 2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(1)
    options.set_target_file_size_base(UNKNOWN.file_bytes)
    options.set_max_bytes_for_level_base(UNKNOWN.level_bytes)
    options.set_max_bytes_for_level_multiplier(LEVEL_FACTOR)
    options.set_level_zero_file_num_compaction_trigger(1)  # little at a time: else every fourth base would be large
    return options


def _without_log() -> WriteOptions:
    options = WriteOptions()
    cast("Any", options).disable_wal = True  # a property; its stub calls it a method
    return options
