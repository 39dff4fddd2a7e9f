"""One segment of a base as a file in which rows are looked up: opened by reading all of it but its pages.

A run is near, a file, or far: it lies in the primary alone, and is read by ranges until its copy has come in.

What is read at the opening, and the checksums of the pages, are proved by the crc32 of the whole that the commit names.
A page is proved by its checksum when it is read for the first time. Until then a flipped bit in it goes unnoticed, and
never later: nothing of a page is used before.
"""

import logging
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np

from statebackend._changelog.changelog_reader import TAIL_BYTES
from statebackend._codec.change_sets.changes import PART_BYTES_MAX, Changes
from statebackend._codec.change_sets.paged_changes import (
    HEAD_LENGTH,
    PagedChanges,
    PagesHead,
    PagesTail,
    read_head,
    read_tail,
)
from statebackend._codec.change_sets.parts import PART_HEAD, decode_parts
from statebackend._codec.columns import Flags, Integers, Octets
from statebackend._codec.crc32_parts import combined, of_pages
from statebackend._codec.frame import HEAD_BYTES, log_id_bytes
from statebackend._codec.segment import HEAD, FrameEntry, index_offset, open_change_set, read_index_in
from statebackend._runs.far_pages import FarFile, FarPages, ReadsApart, read_far
from statebackend._runs.known_bytes import KnownBytes, UnknownBytesError
from statebackend._runs.open_file import OpenFile
from statebackend.errors import CorruptSegmentError, DataError, StoreUnavailableError
from statebackend.ids import Handle

T = TypeVar("T")

_logger = logging.getLogger(__name__)

HEAD_GUESS: Final = 1024
"""Read for the head of a frame and its first part: one read is enough but for many columns."""


class RunPart:
    """The pages of one part of a segment: rows of one state, in order."""

    def __init__(
        self,
        file: OpenFile | FarFile,
        key: str,
        *,
        state_id: int,
        records: int,
        head: PagesHead,
        tail: PagesTail,
        offset: int,
    ) -> None:
        self._place = _Place(file, np.zeros(head.pages, np.bool_))
        self.key: Final = key
        """The object that the file is a copy of."""
        self.state_id: Final = state_id
        self.records: Final = records
        self.head: Final = head
        self.tail: Final = tail
        self.offset: Final = offset
        """Where the first page begins in the file."""

    @property
    def file(self) -> OpenFile | FarFile:
        """Where the pages are read: another file once a copy has come in."""
        return self._place.file

    def move_to(self, file: OpenFile) -> None:
        """Read from this file from now on, in whatever thread. Its pages are not proved."""
        self._place = _Place(file, np.zeros(self.head.pages, np.bool_))

    def read(self, pages: Integers, into: Octets) -> None:
        """Read these pages, ascending, as `read_together`."""
        read_together([WantedPages(self, pages, into)])

    def far_pages(self, file: FarFile, pages: Integers, into: Octets) -> FarPages:
        """These pages, to be read from the primary."""
        size = self.head.page_bytes
        return FarPages(file, self.offset + pages * size, size, self.tail.checksums[pages].tolist(), into)

    def read_near(self, pages: Integers, into: Octets) -> None:
        """Read these pages from the file, each proved if it was not before.

        Where the file is damaged or cannot be read, the other copy takes its place. Raises `CorruptSegmentError` or
        `StoreUnavailableError` if that cannot be had.
        """
        file, is_proved = self._place
        assert isinstance(file, OpenFile), "a run that has come in stays near"
        try:
            self._read(file, is_proved, pages, into)
        except (CorruptSegmentError, StoreUnavailableError) as error:
            file.remove_name()
            if not file.replace():
                raise
            facts = " ".join(f"{name}={value}" for name, value in error.facts.items())
            _logger.warning("a local copy is damaged or cannot be read, and the primary's takes its place: %s", facts)
            self._read(file, is_proved, pages, into)

    def hasten(self, pages: Integers) -> None:
        """Have the system read these pages of a file ahead."""
        if len(pages) and isinstance(file := self.file, OpenFile):
            size = self.head.page_bytes
            file.hasten((self.offset + pages * size).tolist(), size)

    def _read(self, file: OpenFile, is_proved: Flags, pages: Integers, into: Octets) -> None:
        size = self.head.page_bytes
        view, is_fresh = into.data, np.flatnonzero(~is_proved[pages])
        offsets = (self.offset + pages * size).tolist()
        self.hasten(pages[is_fresh])
        at = 0
        for start, count in _neighbours(pages):
            file.read_into(view[at : at + count * size], offsets[start])
            at += count * size
        for number in is_fresh.tolist():
            page = pages[number]
            if zlib.crc32(view[number * size : (number + 1) * size]) != self.tail.checksums[page]:
                raise CorruptSegmentError(
                    "a page of the state is damaged: open the job again, which takes the other copy",
                    object=self.key,
                    offset=offsets[number],
                    path=str(file.path),
                )
        is_proved[pages] = True


