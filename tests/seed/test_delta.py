"""Backfill of a Delta table, then live: the snapshot at a version, and the versions behind it, without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebackend as sb
from statebackend.testing import run_virtual

deltalake = pytest.importorskip("deltalake", reason="it reads and writes Delta tables")


def states(backend: Any) -> Any:
    return backend.reducing_state("amount", int, int.__add__)


def orders(*rows: tuple[str, int]) -> pa.Table:
    return pa.table({"customer": [name for name, _ in rows], "amount": [amount for _, amount in rows]})


def added(table: str, version: int) -> list[dict[str, Any]]:
    """The rows that a version appended."""
    now, before = (set(deltalake.DeltaTable(table, version=each).file_uris()) for each in (version, version - 1))
    return [row for uri in sorted(now - before) for row in pq.read_table(uri.removeprefix("file://")).to_pylist()]


def sums(table: str, version: int) -> dict[str, int]:
    """The amount of each customer in the snapshot of a version."""
    found: dict[str, int] = {}
    for uri in deltalake.DeltaTable(table, version=version).file_uris():
        for row in pq.read_table(uri.removeprefix("file://")).to_pylist():
            found[row["customer"]] = found.get(row["customer"], 0) + row["amount"]
    return found


@run_virtual
async def test_each_row_counts_once(tmp_path: Path) -> None:
    """Those that come while the backfill runs, too: the commit says with which version to go on."""
    table = str(tmp_path / "orders")
    for rows in (orders(("Ada", 1), ("Bob", 2)), orders(("Ada", 10))):
        deltalake.write_deltalake(table, rows, mode="append")
    settings = sb.Settings(job="orders", primary="memory://delta")
    cut = {"version": deltalake.DeltaTable(table).version()}
    deltalake.write_deltalake(table, orders(("Ada", 100), ("Cy", 5)), mode="append")
    await sb.seed(settings, states, {"amount": sums(table, cut["version"])}, starts_from=cut)

    for _ in range(2):  # the program starts again as it is
        async with sb.open_backend(settings) as backend:
            amount = states(backend)
            (newest, *_) = [each async for each in backend.history()]
            done = newest.starts_from["version"] if newest.source is None else newest.source.batch_id
            for version in range(done + 1, deltalake.DeltaTable(table).version() + 1):
                for row in added(table, version):
                    amount.add(row["customer"], row["amount"])
                await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark(table, version))
            assert dict(amount) == {"Ada": 111, "Bob": 2, "Cy": 5}
