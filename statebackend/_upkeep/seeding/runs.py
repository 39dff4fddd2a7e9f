"""Sorts encoded rows by key group, in more of them than memory holds: runs that are in order, most of them in a file.

    file  := run*                      one for a seed, in a scratch directory, read by its writer alone
    run   := bin*                      of one state
    bin   := hash:u64* count:i64* part*            of some neighbouring key groups; counts only if the kind needs them

What all runs have of one bin is read without the rest. The newest run of a state stays in memory, so a small seed
touches no disk.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, PART_RECORDS_MAX, Changes
from statebackend._codec.change_sets.parts import decode_parts, encode_parts
from statebackend._codec.columns import Integers
from statebackend._codec.xxh64 import Hashes
from statebackend._tables.key_groups import groups_of_hashes
from statebackend._upkeep.seeding.encoders import Encoded

BINS_MAX: Final = 128
"""A bin of all runs is looked at together: its hashes are in memory at once, and its rows a run at a time."""


class BinRows(NamedTuple):
    """A run's rows of some bins: the hash of each row's key, how many changes each row takes, and these in order."""

    hashes: Hashes
    counts: Integers | None
    changes: Sequence[Changes]


class Run(Protocol):
    """Some rows of one state in the order of their key groups."""

    def hashes_in(self, place: int) -> Hashes:
        """The hashes of the keys in this bin."""
        ...

    def rows_in(self, first: int, end: int) -> BinRows:
        """The rows of the bins from `first` up to, not including, `end`."""
        ...

    def bytes_in(self, place: int) -> int:
        """About how many bytes the changes of this bin have."""
        ...


class Bins(NamedTuple):
    """The key groups of a job in `number` bins of neighbours."""

    number: int
    max_parallelism: int

    @classmethod
    def of(cls, max_parallelism: int) -> "Bins":
        """As many as are of use."""
        return cls(min(BINS_MAX, max_parallelism), max_parallelism)

    @property
    def borders(self) -> Integers:
        """The first key group of each bin, and the one behind the last."""
        return np.arange(self.number + 1) * self.max_parallelism // self.number


class HeldRun:
    """A run in memory."""

    def __init__(self, encoded: Encoded, bins: Bins) -> None:
        hashes, counts, changes = encoded
        groups = groups_of_hashes(hashes, bins.max_parallelism)
        order = np.argsort(groups, kind="stable")  # of 16 bits: in linear time
        self.bins: Final = bins
        self.keys: Final = len(hashes) if counts is None else int(np.count_nonzero(counts))
        """How many rows set a key: those of empty lists and maps set none."""
        self._hashes: Hashes = hashes[order]
        self._counts = None if counts is None else counts[order]
        self._borders: list[int] = np.searchsorted(groups[order], bins.borders).tolist()
        self._ends = None if self._counts is None else [0, *np.cumsum(self._counts).tolist()]
        self._changes: Changes | None = None
        if changes is not None:
            self._changes = changes.taken(order if counts is None else _of_rows(order, counts))

    @property
    def size_bytes(self) -> int:
        """About how many bytes it has in memory."""
        return self._hashes.nbytes + (0 if self._changes is None else self._changes.size_bytes)

    def hashes_in(self, place: int) -> Hashes:
        return self._hashes[self._borders[place] : self._borders[place + 1]]

    def rows_in(self, first: int, end: int) -> BinRows:
        rows = slice(self._borders[first], self._borders[end])
        counts = None if self._counts is None else self._counts[rows]
        return BinRows(self._hashes[rows], counts, list(self._cut(*self._changes_of(first, end))))

    def bytes_in(self, place: int) -> int:
        start, end = self._changes_of(place, place + 1)
        return 0 if self._changes is None else self._changes.size_bytes * (end - start) // self._changes.records

    def _changes_of(self, first: int, end: int) -> tuple[int, int]:
        start, stop = self._borders[first], self._borders[end]
        return (start, stop) if self._ends is None else (self._ends[start], self._ends[stop])

    def _cut(self, start: int, end: int) -> Iterator[Changes]:
        for at in range(start, end, PART_RECORDS_MAX):
            assert self._changes is not None
            yield from self._changes.between(at, min(end, at + PART_RECORDS_MAX)).cut(PART_BYTES_MAX)


class StoredRun:
    """A run in the file of runs."""

    def __init__(self, file: "RunFile", places: Sequence[Sequence[int]], *, is_counted: bool) -> None:
        self._file = file
        self._places = places  # for each bin: its offset, the number of its rows, the bytes of its changes
        self._is_counted = is_counted

    def hashes_in(self, place: int) -> Hashes:
        offset, rows, _ = self._places[place]
        return np.frombuffer(self._file.read(offset, 8 * rows), np.uint64)

    def rows_in(self, first: int, end: int) -> BinRows:
        found = [self._rows_in(place) for place in range(first, end)]
        if len(found) == 1:
            return found[0]
        counts = (
            np.concatenate([each.counts for each in found if each.counts is not None]) if self._is_counted else None
        )
        return BinRows(
            np.concatenate([each.hashes for each in found]), counts, [part for each in found for part in each.changes]
        )

    def bytes_in(self, place: int) -> int:
        return self._places[place][2]

    def _rows_in(self, place: int) -> BinRows:
        offset, rows, size = self._places[place]
        arrays = 8 * rows * (2 if self._is_counted else 1)
        data = self._file.read(offset, arrays + size)
        hashes = np.frombuffer(data, np.uint64, rows)
        counts = np.frombuffer(data, np.int64, rows, 8 * rows) if self._is_counted else None
        return BinRows(hashes, counts, list(decode_parts(memoryview(data)[arrays:])))


class RunFile:
    """The file of the runs that memory has no room for. `path` must not exist yet."""

    def __init__(self, path: Path) -> None:
        self._file: Final = path.open("x+b", buffering=0)
        self._end = 0

    def store(self, run: HeldRun) -> StoredRun:
        """Write a run behind the others. Raises `OSError`."""
        places: list[tuple[int, int, int]] = []
        is_counted = False
        for place in range(run.bins.number):
            hashes, counts, changes = run.rows_in(place, place + 1)
            body = encode_parts(changes)
            places.append((self._end, len(hashes), len(body)))
            is_counted = counts is not None
            self._write(hashes.tobytes())
            self._write(b"" if counts is None else counts.tobytes())
            self._write(body)
        return StoredRun(self, places, is_counted=is_counted)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file. Raises `OSError`."""
        return os.pread(self._file.fileno(), length, offset)

    def close(self) -> None:
        """Close the file, which the scratch directory's owner removes."""
        self._file.close()

    def _write(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file.fileno(), rest, self._end)
            self._end += written
            rest = rest[written:]


def _of_rows(order: Integers, counts: Integers) -> Integers:
    """The places of the changes of rows in this order, of which each has so many, one behind the other."""
    chosen = counts[order]
    ends = np.cumsum(chosen)
    starts = (np.cumsum(counts) - counts)[order]
    return np.repeat(starts - (ends - chosen), chosen) + np.arange(int(ends[-1]) if len(ends) else 0)


def windows(states: Sequence[Sequence[Run]], bins: Bins, bytes_min: int) -> Iterator[tuple[int, int]]:
    """Cut the bins into neighbours that are read together, of at least so many bytes in all states."""
    first, size_bytes = 0, 0
    for place in range(bins.number):
        size_bytes += sum(run.bytes_in(place) for runs in states for run in runs)
        if size_bytes >= bytes_min:
            yield first, place + 1
            first, size_bytes = place + 1, 0
    if first < bins.number:
        yield first, bins.number
