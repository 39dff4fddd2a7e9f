"""A file that is right by itself and not the one that the commit names, or whose footer is of another machine."""

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest

import statebackend as sb
from statebackend._codec import segment
from statebackend._codec.change_sets.changes import change_set
from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.paged_changes import HEAD_LENGTH, PagedChanges, PagesHead
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._runs.run_file import RunPart, open_run
from statebackend._tables.placed import WantedEntries
from statebackend.errors import CorruptSegmentError, DataError, MissingObjectError, UnsupportedVersionError
from statebackend.ids import Handle, KeyGroupRange, SequenceNumber
from statebackend.testing import run_virtual
from tests.runs.flushing import stored
from tests.runs.test_damaged_ranges import Answers, opened
from tests.runs.test_damaged_runs import GROUPS, OWNED, check_rows, segment_of, table_of
from tests.runs.test_jobs_over_runs import Job, columns, rows_of, settings_of

PAGE = 4096


def refuse(data: bytes, handle: Handle, directory: Path, kind: type[DataError] = CorruptSegmentError) -> None:
    """On a disk, and by ranges: at the opening, or before a value is used."""
    copy = directory / "copy"
    copy.write_bytes(data)
    with pytest.raises(kind):
        check_rows(open_run(copy, handle), 300)
    if len(data) >= handle.length:  # nobody tries to open what answers less than it was asked for
        with pytest.raises(kind):
            check_rows(opened(Answers(data), handle), 300)


def run_of(directory: Path, *, state_id: int = 0, groups: Sequence[int] = tuple(GROUPS)) -> bytes:
    """The rows of some key groups, of that state."""
    placed = table_of(300).copy().placed(WantedEntries(state_id, OWNED, list(groups)))
    other = keyed_changes([StateChange(groups[0], int(Operation.SET), 1, "k", b"\x01")])
    changes = list(placed.changes(KeyGroupRange(groups[0], groups[-1])))
    frames = [change_set("base", SequenceNumber(0), list(other)), change_set("base", SequenceNumber(1), changes)]
    return stored(directory, frames)[0].read_bytes()


