"""`get`, `scan`, `export`, `diff` and `watch`: the state of a job for people, files and programs."""

import asyncio
import contextlib
import csv
import errno
import json
import math
import operator
import os
import resource
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebackend as sb
from statebackend import cli
from statebackend._reading import export as exporting
from statebackend.cli import reading
from statebackend.cli.options import parser
from statebackend.cli.reading import entry_line, follow
from tests.cli.conftest import Place
from tests.log.swept import HandClock


@pytest.fixture
def fleet(place: Place) -> Place:
    """The same job with more keys, as checkpoints 20 and 21."""

    async def work() -> None:
        async with sb.open_backend(place.settings) as backend:
            legs, hops = backend.value_state("legs", int), backend.list_state("hops", str)
            columns = backend.columnar_state("columns", pa.schema({"n": pa.int64(), "x": pa.binary()}), key=pa.string())
            legs.update({"N1": 1, "N2": 2, "M1": 3})
            hops["JFK", 7].extend(["EWR", "IAH"])
            columns["N1"] = {"n": 1, "x": b"\0"}
            backend.reducing_state("total", int, operator.add).add("k", 3)
            await backend.checkpoint(20)
            legs["N1"], legs["N3"] = 10, 30
            del legs["M1"]
            columns["N1"] = {"n": 2, "x": b"\0"}
            hops["JFK", 7].append("ORD")
            await backend.checkpoint(21, savepoint="later")

    anyio.run(work)
    return place


def lines(printed: str) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines()]


def test_get_prints_the_value_of_one_key(fleet: Place) -> None:
    """And says by its status that there is none."""
    assert fleet.run("get", "legs", "N1") == (cli.OK, "10\n")
    assert fleet.run("get", "legs", "N1", "--checkpoint-id", "20") == (cli.OK, "1\n")
    assert fleet.run("get", "hops", '["JFK", 7]') == (cli.OK, '["EWR","IAH","ORD"]\n')
    assert fleet.run("get", "legs", "N9") == (cli.DAMAGE, "")
    status, printed = fleet.run("get", "leg", "N1")
    assert (status, "legs" in printed) == (cli.WRONG_CALL, True)


def test_log_has_a_line_for_each_commit_that_changed_a_key(fleet: Place) -> None:
    """And one that says how far back they go."""
    status, printed = fleet.run("log", "legs", "N1")
    *changes, end = printed.splitlines()
    assert status == cli.OK
    assert changes[0].endswith("checkpoint 21: 1 -> 10  (also in columns)")
    assert "null -> 1" in changes[1]
    assert end.startswith("the job began with checkpoint ")
    status, printed = fleet.run("log", "legs", "N1", "--since", "yesterday")
    assert (status, "ISO 8601" in printed) == (cli.WRONG_CALL, True)


def test_scan_finds_keys_by_how_they_begin(fleet: Place) -> None:
    """A tuple by its first part; with the values or without."""

    def found(*options: str) -> list[Any]:
        status, printed = fleet.run("scan", *options)
        assert status == cli.OK
        return lines(printed)

    assert sorted(found("legs", "--keys-only", "--prefix", "N")) == ["N1", "N2", "N3"]
    assert {row["key"]: row["value"] for row in found("legs", "--prefix", "N")} == {"N1": 10, "N2": 2, "N3": 30}
    assert [row["value"] for row in found("hops", "--prefix", "JF")] == [["EWR", "IAH", "ORD"]]
    assert found("hops", "--prefix", "X") == []
    assert len(found("legs", "--limit", "2")) == 2
    assert found("legs", "--limit", "0") == []
    assert fleet.run("scan", "legs", "--limit", "-1")[0] == cli.WRONG_CALL


