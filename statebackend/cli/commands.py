"""Runs the commands: each calls its public function, prints the record that this returns, and has an exit status."""

import argparse
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import anyio
import msgspec

from statebackend._codec.plain import key_from
from statebackend._upkeep.inspect import inspect
from statebackend._upkeep.offline.clone import clone
from statebackend._upkeep.offline.erase import erase
from statebackend._upkeep.offline.erasure_proof import verify_erased
from statebackend._upkeep.offline.transform import transform
from statebackend._upkeep.plain_rows import read_rows
from statebackend._upkeep.repair import repair
from statebackend._upkeep.report import report
from statebackend._upkeep.rewrite import rewrite
from statebackend._upkeep.savepoints import drop_savepoint, savepoint, savepoints
from statebackend._upkeep.sweep import sweep
from statebackend._upkeep.verify import verify
from statebackend.cli import reading
from statebackend.cli.options import parser, settings_of, source_of
from statebackend.cli.page import draw, erasure_page, page, proof_page
from statebackend.cli.printing import give_up_stdout, prepare_stdout, print_line, printing, write_page, write_rows
from statebackend.cli.progress_bar import shown
from statebackend.cli.seeding import import_spark, seed_job, seed_lines
from statebackend.cli.text import (
    all_lines,
    clone_lines,
    erase_lines,
    inspection_lines,
    json_text,
    mirror_lines,
    proof_lines,
    repair_lines,
    report_lines,
    rewrite_lines,
    savepoint_lines,
    transform_lines,
    verify_lines,
    visible,
)
from statebackend.errors import DataError, InputError, StateBackendError, StoreError, WrongOwnerError
from statebackend.reports import SweepReport
from statebackend.settings import Settings

F = TypeVar("F")

