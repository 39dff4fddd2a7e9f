"""What the command line can do, Python can: each command has its public function, and prints the record of that."""

import importlib
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend import cli, reports
from statebackend.cli import commands
from tests.cli.conftest import Place

FUNCTIONS = {
    "inspect": "inspect",
    "report": "report",
    "verify": "verify",
    "repair": "repair",
    "sweep": "sweep",
    "dump": "read_rows",
    "restore": "read_rows",
    "get": "read_rows",
    "scan": "read_batches",
    "export": "export",
    "diff": "diff",
    "log": "history_of",
    "watch": "watch",
    "mirror": "mirror_once",
    "rewrite": "rewrite",
    "seed": "seed",
    "import-spark": "import_checkpoint",
    "clone": "clone",
    "transform": "transform",
    "erase": "erase",
    "savepoint": "savepoint",
    "savepoints": "savepoints",
    "drop": "drop_savepoint",
}
PLACES = {
    "scan": "statebackend._reading.opened_state",
    "export": "statebackend._reading.export",
    "diff": "statebackend._reading.differences",
    "log": "statebackend._reading.histories",
    "watch": "statebackend.cli.reading",
    "mirror": "statebackend._mirroring.keeping_up",
    "seed": "statebackend.cli.seeding",
    "import-spark": "statebackend.spark",
}
"""Where a command looks its function up, if not in `commands`."""
OPTIONS = {
    "rewrite": ["--max-parallelism", "7"],
    "erase": ["k"],
    "drop": ["before-migration"],
    "savepoint": ["by-hand"],
    "get": ["legs", "k"],
    "scan": ["legs"],
    "export": ["legs", "legs.parquet"],
    "diff": ["10", "13"],
    "log": ["legs", "k"],
    "mirror": ["legs", "legs", "--once"],
    "clone": ["--from-job", "fleet"],
    "transform": ["legs", "builtins:str"],
    "seed": ["legs=legs.parquet", "--states", "tests.cli.test_seed:states"],
    "import-spark": ["checkpoint", "--states", "tests.cli.test_seed:states"],
}
MEASURED = frozenset({"lag_s", "seconds", "requests", "usd"})
"""Fields that measure a call, and differ from call to call."""


async def rows(settings: sb.Settings) -> list[reports.Row]:
    async with sb.read_rows(settings) as found:
        return list(found)


async def rewrite_dry(settings: sb.Settings) -> reports.RewriteReport:
    return await sb.rewrite(msgspec.structs.replace(settings, max_parallelism=7), dry_run=True)


async def erase_dry(settings: sb.Settings) -> reports.EraseReport:
    return await sb.erase(settings, ["k"], savepoints="drop", dry_run=True)


async def proof(settings: sb.Settings) -> reports.ErasureProof:
    return await sb.verify_erased(settings, ["Nobody"])


async def exported(settings: sb.Settings) -> reports.ExportReport:
    return await sb.export(settings, "legs", "legs.parquet")


async def differences(settings: sb.Settings) -> list[reports.Difference]:
    return [each async for each in sb.diff(settings, "before-migration", 13)]


async def of_one_key(settings: sb.Settings) -> reports.KeyHistory:
    return await sb.history_of(settings, "legs", "k")


async def newest_entry(settings: sb.Settings) -> list[reports.LogEntry]:
    async with aclosing(sb.watch(settings)) as entries:
        async for entry in entries:
            return [entry]
    raise AssertionError("there is no end to it")


async def savepoint_for_a_moment(settings: sb.Settings) -> reports.SavepointInfo:
    made = await sb.savepoint(settings, "by-hand")
    await sb.drop_savepoint(settings, "by-hand")
    return made


