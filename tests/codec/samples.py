"""Change sets to try the codec on: of every kind, by hypothesis; and one small segment with a frame of each codec."""

from collections.abc import Sequence
from typing import Any, get_args

from hypothesis import strategies as st

from statebackend._codec.change_sets.changes import ChangeSet
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._codec.frame import frame_chunks
from statebackend._codec.segment import decode_segment
from statebackend.ids import SequenceNumber
from statebackend.settings import Compression
from tests.changes import rows_of, set_of_rows
from tests.codec.grammar_v1 import Frame, write_segment

COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
NAME = "segments/sample"

KEYS = st.recursive(
    st.text(max_size=12) | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=12),
    lambda parts: st.lists(parts, min_size=1, max_size=3).map(tuple),
    max_leaves=5,
)
SETS = st.builds(
    StateChange,
    key_group=st.integers(0, 32_767),
    operation=st.just(Operation.SET),
    state_id=st.integers(0, 1000),
    key=KEYS,
    data=st.binary(max_size=40) | st.binary(min_size=1, max_size=4).map(lambda data: data * 50),
)
CLEARS = st.builds(
    StateChange,
    key_group=st.integers(0, 32_767),
    operation=st.just(Operation.CLEAR),
    state_id=st.integers(0, 1000),
    key=KEYS,
)
CHANGES = SETS | CLEARS
NAMES: dict[str, st.SearchStrategy[Any]] = {
    "log_id": st.text(max_size=20),
    "number": st.integers(0, 2**64 - 1).map(SequenceNumber),
}
CHANGE_SETS = st.builds(set_of_rows, **NAMES, rows=st.lists(CHANGES, min_size=1, max_size=20))


def plain(change: StateChange) -> tuple[int, int, int, Any, bytes]:
    """A change as the grammar has it, its key as the user gave it."""
    return change.key_group, int(change.operation), change.state_id, change.key, change.data


def frame_of(change_set: ChangeSet) -> Frame:
    """What an independent reader should find."""
    span = change_set.key_groups
    changes = [plain(change) for change in rows_of(change_set.changes)]
    return Frame(change_set.log_id, change_set.sequence_number, span.first, span.last, changes)


def frames_in(data: bytes, name: str = NAME) -> list[Frame]:
    """What the library's reader finds."""
    return [
        Frame(
            header.log_id,
            header.sequence_number,
            header.key_groups.first,
            header.key_groups.last,
            [plain(change) for change in rows_of(changes)],
        )
        for header, changes in decode_segment(data, name)
    ]


def sample_change_sets() -> Sequence[ChangeSet]:
    """One for each compression, of two writers, compressible, with every kind of key."""
    keys: list[Any] = ["N14228", -7, b"\x00\xff", ("EWR", 1, (b"", "é"))]
    return [
        set_of_rows(
            f"{number % 2 * 64}-{number % 2 * 64 + 63}",
            number,
            [
                *(StateChange(number, Operation.SET, 0, key, bytes([number]) * 24) for key in keys),
                StateChange(number + 1, Operation.CLEAR, 1, "gone"),
            ],
        )
        for number in range(len(COMPRESSIONS))
    ]


def mixed_segment() -> bytes:
    """A small whole segment with one frame of each codec, as after a change of the setting between two persists."""
    frames = [
        b"".join(frame_chunks(each, compression))
        for each, compression in zip(sample_change_sets(), COMPRESSIONS, strict=True)
    ]
    index: list[Any] = []
    offset = 8
    for each, frame in zip(sample_change_sets(), frames, strict=True):
        span = each.key_groups
        index.append([each.log_id, each.sequence_number, offset, len(frame), [span.first, span.last], each.records])
        offset += len(frame)
    return write_segment(frames, index, version=2)
