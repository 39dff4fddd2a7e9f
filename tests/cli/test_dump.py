"""`dump`: a checkpoint in plain values, without the classes that it was written with."""

import asyncio
import json
import operator
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given

import statebackend as sb
from statebackend import cli
from statebackend._codec.plain import key_from, plain
from statebackend._tables.key_groups import key_group
from statebackend._upkeep.plain_rows import Row
from statebackend.cli.printing import ROWS_AT_ONCE, write_rows
from statebackend.objectstore import MemoryStore
from tests.aggregates import Mean
from tests.cli.conftest import Place
from tests.codec.samples import KEYS
from tests.rewrite.jobs import settings_of

ROOT = Path(__file__).parents[2]


class Leg(msgspec.Struct):
    origin: str
    raw: bytes = b"\x00"


class Reversed:
    """A serializer of the user's own."""

    schema = "reversed"

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, data: Any) -> str:
        return bytes(data).decode()[::-1]


async def write(backend: sb.StateBackend) -> None:
    """Every kind of state, and a serializer."""
    backend.value_state("value", Leg)["k"] = Leg("EWR")
    backend.list_state("list", int)[7].extend([1, 2])
    backend.list_state("list", int)[7].append(3)
    backend.map_state("map", str, int)[b"\xff"]["a"] = 1
    backend.map_state("pairs", int, int)[("JFK", 7)][5] = 1
    backend.reducing_state("total", int, operator.add).add("k", 3)
    backend.aggregating_state("mean", Mean()).add("k", 3)
    backend.timers("timers").register("k", 1.5)
    backend.value_state("own", Reversed())["k"] = "abc"
    backend.value_state("recent", str, ttl=sb.TimeToLive(5.0, lambda: 100.0))["k"] = "now"
    columns = pa.schema({"n": pa.int64(), "raw": pa.binary(), "carrier": pa.string()})
    backend.columnar_state("columns", columns, key=pa.string())["k"] = {"n": 3, "raw": b"\0"}
    backend.operator_state("offsets", int).append(9)


EXPECTED: dict[str, tuple[str, Any, Any]] = {
    "value": ("value", "k", {"origin": "EWR", "raw": {"base64": "AA=="}}),
    "list": ("list", 7, [1, 2, 3]),
    "map": ("map", {"base64": "/w=="}, {"a": 1}),
    "pairs": ("map", ["JFK", 7], [[5, 1]]),
    "total": ("reducing", "k", 3),
    "mean": ("aggregating", "k", [3, 1]),
    "timers": ("timers", "k", [1.5]),
    "own": ("value", "k", {"base64": "Y2Jh"}),
    "recent": ("value", "k", "now"),
    "columns": ("columnar", "k", {"n": 3, "raw": {"base64": "AA=="}, "carrier": None}),
    "offsets": ("operator split", None, [9]),
}


@pytest.fixture
def kinds(place: Place) -> Place:
    """The same job with every kind of state, as checkpoint 20."""

    async def work() -> None:
        async with sb.open_backend(place.settings) as backend:
            await write(backend)
            await backend.checkpoint(20)

    anyio.run(work)
    return place


