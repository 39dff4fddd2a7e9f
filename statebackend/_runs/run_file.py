"""One segment of a base as a file in which rows are looked up: opened by reading all of it but its pages.

What is read at the opening, and the checksums of the pages, are proved by the crc32 of the whole that the commit names.
A page is proved by its checksum when it is read for the first time. Until then a flipped bit in it goes unnoticed, and
never later: nothing of a page is used before.

Files are read by `pread`, and never mapped: a mapped file that is cut short, or lies on a disk that fails, kills the
process. Here both raise.
"""

import logging
import os
import struct
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, Self, TypeVar

import numpy as np

from statebackend._changelog.changelog_reader import TAIL_BYTES
from statebackend._codec.change_sets.changes import Changes
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
from statebackend._runs.mapped import Mapping, mapped
from statebackend.errors import CorruptSegmentError, DataError, StoreUnavailableError
from statebackend.ids import Handle

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_HEAD_GUESS: Final = 1024
"""Read for the head of a frame and its first part: one read is enough but for many columns."""


class OpenFile:
    """A file to read from, closed when nobody refers to it. It stays whole when its name is deleted.

    `mend` gets the content from the other copy, a file that is open; without it damage stays.
    """

    def __init__(self, number: int, path: Path) -> None:
        """`number`: the descriptor, which this object closes. `path` may be no name of the file any more."""
        self._number = number
        self.mend: Callable[[], int] | None = None
        weakref.finalize(self, os.close, number)
        self.path: Final = path
        self.size_bytes: Final = os.fstat(number).st_size
        self._mappings: list[Mapping | None] = []  # the last one counts; others may be being read

    @property
    def address(self) -> int | None:
        """Where the content lies for `copied`, `None` where it cannot be mapped."""
        if not self._mappings:
            self._mappings.append(mapped(self._number, self.size_bytes))
        found = self._mappings[-1]
        return None if found is None else found.address

    @classmethod
    def at(cls, path: Path) -> Self:
        """The file of that name. Raises `OSError`."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer. Raises `StoreUnavailableError` where the disk fails or the file has become shorter."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._number, [buffer[done:]], offset + done)
            except OSError as error:
                raise StoreUnavailableError(
                    "a file of the state cannot be read", path=str(self.path), offset=offset, reason=error.strerror
                ) from error
            if not count:
                raise StoreUnavailableError(
                    "a file of the state has become shorter while it was open", path=str(self.path), offset=offset
                )
            done += count

    def read(self, offset: int, length: int) -> bytes:
        """So many bytes, as `read_into`."""
        data = bytearray(length)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def hasten(self, offsets: Sequence[int], length: int) -> None:
        """Have the system read these places ahead, all at once, where it can."""
        if sys.platform == "linux":
            with suppress(OSError):
                for offset in offsets:
                    os.posix_fadvise(self._number, offset, length, os.POSIX_FADV_WILLNEED)

    def replace(self) -> bool:
        """Read from the other copy from now on, if there is one. Raises what `mend` raises."""
        if self.mend is None:
            return False
        number = self.mend()
        try:
            os.dup2(number, self._number, inheritable=False)  # at once, for whatever thread reads here
            if self._mappings:
                self._mappings.append(mapped(self._number, self.size_bytes))
        finally:
            os.close(number)
        return True

    def remove_name(self) -> None:
        """Delete the file's name, if it still has it: nobody opens a damaged copy again."""
        with suppress(OSError):
            found, ours = self.path.stat(), os.fstat(self._number)
            if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino):
                self.path.unlink()


