"""One RocksDB: its files, and what is read from them and written to them. The only module that imports rocksdict.

There is no write-ahead log, nothing is synced, and a write that has not reached a file is gone with the process.
Writes go in batches, and a batch is small, because rocksdict holds the interpreter's lock while RocksDB takes it.
"""

import ctypes
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

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

from statebackend._tasks import BREATH_S, breathe
from statebackend.errors import BackendClosedError, ForkedProcessError, TableDiskError
from statebackend.settings import MiB

_logger = logging.getLogger(__name__)

BATCH_WRITES_MAX: Final = 2048
"""Writes in a batch: 400,000 at once would stop every other thread for half a second, these stop it for 5 ms."""
FLUSH_S_MIN: Final = 60.0
FLUSH_BYTES_PER_S: Final = MiB
"""Writing out takes at most this long, and as much longer as a slow disk needs for all of `memory_bytes`."""
FIT_BATCHES: Final = 64
"""Batches between two adjustments of the file sizes, while tables are being filled."""
_SIZE_PROPERTIES: Final = (
    "rocksdb.estimate-num-keys",
    "rocksdb.live-sst-files-size",
    "rocksdb.cur-size-all-mem-tables",
)
LEVEL_FACTOR: Final = 4
"""How many times larger a level is than the level above it."""


