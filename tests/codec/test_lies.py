"""Frames and indexes that say what is not so, under checksums that are right: refused, and within bounds.

A checksum proves what was written, not that a sane writer wrote it. None of this may crash, take much memory, or hand
out a change that nobody logged.
"""

import contextlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.parts import encode_parts
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._codec.segment import decode_change_set, decode_segment, open_change_set, read_index
from statebackend.errors import CorruptSegmentError, UnsupportedVersionError, ValueDecodeError
from tests.changes import rows_of
from tests.codec.grammar_v1 import PARTS, write_block, write_frame, write_segment
from tests.codec.samples import NAME
from tests.examples import name_of

MEMORY_BYTES_MAX = 8 * 1024 * 1024
"""Allowed for a frame of some hundred bytes. 100 bytes of zstd may honestly stand for 3.2 MB, and no more."""

CHANGE = [5, 1, 0, "key", b"data"]
BLOCK = write_block([CHANGE])
PART = encode_parts(keyed_changes([StateChange(*CHANGE)]))  # type: ignore[arg-type]
HONEST = write_frame(BLOCK, raw_length=len(BLOCK), records=1)
ENTRY = ["0-127", 0, 8, len(HONEST), [0, 127], 1]
ZEROS = bytes(100_000)
ZSTD = bytes(cramjam.zstd.compress(ZEROS))
LZ4 = bytes(cramjam.lz4.compress_block(ZEROS[:10_000], store_size=False))
SNAPPY = bytes(cramjam.snappy.compress_raw(ZEROS[:1000]))


def error_of(error: type[Exception], call: Callable[..., object], *args: Any) -> Any:
    """What the call raises, found within the memory bound."""
    tracemalloc.start()
    with pytest.raises(error) as caught:
        call(*args)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX
    return caught.value


def lying(payload: bytes = BLOCK, **claims: Any) -> bytes:
    """A frame round `payload`: what is not claimed otherwise is true."""
    return write_frame(payload, **({"raw_length": len(payload), "records": 1} | claims))


def in_parts(payload: bytes = PART, **claims: Any) -> bytes:
    """As `lying`, of a frame of parts."""
    return lying(payload, **({"codec": PARTS} | claims))


def test_honest_frame_and_segment_are_read() -> None:
    """What the lies below differ from in one thing each."""
    _, changes = decode_change_set(HONEST, NAME, 8)
    assert rows_of(changes) == [StateChange(5, 1, 0, "key", b"data")]
    _, changes = decode_change_set(in_parts(), NAME, 8)
    assert rows_of(changes) == [StateChange(5, 1, 0, "key", b"data")]
    assert len(list(decode_segment(write_segment([HONEST], [ENTRY]), NAME))) == 1


