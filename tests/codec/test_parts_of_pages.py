"""Rows in pages that come in order are one part, however many pieces they come in: an opening pays for each part."""

from collections.abc import Iterable, Sequence

import pytest

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, Changes, change_set
from statebackend._codec.change_sets.paged_changes import HEAD_LENGTH, PagedChanges, PagesHead, read_head
from statebackend._codec.change_sets.parts import PART_HEAD, Parts, decode_parts
from statebackend._codec.columns import Fixed
from statebackend._codec.frame import frame_chunks
from statebackend._codec.segment import decode_change_set
from statebackend.ids import SequenceNumber
from tests.changes import paged


def parts_of(payload: bytes) -> Sequence[tuple[int, int, PagesHead]]:
    """State, rows and head of each part."""
    found, at = list[tuple[int, int, PagesHead]](), 0
    while at < len(payload):
        _, state_id, records, length = PART_HEAD.unpack_from(payload, at)
        at += PART_HEAD.size
        (size,) = HEAD_LENGTH.unpack_from(payload, at)
        found.append((state_id, records, read_head(payload[at + HEAD_LENGTH.size : at + HEAD_LENGTH.size + size])))
        at += length
    return found


def encoded(*pieces: PagedChanges) -> bytes:
    parts = Parts()
    for each in pieces:
        parts.add(each)
    return bytes(parts.ended()[0])


def everything(pieces: Iterable[Changes]) -> Sequence[tuple[int, int, int]]:
    """Group, hash and value of each row."""
    found = list[tuple[int, int, int]]()
    for each in pieces:
        assert isinstance(each, PagedChanges)
        total, hashes = each.columns["total"].column, each.hashes
        assert isinstance(total, Fixed)
        assert hashes is not None
        found += zip(each.groups.tolist(), hashes.tolist(), total.values.tolist(), strict=True)
    return found


@pytest.mark.parametrize("pieces", [1, 2, 400])
def test_rows_in_order_are_one_part(pieces: int) -> None:
    """Also where its number of pages takes more bytes in the head than that of the first piece."""
    each = 200  # more than a page of them
    added = [paged(each, number // 10, first=each * (number % 10)) for number in range(pieces)]
    payload = encoded(*added)
    ((state_id, records, head),) = parts_of(payload)
    assert (state_id, records) == (1, each * pieces)
    assert head.pages == sum(one.in_pages().head.pages for one in added)
    assert everything(decode_parts(payload)) == everything(added)


def test_a_large_part_is_read_some_pages_at_a_time() -> None:
    """A reader of all rows has room for no more than it had when parts were small."""
    added = [paged(10_000, group) for group in range(20)]
    frame = b"".join(frame_chunks(change_set("base", SequenceNumber(0), added), "none"))
    header, found = decode_change_set(frame, "it", 0)
    assert (header.records, sum(each.records for each in found)) == (200_000, 200_000)
    assert len(found) > 5
    assert max(each.size_bytes for each in found) <= PART_BYTES_MAX
    assert everything(found) == everything(added)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (paged(10, 5, state_id=2), "of another state"),
        (paged(10, 4), "of an earlier key group"),
        (paged(10, 5, first=98), "of the same key group, before the last one"),
        (paged(10, 6, text=5000), "with another column, in larger pages"),
    ],
)
def test_other_rows_begin_a_part(second: PagedChanges, why: str) -> None:
    """What is looked up in a part lies alike, and in order."""
    first = paged(100, 5)
    found = parts_of(encoded(first, second))
    assert [(state_id, records) for state_id, records, _ in found] == [(1, 100), (second.state_id, 10)], why
    assert everything(decode_parts(encoded(first, second))) == everything([first, second])
