"""Segment and commit a second time, from nothing but their grammar: no line of it knows the library.

The reader believes nothing and asserts everything, decompresses with pyarrow where the library uses cramjam, and
decodes MessagePack without types. The writer makes whatever it is told, lies included, under right checksums.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

ARROW_CODECS = {1: "lz4_raw", 2: "snappy", 3: "zstd"}
MAGIC = b"sbsegmt"
PARTS = 0x80


class Frame(NamedTuple):
    """What a frame holds. A change is `(key group, operation, state id, key, data)`."""

    log_id: str
    sequence_number: int
    first: int
    last: int
    changes: list[tuple[int, int, int, Any, bytes]]


def read_segment(data: bytes) -> list[Frame]:
    """Every frame, found through the index."""
    head = data[:8]
    assert head[:7] == MAGIC
    assert head[7] in {1, 2}
    index_offset, index_length, checksum, end = struct.unpack("<QII8s", data[-24:])
    assert end == b"sbsegend"
    index = data[index_offset : index_offset + index_length]
    assert index_offset + index_length + 24 == len(data)
    assert checksum == zlib.crc32(head + index + data[-24:-12])
    frames: list[Frame] = []
    expected_offset = 8
    for log_id, sequence_number, offset, length, (first, last), records in msgspec.msgpack.decode(index):
        assert offset == expected_offset
        frame = read_frame(data[offset : offset + length])
        assert frame[:4] == (log_id, sequence_number, first, last)
        assert len(frame.changes) == records
        frames.append(frame)
        expected_offset += length
    assert expected_offset == index_offset
    assert frames
    return frames


def read_frame(frame: bytes) -> Frame:
    """One frame, from its own bytes alone."""
    checksum, size = struct.unpack("<II", frame[:8])
    assert size == len(frame) - 8
    assert checksum == zlib.crc32(frame[4:])
    sequence_number, first, last, records, raw_length, codec, log_id_length = struct.unpack("<QhhIIBB", frame[8:30])
    log_id = frame[30 : 30 + log_id_length].decode()
    payload = frame[30 + log_id_length :]
    if codec & ~PARTS:
        payload = pa.decompress(payload, raw_length, codec=ARROW_CODECS[codec & ~PARTS], asbytes=True)
    assert len(payload) == raw_length
    changes = read_parts(payload) if codec & PARTS else read_rows(payload)
    assert len(changes) == records
    return Frame(log_id, sequence_number, first, last, changes)


def read_parts(raw: bytes) -> list[tuple[int, int, int, Any, bytes]]:
    """The changes of every part, keys as the user gave them."""
    changes: list[tuple[int, int, int, Any, bytes]] = []
    while raw:
        kind, state, records, length = struct.unpack("<BIII", raw[:13])
        assert kind == 1
        body, raw = raw[13 : 13 + length], raw[13 + length :]
        assert len(body) == length
        first, width, arity = struct.unpack("<HBB", body[:4])
        operations, body = body[4 : 4 + records], body[4 + records :]
        groups = [int.from_bytes(body[at : at + width], "little") for at in range(0, records * width, width)]
        body = body[records * width :]
        columns: list[list[Any]] = []
        while body:
            (column_length,) = struct.unpack("<I", body[:4])
            columns.append(msgspec.msgpack.decode(body[4 : 4 + column_length]))
            body = body[4 + column_length :]
        *keys, data = columns
        assert len(keys) == max(1, arity)
        whole = list(zip(*keys, strict=True)) if arity else keys[0]
        assert len(operations) == len(groups) == len(whole) == len(data) == records > 0
        for operation, group, key, argument in zip(operations, groups, whole, data, strict=True):
            changes.append((first + group, operation, state, _key(key), argument))
    return changes


def read_rows(raw: bytes) -> list[tuple[int, int, int, Any, bytes]]:
    """The changes of every block, keys as the user gave them."""
    changes: list[tuple[int, int, int, Any, bytes]] = []
    while raw:
        (length,) = struct.unpack("<I", raw[:4])
        block = msgspec.msgpack.decode(raw[4 : 4 + length])
        assert 0 < len(block) <= 4096
        changes += [(group, operation, state, _key(key), data) for group, operation, state, key, data in block]
        raw = raw[4 + length :]
    return changes


def read_commit(data: bytes) -> dict[str, Any]:
    """The manifest, as MessagePack gives it."""
    assert data[:7] == b"sbcommt"
    checksum, length = struct.unpack("<II", data[8:16])
    assert length <= len(data) - 16
    assert checksum == zlib.crc32(data[:8] + data[12:])
    manifest = msgspec.msgpack.decode(data[16 : 16 + length])
    assert isinstance(manifest, dict)
    rocksdb = any("native" in part for part in manifest.get("ranges", ()))
    files = [file for part in manifest.get("ranges", ()) for base in part.get("native", ()) for file in base[3]]
    columns = any(name.startswith("columns-") for name, _ in files)
    plain = 4 if columns else 3 if rocksdb else 2 if "outbox" in manifest else 1
    plain = 5 if "clock" in manifest else plain
    assert data[7] == (6 if manifest.keys() & {"starts_from", "transformed"} else plain)
    return manifest


def read_part(data: bytes) -> bytes:
    """The Arrow IPC stream in a part of staged output."""
    assert data[:8] == b"sboutpt\x01"
    checksum, codec, raw_length = struct.unpack("<IBQ", data[8:21])
    assert checksum == zlib.crc32(data[:8] + data[12:])
    if codec == 0:
        assert len(data) - 21 == raw_length
        return data[21:]
    raw: bytes = pa.decompress(data[21:], raw_length, codec=ARROW_CODECS[codec], asbytes=True)
    assert len(raw) == raw_length
    return raw


def write_part(payload: bytes, *, raw_length: int, codec: int = 0, version: int = 1) -> bytes:
    """A part that says what it is told to say. Its checksum is right."""
    head = b"sboutpt" + bytes([version])
    body = struct.pack("<BQ", codec, raw_length) + payload
    return head + struct.pack("<I", zlib.crc32(head + body)) + body


def read_local_snapshot(data: bytes) -> dict[str, Any]:
    """The manifest, as MessagePack gives it."""
    assert data[:8] == b"sblocal\x01"
    assert struct.unpack("<I", data[8:12]) == (zlib.crc32(data[:8] + data[12:]),)
    manifest = msgspec.msgpack.decode(data[12:])
    assert isinstance(manifest, dict)
    return manifest


def _key(key: Any) -> Any:
    return tuple(map(_key, key)) if isinstance(key, list | tuple) else key


def write_frame(
    payload: bytes,
    *,
    raw_length: int,
    records: int,
    codec: int = 0,
    sequence_number: int = 0,
    first: int = 0,
    last: int = 127,
    log_id: bytes = b"0-127",
    log_id_length: int | None = None,
    size: int | None = None,
) -> bytes:
    """A frame that says what it is told to say. Its checksum is right."""
    length = len(log_id) if log_id_length is None else log_id_length
    header = struct.pack("<QhhIIBB", sequence_number, first, last, records, raw_length, codec, length)
    body = header + log_id + payload
    covered = struct.pack("<I", len(body) if size is None else size) + body
    return struct.pack("<I", zlib.crc32(covered)) + covered


def write_local_snapshot(head: bytes, manifest: bytes) -> bytes:
    """A local snapshot with that head and manifest. Its checksum is right."""
    return head + struct.pack("<I", zlib.crc32(head + manifest)) + manifest


def write_segment(frames: Sequence[bytes], index: bytes | Sequence[Any], *, version: int = 1) -> bytes:
    """A segment round these frames. The index may be anything; its checksum is right."""
    head = b"sbsegmt" + bytes([version])
    index_bytes = index if isinstance(index, bytes) else msgspec.msgpack.encode(index)
    body = head + b"".join(frames)
    fields = struct.pack("<QI", len(body), len(index_bytes))
    checksum = zlib.crc32(head + index_bytes + fields)
    return body + index_bytes + fields + struct.pack("<I", checksum) + b"sbsegend"


def write_commit(manifest: bytes | dict[str, Any], *, version: int = 1) -> bytes:
    """A commit object round this manifest, or these bytes in its place. Its checksum is right."""
    head = b"sbcommt" + bytes([version])
    body = manifest if isinstance(manifest, bytes) else msgspec.msgpack.encode(manifest)
    length = struct.pack("<I", len(body))
    return head + struct.pack("<I", zlib.crc32(head + length + body)) + length + body


def write_block(changes: Sequence[Any] | bytes) -> bytes:
    """One block of changes, or these bytes in its place."""
    encoded = changes if isinstance(changes, bytes) else msgspec.msgpack.encode(changes)
    return struct.pack("<I", len(encoded)) + encoded
