"""The RocksDB under one backend's tables: writes that wait for a batch, and rows that were used last.

The changelog and the bases are the truth, and the database is rebuilt from them. No write is lost to a full disk, or to
a copy of the files that is being made: it waits in memory, where it is read like all others.
"""

import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from statebackend._tables.files_copy import FilesCopy
from statebackend._tables.rocksdb_files import BATCH_WRITES_MAX, PointInTimeView, RocksFiles
from statebackend._tables.row_cache import ROW_BYTES, RowCache
from statebackend.errors import StoreError
from statebackend.settings import MiB

PENDING_BYTES_MAX: Final = 4 * MiB
"""Bytes that wait for a batch, of keys and entries."""


class PendingWrites(Protocol):
    """Writes of one table that wait for the next batch."""

    def writes(self) -> tuple[Sequence[bytes], Sequence[bytes | None]]:
        """Keys, and the new value of each, `None` to delete it."""
        ...

    def sent(self) -> None:
        """The batch was written, or the database closed: forget the writes."""
        ...


class RocksStore:
    """The database of one backend, in a directory of its own: `reopen`, `read_only` and errors as for `RocksFiles`.

    `memory_bytes` limits its memory: three quarters are RocksDB's, a quarter is for the tables' `cache` of rows. One
    thread at a time uses the store, any thread its views. Where the disk fails the writes stay in memory, and the next
    write tries again.

    A forked process cannot use the store, nor open another: there that raises `ForkedProcessError`, and the parent's
    files stay whole.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_bytes: int,
        pending_writes_max: int = BATCH_WRITES_MAX,
        row_bytes_max: int | None = None,
        reopen: bool = False,
        read_only: bool = False,
    ) -> None:
        self._pending_writes_max = pending_writes_max
        self.cache: Final = RowCache(memory_bytes // 4 if row_bytes_max is None else row_bytes_max)
        self._files: Final = RocksFiles(directory, memory_bytes=memory_bytes, reopen=reopen, read_only=read_only)
        self._pending: list[PendingWrites] = []
        self._writes = 0
        self._bytes = 0
        self._copy: FilesCopy | None = None
        self._held_bytes_max = memory_bytes // 8
        self.get: Final = self._files.get
        """The value of a key, `None` where it has none. Writes that wait for a batch do not show."""
        _open_stores.add(self)

    @property
    def directory(self) -> Path:
        """The directory of the files: after `adopt` another one than the store was opened with."""
        return self._files.directory

    @property
    def waiting(self) -> int:
        """Number of writes that wait for the next batch."""
        return self._writes

    def register(self, pending: PendingWrites) -> None:
        """Send these writes with the next batch."""
        self._pending.append(pending)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """As `get` for each key."""
        return self._files.get_many(keys)

    def estimate(self) -> tuple[int, int]:
        """About how many keys there are, of all tables, and the bytes of the files. Writes that wait count as new."""
        keys, size_bytes = self._files.estimate()
        return keys + self._writes, size_bytes + self._bytes

    @property
    def room(self) -> int:
        """Writes left until the next batch is sent; 0 or less where the disk has refused a batch."""
        return self._pending_writes_max - (0 if self._is_held() else self._writes)

    def wrote(self, size_bytes: int, writes: int = 1) -> None:
        """`writes` more wait, of `size_bytes` together. Sends them if they fill a batch."""
        self._writes += writes
        self._bytes += size_bytes
        if (self._writes >= self._pending_writes_max or self._bytes >= PENDING_BYTES_MAX) and not self._is_held():
            self.flush()

    def _is_held(self) -> bool:
        """True if writes are held back, and may wait longer."""
        if self._copy is None or self._copy.ended:
            return False
        return self._bytes + self._writes * ROW_BYTES < self._held_bytes_max

    def flush(self) -> None:
        """Send all pending writes, in batches. Where the disk fails, all of them wait on; some may be in the database.

        If they are held back, waits until the files are copied, or copies them.
        """
        copy, self._copy = self._copy, None
        if copy is not None:
            with suppress(StoreError):  # the maker of the copy gets its error
                copy.run()
        if not self._pending:
            return
        for pending in self._pending:
            self._files.write(*pending.writes())
        self._drop()

    def write(self, keys: Sequence[bytes], data: Sequence[bytes | None]) -> None:
        """Set the value of each key, or delete it for `None`, in this order, after the pending writes."""
        self.flush()
        self._files.write(keys, data)

    def write_out(self) -> None:
        """Move all writes so far from memory to files, where `reopen` finds them. Blocks on the disk."""
        self.flush()
        self._files.write_out()

    def copy_files(self, directory: Path) -> FilesCopy:
        """Copy all writes so far, as files, to `directory`, which must not exist yet, when the result is `run`.

        Does not block. Until the copy is made, later writes wait in memory. If they take an eighth of `memory_bytes`,
        or the database must have them, as for a view, the writer makes the copy itself or waits for it.
        """
        copy = FilesCopy(lambda: self._files.copy_to(directory))
        try:
            self.flush()
        except StoreError as error:  # `run` raises it: by now the caller has committed, and must not fail
            copy.fail(error)
        self._copy = copy
        return copy

    def adopt(self, directory: Path) -> None:
        """Replace this database, which must be empty, with the one that `copy_files` made in `directory`.

        Blocks on the disk. Where that cannot be opened, the store is as it was.
        """
        assert not self._pending, "written to before"
        self._files.adopt(directory)
        self.cache.clear()

    def view(self) -> PointInTimeView:
        """The database with all writes so far and none later. Sends the pending writes."""
        self.flush()
        return self._files.view()

    def close(self) -> None:
        """Close the database; views keep the files they need. Twice is fine. Blocks on the disk, takes no room."""
        _open_stores.discard(self)
        if self._copy is not None:
            self._copy.give_up()
        self._drop()
        self.cache.clear()
        self._files.close()

    def forget(self) -> None:
        """Stop answering from the cache, in a forked process, where the files refuse."""
        self.cache.clear()

    def _drop(self) -> None:
        for pending in self._pending:
            pending.sent()
        self._pending.clear()
        self._writes = self._bytes = 0


_open_stores: Final[weakref.WeakSet[RocksStore]] = weakref.WeakSet()


def _forget_in_forked_child() -> None:
    for store in list(_open_stores):
        store.forget()


os.register_at_fork(after_in_child=_forget_in_forked_child)
