"""A file has the rows that a read has, of every type and however many batches; the report counts all of them."""

import base64
import csv
import datetime as dt
import importlib
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._reading.export import Format
from statebackend.objectstore import MemoryStore
from statebackend.settings import MiB
from tests.examples import name_of
from tests.reading.test_beside import GROUPS, with_bases
from tests.rewrite.jobs import newest_commit, settings_of

AT = dt.datetime(2013, 5, 1, 12, 0, 0, 7, tzinfo=dt.UTC)
TYPES: Final[Mapping[pa.DataType, tuple[Any, Any]]] = {
    pa.bool_(): (True, True),
    pa.uint64(): (2**64 - 1, 2**64 - 1),
    pa.float64(): (0.1, 0.1),
    pa.date32(): (AT.date(), "2013-05-01"),
    pa.time64("us"): (AT.time(), "12:00:00.000007"),
    pa.timestamp("us"): (AT.replace(tzinfo=None), "2013-05-01T12:00:00.000007"),
    pa.timestamp("us", "UTC"): (AT, "2013-05-01T12:00:00.000007+00:00"),
    pa.duration("ms"): (dt.timedelta(milliseconds=-1500), -1.5),
    pa.duration("us"): (dt.timedelta(microseconds=7), 0.000007),
    pa.decimal128(12, 2): (Decimal("-1.50"), "-1.50"),
    pa.string(): ('a "quoted", line\n', 'a "quoted", line\n'),
    pa.large_string(): ("", ""),
    pa.binary(): (b"\xff\x00", {"base64": "/wA="}),
    pa.large_binary(): (b"", {"base64": ""}),
    pa.binary(2): (b"ab", {"base64": base64.b64encode(b"ab").decode()}),
}
"""A value of each type, and how JSON shows it."""


def rows_of(path: Path, kind: Format) -> list[dict[str, Any]]:
    """The rows in a file; of CSV all values are text."""
    if kind == "parquet":
        found: list[dict[str, Any]] = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
        return found
    with path.open(newline="") as file:
        return [json.loads(line) for line in file] if kind == "jsonl" else [*csv.DictReader(file)]


def in_csv(type_: pa.DataType, in_json: Any) -> str:
    """The text of a value, which is that of JSON where CSV has none."""
    if isinstance(in_json, bool | dict) or pa.types.is_duration(type_):
        return msgspec.json.encode(in_json).decode()
    return str(in_json).replace("T", " ").replace("+00:00", "Z")


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("type_", TYPES, ids=name_of)
async def test_each_type_of_column_has_its_place(type_: pa.DataType, kind: Format, tmp_path: Path) -> None:
    """Beside a null: as it is in Parquet, in the words of JSON elsewhere, where CSV has none of its own."""
    value, in_json = TYPES[type_]
    settings, store, path = settings_of(1), MemoryStore(), tmp_path / f"rows.{kind}"
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.columnar_state("rows", pa.schema({"x": type_}), key=pa.int64())
        state[1], state[2] = {"x": value}, {"x": None}
        await backend.checkpoint(1)
    report = await sb.export(settings, "rows", path, format=kind, store=store)
    assert (report.rows, report.size_bytes, report.checkpoint_id) == (2, path.stat().st_size, 1)
    found = {int(row["key"]): row["x"] for row in rows_of(path, kind)}
    shown = {"parquet": value, "jsonl": in_json, "csv": in_csv(type_, in_json)}
    assert found == {1: shown[kind], 2: "" if kind == "csv" else None}


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
async def test_all_batches_are_written_and_counted(kind: Format, tmp_path: Path) -> None:
    """One behind the other, each key once."""
    store, path = MemoryStore(), tmp_path / f"n.{kind}"
    settings = await with_bases(store)
    async with sb.read_batches(settings, "n", store=store) as batches:
        assert len([batch async for batch in batches]) > 1
    report = await sb.export(settings, "n", path, format=kind, store=store)
    assert (report.rows, report.size_bytes) == (5000 * GROUPS, path.stat().st_size)
    assert sorted(int(row["key"]) for row in rows_of(path, kind)) == list(range(5000 * GROUPS))


async def test_a_duration_is_shown_to_the_nanosecond(tmp_path: Path) -> None:
    """So two that differ by one are two for `diff`, too."""
    pytest.importorskip("pandas", reason="without it such a value is refused")
    settings, store = settings_of(1), MemoryStore()
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.columnar_state("rows", pa.schema({"x": pa.duration("ns")}), key=pa.int64())
        for checkpoint_id, nanoseconds in enumerate((1_000_000_001, 1_000_000_002)):
            state.rows(pa.array([7])).scatter({"x": pa.array([nanoseconds]).cast(pa.duration("ns"))})
            await backend.checkpoint(checkpoint_id)
    await sb.export(settings, "rows", tmp_path / "x.jsonl", format="jsonl", store=store)
    assert [row["x"] for row in rows_of(tmp_path / "x.jsonl", "jsonl")] == [1.000000002]
    found = [(each.before, each.after) async for each in sb.diff(settings, 0, 1, store=store)]
    assert found == [({"x": 1.000000001}, {"x": 1.000000002})]


@pytest.mark.parametrize("bases", [1, GROUPS])
async def test_progress_adds_up_to_all_that_is_read(bases: int) -> None:
    """Its share grows to 1, also of a part of the key groups; changes and bytes are those of that part's frames."""
    store = MemoryStore()
    settings = await with_bases(store, **({"in_flight_bytes_max": 64 * MiB} if bases == 1 else {}))
    (part,) = (await newest_commit(store)).ranges
    assert len(part.bases) == bases
    stored = sum(base.size_bytes for base in part.all_bases)
    for groups in ((0, GROUPS - 1), (0, 1), (3, 3)):
        told = list[sb.reports.Progress]()
        async with sb.read_batches(settings, "n", store=store, tell=told.append, key_groups=groups) as batches:
            rows = sum([batch.num_rows async for batch in batches])
        assert [each.phase for each in told] == ["reading"] * len(told)
        shares = [each.share for each in told]
        assert shares == sorted(shares)
        assert 0.9 < shares[-1] <= 1
        assert told[-1].changes == rows
        assert told[-1].size_bytes == pytest.approx(stored * (groups[1] - groups[0] + 1) / GROUPS, rel=0.1)
