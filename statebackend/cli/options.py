"""Defines the commands with their options, and makes the job's settings of them."""

import argparse
import os
from pathlib import Path
from typing import get_args

import msgspec

from statebackend._log.sweep import MIN_AGE_S
from statebackend._version import __version__
from statebackend.settings import ENVIRONMENT_PREFIX, Settings, TableKind


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. The options that every command has name the job."""
    found = argparse.ArgumentParser(
        prog="statebackend", description="Look at, read, verify, repair, sweep and rewrite a job's state."
    )
    found.add_argument("--version", action="version", version=__version__)
    common, checkpoint = _common(), _checkpoint()
    commands = found.add_subparsers(dest="command", required=True)
    commands.add_parser("inspect", parents=[common], help="show the log, savepoints, states, and what lies where")
    reporting = commands.add_parser(
        "report", parents=[common], help="one page: newest checkpoint, garbage, a month's cost"
    )
    reporting.add_argument("--picture", metavar="FILE", help="draw the page: FILE.svg or FILE.html")
    commands.add_parser("verify", parents=[common], help="read every byte that a retained checkpoint needs")

    repairing = commands.add_parser(
        "repair", parents=[common], help="list local copies of commits that are damaged or gone in the primary"
    )
    repairing.add_argument("--write", action="store_true", help="put them back; without this option, a dry run")

    sweeping = commands.add_parser("sweep", parents=[common], help="list what the job no longer needs, and why")
    sweeping.add_argument("--delete", action="store_true", help="delete it; without this option, sweep is a dry run")
    sweeping.add_argument("--all", action="store_true", help="also list what stays")
    sweeping.add_argument(
        "--min-age-s", metavar="S", type=float, default=MIN_AGE_S, help="least age of what is deleted, in seconds"
    )

    restoring = commands.add_parser(
        "restore", parents=[common, checkpoint], help="print the state, a line of JSON for each key"
    )
    restoring.add_argument("--state", metavar="NAME", action="append", default=[], help="only this state; repeatable")
    restoring.add_argument("--key", help='only this key: plain text, or JSON as printed (7, "7", ["JFK", 7])')
    restoring.add_argument("--limit", metavar="N", type=int, help="print at most N lines")
    restoring.add_argument("--out", metavar="FILE", help="write to FILE, which must not exist yet")

    rewriting = commands.add_parser(
        "rewrite", parents=[common, checkpoint], help="give the job another number of key groups"
    )
    rewriting.add_argument("--max-parallelism", metavar="N", type=int, required=True, help="the new number")
    rewriting.add_argument("--dry-run", action="store_true", help="read everything and write nothing")

    commands.add_parser("savepoints", parents=[common], help="list the savepoints")
    commands.add_parser("drop", parents=[common], help="drop a savepoint").add_argument("name")
    return found


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--settings", metavar="FILE", help="a TOML file with a table [statebackend]")
    common.add_argument("--primary", metavar="URL", help="where the job lies; else from the file, or the environment")
    common.add_argument("--job", metavar="NAME", help="the job's name")
    common.add_argument("--local", metavar="DIR", action="append", help="a local root; repeatable")
    common.add_argument("--retain", metavar="N", type=int, help="how many checkpoints are retained")
    common.add_argument("--json", action="store_true", help="print JSON, for programs")
    return common


def _checkpoint() -> argparse.ArgumentParser:
    which = argparse.ArgumentParser(add_help=False)
    either = which.add_mutually_exclusive_group()
    either.add_argument("--checkpoint-id", metavar="ID", type=int, help="this checkpoint, instead of the newest")
    either.add_argument("--savepoint", metavar="NAME", help="this savepoint, instead of the newest checkpoint")
    which.add_argument("--table", choices=get_args(TableKind), help="rocksdb if the state is larger than memory")
    return which


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings from the file, or else from the environment, with the options over both. Raises `SettingsError`."""
    given = {
        "primary": options.primary,
        "job": options.job,
        "local": options.local and tuple(str(Path(root).absolute()) for root in options.local),
        "checkpoints_retained": options.retain,
        "max_parallelism": getattr(options, "max_parallelism", None),
        "table": getattr(options, "table", None),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if options.settings is not None:
        return msgspec.structs.replace(Settings.from_toml(options.settings), **changes)
    texts = {
        f"{ENVIRONMENT_PREFIX}{name.upper()}": ",".join(value) if name == "local" else str(value)
        for name, value in changes.items()
    }
    return Settings.from_env({**os.environ, **texts})
