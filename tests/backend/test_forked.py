"""A forked process has the objects of its parent, and none of its threads: it can neither write nor commit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from statebackend._tables import rocksdb_files
from statebackend._tables.rocksdb_files import RocksFiles
from statebackend.errors import StoreUnavailableError

ROOT = Path(__file__).parents[2]
REFUSED = {"checkpoint": "spawn", "files": "same", "parent": "2", "sequence": "2"}


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the forked children of one process could do, by scenario."""
    directory = str(tmp_path_factory.mktemp("forked"))
    command = [sys.executable, "-W", "ignore", "-m", "tests.backend.forked_child", directory]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found: dict[str, dict[str, str]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("heap", REFUSED),
        ("heap, inline", REFUSED),
        ("rocksdb", REFUSED),
        ("owner", {"snapshot": "spawn", "commit": "spawn"}),
        ("cache", {"get": "spawn", "directories": "1"}),
        ("follower", {"read": "spawn", "wait": "spawn", "promote": "spawn"}),
        ("background", {"ask": "spawn", "close": "done"}),
        ("rocksdb after rocksdb", {"open": "spawn"}),
        ("heap after rocksdb", {"open": "done"}),
        ("rocksdb after heap", {"open": "done"}),
        ("unwinds", {"hangs": "False", "newest": "2"}),
        ("exits", {"beside": "3", "after": "4"}),
    ],
)
def test_a_forked_child_changes_nothing_and_is_told_to_be_spawned(
    scenario: str, expected: dict[str, str], children: dict[str, dict[str, str]]
) -> None:
    """It may open a job of its own, but for one in RocksDB after its parent had one. It ends with its own status."""
    found = children[scenario]
    assert {name: found.get(name) for name in expected} == expected, found


def test_waiting_for_rocksdb_to_write_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads may be gone for a reason we do not know of."""
    files = RocksFiles(tmp_path / "db", memory_bytes=4 << 20)

    class Stuck:
        """A database whose threads are gone."""

        def flush(self, _wait: bool) -> None: ...  # as rocksdict's

        def property_int_value(self, name: str) -> int:
            return int(name == "rocksdb.num-immutable-mem-table")

    whole = vars(files)["_db"]
    monkeypatch.setattr(rocksdb_files, "FLUSH_S_MIN", -60.0)
    monkeypatch.setattr(files, "_db", Stuck())
    with pytest.raises(StoreUnavailableError, match="does not write"):
        files.write_out()
    monkeypatch.setattr(files, "_db", whole)
    files.close()
