"""Pages of many rows are written and read as blocks: byte for byte as the grammar says, one row after the other."""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges, orders_of, places_in_order
from statebackend._codec.change_sets.parts import decode_parts, encode_parts
from statebackend._codec.columns import Column, Fixed, Strings, packed, starts_of

Row = tuple[int, int, bytes, int | None, bytes | None]
"""Hash, key group, key, and two values."""


def strings(values: Sequence[bytes | None]) -> Strings:
    """A column of these."""
    lengths = np.array([len(each or b"") for each in values], np.int64)
    valid = None if None not in values else np.array([each is not None for each in values])
    return Strings(
        np.frombuffer(b"".join(each or b"" for each in values), np.uint8), starts_of(lengths), lengths, valid
    )


def changes_of(rows: Sequence[Row]) -> PagedChanges:
    """The changes that set these rows."""
    hashes, groups, keys, numbers, texts = zip(*rows, strict=True)
    valid = None if None not in numbers else np.array([each is not None for each in numbers])
    values = np.array([each or 0 for each in numbers], np.int32)
    return PagedChanges(
        3,
        np.array(groups, np.int16),
        [Typed("binary", strings(keys))],
        {"n": Typed("int32", Fixed(values, valid)), "text": Typed("binary", strings(texts))},
        hashes=np.array(hashes, np.uint64),
    )


def page_of(rows: Sequence[Row], page_bytes: int) -> bytes:
    """One page by the grammar."""
    hashes, groups, keys, numbers, texts = zip(*rows, strict=True)
    count = len(rows)
    begin = 8 + 10 * count + 2 * (count + 1) + 4 * count + 2 * (count + 1) + 2 * ((count + 7) // 8)
    places = np.cumsum([begin, *map(len, keys)])
    text_places = np.cumsum([places[-1], *(len(each or b"") for each in texts)])
    bits = [sum(1 << bit for bit, each in enumerate(column) if each is not None) for column in (numbers, texts)]
    full = (1 << 8 * ((count + 7) // 8)) - 1
    octets = b"".join(
        (
            struct.pack("<II", count, 0),
            struct.pack(f"<{count}Q", *hashes),
            struct.pack(f"<{count}H", *groups),
            struct.pack(f"<{count + 1}H", *places),
            struct.pack(f"<{count}i", *(each or 0 for each in numbers)),
            struct.pack(f"<{count + 1}H", *text_places),
            *(
                (full if None not in column else bit).to_bytes((count + 7) // 8, "little")
                for bit, column in zip(bits, (numbers, texts), strict=True)
            ),
            *keys,
            *(each or b"" for each in texts),
        )
    )
    return octets.ljust(page_bytes, b"\0")


def some_rows(count: int, widths: Sequence[int], *, nulls: bool = False) -> list[Row]:
    """Rows in order, whose texts are as long as the widths say, one after the other."""
    chance = np.random.default_rng(count)
    hashes = np.sort(chance.integers(1 << 63, size=count, dtype=np.uint64)).tolist()
    rows: list[Row] = []
    for number, found in enumerate(hashes):
        is_null = nulls and number % 7 == 3
        text = None if is_null else bytes([number % 251]) * widths[number % len(widths)]
        rows.append(
            (found, number * 5 // count, b"key %d" % number, None if nulls and number % 5 == 0 else number, text)
        )
    return rows


@pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
@pytest.mark.parametrize(
    "widths", [[20], [0, 1, 40], [3] * 90 + [200] * 30, [0]], ids=["alike", "uneven", "in turns", "empty"]
)
def test_pages_are_those_of_the_grammar(widths: list[int], nulls: bool) -> None:
    """With as many rows in each, and with different ones in turns."""
    rows = some_rows(2500, widths, nulls=nulls)
    encoded = bytes(encode_parts([changes_of(rows)]))
    head_length = struct.unpack_from("<I", encoded, 13)[0]
    begin = 13 + 4 + head_length
    pages = (len(encoded) - begin) // (4096 + 16)
    first = 0
    for number in range(pages):
        page = encoded[begin + 4096 * number : begin + 4096 * (number + 1)]
        count = struct.unpack_from("<I", page)[0]
        expected = page_of(rows[first : first + count], 4096)
        if nulls:  # the flags of a column are those of its page, where the part has any null
            expected = page_of_nullable(rows[first : first + count])
        assert page == expected
        (checksum,) = struct.unpack_from("<I", encoded, len(encoded) - 4 * (pages - number))
        assert checksum == zlib.crc32(page)
        first += count
    assert first == len(rows)
    assert pages > 10
    assert_same([*decode_parts(encoded)], rows)


def page_of_nullable(rows: Sequence[Row]) -> bytes:
    """As `page_of`, of columns in which other pages have nulls: no bit is set behind the last row."""
    page = bytearray(page_of(rows, 4096))
    count = len(rows)
    size = (count + 7) // 8
    at = 8 + 10 * count + 2 * (count + 1) + 4 * count + 2 * (count + 1)
    for number, column in enumerate(zip(*((row[3], row[4]) for row in rows), strict=True)):
        bits = sum(1 << bit for bit, each in enumerate(column) if each is not None)
        page[at + number * size : at + (number + 1) * size] = bits.to_bytes(size, "little")
    return bytes(page)


def plain(column: Column) -> list[bytes | int | None]:
    """The values one by one."""
    if isinstance(column, Fixed):
        values: list[bytes | int] = column.values.tolist()
    else:
        lying = packed(column)
        ends = np.cumsum(lying.lengths).tolist()
        values = [lying.data[end - n : end].tobytes() for end, n in zip(ends, lying.lengths.tolist(), strict=True)]
    valid = [True] * len(values) if column.valid is None else column.valid.tolist()
    return [each if there else None for each, there in zip(values, valid, strict=True)]


def assert_same(found: Sequence[object], rows: Sequence[Row]) -> None:
    """The changes set these rows."""
    (changes,) = found
    assert isinstance(changes, PagedChanges)
    assert changes.hashes is not None
    columns = (changes.keys[0].column, changes.columns["n"].column, changes.columns["text"].column)
    assert [*zip(changes.hashes.tolist(), changes.groups.tolist(), *map(plain, columns), strict=True)] == rows


def test_rows_of_one_order_lie_in_order_of_their_hashes() -> None:
    """Those of one hash as they came: two runs of rows that are in order are laid into one."""
    upper = np.array([5, 5, 5, 9, 1, 5, 5, 9], np.uint64) << np.uint64(32)
    hashes = upper | np.array([3, 7, 7, 1, 2, 1, 7, 0], np.uint64)
    groups = np.zeros(8, np.int16)
    assert places_in_order(orders_of(hashes, groups), hashes).tolist() == [4, 5, 0, 1, 2, 6, 7, 3]