@pytest.mark.parametrize("kind", [0, 4, 255])
def test_changes_of_an_unknown_kind_are_told_from_damage(kind: int) -> None:
    """Every checksum is right, so a later release meant them: the message says to upgrade."""
    error_of(UnsupportedVersionError, decode_change_set, in_parts(bytes([kind]) + PART[1:]), NAME, 0)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lying(raw_length=len(BLOCK) + 1), id="raw length one more"),
        pytest.param(lying(raw_length=len(BLOCK) - 1), id="raw length one less"),
        pytest.param(lying(raw_length=2**30), id="raw length 1 GiB of none"),
        pytest.param(lying(raw_length=2**32 - 1), id="raw length 4 GiB of none"),
        pytest.param(lying(ZSTD, codec=3, raw_length=2**30), id="raw length 1 GiB of zstd"),
        pytest.param(lying(ZSTD, codec=3, raw_length=len(ZEROS) + 1), id="raw length one more of zstd"),
        pytest.param(lying(ZSTD, codec=3, raw_length=10), id="raw length 10 of zstd"),
        pytest.param(lying(LZ4, codec=1, raw_length=2**30), id="raw length 1 GiB of lz4"),
        pytest.param(lying(LZ4, codec=1, raw_length=10_001), id="raw length one more of lz4"),
        pytest.param(lying(LZ4, codec=1, raw_length=10), id="raw length 10 of lz4"),
        pytest.param(lying(SNAPPY, codec=2, raw_length=2**30), id="raw length 1 GiB of snappy"),
        pytest.param(lying(SNAPPY, codec=2, raw_length=1001), id="raw length one more of snappy"),
        pytest.param(lying(SNAPPY, codec=2, raw_length=10), id="raw length 10 of snappy"),
        pytest.param(lying(b"\xff\xff\xff\xff\x0f", codec=2, raw_length=100), id="snappy's own size says 4 GiB"),
        pytest.param(lying(b"", codec=3, raw_length=0, records=0), id="no zstd at all"),
        pytest.param(lying(codec=4), id="unknown codec"),
        pytest.param(lying(codec=255), id="unknown codec 255"),
        pytest.param(lying(codec=1), id="not lz4"),
        pytest.param(lying(codec=2), id="not snappy"),
        pytest.param(lying(codec=3), id="not zstd"),
        pytest.param(lying(ZEROS, codec=0, records=1), id="zeros for blocks"),
        pytest.param(lying(records=2), id="more records than there are"),
        pytest.param(lying(records=0), id="fewer records than there are"),
        pytest.param(lying(b"", records=0), id="no changes at all"),
        pytest.param(lying(first=5, last=4), id="key groups the wrong way round"),
        pytest.param(lying(last=4), id="a change above the key groups"),
        pytest.param(lying(first=6), id="a change below the key groups"),
        pytest.param(lying(codec=PARTS), id="rows for parts"),
        pytest.param(lying(codec=PARTS + 4), id="unknown codec of parts"),
        pytest.param(in_parts(records=2), id="more records than there are in parts"),
        pytest.param(in_parts(records=0), id="fewer records than there are in parts"),
        pytest.param(in_parts(last=4), id="a part above the key groups"),
        pytest.param(in_parts(first=6), id="a part below the key groups"),
        pytest.param(in_parts(PART + b"\0"), id="more behind the parts"),
        pytest.param(in_parts(PART[:-1]), id="part cut off"),
        pytest.param(in_parts(PART[:5] + b"\xff" * 4 + PART[9:]), id="part of 4 billion records"),
        pytest.param(in_parts(PART.replace(b"\xa3key", b"\xa3\xffey")), id="key of a part not UTF-8"),
        pytest.param(in_parts(codec=PARTS + 3), id="parts that are not zstd"),
        pytest.param(lying(log_id=b"\xff\xfe"), id="log id not UTF-8"),
        pytest.param(lying(log_id_length=255), id="log id beyond the frame"),
        pytest.param(lying(b"", log_id=b"", log_id_length=1, records=0), id="log id one beyond the frame"),
        pytest.param(lying(size=2**32 - 1), id="size 4 GiB"),
        pytest.param(lying(size=0), id="size nothing"),
    ],
)
def test_frame_that_lies_is_refused(frame: bytes) -> None:
    """About its sizes, its codec, its records or its names."""
    error = error_of(CorruptSegmentError, decode_change_set, frame, NAME, 1000)
    assert error.facts["object"] == NAME
    assert 1000 <= error.facts["offset"] <= 1000 + len(frame)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(BLOCK[:3], id="cut in the length"),
        pytest.param(BLOCK[:-1], id="cut in the block"),
        pytest.param(BLOCK + b"\0", id="more behind it"),
        pytest.param(write_block(b"\x90\xc0"), id="more in the block"),
        pytest.param(write_block(b""), id="nothing in the block"),
        pytest.param(write_block(b"\xdd\xff\xff\xff\xff"), id="4 billion changes"),
        pytest.param(write_block(b"\x91\x95\x05\x01\x00\xdd\xff\xff\xff\xff"), id="key of 4 billion parts"),
        pytest.param(write_block(b"\x91\x95\x05\x01\x00\xc6\xff\xff\xff\xff"), id="key of 4 GiB"),
        pytest.param(write_block(b"\x91\x95\x05\x01\x00" + b"\x91" * 100_000), id="key nested without end"),
        pytest.param(write_block(b"\x91\x95\x05\x01\x00\xa1\xff\xc4\x00"), id="key not UTF-8"),
        pytest.param(write_block({"key_group": 5}), id="not an array"),
        pytest.param(write_block([5]), id="not a change"),
        pytest.param(write_block([[5, 1, 0]]), id="without a key"),
        pytest.param(write_block([[5, 1, 0, "key", "text"]]), id="data not bytes"),
        pytest.param(write_block([["5", 1, 0, "key", b""]]), id="key group not a number"),
        pytest.param(write_block([[5, None, 0, "key", b""]]), id="no operation"),
    ],
)
def test_changes_that_nobody_logs_are_refused(block: bytes) -> None:
    """Each a frame of one record, with every checksum right."""
    error = error_of(CorruptSegmentError, decode_change_set, lying(block), NAME, 1000)
    assert error.facts["object"] == NAME
    assert 1000 <= error.facts["offset"] <= 1000 + len(block) + 40


@pytest.mark.parametrize(("payload", "records"), [(2 * BLOCK, 3), (2 * BLOCK, 1), (2 * BLOCK + b"\0", 2)])
def test_a_frame_read_block_by_block_is_refused_at_its_end(payload: bytes, records: int) -> None:
    """Its head, checksum and first blocks are in order; the reader that was given those has to give all of it up."""
    _, blocks = open_change_set(lying(payload, records=records), NAME, 1000)
    assert rows_of([next(blocks)]) == rows_of([next(blocks)])
    error = error_of(CorruptSegmentError, next, blocks)
    assert error.facts["object"] == NAME