class FileSizes(NamedTuple):
    """The target size of RocksDB's files, and of the first level below the newest files.

    Both are shares of the whole, so that writing a hundredth of the keys renews about the same share of a small and of
    a large database, and the number of files is about the same. They are powers of two, so that they change rarely.
    """

    file_bytes: int
    level_bytes: int

    @classmethod
    def of(cls, total_bytes: int) -> "FileSizes":
        """The sizes for a database of `total_bytes`."""
        whole = 1 << max(1, total_bytes).bit_length() - 1
        return cls(min(max(whole // 512, MiB), 64 * MiB), max(whole // 32, 4 * MiB))


UNKNOWN: Final = FileSizes.of(2048 * MiB)


class RocksFiles:
    """The database in `directory`, which must be missing or empty unless it is reopened.

    `reopen`: open what `write_out` or `copy_to` has written there. `read_only`: the same, and leave it unchanged.

    Half of `memory_bytes` holds the newest writes, a quarter the blocks of the files that were read last. One thread at
    a time uses it, any thread its views. Raises `TableDiskError` where the disk fails.
    """

    def __init__(self, directory: Path, *, memory_bytes: int, reopen: bool = False, read_only: bool = False) -> None:
        self._memory_bytes = memory_bytes
        self._directory = directory
        with self.errors():
            self._db = _opened(directory, memory_bytes, reopen=reopen or read_only, read_only=read_only)
        self._batches = 0
        self._sizes = UNKNOWN
        _in_use.add(self)

    @property
    def directory(self) -> Path:
        """Where the files are: after `adopt` in another directory than at first."""
        return self._directory

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, `None` where it has none."""
        try:
            return self._db.get(key)
        except Exception as error:
            raise self._failed(error) from error

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """As `get` for each key."""
        with self.errors():
            return list(map(self._db.get, keys))

    def write(self, keys: Sequence[bytes], data: Sequence[bytes | None]) -> None:
        """Set the value of each key, or delete it for `None`, in this order, in batches. After an error, some of them.

        A batch is written as a whole or not at all.
        """
        for first in range(0, len(keys), BATCH_WRITES_MAX):
            batch = WriteBatch(raw_mode=True)
            _add(batch, keys[first : first + BATCH_WRITES_MAX], data[first : first + BATCH_WRITES_MAX])
            with self.errors():
                self._db.write(batch)
                self._batches += 1
                if self._batches % FIT_BATCHES == 0:
                    self._fit()

    def estimate(self) -> tuple[int, int]:
        """About how many keys there are, and the bytes that they take in files and in memory. Reads nothing."""
        with self.errors():
            keys, files, memory = map(self._db.property_int_value, _SIZE_PROPERTIES)
            return keys or 0, (files or 0) + (memory or 0)

    def write_out(self) -> None:
        """Move all writes so far from memory to files, where `reopen` finds them. Blocks on the disk."""
        with self.errors():
            self._db.flush(False)  # `True` would hold the interpreter's lock until it is done
            breaths = int((FLUSH_S_MIN + self._memory_bytes / FLUSH_BYTES_PER_S) / BREATH_S)
            while self._db.property_int_value("rocksdb.num-immutable-mem-table"):
                if self._db.property_int_value("rocksdb.background-errors"):
                    break
                if breaths <= 0:
                    raise TimeoutError("RocksDB does not write its files")
                breathe()
                breaths -= 1
            self._db.flush(True)  # has nothing left to do, but raises what went wrong

    def copy_to(self, directory: Path) -> None:
        """Copy all writes so far, as files, to `directory`, which must not exist yet. Blocks on the disk.

        Files that never change are linked where `directory` is on the same file system, and copied elsewhere.
        """
        self.write_out()
        with self.errors():
            Checkpoint(self._db).create_checkpoint(str(directory))
            self._fit()

    def adopt(self, directory: Path) -> None:
        """Replace this database by the one that `copy_to` made in `directory`. Blocks on the disk.

        Where that cannot be opened, this one stays.
        """
        with self.errors():
            adopted = _opened(directory, self._memory_bytes, reopen=True)
            before, self._db, self._directory, self._sizes = self._db, adopted, directory, UNKNOWN
            before.close()

    def view(self) -> "PointInTimeView":
        """The database with all writes so far and none later."""
        with self.errors():
            return PointInTimeView(self, self._db.iter())

    def close(self) -> None:
        """Close the database; views keep the files they need. Twice is fine. Blocks on the disk, takes no room."""
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001  # rocksdict's have no other class; writes that are lost here are not read again
            _logger.debug("closing the tables: directory=%s reason=%s", self._directory, error)

    def forget(self) -> None:
        """Stop using the database, in a forked process."""
        self._db = cast("Rdict", _Forked(self._db))

    def _fit(self) -> None:
        """Set the file sizes that suit the size of the database, for compactions from now on."""
        sizes = FileSizes.of(self._db.property_int_value("rocksdb.live-sst-files-size") or 0)
        if sizes != self._sizes:
            self._db.set_options(
                {
                    "target_file_size_base": str(sizes.file_bytes),
                    "max_bytes_for_level_base": str(sizes.level_bytes),
                }
            )
            self._sizes = sizes

    @contextmanager
    def errors(self) -> Generator[None]:
        """Translates rocksdict's errors to ours. `get` does so itself: this context would cost more than the read."""
        try:
            yield
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Exception:
        if isinstance(error, BackendClosedError):
            return error
        if isinstance(error, DbClosedError):
            return BackendClosedError("the backend is closed: open a new one")
        return TableDiskError("the disk of the tables failed", directory=str(self._directory), reason=str(error))


class PointInTimeView:
    """The content of the database at one moment, for any thread. Later writes do not show.

    It is made of one iterator. rocksdict's `Snapshot` will not do: it answers for one key as of that moment, but
    iterates over what there is now.
    """

    def __init__(self, files: RocksFiles, cursor: RdictIter) -> None:
        self._files = files
        self._cursor = cursor
        self._seeking = threading.Lock()
        _in_use.add(self)

    def get(self, raw: bytes) -> bytes | None:
        """The value that the key had, `None` where it had none."""
        with self._files.errors(), self._seeking:
            found = raw if self._at() == raw else self._seek(raw)
            return self._cursor.value() if found == raw else None

    def keys(self, first: bytes, last: bytes) -> Iterator[bytes]:
        """The keys from those that begin with `first` to those that begin with `last`, in order."""
        found = None
        while True:
            with self._files.errors(), self._seeking:
                if found is None:
                    found = self._seek(first)
                elif self._at() == found:  # else another thread has moved the cursor meanwhile
                    self._cursor.next()
                    found = self._at()
                else:
                    found = self._seek(found + b"\0")
            if found is None or found[: len(last)] > last:
                return
            yield found

    def forget(self) -> None:
        """Stop using the database, in a forked process."""
        self._seeking = threading.Lock()  # another thread of the parent may have held it
        self._cursor = cast("RdictIter", _Forked(self._cursor))

    def _seek(self, raw: bytes) -> bytes | None:
        """Move the cursor to the first key not before `raw`, and return it."""
        self._cursor.seek(raw)
        return self._at()

    def _at(self) -> bytes | None:
        """The key at the cursor, `None` at the end."""
        if self._cursor.valid():
            return cast("bytes", self._cursor.key())
        self._cursor.status()  # raises if this is an error and not the end
        return None


class _Forked:
    """Takes the place of the database, or of a cursor, in a forked process.

    What it replaces is never collected, not even when the interpreter ends: the last of them would close the database,
    and closing it waits for threads that only the parent has.
    """

    def __init__(self, replaced: object) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(replaced))

    def __getattr__(self, name: str) -> Any:
        raise ForkedProcessError(
            'RocksDB does not survive a fork: start processes with "spawn", and open in them', pid=os.getpid()
        )


_threads_of: int | None = None
"""The process whose RocksDB has begun its threads. They are for all databases, end with the process, and are in no
process that is forked from it: there RocksDB would wait for them for ever."""


_in_use: Final[weakref.WeakSet[RocksFiles | PointInTimeView]] = weakref.WeakSet()


def _forget_in_forked_child() -> None:
    """Leave the parent's databases alone, and the threads that they have in the parent."""
    for each in list(_in_use):
        each.forget()
    library: Any = ctypes.CDLL(None)
    if _threads_of is not None and hasattr(library, "on_exit"):
        # At the end of a process RocksDB joins its threads, and aborts where there are none. So the process ends as by
        # `os._exit`: with its own status, when the interpreter has ended, before the C library calls RocksDB.
        library.on_exit(library._exit, None)  # noqa: SLF001


os.register_at_fork(after_in_child=_forget_in_forked_child)


def _opened(directory: Path, memory_bytes: int, *, reopen: bool, read_only: bool = False) -> Rdict:
    global _threads_of  # noqa: PLW0603  # as RocksDB's own threads are
    if _threads_of not in (None, os.getpid()):
        raise ForkedProcessError(
            "RocksDB was used in the process that this one was forked from, and waits for threads that only that has:"
            ' start processes with "spawn", or use table="heap"',
            pid=os.getpid(),
        )
    _threads_of = os.getpid()
    access = AccessType.read_only() if read_only else AccessType.read_write()
    db = Rdict(str(directory), _options(memory_bytes, reopen=reopen), access_type=access)
    if not read_only:
        db.set_write_options(_without_log())
    return db


def _add(batch: WriteBatch, keys: Sequence[bytes], data: Sequence[bytes | None]) -> None:
    """Add writes to a batch, `None` to delete."""
    if None not in data:
        deque(map(batch.put, keys, data), maxlen=0)
        return
    for key, value in zip(keys, data, strict=True):
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)


def _options(memory_bytes: int, *, reopen: bool) -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(memory_bytes // 4))
    blocks.set_cache_index_and_filter_blocks(True)  # else they are in memory beside the cache, without a bound
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(10, block_based=False)
    options = Options(raw_mode=True)  # else rocksdict pickles keys and values
    options.create_if_missing(not reopen)
    options.set_error_if_exists(not reopen)
    options.set_block_based_table_factory(blocks)
    options.set_db_write_buffer_size(memory_bytes // 2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(1)
    options.set_target_file_size_base(UNKNOWN.file_bytes)
    options.set_max_bytes_for_level_base(UNKNOWN.level_bytes)
    options.set_max_bytes_for_level_multiplier(LEVEL_FACTOR)
    options.set_level_zero_file_num_compaction_trigger(1)  # a little each time: else every fourth base would be large
    return options


def _without_log() -> WriteOptions:
    options = WriteOptions()
    cast("Any", options).disable_wal = True  # a property; its stub calls it a method
    return options
