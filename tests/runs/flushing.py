"""Tables over runs without a backend: a base is written to a file, as the backend's is, and looked up in."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from statebackend._checkpoint.materialization.bases import pack
from statebackend._codec.segment import encode_segment
from statebackend._runs.page_map import PlacedPart
from statebackend._runs.run_file import OpenRun, open_run
from statebackend._runs.run_table import RunTable
from statebackend._tables.placed import WantedEntries
from statebackend.ids import Handle, KeyGroupRange


def stored(directory: Path, frames: Iterable, number: int = 0, compression: str = "zstd") -> tuple[Path, Handle]:
    """A segment of these change sets as a file, and the handle that a commit has of it."""
    encoded = encode_segment(frames, compression)
    path = directory / f"segment-{len([*directory.iterdir()])}-{number}"
    path.write_bytes(b"".join(encoded.chunks))
    return path, Handle(path.name, 0, encoded.size_bytes, encoded.checksum)


def bases_of(
    table, owned, directory: Path, groups: Sequence[int], *, segment_bytes_max: int = 1 << 20, layer: int = 0
) -> list[tuple[OpenRun, tuple[KeyGroupRange, ...]]]:
    """The bases that a copy of a table makes of these groups, open; or the pages of a `layer`."""
    wanted = WantedEntries(0, owned, sorted(groups))
    placed = table.placed_over(wanted, layer)
    found = []
    changes = (each for group in sorted(groups) for each in placed.changes(KeyGroupRange(group, group)))
    for number, piece in enumerate(pack(changes, groups, segment_bytes_max=segment_bytes_max)):
        path, handle = stored(directory, piece.frames, number)
        found.append((open_run(path, handle), piece.key_groups))
    return found


def take_over(table: RunTable, copy: RunTable, files, groups: Iterable[int]) -> None:
    """Have the table look up in the bases of that copy of it."""
    table.replace(parts_of(files), frozenset(groups), copy)


def parts_of(files) -> list[PlacedPart]:
    """What a table attaches of these files."""
    return [PlacedPart(part, key_groups, is_whole=True) for file, key_groups in files for part in file.parts]


def flush(table: RunTable, owned, directory: Path, groups: Sequence[int] | None = None, **bounds) -> None:
    """Write a base of the table and have it look up there."""
    groups = list(owned.key_groups) if groups is None else groups
    copy = table.copy()
    take_over(table, copy, bases_of(copy, owned, directory, groups, **bounds), groups)