def lines(printed: str) -> list[dict[str, Any]]:
    """The printed rows."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def test_every_kind_is_shown_without_its_classes(kinds: Place) -> None:
    """A struct as an object, bytes in base64, a map by its keys, an aggregate as its accumulator."""
    status, printed = kinds.run("dump")
    assert status == cli.OK
    rows = {row["state"]: row for row in lines(printed)}
    assert {name: (row["kind"], row["key"], row["value"]) for name, row in rows.items()} == {
        **EXPECTED,
        "legs": ("value", "k", 3),
    }
    assert {row["key_group"] for row in rows.values() if row["key"] == "k"} == {rows["legs"]["key_group"]}


@pytest.mark.parametrize("table", ["heap", "rocksdb", "runs"])
def test_one_state_one_key_and_so_many_lines(kinds: Place, table: str) -> None:
    """Each alone and together, on either table."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")

    def found(*options: str) -> list[str]:
        return sorted(row["state"] for row in lines(kinds.run("dump", "--table", table, *options)[1]))

    assert found("--state", "list", "--state", "map") == ["list", "map"]
    assert found("--state", "offsets", "--state", "offsets") == ["offsets"]
    assert found("--key", "k") == ["columns", "legs", "mean", "own", "recent", "timers", "total", "value"]
    assert found("--key", "7") == ["list"]
    assert found("--key", '"7"') == []
    assert found("--key", '{"base64": "/w=="}') == ["map"]
    assert found("--key", '["JFK", 7]', "--state", "pairs") == ["pairs"]
    assert found("--key", "k", "--state", "pairs") == []
    assert found("--state", "columns", "--key", "k") == ["columns"]
    assert found("--state", "columns", "--key", '{"base64": "/w=="}') == []
    assert len(found("--limit", "3")) == 3
    assert kinds.run("dump", "--table", table, "--limit", "0") == (cli.OK, "")
    assert found("--state", "offsets") == ["offsets"]


@pytest.mark.parametrize("command", ["inspect", "report"])
def test_columns_are_among_the_states(kinds: Place, command: str) -> None:
    """With their types, for people and for programs."""
    status, printed = kinds.run(command)
    assert status == cli.OK
    (row,) = [line for line in printed.splitlines() if line.startswith("columns ")]
    assert row.split()[1] == "columnar"
    assert all(word in row for word in ("n", "int64", "raw", "binary", "carrier", "string"))
    states = {state["name"]: state for state in json.loads(kinds.run(command, "--json")[1])["states"]}
    assert states["columns"]["kind"] == "columnar"
    assert "string" in states["columns"]["key_schema"]


def test_columns_are_verified_and_rewritten(kinds: Place) -> None:
    """As any other state: nothing is damaged, and each key is found in its new group."""
    assert kinds.run("verify")[0] == cli.OK
    before = lines(kinds.run("dump", "--state", "columns")[1])
    assert kinds.run("rewrite", "--max-parallelism", "7")[0] == cli.OK
    assert kinds.run("verify")[0] == cli.OK
    after = lines(kinds.run("dump", "--state", "columns")[1])
    assert [row["value"] for row in after] == [row["value"] for row in before]
    assert [row["key_group"] for row in after] == [key_group("k", 7)]


async def test_a_long_list_is_shown_whole() -> None:
    """It lies in several changes of a base, cut in the middle of elements."""
    settings, store = settings_of(64), MemoryStore()
    hops = ["x" * 700_000, "y" * 700_000, "z"]
    async with sb.open_backend(settings, store=store) as backend:
        backend.list_state("hops", str)["k"] = hops
        await backend.checkpoint(1)
    async with sb.read_rows(settings, store=store) as found:
        assert [(row.key, row.value) for row in found] == [("k", hops)]


def test_an_older_checkpoint_or_a_savepoint_is_read_if_asked_for(place: Place) -> None:
    """And the newest otherwise."""
    assert [lines(place.run("dump", *options)[1])[0]["value"] for options in ((), ("--checkpoint-id", "11"))] == [
        3,
        1,
    ]
    (row,) = lines(place.run("dump", "--savepoint", "before-migration")[1])
    assert row["value"] == 0


def test_it_goes_into_a_file_that_was_not_there(place: Place) -> None:
    """One that is there stays as it is."""
    out = place.directory / "out.jsonl"
    status, printed = place.run("dump", "--out", str(out))
    assert (status, lines(printed)) == (cli.OK, [])
    assert [row["key"] for row in lines(out.read_text())] == ["k"]
    before = out.read_text()
    assert place.run("dump", "--out", str(out))[0] == cli.WRONG_CALL
    assert out.read_text() == before
    assert place.run("dump", "--out", str(place.directory / "no" / "where"))[0] == cli.WRONG_CALL


