"""The commands that bring a state in: they name the program's own declarations as MODULE:NAME."""

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, get_args

import msgspec

from statebackend._upkeep.seeding.seed import SeedReport, seed
from statebackend.cli.progress_bar import shown, size
from statebackend.errors import InputError
from statebackend.ids import ClockKind
from statebackend.settings import Settings

STATES_HELP: Final = "what declares the states, of a module that Python finds: a KeyedProcessor, or a function"


def add_seed(commands: Any, common: ArgumentParser) -> None:
    """The command `seed`."""
    seeding = commands.add_parser("seed", parents=[common], help="make the job's first state of files of Parquet")
    seeding.add_argument("source", metavar="STATE=PATH", nargs="+", help="a state and its file, or folder of files")
    seeding.add_argument("--states", metavar="MODULE:NAME", required=True, help=STATES_HELP)
    seeding.add_argument("--key", metavar="A,B", default="key", help="the columns of the key; by default `key`")
    seeding.add_argument(
        "--duplicates", choices=("refuse", "first", "last"), default="refuse", help="what to do with a key twice"
    )
    seeding.add_argument("--starts-from", metavar="JSON", help="where the stream has to begin, for the sink to compare")
    seeding.add_argument("--clock-s", metavar="S", type=float, help="where the job's clock begins, for time-to-live")
    seeding.add_argument("--clock-kind", choices=get_args(ClockKind), default="event", help="the kind of that clock")
    seeding.add_argument("--dry-run", action="store_true", help="read and check everything, and write nothing")


async def seed_job(settings: Settings, options: Namespace) -> SeedReport:
    """Carry out the command."""
    key: Sequence[str] = options.key.split(",")
    with shown(lines=True) as tell:
        return await seed(
            settings,
            states_from(options.states),
            dict(map(_source, options.source)),
            key=key[0] if len(key) == 1 else key,
            duplicates=options.duplicates,
            starts_from=None if options.starts_from is None else _json(options.starts_from),
            clock_s=options.clock_s,
            clock_kind=options.clock_kind,
            dry_run=options.dry_run,
            tell=tell,
        )


def add_import_spark(commands: Any, common: ArgumentParser) -> None:
    """The command `import-spark`."""
    importing = commands.add_parser(
        "import-spark", parents=[common], help="make the job's first state of a stopped query's, from its checkpoint"
    )
    importing.add_argument("checkpoint", metavar="CHECKPOINT", help="its path, as Spark takes it")
    importing.add_argument("--states", metavar="MODULE:NAME", required=True, help=STATES_HELP)
    importing.add_argument(
        "--variable",
        metavar="VARIABLE=STATE",
        action="append",
        default=[],
        help="another name for its state; none: leave it out",
    )
    importing.add_argument(
        "--fields", metavar="VARIABLE=A,B", action="append", default=[], help="other names for its fields, in order"
    )
    importing.add_argument("--clock", choices=get_args(ClockKind), help="the job's: watermark, or time of the batch")
    importing.add_argument(
        "--parallelism", metavar="N", type=int, help="so many ranges of keys are written by executors, by default none"
    )
    importing.add_argument("--operator-id", metavar="N", type=int, default=0, help="for a query with several operators")
    importing.add_argument("--dry-run", action="store_true", help="read and check everything, and write nothing")


async def import_spark(settings: Settings, options: Namespace) -> SeedReport:
    """Carry out the command."""
    spark = importlib.import_module("statebackend.spark")  # neither room imports the other, and it needs an extra
    fields = {name: names.split(",") for name, names in map(_source, options.fields)}
    variables = {name: state or None for name, _, state in (each.partition("=") for each in options.variable)}
    with shown(lines=True) as tell:
        found: SeedReport = await spark.import_checkpoint(
            settings,
            states_from(options.states),
            options.checkpoint,
            variables=variables,
            fields=fields,
            operator_id=options.operator_id,
            clock=options.clock,
            parallelism=options.parallelism,
            dry_run=options.dry_run,
            tell=tell,
        )
    return found


def seed_lines(done: SeedReport) -> Iterator[str]:
    """The result of a seed or a dry run, for people."""
    for name, keys in done.keys.items():
        yield f"{name}: {keys} keys of {done.rows[name]} rows"
    if done.source is not None:
        yield f"the state of query {done.source.query_id} after batch {done.source.batch_id}"
    if done.dry_run:
        yield f"dry run: job {done.job} can be seeded with it; nothing was written"
        return
    yield (
        f"job {done.job}, checkpoint {done.checkpoint_id}: {size(done.bytes_written)} in {done.segments} segments, "
        f"{done.requests} requests ({done.usd:.6f} USD), {done.seconds:.1f} s"
    )


def states_from(text: str) -> Any:
    """The declaration that the text names; a class is called for it. Raises `InputError`."""
    module, _, name = text.partition(":")
    try:
        found = attrgetter(name)(importlib.import_module(module))
        return found() if isinstance(found, type) else found
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"give MODULE:NAME, of a module that Python finds: {error}", states=text) from error


def _source(text: str) -> tuple[str, str]:
    state, _, path = text.partition("=")
    if not state or not path:
        raise InputError("a source is given as STATE=PATH", source=text)
    return state, path


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except ValueError as error:
        raise InputError(f"--starts-from is JSON: {error}", starts_from=text) from error
