"""Whatever a primary answers when it is asked for ranges: an error of ours, or the right value."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from statebackend._runs.far_pages import GAP_BYTES_MAX, RANGE_BYTES_MAX, FarRange
from statebackend._runs.known_bytes import KnownBytes, UnknownBytesError
from statebackend._runs.run_file import OpenRun, WantedPages, open_far, read_together
from statebackend.errors import CorruptSegmentError
from statebackend.ids import Handle
from tests.runs.invariants import assert_damage_is_refused, assert_ranges_are_the_file
from tests.runs.test_damaged_runs import check_rows, segment_of

PAGE = 4096


class Answers:
    """A primary that has these bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[FarRange] = []
        self.damage: Callable[[bytes], bytes] = bytes

    def begin(self) -> None:
        """It is there."""

    def get(self, file: Handle) -> bytes:
        return self.data

    def get_ranges(self, ranges: Sequence[FarRange], take: Callable[[int, bytes], None]) -> None:
        for number, each in enumerate(ranges):
            self.asked.append(each)
            take(number, self.damage(self.data[each.offset : each.offset + each.length]))


def opened(answers: Answers, handle: Handle) -> OpenRun:
    """Opened by as little as is wanted. Raises what that raises."""
    known, read = KnownBytes(handle.length), 0
    while True:
        try:
            return open_far(known, handle, answers)
        except UnknownBytesError as error:
            for offset, length in error.places:
                known.add(offset, answers.data[offset : offset + length])
                read += 1
                assert read < 100


def refuse_every_flipped_bit(directory: Path, *, step: int) -> None:
    """One bit in each byte of what the primary has, so many bytes apart."""
    path, handle = segment_of(directory, 300)
    data = path.read_bytes()

    def damaged() -> Iterator[bytes]:
        for offset in range(0, len(data), step):
            flipped = bytearray(data)
            flipped[offset] ^= 1 << offset % 8
            yield bytes(flipped)

    assert_damage_is_refused(damaged(), lambda each: check_rows(opened(Answers(each), handle), 300))


def compare_with_the_file(directory: Path) -> None:
    """Pages that are drawn, of all parts together."""
    path, handle = segment_of(directory, 20_000)
    answers = Answers(path.read_bytes())
    parts, chance = opened(answers, handle).parts, Random(1)
    for _ in range(40):
        wanted = []
        for part in parts:
            count = chance.choice((1, 2, part.head.pages // 7 + 1, part.head.pages))
            pages = np.array(sorted(chance.sample(range(part.head.pages), min(count, part.head.pages))))
            wanted.append(WantedPages(part, pages, np.empty(len(pages) * PAGE, np.uint8)))
        places = [each.part.offset + PAGE * page for each in wanted for page in each.pages.tolist()]

        def read(wanted: list[WantedPages] = wanted) -> bytes:
            read_together(wanted)
            return b"".join(bytes(each.into) for each in wanted)

        assert_ranges_are_the_file(read, b"".join(answers.data[at : at + PAGE] for at in places))


def test_every_flipped_bit_is_refused_before_its_value_is_used(tmp_path: Path) -> None:
    """At the opening, or when its page is read."""
    refuse_every_flipped_bit(tmp_path, step=101)


def test_pages_are_those_of_the_file(tmp_path: Path) -> None:
    compare_with_the_file(tmp_path)


def test_near_pages_share_a_request_and_far_ones_do_not(tmp_path: Path) -> None:
    """None is larger than so many bytes, and none reads over a gap that is."""
    path, handle = segment_of(tmp_path, 20_000)
    answers = Answers(path.read_bytes())
    part = max(opened(answers, handle).parts, key=lambda each: each.head.pages)
    gap = GAP_BYTES_MAX // PAGE + 2
    assert part.head.pages > 3 * gap
    pages = np.array([0, 1, 3, 3 + gap, 3 + 2 * gap])
    part.read(pages, np.empty(len(pages) * PAGE, np.uint8))
    at = [(each.offset - part.offset) // PAGE for each in answers.asked]
    assert list(zip(at, [each.length // PAGE for each in answers.asked], strict=True)) == [
        (0, 4),
        (3 + gap, 1),
        (3 + 2 * gap, 1),
    ]
    answers.asked.clear()
    part.read(np.arange(part.head.pages), np.empty(part.head.pages * PAGE, np.uint8))
    assert max(each.length for each in answers.asked) == RANGE_BYTES_MAX or len(answers.asked) == 1
    ends = [(each.offset, each.offset + each.length) for each in answers.asked]
    assert all(end == begin for (_, end), (begin, _) in pairwise(ends)), "no byte is read twice"


def test_a_page_that_is_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    """Shorter answers are damage: right the second time, or refused."""
    path, handle = segment_of(tmp_path, 300)
    answers = Answers(path.read_bytes())
    run = opened(answers, handle)
    (part,) = run.parts
    cut = iter([True])
    answers.damage = lambda data: data[:-1] if next(cut, False) else data
    check_rows(run, 300)
    answers.damage = lambda data: data[:-1]
    with pytest.raises(CorruptSegmentError):
        part.read(np.array([0]), np.empty(PAGE, np.uint8))
