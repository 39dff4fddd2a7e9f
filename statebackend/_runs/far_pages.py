"""Pages of runs that lie in the primary alone: read by ranges, many at once, and proved each time they are read.

    wanted pages   . 1 2 . . 5 . . . . . . . . 14 .        of one run; all runs of a look-up are asked for together
    requests         [1 2 . . 5]              [14]         what lies between is fetched, too, where that is cheaper

A page that is not as its checksum says is asked for once more: it may have been damaged on its way.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Final, NamedTuple, Protocol

import numpy as np

from statebackend._codec.columns import Integers, Octets
from statebackend.errors import CorruptSegmentError
from statebackend.ids import Handle
from statebackend.settings import KiB

GAP_BYTES_MAX: Final = 32 * KiB
"""Bytes between two pages that are fetched with them: another request costs more."""
RANGE_BYTES_MAX: Final = 256 * KiB
"""Most bytes of a request, but for a page that is larger."""


class FarRange(NamedTuple):
    """Bytes of an object in the primary."""

    key: str
    offset: int
    length: int


class ReadsApart(Protocol):
    """Reads the primary for callers that cannot wait for their own loop, in any thread."""

    def begin(self) -> None:
        """Say that it will be wanted soon. Does not wait."""
        ...

    def get(self, file: Handle) -> bytes:
        """The whole object. Raises `MissingObjectError`, `StoreError`s."""
        ...

    def get_ranges(self, ranges: Sequence[FarRange], take: Callable[[int, bytes], None]) -> None:
        """Get all of these, many at a time; hand each to `take`, with its number, when it is its turn.

        `take` runs in another thread, one call at a time, while the caller waits. Raises as `get`, and what it raises.
        """
        ...


class FarFile:
    """A segment in the primary, which `reads` it by ranges."""

    address: Final = None
    """It lies nowhere in memory: see `OpenFile.address`."""

    def __init__(self, segment: Handle, reads: ReadsApart) -> None:
        self.key: Final = segment.key
        self.size_bytes: Final = segment.length
        self.path: Final = PurePath(segment.key)
        self.reads: Final = reads


class FarPages(NamedTuple):
    """Pages of a far file that are wanted. `offsets`: where each begins, ascending; `into` takes them in order."""

    file: FarFile
    offsets: Integers
    page_bytes: int
    checksums: Sequence[int]
    into: Octets


class _PageRange(NamedTuple):
    """Pages of `wanted` from `first` to `end` that one request gets."""

    wanted: FarPages
    first: int
    end: int

    @property
    def range(self) -> FarRange:
        begin = int(self.wanted.offsets[self.first])
        end = int(self.wanted.offsets[self.end - 1]) + self.wanted.page_bytes
        return FarRange(self.wanted.file.key, begin, end - begin)

    def bad_pages(self, data: bytes) -> Iterator["_PageRange"]:
        """Put the pages where they are wanted. Those that are damaged, or not there."""
        wanted, size = self.wanted, self.wanted.page_bytes
        received, into = np.frombuffer(data, np.uint8), wanted.into
        begins = wanted.offsets[self.first : self.end] - wanted.offsets[self.first]
        for number, begin in zip(range(self.first, self.end), begins.tolist(), strict=True):
            page = received[begin : begin + size]
            if len(page) < size or zlib.crc32(page.data) != wanted.checksums[number]:
                yield _PageRange(wanted, number, number + 1)
            else:
                into[number * size : (number + 1) * size] = page


def read_far(wanted: Sequence[FarPages]) -> None:
    """Read all of these pages. Raises `CorruptSegmentError`, and as `ReadsApart.get`."""
    bad = _read([request for each in wanted for request in _requests(each)])
    if bad and (still := _read(bad)):
        raise CorruptSegmentError(
            "a page of the state is damaged in the primary: open an older checkpoint_id, or with local copies",
            object=still[0].wanted.file.key,
            offset=still[0].range.offset,
        )


def _read(requests: Sequence[_PageRange]) -> Sequence[_PageRange]:
    """Read the pages, and return those that are damaged."""
    bad: list[_PageRange] = []
    if requests:
        reads = requests[0].wanted.file.reads

        def take(number: int, data: bytes) -> None:
            bad.extend(requests[number].bad_pages(data))

        reads.get_ranges([each.range for each in requests], take)
    return bad


def _requests(wanted: FarPages) -> Iterator[_PageRange]:
    """Cut the pages into requests."""
    offsets: Integers = wanted.offsets
    size = wanted.page_bytes
    cuts = [0, *(np.flatnonzero(np.diff(offsets) > size + GAP_BYTES_MAX) + 1).tolist(), len(offsets)]
    for begin, end in pairwise(cuts):
        first = begin
        while first < end:
            beyond = int(offsets[first]) + max(RANGE_BYTES_MAX, size) - size
            until = max(first + 1, int(np.searchsorted(offsets[:end], beyond, side="right")))
            yield _PageRange(wanted, first, until)
            first = until
