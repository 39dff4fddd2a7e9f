"""The commands that read state as columns: `scan`, `export`, `diff`; and `watch`, which follows the log."""

import argparse
import datetime as dt
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from statebackend._codec.plain import key_from, plain
from statebackend._log.moments import iso_of, moment_s
from statebackend._reading.watching import watch
from statebackend._reading.what_to_read import WhatToRead
from statebackend._state.declared import COLUMNAR
from statebackend._state.time.ttl import TimeToLive
from statebackend._state.values import Upcast
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.plain_rows import read_rows
from statebackend.abc import Observer
from statebackend.abc.clock import SystemClock
from statebackend.cli.progress_bar import shown, size
from statebackend.cli.text import json_text, restored_line, visible
from statebackend.errors import CheckpointNotFoundError, InputError, SavepointNotFoundError
from statebackend.ids import Key
from statebackend.reports import Difference, ExportReport, KeyChange, KeyHistory, LogEntry, MirrorReport
from statebackend.settings import Settings

Print = Callable[[str], None]


def what_to_read(options: argparse.Namespace) -> WhatToRead:
    """The part of the state that is asked for, as `read_state` takes it. Raises `InputError`."""
    return {
        "key_groups": None if options.key_groups is None else key_groups_from(options.key_groups),
        "keys": None if not options.key else [key_from(key) for key in options.key],
        "columns": None if options.columns is None else options.columns.split(","),
        "checkpoint_id": options.checkpoint_id,
        "savepoint": options.savepoint,
        "at": options.at,
        "ttl": _time_to_live(options.ttl_s, options.ttl_now_s),
        "migrate": migrate_from(options.migrate, [options.state]).get(options.state, ()),
        "key_as_json": options.key_as_json,
    }


def _time_to_live(seconds: float | None, now_s: float | None) -> TimeToLive | None:
    """As of the clock in the commit, or of `now_s`. Raises `InputError`."""
    if seconds is None:
        if now_s is not None:
            raise InputError("--ttl-now-s is the time by which --ttl-s counts: give both", ttl_now_s=now_s)
        return None
    return TimeToLive(seconds, None if now_s is None else lambda: now_s)


def migrate_from(texts: Sequence[str], states: Sequence[str] | None = None) -> dict[str, list[Upcast]]:
    """The upcasts that are given as STATE=MODULE:FUNCTION, by state. Raises `InputError`, also for other `states`."""
    found: dict[str, list[Upcast]] = {}
    for text in texts:
        state, _, place = text.rpartition("=")
        try:
            upcast = named_in_module(place)
        except InputError as error:
            said = "an upcast is given as STATE=MODULE:FUNCTION, of a module that Python finds"
            raise InputError(said, migrate=text) from error
        if not state or not callable(upcast) or (states is not None and state not in states):
            raise InputError("an upcast is a function, and of the state that is read", migrate=text, states=states)
        found.setdefault(state, []).append(upcast)
    return found


def named_in_module(place: str) -> Any:
    """The object that is given as MODULE:NAME. Raises `InputError`."""
    module, _, name = place.partition(":")
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"give it as MODULE:NAME, of a module that Python finds: {error}", given=place) from error


