"""The command line: look at a job, verify it, sweep it, without opening it.

    statebackend inspect    the log, its branches and savepoints, the states, and how much lies where
    statebackend verify     reads every byte that a retained checkpoint needs, in both copies
    statebackend sweep      what nobody needs any more, and why; with --delete it goes
    statebackend savepoints, statebackend drop NAME

Exit status: 0 all is well; 1 verify has found damage, or sweep could not delete something; 2 the call is wrong, or
there is no such job; 3 the store does not answer or refuses; 4 what is stored cannot be understood.
"""

import argparse
import datetime as dt
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from statebackend._checkpoint.inspect import Inspection, LogRow
from statebackend._checkpoint.sweep import MIN_AGE_S, SweepReport
from statebackend._checkpoint.verify import Damage, VerifyReport
from statebackend._upkeep import drop_savepoint, inspect, savepoints, sweep, verify
from statebackend._version import __version__
from statebackend.errors import DataError, InputError, StateBackendError, StoreError, WrongOwnerError
from statebackend.settings import ENVIRONMENT_PREFIX, Settings

OK: Final = 0
DAMAGE: Final = 1
WRONG_CALL: Final = 2
NO_STORE: Final = 3
NOT_UNDERSTOOD: Final = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. Errors that we know go to stderr in one line."""
    options = _parser().parse_args(arguments)
    try:
        return anyio.run(_run, options)
    except StateBackendError as error:
        print(f"statebackend: {error}", file=sys.stderr)
        return _status(error)


async def _run(options: argparse.Namespace) -> int:
    settings = _settings(options)
    if options.command == "inspect":
        return _show(await inspect(settings), _inspection_lines, options)
    if options.command == "verify":
        report = await verify(settings)
        return _show(report, _verify_lines, options, status=DAMAGE if report.damages else OK)
    if options.command == "sweep":
        swept = await sweep(settings, dry_run=not options.delete, min_age_s=options.min_age_s)
        status = DAMAGE if swept.failures or swept.stopped else OK
        return _show(swept, _all_lines if options.all else SweepReport.lines, options, status=status)
    if options.command == "drop":
        await drop_savepoint(settings, options.name)
        return OK
    found = await savepoints(settings)
    rows = [("savepoint", "checkpoint", "sequence", "committed at")]
    rows += [(each.name, str(each.checkpoint_id), str(each.sequence), _time(each.committed_at_s)) for each in found]
    return _show(found, lambda _: _table(rows), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="statebackend", description="Look at, verify and sweep a job's state.")
    parser.add_argument("--version", action="version", version=__version__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--settings", metavar="FILE", help="TOML file with a table [statebackend]")
    common.add_argument("--primary", metavar="URL", help="where the job lies; else of the file, or the environment")
    common.add_argument("--job", metavar="NAME", help="the job's name")
    common.add_argument("--local", metavar="DIR", action="append", help="a local root; may be given several times")
    common.add_argument("--retain", metavar="N", type=int, help="checkpoints that are retained")
    common.add_argument("--json", action="store_true", help="for programs")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("inspect", parents=[common], help="the log, savepoints, states, and how much lies where")
    commands.add_parser("verify", parents=[common], help="read every byte that a retained checkpoint needs")
    sweeping = commands.add_parser("sweep", parents=[common], help="what nobody needs any more, and why")
    sweeping.add_argument("--delete", action="store_true", help="delete it; without this it is a dry run")
    sweeping.add_argument("--all", action="store_true", help="list what stays, too")
    sweeping.add_argument("--min-age-s", metavar="S", type=float, default=MIN_AGE_S, help="least age of what goes")
    commands.add_parser("savepoints", parents=[common], help="checkpoints that are kept by name")
    commands.add_parser("drop", parents=[common], help="let go of a savepoint").add_argument("name")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    """From the file or from the environment, and the options above both."""
    given = {
        "primary": options.primary,
        "job": options.job,
        "local": options.local and tuple(str(Path(root).absolute()) for root in options.local),
        "checkpoints_retained": options.retain,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if options.settings is not None:
        return msgspec.structs.replace(Settings.from_toml(options.settings), **changes)
    texts = {
        f"{ENVIRONMENT_PREFIX}{name.upper()}": ",".join(value) if name == "local" else str(value)
        for name, value in changes.items()
    }
    return Settings.from_env({**os.environ, **texts})


def _status(error: StateBackendError) -> int:
    if isinstance(error, DataError):
        return NOT_UNDERSTOOD
    if isinstance(error, StoreError):
        return NO_STORE
    return WRONG_CALL if isinstance(error, (InputError, WrongOwnerError)) else DAMAGE


def _show(found: Any, lines: Any, options: argparse.Namespace, *, status: int = OK) -> int:
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        for line in lines(found):
            print(line)
    return status


# --------------------------------------------------------------------------------------------------- for people


def _inspection_lines(found: Inspection) -> Iterator[str]:
    yield f"job {found.job}: newest checkpoint {_or_dash(found.newest_checkpoint_id)}, epoch {_or_dash(found.epoch)}"
    yield ""
    heads = ("seq", "", "kind", "epoch", "checkpoint", "parent", "batch", "at", "bytes", "objects", "their bytes", "")
    yield from _table([heads, *(_log_cells(row) for row in found.log)])
    yield ""
    yield from _table([("state", "kind", "schema"), *((each.name, each.kind, each.schema) for each in found.states)])
    yield ""
    places = ((place, str(count), str(size)) for place, (count, size) in found.places.items())
    yield from _table([("place", "objects", "bytes"), *places])


def _log_cells(row: LogRow) -> tuple[str, ...]:
    return (
        str(row.sequence),
        "*" if row.on_branch else "",
        row.kind,
        _or_dash(row.epoch),
        _or_dash(row.checkpoint_id),
        _or_dash(row.parent),
        _or_dash(None if row.source is None else row.source.batch_id),
        _time(row.at_s),
        str(row.size_bytes),
        str(row.objects),
        str(row.object_bytes),
        row.problem or ", ".join(f"savepoint {name}" for name in row.savepoints),
    )


def _verify_lines(report: VerifyReport) -> Iterator[str]:
    yield f"checkpoints {', '.join(map(str, report.checkpoints)) or 'none'}"
    for copy, count in report.objects.items():
        yield f"{copy:<8}{count:>10} objects{report.size_bytes[copy]:>16} bytes are as they were written"
    if report.local_missing:
        yield f"local   {report.local_missing:>10} copies are missing: a restore reads the primary instead"
    for damage in report.damages:
        yield f"damaged: {_damage_line(damage)}"


def _damage_line(damage: Damage) -> str:
    offset = "" if damage.offset is None else f" at offset {damage.offset}"
    needed = f", needed by checkpoints {', '.join(map(str, damage.checkpoints))}" if damage.checkpoints else ""
    return f"{damage.copy} {damage.key}{offset}: {damage.reason}{needed}"


def _all_lines(report: SweepReport) -> Iterator[str]:
    for each in (*report.objects, *report.local):
        yield f"{each.verdict.value:<12}{each.size_bytes:>16}  {each.key}  ({each.reason})"
    yield from report.lines()


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _time(at_s: float | None) -> str:
    if at_s is None:
        return "-"
    return dt.datetime.fromtimestamp(at_s, tz=dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    sys.exit(main())