OK: Final = 0
DAMAGE: Final = 1
WRONG_CALL: Final = 2
NO_STORE: Final = 3
NOT_UNDERSTOOD: Final = 4
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. An error of ours is printed to stderr in one line."""
    options = parser().parse_args(arguments)
    try:
        prepare_stdout()
        status = anyio.run(_run, options)
        with printing():
            sys.stdout.flush()
        return status
    except StateBackendError as error:
        print(visible(f"statebackend: {error}"), file=sys.stderr)
        return _status(error)
    except BrokenPipeError:  # the reader, such as `head`, has read enough
        give_up_stdout()
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED


async def _run(options: argparse.Namespace) -> int:
    return await COMMANDS[options.command](settings_of(options), options)


async def _inspect(settings: Settings, options: argparse.Namespace) -> int:
    return _show(await inspect(settings), inspection_lines, options)


async def _report(settings: Settings, options: argparse.Namespace) -> int:
    found = await report(settings)
    if options.html is not None:
        write_page(page(found, await inspect(settings)), Path(options.html))
        return OK
    if options.picture is not None:
        draw(map(visible, report_lines(found)), Path(options.picture))
        return OK
    return _show(found, report_lines, options)


async def _verify(settings: Settings, options: argparse.Namespace) -> int:
    with shown() as tell:
        found = await verify(settings, tell=tell)
    return _show(found, verify_lines, options, status=DAMAGE if found.damages else OK)


async def _repair(settings: Settings, options: argparse.Namespace) -> int:
    with shown() as tell:
        found = await repair(settings, dry_run=not options.write, tell=tell)
    return _show(found, repair_lines, options)


async def _sweep(settings: Settings, options: argparse.Namespace) -> int:
    swept = await sweep(settings, dry_run=not options.delete, min_age_s=options.min_age_s)
    status = DAMAGE if swept.failures or swept.stopped else OK
    return _show(swept, all_lines if options.all else SweepReport.lines, options, status=status)


async def _get(settings: Settings, options: argparse.Namespace) -> int:
    opening = read_rows(
        settings,
        checkpoint_id=options.checkpoint_id,
        savepoint=options.savepoint,
        at=options.at,
        states=[options.state],
        key=key_from(options.key),
    )
    async with opening as rows:
        found = [row.value for row in rows]
    with printing():
        for value in found:
            print(json_text(value))
    return OK if found else DAMAGE


async def _scan(settings: Settings, options: argparse.Namespace) -> int:
    await reading.scan(settings, options, print_line)
    return OK


async def _export(settings: Settings, options: argparse.Namespace) -> int:
    return _show(await reading.export_state(settings, options), reading.export_lines, options)


async def _diff(settings: Settings, options: argparse.Namespace) -> int:
    await reading.compare(settings, options, print_line)
    return OK


async def _log(settings: Settings, options: argparse.Namespace) -> int:
    return _show(await reading.history(settings, options), reading.history_lines, options)


async def _watch(settings: Settings, options: argparse.Namespace) -> int:
    await reading.follow(settings, options, print_line)
    return OK


async def _mirror(settings: Settings, options: argparse.Namespace) -> int:
    done = await reading.mirror_state(settings, options, print_line)
    return OK if done is None else _show(done, mirror_lines, options)


async def _restore(settings: Settings, options: argparse.Namespace) -> int:
    print("statebackend: restore is called dump now", file=sys.stderr)
    return await _dump(settings, options)


async def _dump(settings: Settings, options: argparse.Namespace) -> int:
    if options.limit is not None and options.limit < 0:
        raise InputError("the limit must not be negative", limit=options.limit)
    with shown() as tell:
        opening = read_rows(
            settings,
            checkpoint_id=options.checkpoint_id,
            savepoint=options.savepoint,
            at=options.at,
            states=options.state,
            key=None if options.key is None else key_from(options.key),
            tell=tell,
        )
        async with opening as rows:
            await write_rows(islice(rows, options.limit), None if options.out is None else Path(options.out))
    return OK


async def _rewrite(settings: Settings, options: argparse.Namespace) -> int:
    with shown(lines=True) as tell:
        done = await rewrite(
            settings,
            checkpoint_id=options.checkpoint_id,
            savepoint=options.savepoint,
            dry_run=options.dry_run,
            tell=tell,
        )
    return _show(done, rewrite_lines, options)


async def _seed(settings: Settings, options: argparse.Namespace) -> int:
    return _show(await seed_job(settings, options), seed_lines, options)


async def _import_spark(settings: Settings, options: argparse.Namespace) -> int:
    return _show(await import_spark(settings, options), seed_lines, options)


async def _clone(settings: Settings, options: argparse.Namespace) -> int:
    with shown(lines=True) as tell:
        done = await clone(
            settings,
            from_=source_of(settings, options),
            checkpoint_id=options.checkpoint_id,
            savepoint=options.savepoint,
            at=options.at,
            states=options.states or "all",
            keys=options.keys,
            outputs=options.outputs,
            tell=tell,
        )
    return _show(done, clone_lines, options)


async def _transform(settings: Settings, options: argparse.Namespace) -> int:
    with shown(lines=True) as tell:
        done = await transform(
            settings,
            options.state,
            reading.named_in_module(options.function),
            type=None if options.type is None else reading.named_in_module(options.type),
            new_states=options.new_state,
            checkpoint_id=options.checkpoint_id,
            savepoint=options.savepoint,
            dry_run=options.dry_run,
            tell=tell,
        )
    return _show(done, transform_lines, options, status=DAMAGE if done.collisions else OK)


async def _erase(settings: Settings, options: argparse.Namespace) -> int:
    keys, states = [key_from(each) for each in options.key], options.state or "all"
    if options.verify:
        proof = await verify_erased(settings, keys, states=states)
        if options.html is not None:
            write_page(proof_page(settings.job, proof), Path(options.html))
        return _show(proof, proof_lines, options, status=OK if proof.is_proved else DAMAGE)
    done = await erase(settings, keys, states=states, savepoints=options.savepoints, dry_run=options.dry_run)
    if options.html is not None:
        write_page(erasure_page(done), Path(options.html))
    return _show(done, erase_lines, options)


async def _savepoint(settings: Settings, options: argparse.Namespace) -> int:
    made = await savepoint(settings, options.name, checkpoint_id=options.checkpoint_id, keep_s=options.keep)
    return _show(made, lambda one: savepoint_lines([one]), options)


async def _savepoints(settings: Settings, options: argparse.Namespace) -> int:
    return _show(await savepoints(settings), savepoint_lines, options)


async def _drop(settings: Settings, options: argparse.Namespace) -> int:
    await drop_savepoint(settings, options.name)
    return OK


COMMANDS: Final[Mapping[str, Callable[[Settings, argparse.Namespace], Awaitable[int]]]] = {
    "inspect": _inspect,
    "report": _report,
    "verify": _verify,
    "repair": _repair,
    "sweep": _sweep,
    "dump": _dump,
    "restore": _restore,
    "get": _get,
    "scan": _scan,
    "export": _export,
    "diff": _diff,
    "log": _log,
    "watch": _watch,
    "mirror": _mirror,
    "rewrite": _rewrite,
    "seed": _seed,
    "import-spark": _import_spark,
    "clone": _clone,
    "transform": _transform,
    "erase": _erase,
    "savepoint": _savepoint,
    "savepoints": _savepoints,
    "drop": _drop,
}


def _status(error: StateBackendError) -> int:
    if isinstance(error, DataError):
        return NOT_UNDERSTOOD
    if isinstance(error, StoreError):
        return NO_STORE
    return WRONG_CALL if isinstance(error, (InputError, WrongOwnerError)) else DAMAGE


def _show(found: F, lines: Callable[[F], Iterable[str]], options: argparse.Namespace, *, status: int = OK) -> int:
    with printing():
        if options.json:
            print(msgspec.json.format(json_text(found)))
        else:
            for line in lines(found):
                print(visible(line))
    return status