def test_half_a_file_is_not_left(tmp_path: Path) -> None:
    """A value in the middle cannot be decoded."""

    def rows() -> Any:
        yield Row("n", "value", "k", 0, 1)
        raise sb.errors.ValueDecodeError("in the middle")

    with pytest.raises(sb.errors.ValueDecodeError):
        anyio.run(write_rows, rows(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_is_heard_between_rows(tmp_path: Path) -> None:
    """Ctrl-C cancels the task, and the rest of a hundred million rows is not written."""
    given: list[Row] = []

    async def write() -> None:
        def rows() -> Iterator[Row]:
            anyio.from_thread.run_sync(task.cancel)
            for number in range(10 * ROWS_AT_ONCE):
                given.append(Row("n", "value", "k", 0, number))
                yield given[-1]

        task = asyncio.ensure_future(write_rows(rows(), tmp_path / "out"))
        with pytest.raises(asyncio.CancelledError):
            await task

    anyio.run(write)
    assert len(given) == ROWS_AT_ONCE
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_told(kinds: Place) -> None:
    """In one line, and nothing of the file stays. The kernel refuses to let files grow."""
    out = kinds.directory / "out.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        status, printed = kinds.run("dump", "--out", str(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, "cannot be written" in printed) == (cli.WRONG_CALL, True)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--state", "leg"), cli.WRONG_CALL, "legs"),
        (("--checkpoint-id", "99"), cli.WRONG_CALL, "99"),
        (("--savepoint", "other"), cli.WRONG_CALL, "other"),
        (("--limit", "-1"), cli.WRONG_CALL, "-1"),
    ],
)
def test_what_is_not_there_is_told(place: Place, options: tuple[str, ...], status: int, said: str) -> None:
    """For an unknown state, the error names the states that there are."""
    found, printed = place.run("dump", *options)
    assert found == status
    assert said in printed


def test_a_checkpoint_and_a_savepoint_are_one_too_many(place: Place) -> None:
    """Which one would it be?"""
    with pytest.raises(SystemExit) as caught:
        place.run("dump", "--checkpoint-id", "11", "--savepoint", "before-migration")
    assert caught.value.code == cli.WRONG_CALL


def test_a_reader_that_stops_early_ends_it_quietly(place: Place) -> None:
    """As `head` does."""

    async def grow() -> None:
        async with sb.open_backend(place.settings) as backend:
            backend.value_state("legs", int).update({str(number): number for number in range(20_000)})
            await backend.checkpoint(30)

    anyio.run(grow)
    command = [sys.executable, "-m", "statebackend", "dump", "--primary", place.settings.primary, "--job", "fleet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["state"] == "legs"
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == cli.OK
    assert "Error" not in errors


@given(KEYS)
def test_a_key_is_asked_for_as_it_is_printed(key: sb.Key) -> None:
    """For every type of key."""
    assert key_from(msgspec.json.encode(plain(key)).decode()) == key


@pytest.mark.parametrize(
    "text",
    [
        *("N14228", "", "1.5", "true", "null", "[]", "[1.5]", '{"a": 1}', '{"base64": "?"}', "[1"),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_text_that_is_no_key_in_json_is_itself(text: str) -> None:
    """Most keys are plain words."""
    assert key_from(text) == text


async def test_a_key_is_found_by_reading_its_own_key_group() -> None:
    """Only the frames of a large base that can hold it are read, whatever `max_parallelism` the settings have."""
    store, settings = MemoryStore(), settings_of(64, inline_bytes_max=0, compression="none")
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("n", str).update(dict.fromkeys(range(2000), "x" * 1000))
        await backend.checkpoint(0)
    await sb.rewrite(settings_of(100, compression="none"), store=store)
    told: list[sb.reports.Progress] = []
    async with sb.read_rows(settings, key=7, store=store, tell=told.append) as rows:
        assert [(row.key, row.value) for row in rows] == [(7, "x" * 1000)]
    assert told[-1].changes < 200