CALLS: list[tuple[tuple[str, ...], Callable[[sb.Settings], Coroutine[Any, Any, Any]]]] = [
    (("inspect",), sb.inspect),
    (("report",), sb.report),
    (("verify",), sb.verify),
    (("repair",), sb.repair),
    (("sweep",), sb.sweep),
    (("dump",), rows),
    (("export", "legs", "legs.parquet"), exported),
    (("diff", "before-migration", "13"), differences),
    (("log", "legs", "k"), of_one_key),
    (("watch", "--count", "1"), newest_entry),
    (("rewrite", "--max-parallelism", "7", "--dry-run"), rewrite_dry),
    (("erase", "k", "--savepoints", "drop", "--dry-run"), erase_dry),
    (("erase", "Nobody", "--verify"), proof),
    (("savepoints",), sb.savepoints),
    (("savepoint", "by-hand"), savepoint_for_a_moment),
]


def records_in(value: Any) -> Iterator[msgspec.Struct]:
    """Every record that `value` is or holds."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from records_in(getattr(value, name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from records_in(each)


def without_measures(found: Any) -> Any:
    if isinstance(found, list):
        return list(map(without_measures, found))
    return {name: each for name, each in found.items() if name not in MEASURED} if isinstance(found, dict) else found


def test_every_command_has_a_public_function() -> None:
    """With the command's name, unless the function's has to say more."""
    assert FUNCTIONS.keys() == commands.COMMANDS.keys()
    assert set(FUNCTIONS.values()) <= {*sb.__all__, *sb.spark.__all__}
    assert FUNCTIONS.keys() - {command for (command, *_), _ in CALLS} == {
        "drop",  # the one that prints nothing
        "get",  # prints the value alone
        "mirror",  # whose report is of what it did, and it does that once
        "scan",  # prints some rows of batches
        "restore",  # the old name of dump
        "clone",  # these make a job, or change one: each has a file of tests
        "transform",
        "seed",
        "import-spark",
    }


@pytest.mark.parametrize("command", sorted(commands.COMMANDS))
def test_a_command_runs_its_public_function(
    place: Place, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That very function, and nothing else: its error ends the command."""

    def fail(*_: Any, **__: Any) -> Any:
        raise sb.errors.InputError("raised by a test")

    module = importlib.import_module(PLACES.get(command, commands.__name__))
    room = sb.spark if command == "import-spark" else sb
    assert getattr(module, FUNCTIONS[command]) is getattr(room, FUNCTIONS[command])
    monkeypatch.setattr(module, FUNCTIONS[command], fail)
    status, printed = place.run(command, *OPTIONS.get(command, []))
    assert (status, printed.splitlines()[-1]) == (cli.WRONG_CALL, "statebackend: raised by a test")


@pytest.mark.parametrize(("command", "call"), CALLS, ids=[command for (command, *_), _ in CALLS])
def test_a_command_prints_the_record_that_the_function_returns(
    place: Place,
    command: tuple[str, ...],
    call: Callable[[sb.Settings], Coroutine[Any, Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Field for field, as JSON."""
    monkeypatch.chdir(place.directory)
    expected = anyio.run(call, place.settings)
    (place.directory / "legs.parquet").unlink(missing_ok=True)
    status, printed = place.run(*command, "--json")
    assert status == cli.OK
    if command[0] in ("dump", "diff", "watch"):  # a line for each
        found: Any = [json.loads(line) for line in printed.splitlines()]
    else:  # and behind it, what went to stderr
        found, _ = json.JSONDecoder().raw_decode(printed)
    assert without_measures(found) == without_measures(json.loads(msgspec.json.encode(expected)))


async def returned(settings: sb.Settings) -> list[Any]:
    return [await call(settings) for _, call in CALLS]


def test_every_record_is_in_the_public_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every record nested in one. The parts of a commit are in `statebackend.ids`."""
    monkeypatch.chdir(place.directory)
    found = anyio.run(returned, place.settings)
    place.segments()[0].write_bytes(b"damaged")
    found.append(anyio.run(sb.verify, place.settings))
    kinds = {type(record) for record in records_in(found)}
    assert {kind.__name__ for kind in kinds} >= {"Row", "Damage", "ObjectReport", "LogRow", "SavepointInfo", "RangeRow"}
    for kind in kinds:
        if kind.__module__.startswith("statebackend._"):
            assert kind.__name__ in reports.__all__
        else:
            assert kind.__module__ == "statebackend.ids"