def test_scan_takes_a_part_of_a_state_as_export_does(fleet: Place) -> None:
    """Some keys, some key groups, some columns, and what has not expired by a time."""

    async def remember() -> None:
        async with sb.open_backend(fleet.settings) as backend:
            backend.value_state("recent", int, ttl=sb.TimeToLive(10, now=lambda: 100.0))["N1"] = 7
            await backend.checkpoint(22)

    def found(*options: str) -> list[Any]:
        status, printed = fleet.run("scan", *options)
        assert status == cli.OK
        return lines(printed)

    anyio.run(remember)
    assert [row["value"] for row in found("legs", "--key", "N2", "--key", "N9")] == [2]
    assert [len(found("legs", "--key-groups", groups)) for groups in ("0-127", "127-127")] == [4, 0]
    assert [{"n", "x"} & row.keys() for row in found("columns", "--columns", "n")] == [{"n"}]
    assert [len(found("recent", "--ttl-s", "10", "--ttl-now-s", now_s)) for now_s in ("109", "110")] == [1, 0]
    assert fleet.run("scan", "recent", "--ttl-s", "0")[0] == cli.WRONG_CALL


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("legs.csv", "csv"),
        ("legs.CSV", "csv"),
        ("legs.ndjson", "jsonl"),
        ("legs.v2.pq", "parquet"),
        ("legs", "parquet"),
    ],
)
def test_a_file_has_the_format_that_its_name_tells(fleet: Place, name: str, kind: str) -> None:
    """So that no reader takes one format for another. One that is given counts more."""
    out = fleet.directory / name
    for options, expected in (((), kind), (("--format", "csv"), "csv")):
        assert fleet.run("export", "legs", str(out), *options)[0] == cli.OK
        begin = out.read_bytes()[:4]
        out.unlink()
        assert begin == {"csv": b'"key', "jsonl": b'{"ke', "parquet": b"PAR1"}[expected]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_export_writes_a_state_to_a_file(fleet: Place, kind: str) -> None:
    """With nested values and bytes as JSON where the format has no place for them."""
    for state, expected in (
        ("hops", {("JFK", 7): ["EWR", "IAH", "ORD"]}),
        ("legs", {"k": 3, "N1": 10, "N2": 2, "N3": 30}),
    ):
        out = fleet.directory / f"{state}.{kind}"
        status, printed = fleet.run("export", state, str(out))
        assert (status, f"{len(expected)} rows of {state} as of checkpoint 21" in printed) == (cli.OK, True)
        if kind == "parquet":
            rows = pq.read_table(out).to_pylist()
        elif kind == "csv":
            with out.open(newline="") as file:
                rows = [{name: plain(value) for name, value in row.items()} for row in csv.DictReader(file)]
        else:
            rows = lines(out.read_text())
        found = {tuple(key.values()) if isinstance(key := row["key"], dict) else key: row["value"] for row in rows}
        assert found == expected


def plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_export_takes_a_part_of_a_state(fleet: Place) -> None:
    """Some keys, some key groups, some columns."""

    def rows(state: str, *options: str) -> list[Any]:
        out = fleet.directory / "part.jsonl"
        out.unlink(missing_ok=True)
        assert fleet.run("export", state, str(out), "--format", "jsonl", *options)[0] == cli.OK
        return lines(out.read_text())

    assert [row["value"] for row in rows("legs", "--key", "N2")] == [2]
    assert {row["key"] for row in rows("legs", "--key", "N2", "--key", "N3")} == {"N2", "N3"}
    assert len(rows("legs", "--key-groups", "0-63")) + len(rows("legs", "--key-groups", "64-127")) == 4
    assert [row.keys() - {"key_group"} for row in rows("columns", "--columns", "n")] == [{"key", "n"}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("legs", "there.parquet"), "there already"),
        (("legs", "no/where.parquet"), "no/where.parquet"),
        (("legs", ""), "name the file"),
        (("legs", "/"), "name the file"),
        (("leg", "new.parquet"), "did you mean 'legs'"),
        (("legs", "new.json"), "give the format"),
        (("columns", "new.parquet", "--columns", "m"), "there are: n, x"),
        (("legs", "new.parquet", "--key-groups", "1"), "FIRST-LAST"),
        (("legs", "new.parquet", "--key-groups", "1-128"), "other key groups"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(
    fleet: Place, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says why, and a file that was there stays as it was."""
    monkeypatch.chdir(fleet.directory)
    Path("there.parquet").write_text("mine")
    before = sorted(fleet.directory.iterdir())
    status, printed = fleet.run("export", *options)
    assert (status, said in printed) == (cli.WRONG_CALL, True)
    assert sorted(fleet.directory.iterdir()) == before
    assert Path("there.parquet").read_text() == "mine"


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_full_disk_or_a_cancelled_export_leaves_no_file(fleet: Place, kind: str) -> None:
    """The kernel refuses to let files grow; or Ctrl-C cancels the task in the middle."""
    out, before = fleet.directory / f"legs.{kind}", sorted(fleet.directory.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        status, printed = fleet.run("export", "legs", str(out), "--format", kind)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, "cannot be written" in printed) == (cli.WRONG_CALL, True)
    assert sorted(fleet.directory.iterdir()) == before

    async def cancelled() -> None:
        with anyio.CancelScope() as scope, pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporting, "json_lines", lambda _: anyio.from_thread.run_sync(scope.cancel) or [])
            await sb.export(fleet.settings, "legs", out, format="jsonl")
        assert scope.cancelled_caught

    anyio.run(cancelled)
    assert sorted(fleet.directory.iterdir()) == before


def test_of_two_exports_to_one_path_the_quicker_one_has_it(fleet: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is told so, and writes nothing into the file that the quicker one has finished."""
    out, before = fleet.directory / "out.jsonl", sorted(fleet.directory.iterdir())
    lines_of, quicker = exporting.json_lines, list[sb.reports.ExportReport]()

    async def overtake() -> None:
        quicker.append(await sb.export(fleet.settings, "hops", out, format="jsonl"))

    def overtaken(batch: pa.RecordBatch) -> Any:
        """In the thread of the slower one, which has its file open."""
        monkeypatch.setattr(exporting, "json_lines", lines_of)
        anyio.from_thread.run(overtake)
        return lines_of(batch)

    monkeypatch.setattr(exporting, "json_lines", overtaken)
    status, printed = fleet.run("export", "legs", str(out), "--format", "jsonl")
    assert (status, "File exists" in printed) == (cli.WRONG_CALL, True)
    assert [(each.rows, each.size_bytes) for each in quicker] == [(1, out.stat().st_size)]
    assert [row["value"] for row in lines(out.read_text())] == [["EWR", "IAH", "ORD"]]
    assert sorted(fleet.directory.iterdir()) == sorted([*before, out])


def test_an_export_needs_no_hard_links(fleet: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mounted bucket it replaces no other file either, not even one that has just come to be there."""

    def link(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)
    out = fleet.directory / "legs.jsonl"
    assert fleet.run("export", "legs", str(out), "--format", "jsonl")[0] == cli.OK
    assert len(lines(out.read_text())) == 4
    monkeypatch.setattr(Path, "exists", lambda _: False)
    before = sorted(fleet.directory.iterdir()), out.read_bytes()
    status, printed = fleet.run("export", "hops", str(out), "--format", "jsonl")
    assert (status, "File exists" in printed) == (cli.WRONG_CALL, True)
    assert (sorted(fleet.directory.iterdir()), out.read_bytes()) == before
    monkeypatch.setattr(Path, "replace", link)
    assert fleet.run("export", "hops", f"{fleet.directory}/hops.jsonl", "--format", "jsonl")[0] == cli.WRONG_CALL
    assert (sorted(fleet.directory.iterdir()), out.read_bytes()) == before


def test_keys_of_several_types_are_shown_as_they_were_given(fleet: Place) -> None:
    """As `get` takes them. An export has a type for each column, and so needs to be told."""
    keys: list[sb.Key] = ["7", 7, b"7a", ("JFK", 7, (b"x",)), ""]

    async def write() -> None:
        async with sb.open_backend(fleet.settings) as backend:
            backend.value_state("mixed", int).update({key: place for place, key in enumerate(keys)})
            columns = backend.columnar_state("numbers", pa.schema({"n": pa.int64()}), key=pa.string())
            columns["7"] = {"n": 1}
            pairs = backend.columnar_state(
                "pairs", pa.schema({"n": pa.int64()}), key=pa.struct([("a", pa.string()), ("b", pa.int64())])
            )
            pairs["JFK", 7] = {"n": 1}
            backend.operator_state("offsets", int).append(5)
            await backend.checkpoint(30)

    anyio.run(write)

    def keys_of(state: str, *options: str) -> list[Any]:
        status, printed = fleet.run("scan", state, "--keys-only", *options)
        assert status == cli.OK, printed
        return lines(printed)

    rows = {row["value"]: row["key"] for row in lines(fleet.run("scan", "mixed")[1])}
    assert rows == {0: "7", 1: 7, 2: {"base64": "N2E="}, 3: ["JFK", 7, [{"base64": "eA=="}]], 4: ""}
    for place, key in rows.items():
        assert fleet.run("get", "mixed", json.dumps(key)) == (cli.OK, f"{place}\n")
    assert len(keys_of("mixed", "--prefix", "7")) == 3
    assert keys_of("mixed", "--prefix", "JF") == [rows[3]]
    assert (keys_of("numbers"), keys_of("pairs"), keys_of("offsets")) == (["7"], [["JFK", 7]], [None])
    out = fleet.directory / "mixed.parquet"
    status, printed = fleet.run("export", "mixed", str(out))
    assert (status, "--key-as-json" in printed) == (cli.WRONG_CALL, True)
    assert fleet.run("export", "mixed", str(out), "--key-as-json")[0] == cli.OK
    assert {row["value"]: json.loads(row["key"]) for row in pq.read_table(out).to_pylist()} == rows


def test_values_of_earlier_versions_take_upcasts_by_their_names(fleet: Place) -> None:
    """As the state declares them. What is no function, or of another state, is refused."""

    async def write() -> None:
        for version, value in enumerate((100, "160 km")):
            async with sb.open_backend(fleet.settings) as backend:
                miles = backend.value_state("miles", type(value), migrate=[str] * version)
                miles[f"v{version}"] = value
                await backend.checkpoint(30 + version)

    anyio.run(write)
    out, upcast = fleet.directory / "miles.jsonl", ("--migrate", "miles=builtins:str")
    status, printed = fleet.run("scan", "miles")
    assert status != cli.OK
    assert "--migrate" in printed
    assert fleet.run("export", "miles", str(out), *upcast)[0] == cli.OK
    for rows in (lines(fleet.run("scan", "miles", *upcast)[1]), lines(out.read_text())):
        assert {row["key"]: row["value"] for row in rows} == {"v0": "100", "v1": "160 km"}
    assert fleet.run("diff", "30", "31", *upcast) == (cli.OK, '+ miles "v1" "160 km"\n')
    for wrong in (
        "miles",
        "miles=builtins",
        "miles=builtins:nothing",
        "miles=no.module:f",
        "legs=builtins:str",
        ":str",
    ):
        status, printed = fleet.run("scan", "miles", "--migrate", wrong)
        assert (status, "an upcast is" in printed) == (cli.WRONG_CALL, True), wrong


def test_a_float_that_is_not_finite_is_no_null(fleet: Place) -> None:
    """JSON has no number for it, and null is what a state has that has none."""

    async def write() -> None:
        async with sb.open_backend(fleet.settings) as backend:
            value = backend.value_state("floats", float | None)
            nested = backend.value_state("nested", dict[str, list[float]])
            free = backend.value_state("free", Any)
            columns = backend.columnar_state("float columns", pa.schema({"x": pa.float64()}), key=pa.string())
            value.update({"nan": 1.0, "high": math.inf, "low": -math.inf, "none": None})
            columns["k"] = {"x": -math.inf}
            nested["k"], free["k"] = {"a": [math.nan, 1.5]}, math.inf
            await backend.checkpoint(30)
            value["nan"] = math.nan
            await backend.checkpoint(31)

    anyio.run(write)
    shown = {"nan": "NaN", "high": "Infinity", "low": "-Infinity", "none": None}
    out = fleet.directory / "floats.jsonl"
    assert fleet.run("export", "floats", str(out), "--format", "jsonl")[0] == cli.OK
    dumped = lines(fleet.run("dump", "--state", "floats")[1])
    for rows in (dumped, lines(fleet.run("scan", "floats")[1]), lines(out.read_text())):
        assert {row["key"]: row["value"] for row in rows} == shown
    assert fleet.run("get", "floats", "low") == (cli.OK, '"-Infinity"\n')
    assert fleet.run("diff", "30", "31") == (cli.OK, '~ floats "nan" 1.0 -> "NaN"\n')
    assert fleet.run("get", "nested", "k") == (cli.OK, '{"a":["NaN",1.5]}\n')
    assert fleet.run("get", "float columns", "k") == (cli.OK, '{"x":"-Infinity"}\n')
    (row,) = lines(fleet.run("scan", "free")[1])
    assert json.loads(row["value"]) == "Infinity"


def test_diff_tells_what_was_added_changed_and_removed(fleet: Place) -> None:
    """Between checkpoints by their ids or savepoints by their names, in either direction."""
    status, printed = fleet.run("diff", "20", "later")
    assert status == cli.OK
    assert printed.splitlines() == [
        '~ columns "N1" {"n":1,"x":{"base64":"AA=="}} -> {"n":2,"x":{"base64":"AA=="}}',
        '~ hops ["JFK",7] ["EWR","IAH"] -> ["EWR","IAH","ORD"]',
        '- legs "M1" 3',
        '~ legs "N1" 1 -> 10',
        '+ legs "N3" 30',
    ]
    back = lines(fleet.run("diff", "21", "20", "--state", "legs", "--json")[1])
    assert {(each["change"], each["key"], each["before"], each["after"]) for each in back} == {
        ("added", "M1", None, 3),
        ("changed", "N1", 10, 1),
        ("removed", "N3", 30, None),
    }
    assert fleet.run("diff", "21", "21") == (cli.OK, "")
    assert [each["change"] for each in lines(fleet.run("diff", "13", "20", "--state", "hops", "--json")[1])] == [
        "added"
    ]


def test_a_savepoint_may_have_digits_for_a_name(fleet: Place) -> None:
    """People name them by dates. If that is another checkpoint's id as well, the call must say which it means."""

    async def work() -> None:
        async with sb.open_backend(fleet.settings) as backend:
            backend.value_state("legs", int)["N1"] = 11
            await backend.checkpoint(22, savepoint="20261122")
            backend.value_state("legs", int)["N1"] = 12
            await backend.checkpoint(23, savepoint="21")
            await backend.checkpoint(24, savepoint="24")

    anyio.run(work)
    eleven, twelve = (cli.OK, '~ legs "N1" 10 -> 11\n'), (cli.OK, '~ legs "N1" 10 -> 12\n')
    assert fleet.run("diff", "id:21", "20261122") == eleven
    assert fleet.run("diff", "later", "savepoint:21") == twelve
    assert fleet.run("diff", "id:21", "24") == twelve
    status, printed = fleet.run("diff", "21", "24")
    assert (status, "say id:21 or savepoint:21 (given='21', savepoint_keeps=23)" in printed) == (cli.WRONG_CALL, True)


def test_a_diff_of_what_cannot_be_compared_is_told(fleet: Place) -> None:
    """A checkpoint or state that is not there, or another number of key groups."""
    for options, said in (
        (("20", "99"), "99"),
        (("20", "nothing"), "nothing"),
        (("20", "21", "--state", "leg"), "legs"),
    ):
        status, printed = fleet.run("diff", *options)
        assert (status, said in printed) == (cli.WRONG_CALL, True)
    assert fleet.run("rewrite", "--max-parallelism", "7")[0] == cli.OK
    status, printed = fleet.run("diff", "21", "22")
    assert (status, "other numbers of key groups" in printed) == (cli.WRONG_CALL, True)


def test_watch_prints_each_checkpoint_as_it_is_made(fleet: Place) -> None:
    """From the newest on; with its batch, its age, and what it added."""
    entries: list[sb.reports.LogEntry] = []

    async def write(backend: sb.StateBackend, number: int) -> None:
        backend.value_state("legs", int)["k"] = number
        await backend.checkpoint(number, source=sb.SourceMark("q", number))

    async def run() -> None:
        async with sb.open_backend(fleet.settings) as backend:
            async for entry in sb.watch(fleet.settings, every_s=0.001):
                entries.append(entry)
                if len(entries) == 3:
                    return
                await write(backend, 30 + len(entries))

    anyio.run(run)
    assert [(entry.kind, entry.checkpoint_id) for entry in entries] == [("claim", None), ("commit", 31), ("commit", 32)]
    assert [entry.source and entry.source.batch_id for entry in entries] == [None, 31, 32]
    assert entries[2].since_s is not None
    assert (entries[2].changes, entries[2].new_objects) == (1, 1)
    status, printed = fleet.run("watch", "--count", "1")
    assert (status, printed.startswith("checkpoint 32, batch 32: ")) == (cli.OK, True)
    assert [entry.restored is None for entry in entries] == [True, False, True], "only the first after an opening"
    restored = entries[1].restored
    assert restored is not None
    assert (restored.files_local > 0, restored.files_primary) == (True, 0)
    assert f"; before it {restored.files_local} files (" in entry_line(entries[1])
    assert fleet.run("watch", "--count", "0")[0] == cli.WRONG_CALL
    assert fleet.run("watch", "--every-s", "0", "--count", "1")[0] == cli.WRONG_CALL
    assert fleet.run("watch", job="nothing")[0] == cli.WRONG_CALL


@pytest.mark.parametrize("more", [(), ("--state", "legs", "--key", "N1")], ids=["entries", "keys"])
def test_watch_closes_the_primary_where_it_ends(
    fleet: Place, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """Itself, and not the loop at its end, which would close the parts of a store at the same time."""
    tasks: list[Any] = []

    async def watched(*args: Any, **options: Any) -> AsyncGenerator[Any]:
        tasks.append(asyncio.current_task())
        try:
            async with contextlib.aclosing(sb.watch(*args, **options)) as entries:
                async for entry in entries:
                    yield entry
        finally:
            tasks.append(asyncio.current_task())

    monkeypatch.setattr(reading, "watch", watched)
    assert fleet.run("watch", "--count", "1", *more)[0] == cli.OK
    opened, closed = tasks
    assert opened is closed


def test_watch_prints_each_new_value_of_a_key(fleet: Place) -> None:
    """What it is at first, then what a checkpoint makes of it; nothing where that does not change it."""

    async def work(numbers: Sequence[int | None]) -> None:
        async with sb.open_backend(fleet.settings) as backend:
            state = backend.value_state("watched", int)
            for number in numbers:
                if number is None:
                    del state["k"]
                else:
                    state["k"] = number
                await backend.checkpoint(backend.next_checkpoint_id)

    anyio.run(work, [1])
    options = ("watch", "--state", "watched", "--key", "k", "--every-s", "0.001")
    status, printed = fleet.run(*options, "--count", "1")
    assert (status, printed) == (cli.OK, '+ watched "k" 1\n')
    printed_lines: list[str] = []

    async def look(count: int) -> None:
        where = ("--primary", fleet.settings.primary, "--job", "fleet", "--count", str(count))
        asked = parser().parse_args([*options, *where])
        await follow(fleet.settings, asked, printed_lines.append)

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look, 3)
            while not printed_lines:
                await anyio.lowlevel.checkpoint()
            await work([1, 2, 2, None])

    anyio.run(both)
    assert printed_lines == ['+ watched "k" 1', '~ watched "k" 1 -> 2', '- watched "k" 2']
    assert fleet.run("watch", "--state", "watched")[0] == cli.WRONG_CALL
    assert fleet.run("watch", "--key", "k")[0] == cli.WRONG_CALL


def test_the_old_name_of_dump_says_so(fleet: Place) -> None:
    """On stderr, so that scripts go on."""
    status, printed = fleet.run("restore", "--state", "total")
    assert status == cli.OK
    assert json.loads(printed.splitlines()[0])["value"] == 3
    assert printed.splitlines()[-1] == "statebackend: restore is called dump now"


def test_a_command_reads_as_of_a_moment(place: Place) -> None:
    """Each of two checkpoints is read by the time that `inspect` shows of it."""
    clock = HandClock()

    async def work() -> None:
        async with sb.open_backend(msgspec.structs.replace(place.settings, job="dated"), clock=clock) as backend:
            for number in (1, 2):
                clock.now_s += 60
                backend.value_state("legs", int).update({"N1": number, f"M{number}": 0})
                await backend.checkpoint(number)

    def run(*arguments: str) -> tuple[int, str]:
        return place.run(*arguments, job="dated")

    anyio.run(work)
    log = json.loads(run("inspect", "--json")[1])["log"]
    first, second = (str(row["at_s"]) for row in log if row["kind"] == "commit")
    assert run("get", "legs", "N1", "--at", first) == (cli.OK, "1\n")
    assert run("get", "legs", "N1", "--at", second) == (cli.OK, "2\n")
    assert {row["key"] for row in lines(run("scan", "legs", "--at", first)[1])} == {"N1", "M1"}
    out = place.directory / "then.parquet"
    assert run("export", "legs", str(out), "--at", first)[0] == cli.OK
    assert sorted(pq.read_table(out)["key"].to_pylist()) == ["M1", "N1"]
    assert run("diff", f"at:{first}", f"at:{second}") == run("diff", "1", "2") == run("diff", "1", f"at:{second}")
    status, printed = run("get", "legs", "N1", "--at", "99999999999999")
    assert (status, "milliseconds" in printed) == (cli.WRONG_CALL, True)
    status, printed = run("get", "legs", "N1", "--at", "1970-01-01T00:00:00Z")
    assert (status, "oldest_at" in printed) == (cli.WRONG_CALL, True)
