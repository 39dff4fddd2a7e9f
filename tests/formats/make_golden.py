"""Writes the golden files of a format's version, once, before its release. Run by hand from the project's root:

    python -m tests.formats.make_golden

Files that exist are left alone: a released version never gets other bytes. To see what would be written instead,
delete them first, and look at the difference before you keep it.
"""

from pathlib import Path

import msgspec

from statebackend._codec.change_sets.changes import ChangeSet
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._codec.commit import Claim, Commit, carried, encode_entry
from statebackend._codec.local_snapshot import LocalSnapshot, encode_local_snapshot
from statebackend._codec.segment import encode_for_segment, encode_segment
from statebackend._codec.staged import decode_part, encode_part
from statebackend.settings import Compression
from tests.changes import set_of_rows
from tests.codec.samples import COMPRESSIONS
from tests.formats import content_columns, content_outbox, content_v1, content_v2

GOLDEN = Path(__file__).parent / "golden"


def change_sets(content: list[tuple[str, int, content_v1.Changes]]) -> list[ChangeSet]:
    """The content as the library has it."""
    return [
        set_of_rows(log_id, number, [StateChange(*change) for change in changes]) for log_id, number, changes in content
    ]


def segment(content: list[tuple[str, int, content_v1.Changes]], compression: Compression) -> bytes:
    """The bytes of a segment, as this release writes it."""
    return b"".join(encode_segment(change_sets(content), compression).chunks)


def inline_commit() -> bytes:
    """The bytes of a commit that carries change sets, as this release writes it."""
    frames, _ = carried(
        [encode_for_segment(each, "none") for each in change_sets([content_v2.SEGMENT[0], content_v2.SEGMENT[2]])]
    )
    return encode_entry(msgspec.convert(content_v2.INLINE, Commit), "commit-v1-inline-parts.bin", frames).body


def outbox_commit() -> bytes:
    """The bytes of a commit that names output, and carries some of it, as this release writes it."""
    part = (GOLDEN / "output-v1.bin").read_bytes()
    commit = msgspec.convert(content_outbox.COMMIT_WITH_OUTBOX, Commit)
    return encode_entry(commit, "commit-v2-outbox.bin", [part]).body


def output() -> bytes:
    """The bytes of staged output, as this release writes it. What Arrow makes of the rows is kept as it was."""
    return encode_part(decode_part((GOLDEN / "output-v1.bin").read_bytes(), "output-v1.bin"), "none")


def golden_files() -> dict[str, bytes]:
    """Every golden file that this release still writes, as it writes it. Segments of version 1 it only reads."""
    return {
        "segment-v2-example.bin": segment(content_v2.EXAMPLE, "none"),
        "segment-v2-columns-example.bin": b"".join(encode_segment(content_columns.example(), "none").chunks),
        "segment-v2-columns.bin": b"".join(encode_segment(content_columns.every_type(), "none").chunks),
        "segment-v2-pages.bin": b"".join(encode_segment(content_columns.in_pages(), "zstd").chunks),
        "segment-v2-kinds.bin": segment(content_v1.KINDS, "none"),
        **{f"segment-v2-{name}.bin": segment(content_v2.SEGMENT, name) for name in COMPRESSIONS},
        "local-snapshot-v1.bin": encode_local_snapshot(msgspec.convert(content_v1.LOCAL_SNAPSHOT, LocalSnapshot)),
        "commit-v1.bin": encode_entry(msgspec.convert(content_v1.COMMIT, Commit), "commit-v1.bin").body,
        "commit-v1-history.bin": encode_entry(
            msgspec.convert(content_v1.HISTORY, Commit), "commit-v1-history.bin"
        ).body,
        "commit-v1-inline-parts.bin": inline_commit(),
        "commit-v2-outbox.bin": outbox_commit(),
        "commit-v3-native.bin": encode_entry(msgspec.convert(content_v1.NATIVE, Commit), "commit-v3-native.bin").body,
        "commit-v4-columns.bin": encode_entry(
            msgspec.convert(content_v1.COLUMNS, Commit), "commit-v4-columns.bin"
        ).body,
        "commit-v1-sizes.bin": encode_entry(msgspec.convert(content_v1.SIZES, Commit), "commit-v1-sizes.bin").body,
        "commit-v1-untaken.bin": encode_entry(
            msgspec.convert(content_v1.UNTAKEN, Commit), "commit-v1-untaken.bin"
        ).body,
        "commit-v1-marks.bin": encode_entry(msgspec.convert(content_v1.MARKS, Commit), "commit-v1-marks.bin").body,
        "commit-v1-zone.bin": encode_entry(msgspec.convert(content_v1.ZONE, Commit), "commit-v1-zone.bin").body,
        "commit-v5-clock.bin": encode_entry(msgspec.convert(content_v1.CLOCK, Commit), "commit-v5-clock.bin").body,
        "commit-v6-start.bin": encode_entry(msgspec.convert(content_v1.START, Commit), "commit-v6-start.bin").body,
        "commit-v6-transformed.bin": encode_entry(
            msgspec.convert(content_v1.TRANSFORMED, Commit), "commit-v6-transformed.bin"
        ).body,
        "local-snapshot-v1-native.bin": encode_local_snapshot(msgspec.convert(content_v1.LOCAL_NATIVE, LocalSnapshot)),
        "output-v1.bin": output(),
        "claim-v1.bin": encode_entry(msgspec.convert(content_v1.CLAIM, Claim), "claim-v1.bin").body,
    }


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, data in golden_files().items():
        path = GOLDEN / name
        if path.exists():
            print(f"{name}: kept")
        else:
            path.write_bytes(data)
            print(f"{name}: {len(data)} bytes written")