@pytest.mark.parametrize(
    ("state_id", "groups"), [(2, [*GROUPS]), (0, [0, 1]), (0, [2, 3])], ids=["state", "lower half", "upper half"]
)
def test_a_run_of_another_state_or_range_is_refused(tmp_path: Path, state_id: int, groups: list[int]) -> None:
    """Also where it has the same length, as those of two states have, and where it was cut or filled up to that."""
    path, handle = segment_of(tmp_path, 300)
    other = run_of(tmp_path, state_id=state_id, groups=groups)
    assert len(run_of(tmp_path)) == handle.length
    assert (len(other) == handle.length) is (state_id != 0)
    refuse(other, handle, tmp_path)
    for middle in (len(other), len(other) // 2, 0):
        refuse(other[:middle] + bytes(handle.length - len(other)) + other[middle:], handle, tmp_path)
    check_rows(open_run(path, handle), 300)


def pieces_of(part: RunPart, length: int) -> list[slice]:
    """What a file is made of: what comes before the pages, two halves of them, their tail, and the index."""
    half = part.offset + part.head.pages // 2 * PAGE
    tail = part.offset + part.head.pages * PAGE
    return [slice(*each) for each in pairwise([0, part.offset, half, tail, tail + part.head.tail_bytes, length])]


def test_no_parts_are_those_of_an_older_run(tmp_path: Path) -> None:
    """Of the same length, in any mixture: pages with their own checksums, or with those of the others."""
    (path, handle), (older, _) = segment_of(tmp_path, 300), segment_of(tmp_path, 300, shift=7)
    ours, theirs = path.read_bytes(), older.read_bytes()
    (part,) = open_run(path, handle).parts
    pieces = pieces_of(part, handle.length)
    mixtures = {
        b"".join(whose[piece] for whose, piece in zip(chosen, pieces, strict=True))
        for chosen in product((ours, theirs), repeat=len(pieces))
    }
    assert {ours, theirs} < mixtures
    for mixed in mixtures - {ours}:
        refuse(mixed, handle, tmp_path)


def test_pages_that_have_changed_places_are_refused(tmp_path: Path) -> None:
    """Each is a page of this very file."""
    path, handle = segment_of(tmp_path, 300)
    (part,) = open_run(path, handle).parts
    data = path.read_bytes()
    for page in range(1, part.head.pages):
        first, other = (slice(part.offset + at * PAGE, part.offset + (at + 1) * PAGE) for at in (0, page))
        moved = bytearray(data)
        moved[first], moved[other] = data[other], data[first]
        refuse(bytes(moved), handle, tmp_path)


# ------------------------------------------------------------------------------------------------- whole jobs


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


async def runs_of_another_job(directory: Path) -> bytes:
    """The base of one that has had the same keys, with other values of the same length."""
    other = Job(directory / "other")
    other.settings = settings_of(other.settings, job="other")
    other.checkpoint_id = 3
    await other.with_a_base()
    (segment,) = other.segments("primary")
    return segment.read_bytes()


@run_virtual
async def test_a_copy_of_another_job_is_passed_by_and_replaced(job: Job, tmp_path: Path) -> None:
    """Of the same length. In the primary it is an error, which says what it is of, and what to do."""
    await job.with_a_base()
    (copy,), (segment,) = job.segments("local"), job.segments("primary")
    ours, other = segment.read_bytes(), await runs_of_another_job(tmp_path)
    assert len(other) == len(ours)
    assert other != ours
    copy.write_bytes(other)
    async with job.open() as backend:
        assert backend.restored is not None
        assert [each.repaired for each in backend.restored.fallbacks] == [True]
    assert copy.read_bytes() == ours
    copy.unlink()
    segment.write_bytes(other)
    with pytest.raises(CorruptSegmentError) as raised:
        async with job.open():
            pass
    assert raised.value.facts["object"].endswith(segment.name)
    assert_says_what_to_do(raised.value, job)
    segment.write_bytes(ours)
    async with job.open():
        pass


def assert_says_what_to_do(error: BaseException, job: Job) -> None:
    (note,) = error.__notes__
    assert f"checkpoint {job.checkpoint_id} " in note
    assert "fall_back_to_older" in note


@run_virtual
async def test_copies_that_are_exchanged_with_each_other_are_replaced(tmp_path: Path) -> None:
    """Those of two ranges of one base."""
    job = Job(tmp_path, in_flight_bytes_max=1, persist_size_threshold_bytes=1)
    await job.with_a_base()
    first, second, *_ = job.segments("local")
    ours = first.read_bytes(), second.read_bytes()
    first.write_bytes(ours[1])
    second.write_bytes(ours[0])
    async with job.open() as backend:
        assert backend.restored is not None
        assert [each.repaired for each in backend.restored.fallbacks] == [True, True]
    assert (first.read_bytes(), second.read_bytes()) == ours


@run_virtual
async def test_a_run_that_both_copies_lack_is_an_error(job: Job) -> None:
    """Of ours, and nothing is changed by it: with the file put back, the job opens."""
    await job.with_a_base()
    (copy,), (segment,) = job.segments("local"), job.segments("primary")
    ours = segment.read_bytes()
    copy.unlink()
    segment.unlink()
    for read_only in (False, True):
        with pytest.raises(MissingObjectError, match=segment.name) as raised:
            async with sb.open_backend(job.settings, read_only=read_only):
                pass
        assert_says_what_to_do(raised.value, job)
    segment.write_bytes(ours)
    async with job.open():
        pass


def flip_a_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3 * PAGE] ^= 1
    path.write_bytes(data)


async def with_two_checkpoints(job: Job) -> dict[str, tuple[int, str]]:
    """The second has a base, which one segment of each root is. Returns what the first had."""
    async with job.open() as backend:
        job.write(backend, [f"k{number}" for number in range(500)])
        await job.commit(backend)
        before = dict(job.model)
        job.write(backend, [], ["k1"])
        await job.commit(backend)
    return before


@pytest.mark.parametrize("is_read_first", [False, True], ids=["gone", "damaged"])
@run_virtual
async def test_an_older_checkpoint_is_opened_where_both_copies_are_lost(job: Job, is_read_first: bool) -> None:
    """If the settings say so. A page that no opening reads ends a batch, and then the next opening goes back."""
    before = await with_two_checkpoints(job)
    lenient = settings_of(job.settings, fall_back_to_older=True)
    for (each,) in (job.segments("local"), job.segments("primary")):
        if is_read_first:
            flip_a_page(each)
        else:
            each.unlink()
    if is_read_first:
        async with sb.open_backend(lenient) as backend:
            with pytest.raises(CorruptSegmentError):
                columns(backend).to_arrow()
    async with sb.open_backend(lenient) as backend:
        assert backend.restored is not None
        assert backend.restored.checkpoint_id == 1
        assert rows_of(columns(backend).to_arrow()) == before
        await backend.checkpoint(3)
    async with sb.open_backend(job.settings) as backend:
        assert rows_of(columns(backend).to_arrow()) == before


