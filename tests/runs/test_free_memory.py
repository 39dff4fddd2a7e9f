"""What merges have used and freed goes back to the system, and a copy of a table takes no more than it is read for."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from statebackend._runs import free_memory
from statebackend._runs.free_memory import FreeMemory, own_bytes
from statebackend.settings import KiB, MiB
from tests.runs.flushing import flush
from tests.runs.test_lookup import OWNED, filled, found_in

FREED = 64 * MiB


@pytest.mark.skipif(free_memory._TRIM is None or sys.platform != "linux", reason="not with this C library")
def test_memory_that_is_free_goes_back_to_the_system() -> None:
    """Also where something that is still used lies between it: without being asked, the C library keeps that."""
    assert free_memory._TRIM is not None
    free_memory._TRIM(0)  # or the pieces take what tests before have freed, and the process does not grow
    watched = FreeMemory(2 * FREED)
    pieces = [bytearray(b"x") * (16 * KiB) for _ in range(FREED // (16 * KiB))]
    taken = own_bytes()
    kept = pieces[::64]
    pieces.clear()
    watched.give_back(1)
    assert own_bytes() > taken - FREED // 2
    watched.give_back(4)
    assert own_bytes() < taken - FREED * 3 // 4
    assert len(kept) == FREED // (16 * KiB) // 64


def test_a_copy_has_the_rows_that_no_run_has_and_no_others(tmp_path: Path) -> None:
    """It is made for a merge, which reads the others from the runs: they would take as much memory again."""
    table = filled({f"key {number}": "old" for number in range(300)})
    flush(table, OWNED, tmp_path)
    assert len(found_in(table, [f"key {number}" for number in range(200)])) == 200
    rows, _ = table.find_or_add(pa.array(["key 7", "new"]))
    table.scatter(rows, pa.RecordBatch.from_pydict({"text": ["changed", "added"]}))
    list(table.drain(0))
    copied = table.copy()
    live = copied.live_rows()
    assert dict(zip(copied.keys(live).to_pylist(), copied.gather(live)["text"].to_pylist(), strict=True)) == {
        "key 7": "changed", "new": "added"
    }  # fmt: skip
