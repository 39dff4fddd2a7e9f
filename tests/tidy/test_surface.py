"""Every public name is in one room, and this says which. A name that comes or goes does so here, too."""

import importlib
import re
from pathlib import Path

import pytest

FRONT_DOOR = """
    __version__ Aggregate AggregatingState CheckpointInfo Clock clone ColumnarState CommitSummary diff
    drop_savepoint erase export follow follow_in_background history_of inspect keep_mirrored Key ListState MapState
    Mirror mirror_once ObjectStore Observer open_backend OperatorState Output read_batches read_rows read_state
    ReducingState repair report RestoreReport rewrite savepoint savepoints seed Serializer Settings SourceMark
    StagedOutput StateBackend StateBackendError StateChangeUploader StateFollower sweep Timers TimeToLive transform
    ValueState verify verify_erased watch
"""
IMPLEMENTERS = """
    Body Buffer Capability ChangeSetHandle CheckpointInfo Clock CopiesObjects CountsRequests DeletesMany Fallback Handle
    ObjectInfo ObjectStore Observer OpensApart RestoreReport Segment Serializer StateChangeUploader UploadedSegment
"""
MIRRORS = """
    DeltaTarget IcebergTarget MirrorMark MirrorRows MirrorTable MirrorTarget ParquetTarget PostgresTarget newest_view
"""
OWNERS = """
    CheckpointCoordinator Committed DownloadCache KeyGroupRange OwnerBackend SnapshotResult key_group open_coordinator
    open_download_cache
"""
REPORTS = """
    CloneReport Damage Difference EraseReport ErasureProof ExportReport FollowerPosition Inspection JobReport
    KeyChange KeyHistory KeyHolder LogEntry LogRow MirrorReport MirrorRow
    ObjectReport Progress RangeRow Repair RequestRate RewriteReport Row SavepointInfo
    SeedReport SizeRow SizeTotal SweepFailure SweepReason SweepReport TransformReport VerifyReport size_totals
"""
ROOMS = {
    "statebackend": FRONT_DOOR,
    "statebackend.abc": IMPLEMENTERS,
    "statebackend.mirrors": MIRRORS,
    "statebackend.owners": OWNERS,
    "statebackend.reports": REPORTS,
}
BEHIND_THE_DOOR = {"cli", "ids", "py"}
"""Not for users of the package: the command line, and the ids, which come with the calls that return them."""
NAMED_BESIDE = "Key SourceMark"
"""Types that signatures name, which need no line in the docstring of the door."""
AT_THE_DOOR_TOO = "CheckpointInfo Clock ObjectStore Observer RestoreReport Serializer StateChangeUploader"
"""What people subclass, and what they are handed: the door names these beside `statebackend.abc`."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_these_and_no_others(room: str) -> None:
    """Each of them is there, and has its docstring or its value from wherever it is defined."""
    module = importlib.import_module(room)
    assert sorted(module.__all__) == sorted(ROOMS[room].split())
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_front_door_shows_its_names_and_rooms_and_nothing_else() -> None:
    """Also what is imported on first use; none of what the door itself has imported."""
    package = importlib.import_module("statebackend")
    rooms = {path.stem if path.suffix else path.name for path in Path(package.__path__[0]).iterdir()}
    shown, said = set(dir(package)), f"{package.__doc__} __version__ {NAMED_BESIDE}"
    assert set(package.__all__) <= shown
    assert shown - set(package.__all__) == {room for room in rooms if not room.startswith("_")} - BEHIND_THE_DOOR
    assert [name for name in shown if not re.search(rf"\b{name}\b", said)] == []


def test_a_docstring_that_lists_lists_all() -> None:
    """The commands of the command line, and the files of the changelog."""
    cli, changelog = (importlib.import_module(f"statebackend.{room}") for room in ("cli", "_changelog"))
    commands = importlib.import_module("statebackend.cli.commands").COMMANDS
    assert set(re.findall(r"^    statebackend ([\w-]+)", cli.__doc__, re.MULTILINE)) == set(commands) - {"restore"}
    files = {path.stem for path in Path(changelog.__path__[0]).glob("*.py")} - {"__init__"}
    assert [name for name in sorted(files) if not re.search(rf"\b{name}\b", changelog.__doc__)] == []


def test_a_name_is_in_one_room() -> None:
    """But for a few of `statebackend.abc` that the door names, too."""
    seen: list[str] = [name for names in ROOMS.values() for name in names.split()]
    assert sorted({name for name in seen if seen.count(name) > 1}) == sorted(AT_THE_DOOR_TOO.split())


def test_the_rooms_are_within_reach_of_the_front_door() -> None:
    """`import statebackend as sb` is enough for `sb.owners.open_coordinator`."""
    package = importlib.import_module("statebackend")
    assert all(getattr(package, room.rpartition(".")[2]) is importlib.import_module(room) for room in [*ROOMS][1:])