@pytest.mark.parametrize("key", [None, True, 1.5, {"a": 1}, [], ["a", [None]], ["a", []]], ids=name_of)
def test_key_that_no_user_gave_is_no_key(key: Any) -> None:
    """It would be entered into a table under a name that nobody can ask for, or break it."""
    error_of(ValueDecodeError, decode_change_set, lying(write_block([[5, 1, 0, key, b""]])), NAME, 0)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param([], id="nothing"),
        pytest.param(b"", id="no bytes"),
        pytest.param(b"\x91" * 100_000, id="nested without end"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="4 billion frames"),
        pytest.param(
            b"\x91\x97" + msgspec.msgpack.encode(ENTRY)[1:] + b"\x91" * 100_000, id="unknown element nested without end"
        ),
        pytest.param({"frames": 1}, id="not an array"),
        pytest.param([ENTRY, ENTRY], id="the frame twice"),
        pytest.param([[*ENTRY[:2], 9, *ENTRY[3:]]], id="frame one byte on"),
        pytest.param([[*ENTRY[:2], -8, *ENTRY[3:]]], id="frame before the beginning"),
        pytest.param([[*ENTRY[:3], len(HONEST) - 1, *ENTRY[4:]]], id="frame one byte shorter"),
        pytest.param(
            [ENTRY, ["0-127", 1, 8 + len(HONEST), -5, [0, 0], 1], ["0-127", 2, 3 + len(HONEST), 5, [0, 0], 1]],
            id="frames of length -5 and 5",
        ),
        pytest.param([["1-127", *ENTRY[1:]]], id="another log"),
        pytest.param([[ENTRY[0], 1, *ENTRY[2:]]], id="another number"),
        pytest.param([[*ENTRY[:4], [0, 126], 1]], id="other key groups"),
        pytest.param([[*ENTRY[:4], [127, 0], 1]], id="key groups the wrong way round"),
        pytest.param([[*ENTRY[:5], 2]], id="other records"),
        pytest.param([[*ENTRY[:2], "8", *ENTRY[3:]]], id="offset not a number"),
        pytest.param([[b"\xff", *ENTRY[1:]]], id="log id not text"),
        pytest.param(b"\x91\x96\xa1\xff\x00\x08\x08\x92\x00\x7f\x01", id="log id not UTF-8"),
    ],
)
def test_index_that_lies_is_refused(index: Any) -> None:
    """A whole segment never yields a frame that its index does not name exactly so."""
    error = error_of(CorruptSegmentError, lambda: list(decode_segment(write_segment([HONEST], index), NAME)))
    assert error.facts["object"] == NAME
    assert error.facts["offset"] >= 0


@pytest.mark.parametrize("version", [0, 3, 255])
def test_segment_of_another_release_is_told_from_damage(version: int) -> None:
    """Its checksum is right, so somebody meant it: the message says to upgrade, not that the data is lost."""
    error = error_of(
        UnsupportedVersionError, read_index, memoryview(write_segment([HONEST], [ENTRY], version=version)), NAME
    )
    assert error.facts["version"] == version


def test_index_may_say_more_than_this_release_knows() -> None:
    """Within version 1 an entry, or a change, may grow at its end."""
    longer = write_block([[*CHANGE, "more"]])
    frame = lying(longer)
    (found,) = decode_segment(write_segment([frame], [[*ENTRY[:3], len(frame), *ENTRY[4:], "more"]]), NAME)
    assert [row.key for row in rows_of(found[1])] == ["key"]


@settings(deadline=None, max_examples=300)
@given(
    payload=st.binary(max_size=60)
    | st.tuples(st.integers(0, len(PART) - 1), st.integers(0, 255)).map(
        lambda found: PART[: found[0]] + bytes([found[1]]) + PART[found[0] + 1 :]
    )
    | st.integers(0, 40).map(lambda at: ZSTD[:at] + b"\0" + ZSTD[at + 1 :]),
    codec=st.integers(0, 4) | st.integers(PARTS, PARTS + 4),
    raw_length=st.integers(0, 2**32 - 1) | st.integers(0, 200),
    records=st.integers(0, 3),
)
def test_no_payload_breaks_the_reader(payload: bytes, codec: int, raw_length: int, records: int) -> None:
    """Whatever lies under a right checksum: changes, or the one error."""
    frame = lying(payload, codec=codec, raw_length=raw_length, records=records)
    with contextlib.suppress(CorruptSegmentError):
        decode_change_set(frame, NAME, 0)
