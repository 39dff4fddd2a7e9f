"""Defines the commands with their options, and makes the job's settings of them."""

import argparse
import os
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from statebackend._log.sweeping.log_sweep import MIN_AGE_S
from statebackend._version import __version__
from statebackend.cli.seeding import add_import_spark, add_seed
from statebackend.settings import ENVIRONMENT_PREFIX, Settings, TableKind
from statebackend.settings.sources import toml_table

_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_KEY: Final = 'plain text, or JSON as printed (7, "7", ["JFK", 7])'


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. The options that every command has name the job."""
    found = argparse.ArgumentParser(
        prog="statebackend",
        description="Look at, read, verify, repair, sweep, rewrite, clone and transform a job's state.",
    )
    found.add_argument("--version", action="version", version=__version__)
    common = _common()
    commands = found.add_subparsers(dest="command", required=True)
    _add_upkeep(commands, common)
    _add_readers(commands, common, _checkpoint(is_read=True))
    _add_comparers(commands, common)
    _add_mirror(commands, common)
    _add_changes(commands, common, _checkpoint(is_read=False))
    _add_savepoints(commands, common)
    return found


def _add_upkeep(commands: Any, common: argparse.ArgumentParser) -> None:
    """The commands that look at the job, and keep it whole and small."""
    commands.add_parser("inspect", parents=[common], help="show the log, savepoints, states, and what lies where")
    reporting = commands.add_parser(
        "report", parents=[common], help="one page: newest checkpoint, garbage, a month's cost"
    )
    reporting.add_argument("--html", metavar="FILE", help="write the page as HTML, with charts; replaces the file")
    reporting.add_argument("--picture", metavar="FILE", help="draw the page: FILE.svg or FILE.html")
    commands.add_parser("verify", parents=[common], help="read every byte that a retained checkpoint needs")

    repairing = commands.add_parser(
        "repair", parents=[common], help="list intact local copies of what is damaged or gone in the primary"
    )
    repairing.add_argument("--write", action="store_true", help="put them back; without this option, a dry run")

    sweeping = commands.add_parser("sweep", parents=[common], help="list what the job no longer needs, and why")
    sweeping.add_argument("--delete", action="store_true", help="delete it; without this option, sweep is a dry run")
    sweeping.add_argument("--all", action="store_true", help="also list what stays")
    sweeping.add_argument(
        "--min-age-s", metavar="S", type=float, default=MIN_AGE_S, help="least age of what is deleted, in seconds"
    )


def _add_changes(commands: Any, common: argparse.ArgumentParser, checkpoint: argparse.ArgumentParser) -> None:
    """The commands that make a job, or write its state anew."""
    rewriting = commands.add_parser(
        "rewrite", parents=[common, checkpoint], help="give the job another number of key groups"
    )
    rewriting.add_argument("--max-parallelism", metavar="N", type=int, required=True, help="the new number")
    rewriting.add_argument("--dry-run", action="store_true", help="read everything and write nothing")

    add_seed(commands, common)
    add_import_spark(commands, common)
    _add_clone(commands, common, _checkpoint(is_read=True))

    transforming = commands.add_parser(
        "transform",
        parents=[common, checkpoint],
        help="change a state key by key with a function; stop the stream first",
    )
    transforming.add_argument("state", help="its name")
    transforming.add_argument("function", metavar="MODULE:FUNCTION", help="gets a key and its value, returns pairs")
    transforming.add_argument("--type", metavar="MODULE:NAME", help="the type of the values, to change them")
    transforming.add_argument(
        "--new-state", metavar="NAME", action="append", default=[], help="a state for it to make; repeatable"
    )
    transforming.add_argument("--dry-run", action="store_true", help="call the function, count, and write nothing")

    erasing = commands.add_parser("erase", parents=[common], help="delete keys for good; stop the stream first")
    erasing.add_argument("key", nargs="+", help=_KEY)
    erasing.add_argument("--state", metavar="NAME", action="append", help="only in this state; repeatable")
    erasing.add_argument(
        "--savepoints", choices=("refuse", "drop"), default="refuse", help="what to do if savepoints have the keys"
    )
    erasing.add_argument("--html", metavar="FILE", help="write the report as a page for an auditor, too")
    either = erasing.add_mutually_exclusive_group()
    either.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    either.add_argument("--verify", action="store_true", help="only read all that is left; status 1 if it has the keys")


def _add_savepoints(commands: Any, common: argparse.ArgumentParser) -> None:
    keeping = commands.add_parser("savepoint", parents=[common], help="keep a checkpoint by a name")
    keeping.add_argument("name", help="of the savepoint")
    keeping.add_argument("--checkpoint-id", metavar="ID", type=int, help="this checkpoint, instead of the newest")
    keeping.add_argument(
        "--keep",
        metavar="TIME",
        type=_seconds,
        help="add the time to the name, and drop those of that series that are older than this: 7d, 12h",
    )
    commands.add_parser("savepoints", parents=[common], help="list the savepoints")
    commands.add_parser("drop", parents=[common], help="drop a savepoint").add_argument("name", help="of the savepoint")


def _add_clone(commands: Any, common: argparse.ArgumentParser, checkpoint: argparse.ArgumentParser) -> None:
    cloning = commands.add_parser(
        "clone", parents=[common, checkpoint], help="make this job, which must not exist, of another one's checkpoint"
    )
    cloning.add_argument("--from-job", metavar="NAME", help="the other job's name; by default the same, elsewhere")
    cloning.add_argument("--from-primary", metavar="URL", help="where it lies; by default in the same primary")
    cloning.add_argument("--from-settings", metavar="FILE", help="its settings, as --settings; for another cloud")
    cloning.add_argument("--states", metavar="NAME", nargs="+", help="only these states")
    cloning.add_argument("--keys", metavar="SHARE", type=float, default=1.0, help="only a sample of the keys: 0.01")
    cloning.add_argument(
        "--outputs", choices=("take", "leave"), default="take", help="what to do with output that is not published yet"
    )


def source_of(settings: Settings, options: argparse.Namespace) -> Settings:
    """The settings of the job to clone: those given for it, over those of the clone. Raises `SettingsError`."""
    named = {"primary": options.from_primary, "job": options.from_job}
    changes = {name: value for name, value in named.items() if value is not None}
    if options.from_settings is not None:
        return Settings.from_mapping({**toml_table(options.from_settings, "statebackend"), **changes})
    return msgspec.structs.replace(settings, **changes)


def _seconds(text: str) -> float:
    """The seconds of a time such as `7d`, `12h`, `30m` or `90s`."""
    unit = _SECONDS.get(text[-1:])
    if unit is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 7d, 12h, 30m or 90s")
    try:
        return float(text[:-1]) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 7d, 12h, 30m or 90s") from None


def _add_readers(
    commands: Any,  # what `add_subparsers` returns has no public name
    common: argparse.ArgumentParser,
    checkpoint: argparse.ArgumentParser,
) -> None:
    """The commands that read the state."""
    both = [common, checkpoint]
    for name, said in (("dump", "print the state, a line of JSON for each key"), ("restore", "the old name of dump")):
        dumping = commands.add_parser(name, parents=both, help=said)
        dumping.add_argument("--state", metavar="NAME", action="append", default=[], help="only this state; repeatable")
        dumping.add_argument("--key", help=f"only this key: {_KEY}")
        dumping.add_argument("--limit", metavar="N", type=int, help="print at most N lines")
        dumping.add_argument("--out", metavar="FILE", help="write to FILE, which must not exist yet")

    getting = commands.add_parser("get", parents=both, help="print the value of one key; status 1 if it has none")
    getting.add_argument("state", help="its name")
    getting.add_argument("key", help=_KEY)

    scanning = commands.add_parser("scan", parents=both, help="print the keys of a state, with their values")
    scanning.add_argument("state", help="its name")
    scanning.add_argument("--prefix", metavar="TEXT", default="", help="only keys that begin with it")
    scanning.add_argument("--keys-only", action="store_true", help="without the values")
    scanning.add_argument("--limit", metavar="N", type=int, help="print at most N lines")
    scanning.set_defaults(key_as_json=True)
    _add_part(scanning)

    exporting = commands.add_parser("export", parents=both, help="write a state to a file, as columns")
    exporting.add_argument("state", help="its name")
    exporting.add_argument("out", metavar="FILE", help="it must not exist yet")
    exporting.add_argument("--format", choices=("parquet", "csv", "jsonl"), help="by default that of the file's name")
    exporting.add_argument(
        "--for", dest="initial", choices=("transformWithState",), help="as the frame that its initial state takes"
    )
    exporting.add_argument("--key-columns", metavar="A,B", default="key", help="with --for: names for the key's parts")
    exporting.add_argument(
        "--key-as-json", action="store_true", help="keys as text in JSON, if they are of several types"
    )
    _add_part(exporting)


def _add_comparers(commands: Any, common: argparse.ArgumentParser) -> None:
    """The commands that compare checkpoints of the state, or follow them."""
    comparing = commands.add_parser("diff", parents=[common], help="what one checkpoint has and another has not")
    comparing.add_argument(
        "a", help="a checkpoint's id, a savepoint's name, or at:TIME; id:7 or savepoint:7 if 7 is both"
    )
    comparing.add_argument("b", help="as a")
    comparing.add_argument("--state", metavar="NAME", action="append", default=[], help="only this state; repeatable")
    _add_migrate(comparing)

    logging = commands.add_parser("log", parents=[common], help="each kept commit that changed a key, newest first")
    logging.add_argument("state", help="its name")
    logging.add_argument("key", help=_KEY)
    logging.add_argument("--since", metavar="TIME", help="no further back than this time, as for --at")
    logging.add_argument(
        "--mirror", metavar="TARGET", help="read on in a mirror's log, a folder or delta:URL, where what is kept ends"
    )
    logging.add_argument("--mirror-name", metavar="NAME", help="of the mirror; by default that of the state")

    watching = commands.add_parser("watch", parents=[common], help="print a line for each checkpoint as it is made")
    watching.add_argument("--every-s", metavar="S", type=float, default=1.0, help="look so often")
    watching.add_argument("--count", metavar="N", type=int, help="end after N lines")
    watching.add_argument("--state", metavar="STATE", help="print each new value of some keys of this state instead")
    watching.add_argument("--key", metavar="KEY", action="append", default=[], help="one of these keys; repeatable")


def _add_mirror(commands: Any, common: argparse.ArgumentParser) -> None:
    mirroring = commands.add_parser(
        "mirror", parents=[common], help="keep a table elsewhere at a state's newest commit"
    )
    mirroring.add_argument("state", help="its name")
    mirroring.add_argument("target", help="a folder or its URL, delta:URL, or postgresql://HOST/DB?table=NAME")
    mirroring.add_argument("--once", action="store_true", help="carry over what there is, and end")
    mirroring.add_argument("--every", metavar="TIME", type=_seconds, default=60.0, help="look so often: 60s, 5m")
    mirroring.add_argument("--form", choices=("log", "table"), help="by default the first that the target can have")
    mirroring.add_argument("--name", help="of the mirror; by default that of the state")
    mirroring.add_argument(
        "--hold", metavar="TIME", type=_seconds, default=0.0, help="have sweeps keep what the table lacks for so long"
    )
    mirroring.add_argument("--anew", action="store_true", help="start over from the whole state, perhaps elsewhere")
    mirroring.add_argument(
        "--key-as-json", action="store_true", help="keys as text in JSON, if they are of several types"
    )
    _add_migrate(mirroring)


def _add_part(command: argparse.ArgumentParser) -> None:
    """The part of the state that is read: with the checkpoint, the keywords of `read_state`."""
    command.add_argument("--key", action="append", help=f"only this key, repeatable: {_KEY}")
    command.add_argument("--key-groups", metavar="FIRST-LAST", help="only these key groups")
    command.add_argument("--columns", metavar="A,B", help="only these columns, or fields of a record")
    command.add_argument(
        "--ttl-s", metavar="S", type=float, help="without what has expired S seconds after it was written"
    )
    command.add_argument("--ttl-now-s", metavar="S", type=float, help="by this time, not by the clock in the commit")
    _add_migrate(command)


def _add_migrate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--migrate",
        metavar="STATE=MODULE:FUNCTION",
        action="append",
        default=[],
        help="an upcast of the state's declaration, for values of earlier versions; repeatable, the oldest first",
    )


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--settings", metavar="FILE", help="a TOML file with a table [statebackend]")
    common.add_argument("--primary", metavar="URL", help="where the job lies; else from the file, or the environment")
    common.add_argument("--job", metavar="NAME", help="the job's name")
    common.add_argument("--local", metavar="DIR", action="append", help="a local root; repeatable")
    common.add_argument("--retain", metavar="N", type=int, help="how many checkpoints are retained")
    common.add_argument(
        "--retain-s", metavar="S", type=float, help="how many seconds back older checkpoints are retained, thinned"
    )
    common.add_argument("--json", action="store_true", help="print JSON, for programs")
    return common


def _checkpoint(*, is_read: bool) -> argparse.ArgumentParser:
    which = argparse.ArgumentParser(add_help=False)
    either = which.add_mutually_exclusive_group()
    either.add_argument("--checkpoint-id", metavar="ID", type=int, help="this checkpoint, instead of the newest")
    either.add_argument("--savepoint", metavar="NAME", help="this savepoint, instead of the newest checkpoint")
    if is_read:
        either.add_argument(
            "--at", metavar="TIME", help="the newest checkpoint not later than that: 2026-11-24T10:00:00Z, or seconds"
        )
    which.add_argument("--table", choices=get_args(TableKind), help="rocksdb or runs: the state is larger than memory")
    return which


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings from the file, or else from the environment, with the options over both. Raises `SettingsError`."""
    given = {
        "primary": options.primary,
        "job": options.job,
        "local": options.local and tuple(str(Path(root).absolute()) for root in options.local),
        "checkpoints_retained": options.retain,
        "checkpoints_retained_s": options.retain_s,
        "max_parallelism": getattr(options, "max_parallelism", None),
        "table": getattr(options, "table", None),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if options.settings is not None:
        return Settings.from_mapping({**toml_table(options.settings, "statebackend"), **changes})
    texts = {
        f"{ENVIRONMENT_PREFIX}{name.upper()}": ",".join(value) if name == "local" else str(value)
        for name, value in changes.items()
    }
    return Settings.from_env({**os.environ, **texts})