class _Place(NamedTuple):
    """Where a part lies, and which of its pages are proved there. Replaced as one."""

    file: OpenFile | FarFile
    is_proved: Flags


class WantedPages(NamedTuple):
    """Pages of a part that are wanted, ascending, and where."""

    part: RunPart
    pages: Integers
    into: Octets


def read_together(wanted: Sequence[WantedPages]) -> None:
    """Read pages of many parts; those of far runs all at once, by as few requests as pay.

    Raises as `RunPart.read_near` and `read_far`.
    """
    near: list[WantedPages] = []
    far: list[FarPages] = []
    for each in wanted:
        if isinstance(file := each.part.file, FarFile):
            far.append(each.part.far_pages(file, each.pages, each.into))
        else:
            near.append(each)
    read_far(far)
    for part, pages, into in near:
        part.read_near(pages, into)


class OpenRun:
    """A segment that is open: the parts with pages, and the changes of other kinds that lie beside them."""

    def __init__(self, segment: Handle, parts: Sequence[RunPart], others: list["_Other"]) -> None:
        self.segment: Final = segment
        self.parts: Final = parts
        self._others = others

    def mended_by(self, mend: Callable[[], int] | None) -> None:
        """Have `mend` get the other copy when this one is damaged: a file that is open, verified."""
        for part in self.parts:
            if isinstance(part.file, OpenFile):
                part.file.mend = mend

    def move_to(self, file: OpenFile) -> None:
        """Look up in this file from now on, which is a copy of the segment."""
        for part in self.parts:
            part.move_to(file)

    def others(self) -> Iterator[Changes]:
        """The changes that do not lie in pages, in order, once: each is freed then. Raises as `changes_of`."""
        self._others.reverse()
        while self._others:
            yield from self._others.pop()()

    def forget_others(self) -> None:
        """Free the memory of the changes that do not lie in pages."""
        self._others.clear()

    def changes(self, part: RunPart) -> Iterator[PagedChanges]:
        """All rows of a part, decoded, some pages at a time."""
        together = max(1, PART_BYTES_MAX // part.head.page_bytes)
        for first in range(0, part.head.pages, together):
            numbers = np.arange(first, min(part.head.pages, first + together))
            pages = np.empty(len(numbers) * part.head.page_bytes, np.uint8)
            part.read(numbers, pages)
            yield decoded(part, pages)


_Other = Callable[[], Iterator[Changes]]


def decoded(part: RunPart, pages: Octets) -> PagedChanges:
    """The rows of some pages of a part, which share the memory of the pages."""
    return proper(part.key, lambda: PagedChanges.of_rows(part.state_id, part.head.layout().all_rows(pages)))


def open_run(copy: Path | OpenFile, segment: Handle) -> OpenRun:
    """Open a copy of a segment. Blocks on the disk.

    Raises `OSError` where there is none, `CorruptSegmentError` where it is not that segment, as far as can be told
    without its pages, `UnsupportedVersionError`, and `StoreUnavailableError` where the disk fails.
    """
    file = copy if isinstance(copy, OpenFile) else OpenFile.at(copy)
    return proper(segment.key, lambda: _Opening(file, segment, file).run())


def open_far(known: KnownBytes, segment: Handle, reads: ReadsApart) -> OpenRun:
    """Open a segment in the primary by what is known of it. Raises `UnknownBytesError`, and as `open_run`."""
    return proper(segment.key, lambda: _Opening(known, segment, FarFile(segment, reads)).run())


class _Opening:
    """Reads a segment from its beginning to its end, but for the pages, and its checksum on the way.

    `place`: where the pages will be read.
    """

    def __init__(self, file: OpenFile | KnownBytes, segment: Handle, place: OpenFile | FarFile) -> None:
        self._file = file
        self._place = place
        self._segment = segment
        self._pieces: list[bytes | RunPart] = []
        self._parts: list[RunPart] = []
        self._others: list[_Other] = []

    def run(self) -> OpenRun:
        segment, size_bytes = self._segment, self._file.size_bytes
        if size_bytes != segment.length:
            raise CorruptSegmentError(
                "segment has the wrong length", object=segment.key, offset=min(size_bytes, segment.length)
            )
        head = self._file.read(0, min(size_bytes, len(HEAD)))
        tail = self._file.read(max(0, size_bytes - TAIL_BYTES), min(size_bytes, TAIL_BYTES))
        offset = index_offset(memoryview(tail), size_bytes, segment.key)
        if size_bytes - offset > len(tail):
            tail = self._file.read(offset, size_bytes - offset)
        entries = read_index_in(memoryview(head), memoryview(tail), size_bytes, segment.key)
        self._pieces.append(head)
        at = len(HEAD)
        unknown: list[tuple[int, int]] = []
        for entry in entries:
            if entry.offset != at:
                raise CorruptSegmentError("index and frames differ", object=segment.key, offset=at)
            try:
                self._frame(entry)
            except UnknownBytesError as error:
                unknown += error.places
            at += entry.length
        if unknown:
            raise UnknownBytesError(unknown)
        self._pieces.append(tail[offset - size_bytes :])
        if self._checksum() != segment.checksum:
            raise CorruptSegmentError("segment checksum differs", object=segment.key, offset=0)
        return OpenRun(segment, self._parts, self._others)

    def _frame(self, entry: FrameEntry) -> None:
        begin, end = entry.offset, entry.offset + entry.length
        front = self._file.read(begin, min(HEAD_GUESS, entry.length))
        at = HEAD_BYTES + log_id_bytes(front)
        if at + PART_HEAD.size > len(front) or front[at] != PagedChanges.kind:
            frame = front + self._file.read(begin + len(front), entry.length - len(front))
            name = self._segment.key
            self._pieces.append(frame)
            self._others.append(lambda: open_change_set(frame, name, begin)[1])
            return
        self._pieces.append(front[:at])
        at += begin
        while at < end:
            at = self._part(at, end)

    def _part(self, at: int, end: int) -> int:
        """Read a part at `at` of a frame that ends at `end`. Returns where the next one begins."""
        front = self._file.read(at, min(HEAD_GUESS, end - at))
        kind, state_id, records, length = PART_HEAD.unpack_from(front)
        body, beyond = at + PART_HEAD.size, at + PART_HEAD.size + int(length)
        if beyond > end:
            raise ValueError("a part that is longer than its frame")
        if kind != PagedChanges.kind:
            part = self._file.read(at, beyond - at)
            self._pieces.append(part)
            self._others.append(lambda: decode_parts(part))
            return beyond
        head_length = int(HEAD_LENGTH.unpack_from(front, PART_HEAD.size)[0])
        pages_at = body + HEAD_LENGTH.size + head_length
        if pages_at > beyond:
            raise ValueError("a head that is longer than its part")
        if pages_at > at + len(front):
            front = self._file.read(at, pages_at - at)
        head = read_head(front[PART_HEAD.size + HEAD_LENGTH.size : pages_at - at])
        tail_at = pages_at + head.pages * head.page_bytes
        if tail_at + head.tail_bytes != beyond:
            raise ValueError("pages that do not fill their part")
        raw = self._file.read(tail_at, head.tail_bytes)
        found = RunPart(
            self._place,
            self._segment.key,
            state_id=state_id,
            records=records,
            head=head,
            tail=read_tail(raw, head, records),
            offset=pages_at,
        )
        self._parts.append(found)
        self._pieces += [front[: pages_at - at], found, raw]
        return beyond

    def _checksum(self) -> int:
        """The crc32 of the whole, by that of each page."""
        of_parts: dict[RunPart, int] = {}
        for size in {part.head.page_bytes for part in self._parts}:
            alike = [part for part in self._parts if part.head.page_bytes == size]
            checksums = np.concatenate([part.tail.checksums for part in alike])
            of_parts |= zip(alike, of_pages(checksums, size, [part.head.pages for part in alike]), strict=True)
        checksum = 0
        for piece in self._pieces:
            if isinstance(piece, RunPart):
                checksum = combined(checksum, of_parts[piece], piece.head.pages * piece.head.page_bytes)
            else:
                checksum = zlib.crc32(piece, checksum)
        return checksum


def proper(key: str, read: Callable[[], T]) -> T:
    """Call `read`, and raise damage as an error that names the object."""
    try:
        return read()
    except (DataError, OSError):
        raise
    except (ValueError, TypeError, OverflowError, IndexError, RecursionError, struct.error) as error:
        raise CorruptSegmentError(f"a segment with pages is damaged: {error}", object=key, offset=0) from error


def _neighbours(pages: Integers) -> Iterator[tuple[int, int]]:
    """Where pages that follow each other begin in `pages`, and how many they are."""
    cuts: list[int] = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), len(pages)]
    return ((start, end - start) for start, end in pairwise(cuts))