class RunPart:
    """The pages of one part of a segment: rows of one state, in order."""

    def __init__(
        self,
        file: OpenFile,
        key: str,
        *,
        state_id: int,
        records: int,
        head: PagesHead,
        tail: PagesTail,
        offset: int,
    ) -> None:
        self.file: Final = file
        self.key: Final = key
        """The object that the file is a copy of."""
        self.state_id: Final = state_id
        self.records: Final = records
        self.head: Final = head
        self.tail: Final = tail
        self.offset: Final = offset
        """Where the first page begins in the file."""
        self._is_proved: Flags = np.zeros(head.pages, np.bool_)

    def read(self, pages: Integers, into: Octets) -> None:
        """Read these pages, each proved if it was not before.

        Where the file is damaged or cannot be read, the other copy takes its place. Raises `CorruptSegmentError` or
        `StoreUnavailableError` if that cannot be had.
        """
        try:
            self._read(pages, into)
        except (CorruptSegmentError, StoreUnavailableError) as error:
            self.file.remove_name()
            if not self.file.replace():
                raise
            _logger.warning("a damaged local copy is passed by, and the primary's is used: %s", error)
            self._read(pages, into)

    def hasten(self, pages: Integers) -> None:
        """Have the system read these pages ahead."""
        if len(pages):
            size = self.head.page_bytes
            self.file.hasten((self.offset + pages * size).tolist(), size)

    def _read(self, pages: Integers, into: Octets) -> None:
        size = self.head.page_bytes
        view, is_fresh = into.data, np.flatnonzero(~self._is_proved[pages])
        offsets = (self.offset + pages * size).tolist()
        self.hasten(pages[is_fresh])
        at = 0
        for start, count in _neighbours(pages):
            self.file.read_into(view[at : at + count * size], offsets[start])
            at += count * size
        for number in is_fresh.tolist():
            page = pages[number]
            if zlib.crc32(view[number * size : (number + 1) * size]) != self.tail.checksums[page]:
                raise CorruptSegmentError(
                    "a page of the state is damaged: open the job again, which takes the other copy",
                    object=self.key,
                    offset=offsets[number],
                    path=str(self.file.path),
                )
        self._is_proved[pages] = True


class OpenRun:
    """A segment that is open: the parts with pages, and the changes of other kinds that lie beside them."""

    def __init__(self, segment: Handle, parts: Sequence[RunPart], others: list["_Other"]) -> None:
        self.segment: Final = segment
        self.parts: Final = parts
        self._others = others

    def mended_by(self, mend: Callable[[], int]) -> None:
        """Have `mend` get the other copy when this one is damaged: a file that is open, verified."""
        for part in self.parts:
            part.file.mend = mend

    def others(self) -> Iterator[Changes]:
        """The changes that do not lie in pages, in order, once: each is freed then. Raises as `changes_of`."""
        self._others.reverse()
        while self._others:
            yield from self._others.pop()()

    def forget_others(self) -> None:
        """Free the memory of the changes that do not lie in pages."""
        self._others.clear()

    def changes(self, part: RunPart) -> PagedChanges:
        """All rows of a part, decoded."""
        pages = np.empty(part.head.pages * part.head.page_bytes, np.uint8)
        part.read(np.arange(part.head.pages), pages)
        return decoded(part, pages)


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
    return proper(segment.key, lambda: _Opening(file, segment).run())


class _Opening:
    """Reads a segment from its beginning to its end, but for the pages, and its checksum on the way."""

    def __init__(self, file: OpenFile, segment: Handle) -> None:
        self._file = file
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
        for entry in entries:
            if entry.offset != at:
                raise CorruptSegmentError("index and frames differ", object=segment.key, offset=at)
            self._frame(entry)
            at += entry.length
        self._pieces.append(tail[offset - size_bytes :])
        if self._checksum() != segment.checksum:
            raise CorruptSegmentError("segment checksum differs", object=segment.key, offset=0)
        return OpenRun(segment, self._parts, self._others)

    def _frame(self, entry: FrameEntry) -> None:
        begin, end = entry.offset, entry.offset + entry.length
        front = self._file.read(begin, min(_HEAD_GUESS, entry.length))
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
        front = self._file.read(at, min(_HEAD_GUESS, end - at))
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
            self._file,
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