# ------------------------------------------------------------------------------- the footer of another machine


class Footer:
    """A file whose footer and head are changed, with the right checksums: only what it says can be refused."""

    def __init__(self, directory: Path) -> None:
        path, handle = segment_of(directory, 300)
        self.directory = directory
        self.data = bytearray(path.read_bytes())
        self.handle = handle
        (self.part,) = open_run(path, handle).parts
        self.begin = self.part.offset - len(msgspec.msgpack.encode(self.part.head))
        self.tail = self.part.offset + self.part.head.pages * self.part.head.page_bytes

    def put(self, at: int, data: bytes) -> None:
        """Write over what is there."""
        self.data[at : at + len(data)] = data

    def put_head(self, head: PagesHead) -> None:
        """One of the same length."""
        data = msgspec.msgpack.encode(head)
        assert len(data) == self.part.offset - self.begin
        self.put(self.begin, data)

    def put_first_rows(self, number: bytes) -> None:
        """Have the first page say so many rows, with the checksum that it has then."""
        self.put(self.part.offset, number)
        checksums = self.tail + self.part.head.pages * 12
        page = self.data[self.part.offset : self.part.offset + PAGE]
        self.put(checksums, struct.pack("<I", zlib.crc32(page)))

    def tail_of(self, item: str, at: int) -> None:
        """Have one of the tail's arrays be of the other byte order. `at`: the bytes before it, for each page."""
        begin, count = self.tail + at * self.part.head.pages, self.part.head.pages
        values = np.frombuffer(bytes(self.data), f"<{item}", count, begin)
        self.put(begin, values.astype(f">{item}").tobytes())

    def refused(self, kind: type[DataError] = CorruptSegmentError) -> None:
        """By whatever is read of it."""
        handle = msgspec.structs.replace(self.handle, checksum=zlib.crc32(self.data))
        refuse(bytes(self.data), handle, self.directory, kind)


def with_item(head: PagesHead, item: str) -> PagesHead:
    first, *others = head.columns
    return msgspec.structs.replace(head, columns=(msgspec.structs.replace(first, item=item), *others))


@pytest.mark.parametrize("page_bytes", [2048, 5000, 8192, 1 << 15])
def test_pages_of_another_size_are_refused(tmp_path: Path, page_bytes: int) -> None:
    """Those that no page can have, and those that the file has not."""
    footer = Footer(tmp_path)
    head = footer.part.head
    assert head.pages % 2 == 0
    for pages in (head.pages, head.pages * head.page_bytes // page_bytes):
        footer.put_head(msgspec.structs.replace(head, page_bytes=page_bytes, pages=pages))
        footer.refused()


@pytest.mark.parametrize("item", [">8", "=8", "i9", "I8"])
def test_items_of_another_machine_are_refused(tmp_path: Path, item: str) -> None:
    """Of the other byte order, or of a width that no number has here."""
    footer = Footer(tmp_path)
    footer.put_head(with_item(footer.part.head, item))
    footer.refused()


@pytest.mark.parametrize(("item", "at"), [("i8", 0), ("u4", 8), ("u4", 12)], ids=["orders", "begins", "checksums"])
def test_a_tail_of_the_other_byte_order_is_refused(tmp_path: Path, item: str, at: int) -> None:
    footer = Footer(tmp_path)
    footer.tail_of(item, at)
    footer.refused()


def test_numbers_of_the_other_byte_order_are_refused(tmp_path: Path) -> None:
    """The length of the head, and the rows of a page."""
    footer = Footer(tmp_path)
    length = footer.part.offset - footer.begin
    footer.put(footer.begin - HEAD_LENGTH.size, struct.pack(">I", length))
    footer.refused()
    footer = Footer(tmp_path)
    (rows,) = struct.unpack_from("<I", footer.data, footer.part.offset)
    footer.put_first_rows(struct.pack(">I", rows))
    footer.refused()


@pytest.mark.parametrize(
    "newer",
    [mock.patch.object(segment, "HEAD", segment.MAGIC + b"\x03"), mock.patch.object(PagedChanges, "kind", 4)],
    ids=["segment", "rows"],
)
def test_what_a_newer_release_has_written_is_refused(tmp_path: Path, newer: Any) -> None:
    """Its version, or the kind of its rows: by the error that says to upgrade."""
    with newer:
        path, handle = segment_of(tmp_path, 300)
    refuse(path.read_bytes(), handle, tmp_path, UnsupportedVersionError)
