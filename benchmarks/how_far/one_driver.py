"""One driver with columns over runs: bases that are really written and opened, and by them what more keys take.

What is measured is of a million keys, and all of it grows with them. How often a change is written follows from the
rules for layers and bases alone.
"""

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.how_far.envelope import SEGMENT_BYTES, commit_of
from statebackend._checkpoint.materialization.bases import pack
from statebackend._checkpoint.materialization.layers import first_to_merge
from statebackend._codec.segment import encode_segment
from statebackend._columns.table_schema import table_schema
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.page_map import PlacedPart
from statebackend._runs.run_file import OpenRun, open_run
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import WantedEntries
from statebackend.ids import Base, ChangeSetHandle, Handle, RangeState, SequenceNumber, all_key_groups
from statebackend.settings import KiB, MiB, Settings

KEYS: Final = (2_000_000, 20_000_000, 60_000_000, 1_000_000_000)
KEY_GROUPS: Final = 4096
"""A segment ends with a key group, and one is in memory while it is written: large jobs need many of them."""
SAMPLE_KEYS: Final = 1_000_000
LAYER_KEYS: Final = 500_000
"""Keys that change before a layer is due."""
OF_A_KEY: Final = 50
"""Bytes of a key, for the rules, which know bytes."""
_GROUPS: Final = all_key_groups(128)
_RATIO: Final = Settings(job="j", primary="memory://x").materialize_changelog_ratio


@dataclass(frozen=True)
class Measured:
    """Of bases that were written and opened."""

    key_bytes: float
    """Stored, with all that lies beside pages."""
    pages: float
    """Of a key."""
    opening_bytes: float
    """Read at the opening, of a key."""
    page_memory_bytes: float
    """In memory, of a page."""


def measured(directory: Path, keys: int = SAMPLE_KEYS) -> Measured:
    """Write bases of so many keys of 11 characters with three numbers each, and open them."""
    owned = OwnedKeys(_GROUPS, len(_GROUPS))
    schema = table_schema(pa.schema({name: pa.int64() for name in "abc"}), pa.string())
    table = RunTable(schema, owned, memory=OverlayMemory(1))
    rows, _ = table.find_or_add(pa.array([f"k{number:010}" for number in range(keys)]))
    table.scatter(rows, pa.RecordBatch.from_pydict({name: np.arange(keys) for name in "abc"}))
    list(table.drain(0))
    placed = table.copy().placed_over(WantedEntries(0, owned, [*_GROUPS]), 0)
    files: list[tuple[Path, Handle]] = []
    for number, piece in enumerate(pack(placed.changes(_GROUPS), _GROUPS, segment_bytes_max=SEGMENT_BYTES)):
        encoded = encode_segment(piece.frames, "zstd")
        path = directory / f"{number}"
        path.write_bytes(b"".join(encoded.chunks))
        files.append((path, Handle(path.name, 0, encoded.size_bytes, encoded.checksum)))
    del table, placed
    tracemalloc.start()
    opened = [open_run(*each) for each in files]
    looking = RunTable(schema, owned, memory=OverlayMemory(1))
    looking.attach([PlacedPart(part, (_GROUPS,), is_whole=True) for each in opened for part in each.parts])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stored, pages, in_pages = sum(handle.length for _, handle in files), *_pages(opened)
    return Measured(stored / keys, pages / keys, (stored - in_pages) / keys, held / pages)


def _pages(opened: Sequence[OpenRun]) -> tuple[int, int]:
    """How many there are, and their bytes."""
    heads = [part.head for each in opened for part in each.parts]
    return sum(head.pages for head in heads), sum(head.pages * head.page_bytes for head in heads)


def segments_of(stored: float, key_groups: int) -> int:
    """How many segments bases of so many bytes have: each ends with the key group that fills it."""
    of_a_group = stored / key_groups
    return math.ceil(key_groups / math.ceil(SEGMENT_BYTES / of_a_group))


class Life(NamedTuple):
    """What was written for each byte that changed, its log included, and the most layers there were."""

    written: float
    layers_max: int


def life(base_bytes: int, tail_bytes: int, steps: int) -> Life:
    """A job whose changes all are of other keys, by the rules for layers and bases."""
    base = (Base(Handle("segments/base", 0, base_bytes, 1), (_GROUPS,), len(_GROUPS)),)
    sizes: list[int] = []
    written, most = 0, 0
    for number in range(steps):
        written += tail_bytes
        changelog = [_handle(f"+2s{at} 0-127", at, size) for at, size in enumerate(sizes)]
        changelog.append(_handle("0-127", number + 1000, tail_bytes))
        first = first_to_merge(RangeState(_GROUPS, tuple(changelog), base), ratio=_RATIO, base_bytes=base_bytes)
        if first is None:
            written, sizes = written + base_bytes, []
            continue
        sizes = [*sizes[:first], sum(sizes[first:]) + tail_bytes]
        written += sizes[-1]
        most = max(most, len(sizes))
    return Life(written / (steps * tail_bytes), most)


def life_of(keys: int) -> Life:
    """Of a job of so many keys, until a base was written some times."""
    tail = LAYER_KEYS * OF_A_KEY
    return life(keys * OF_A_KEY, tail, 8 * max(4, keys // LAYER_KEYS))


def _handle(name: str, number: int, length: int) -> ChangeSetHandle:
    """A handle of a change set with that log id."""
    of_file = Handle(f"segments/{name} {number}", 0, length, 1)
    return ChangeSetHandle(of_file, name, SequenceNumber(number), 0, length, _GROUPS, 10)


HEAD: Final = (
    "keys",
    "bases",
    "segments, each an open file",
    "read at the opening, beside the tail",
    "in memory for pages",
    "a commit lists",
    "a change is written",
    "layers at most",
)


def line(keys: int, of: Measured) -> Sequence[str]:
    """The figures of a job of so many keys, in the order of `HEAD`."""
    stored = keys * of.key_bytes
    segments, lived = segments_of(stored, KEY_GROUPS), life_of(keys)
    listed = len(commit_of(1, 0, bases=segments).body) - len(commit_of(1, 0, bases=0).body)
    return [
        f"{keys:,}",
        f"{stored / 1e9:,.1f} GB",
        f"{segments:,}",
        f"{keys * of.opening_bytes / MiB:,.1f} MiB",
        f"{keys * of.pages * of.page_memory_bytes / MiB:,.1f} MiB",
        f"{listed / KiB:,.1f} KiB",
        f"{lived.written:.1f} times",
        f"{lived.layers_max}",
    ]