def key_groups_from(text: str) -> tuple[int, int]:
    """The first and the last key group of `FIRST-LAST`. Raises `InputError`."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        raise InputError("key groups are given as FIRST-LAST, such as 0-15", key_groups=text)
    return int(first), int(last)


async def export_state(settings: Settings, options: argparse.Namespace) -> ExportReport:
    """Write a state to a file."""
    from statebackend._reading.export import export  # noqa: PLC0415  # pyarrow is an extra

    with shown(lines=True) as tell:
        return await export(
            settings,
            options.state,
            Path(options.out),
            format=options.format,
            initial_key=None if options.initial is None else options.key_columns.split(","),
            tell=tell,
            **what_to_read(options),
        )


def export_lines(done: ExportReport) -> Sequence[str]:
    """The file, for people."""
    return [
        f"{done.path}: {done.rows} rows of {done.state} as of checkpoint {done.checkpoint_id}, {size(done.size_bytes)}"
    ]


async def scan(settings: Settings, options: argparse.Namespace, tell: Print) -> None:
    """Print the keys of a state, and their values unless `--keys-only`: a line of JSON for each."""
    from statebackend._columns.arrow import plain_of  # noqa: PLC0415  # pyarrow is an extra
    from statebackend._reading.opened_state import read_batches  # noqa: PLC0415

    limit = sys.maxsize if options.limit is None else options.limit
    if limit < 0:
        raise InputError("the limit must not be negative", limit=options.limit)
    async with read_batches(settings, options.state, **what_to_read(options)) as batches:
        async for batch in batches:
            rows: list[dict[str, Any]] = plain_of(batch.select(["key"] if options.keys_only else batch.schema.names))
            for row in rows:
                key = row["key"] = _key(row["key"], batches.kind)
                if limit and begins_with(key, options.prefix):
                    limit -= 1
                    tell(json_text(plain(key if options.keys_only else row)))
            if not limit:
                return


def _key(shown: Any, kind: str) -> Any:
    """The key as it was given. Only the keys of columnar state are shown in a type of their own, and not in JSON."""
    if kind != COLUMNAR:
        return None if shown is None else key_from(shown)  # operator state has none
    return tuple(cast("dict[str, Any]", shown).values()) if isinstance(shown, dict) else shown


def begins_with(key: Any, prefix: str) -> bool:
    """True if a text or binary key, or the first part of a tuple, begins with the prefix; an int by its digits."""
    while isinstance(key, tuple):
        key = cast("tuple[Any, ...]", key)[0]
    return key.startswith(prefix.encode()) if isinstance(key, bytes) else str(key).startswith(prefix)


async def compare(settings: Settings, options: argparse.Namespace, tell: Print) -> None:
    """Print what is different between two checkpoints."""
    from statebackend._reading.differences import diff  # noqa: PLC0415  # pyarrow is an extra

    before, after = [moment_from(text) or await checkpoint_from(settings, text) for text in (options.a, options.b)]
    async for each in diff(settings, before, after, states=options.state, migrate=migrate_from(options.migrate)):
        tell(json_text(each) if options.json else difference_line(each))


def moment_from(text: str) -> dt.datetime | None:
    """The moment of `at:TIME`, `None` for any other text. Raises `InputError`."""
    if not text.startswith("at:"):
        return None
    at_s = moment_s(text.removeprefix("at:"), now_s=SystemClock().time())
    return dt.datetime.fromtimestamp(at_s, dt.UTC)


async def checkpoint_from(settings: Settings, text: str) -> int | str:
    """A checkpoint's id or a savepoint's name: as `id:7` and `savepoint:7` say, or `7` alone if it is one of the two.

    Raises `InputError` if it is both, and they are not the same commit.
    """
    kind, _, name = text.rpartition(":")
    if kind == "savepoint":
        return name
    if kind not in ("", "id") or not name.isdecimal():
        return text
    if kind == "id":
        return int(name)
    async with open_job_primary(settings, None) as primary:
        try:
            kept, _ = await primary.find(savepoint=name)
        except SavepointNotFoundError:
            return int(name)
        try:
            made, _ = await primary.find(checkpoint_id=int(name))
        except InputError:  # no checkpoint has that id
            return name
    if made.sequence != kept.sequence:
        raise InputError(
            f"a checkpoint has that id, and a savepoint of that name keeps another: say id:{name} or savepoint:{name}",
            given=text,
            savepoint_keeps=kept.checkpoint_id,
        )
    return name


def difference_line(found: Difference) -> str:
    """One key: `+` added, `-` removed, `~` changed."""
    sign = {"added": "+", "removed": "-", "changed": "~"}[found.change]
    key, old, new = (json_text(each) for each in (found.key, found.before, found.after))
    values = {"+": new, "-": old, "~": f"{old} -> {new}"}[sign]
    return f"{sign} {found.state} {key} {values}"


async def history(settings: Settings, options: argparse.Namespace) -> KeyHistory:
    """The history of a key."""
    from statebackend._reading.histories import history_of  # noqa: PLC0415  # pyarrow is an extra

    mirror = None
    if options.mirror is not None:
        from statebackend._mirroring.mirrors import Mirror  # noqa: PLC0415  # as above

        mirror = Mirror(options.state, to=options.mirror, name=options.mirror_name)
    return await history_of(settings, options.state, key_from(options.key), since=options.since, mirror=mirror)


def history_lines(found: KeyHistory) -> Sequence[str]:
    """A line for each commit that changed the key, and how far back they go."""
    lines = [_change_line(found, each) for each in found.changes]
    begin = f"checkpoint {found.checkpoint_id} of {iso_of(found.since_s)}"
    if found.is_whole:
        return [*lines, f"the job began with {begin}"]
    return [*lines, f"{json_text(found.value)} at {begin}: what came before it is not kept, or was not asked for"]


def _change_line(found: KeyHistory, change: KeyChange) -> str:
    source = change.source
    batch = "" if source is None else f" batch {source.batch_id}{f' of run {source.run_id}' if source.run_id else ''}"
    others = [each for each in change.states if each != found.state]
    also = f"  (also in {', '.join(others)})" if others else ""
    values = f"{json_text(change.before)} -> {json_text(change.after)}"
    return f"{iso_of(change.committed_at_s)} checkpoint {change.checkpoint_id}{batch}: {values}{also}"


async def follow(settings: Settings, options: argparse.Namespace, tell: Print) -> None:
    """Print a line for each new entry of the log; or for each new value of some keys."""
    left = options.count
    if left is not None and left <= 0:
        raise InputError("the count must be positive", count=left)
    if (options.state is None) != (not options.key):
        raise InputError("watch a key of a state: give both", state=options.state, keys=options.key)
    if options.state is not None:
        await _follow_keys(settings, options, tell)
        return
    async with aclosing(watch(settings, every_s=options.every_s)) as entries:
        async for entry in entries:
            tell(json_text(entry) if options.json else entry_line(entry))
            if left is not None and (left := left - 1) == 0:
                return


async def _follow_keys(settings: Settings, options: argparse.Namespace, tell: Print) -> None:
    """Print a line for each value that one of the keys has, and for each that it gets with a checkpoint."""
    keys = [key_from(key) for key in options.key]
    before: dict[Key, Any] = {}
    left, newest = options.count, -1
    async with aclosing(watch(settings, every_s=options.every_s)) as entries:
        async for entry in entries:
            checkpoint_id = entry.checkpoint_id
            if newest < 0 and checkpoint_id is None:  # the log ends with a claim, or with what cannot be read
                async with open_job_primary(settings, None) as primary:
                    checkpoint_id = (await primary.find()).commit.checkpoint_id
            if checkpoint_id is None or checkpoint_id <= newest:
                continue
            newest = checkpoint_id
            for key in keys:
                try:
                    async with read_rows(settings, checkpoint_id=newest, states=(options.state,), key=key) as rows:
                        after = next((row.value for row in rows), None)
                except CheckpointNotFoundError:  # a sweep was faster
                    continue
                found = _difference(options.state, key, before.get(key), after)
                before[key] = after
                if found is not None:
                    tell(json_text(found) if options.json else difference_line(found))
                    if left is not None and (left := left - 1) == 0:
                        return


def _difference(state: str, key: Key, before: Any, after: Any) -> Difference | None:
    if before == after:
        return None
    change: Any = "added" if before is None else "removed" if after is None else "changed"
    return Difference(state, change, plain(key), before, after)


async def mirror_state(settings: Settings, options: argparse.Namespace, tell: Print) -> MirrorReport | None:
    """Bring a table to the newest commit, and return what was done; or print a line for each step, for ever."""
    from statebackend._mirroring.keeping_up import keep_mirrored, mirror_once  # noqa: PLC0415  # pyarrow is an extra
    from statebackend._mirroring.mirrors import Mirror  # noqa: PLC0415

    mirror = Mirror(
        options.state,
        to=options.target,
        name=options.name,
        form=options.form,
        key_as_json=options.key_as_json,
        migrate=migrate_from(options.migrate, [options.state]).get(options.state, ()),
        every_s=options.every,
        hold_s=options.hold,
    )
    with shown(lines=True) as progress:
        if options.once:
            return await mirror_once(settings, mirror, anew=options.anew, tell=progress)
        await keep_mirrored(settings, mirror, anew=options.anew, observer=_MirrorLines(tell), tell=progress)
    return None


class _MirrorLines(Observer):
    """Prints a line for each step of a mirror, and one on stderr for each new reason why it fails."""

    def __init__(self, tell: Print) -> None:
        self._tell = tell
        self._failed = ""

    def mirrored(self, mirror: str, *, commits: int, rows: int, seconds: float, anew: str | None) -> None:
        began = "" if anew is None else f", of the whole state: {anew}"
        self._failed = ""
        self._tell(f"mirror {mirror}: {rows} rows of {commits} commits in {seconds:.1f} s{began}")

    def mirror_failed(self, mirror: str, error: Exception) -> None:
        if str(error) != self._failed:
            self._failed = str(error)
            print(f"mirror {mirror} fails, and is tried again: {visible(self._failed)}", file=sys.stderr, flush=True)


def entry_line(entry: LogEntry) -> str:
    """One entry, for people."""
    if entry.kind == "claim":
        return f"epoch {entry.epoch}: opened by a writer, which restored the newest checkpoint"
    if entry.problem is not None:
        return f"entry {entry.sequence} cannot be read: {entry.problem}"
    batch = "-" if entry.source is None else str(entry.source.batch_id)
    since = "" if entry.since_s is None else f"{entry.since_s:.1f} s after the one before, "
    restored = "" if entry.restored is None else f"; before it {restored_line(entry.restored)}"
    return (
        f"checkpoint {entry.checkpoint_id}, batch {batch}: {since}{entry.changes} changes, {size(entry.new_bytes)} in "
        f"{entry.new_objects} objects, seen {entry.lag_s:.1f} s later{restored}"
    )
