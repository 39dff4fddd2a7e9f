"""A mirror beside the job: a state as a log in a folder of Parquet, which collapses to what the dictionaries have.

Folder      the log, as whoever reads Parquet sees it
Beside      the mirror of a program. It catches up after each step, or after some, as a service at intervals has it
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow.parquet as pq

import statebackend as sb
from statebackend.errors import InputError, WrongMirrorError
from statebackend.spark import mirrors_beside
from tests.programs.looking import WrongError, check, expected_rows, refused, rows_in
from tests.programs.program import Declared, Mirror
from tests.programs.readers import key_in_json
from tests.programs.surroundings import attend
from tests.programs.values import KEYS, TYPES, key_read, text_of
from tests.programs.weather import LAST, WEATHERS, PrimaryInWeather, Sky, is_of_weather

if TYPE_CHECKING:
    from tests.programs.running import Running

GONE = ("delete", "undo_delete")
SINGLE = ("value", "reducing", "aggregating", "columns")
"""The kinds of which a key expires as a whole."""
PATIENCE_S = 120.0
"""For a sink that closes: the machine may be busy."""
SELDOM_S = 3600.0
"""A mirror beside the sink looks with the first batch and in the end, if this is its interval."""


class Folder:
    """The log in a folder. A file without a part has the number of its step, and ends it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the newest generation, oldest first."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.path.glob("*.parquet"), reverse=True):
            if found and int(path.stem.split("-")[0]) < found[0]["generation"]:
                break
            found = [*pq.ParquetFile(path).read(use_threads=False).to_pylist(), *found]
        return found

    def newest(self) -> list[dict[str, Any]]:
        """The newest row of each key that is there. Raises `WrongError` if one commit changed a key twice."""
        found: dict[str, dict[str, Any]] = {}
        rows = self.rows()
        if rows and sum(row["op"] == "begin" for row in rows) != 1:
            raise WrongError(f"not one beginning: {[row['op'] for row in rows]}")
        for row in rows:
            if row["op"] == "begin":
                continue
            key = text_of(row["key"])
            before = found.get(key, {"checkpoint_id": -1})["checkpoint_id"]
            if before == row["checkpoint_id"]:
                raise WrongError(f"checkpoint {before} has the key {key} twice")
            if before < row["checkpoint_id"]:
                found[key] = row
        return [row for row in found.values() if row["op"] not in GONE]


class Beside:
    """Mirrors a state of a program as the step says."""

    def __init__(self, running: "Running", step: Mirror, state: str) -> None:
        self._running = running
        self._step = step
        self._state = state
        self._looks = 0

    def look(self, *, is_last: bool) -> None:
        """Catch up, and compare. In bad weather it catches up once more, in a fine one."""
        self._looks += 1
        if self._looks % self._step.lag and not is_last:
            return
        readers = self._running.readers()
        known = {each.name: each for each in readers.known(self._running.held, readers.keyed)}
        if (declared := known.get(self._state)) is None:  # the job was taken back to where it had no such state
            with refused(InputError):
                attend(self._once(Declared(self._state, "value"), Sky()))
            return
        if is_last:
            self._close_sink(declared)
        report = self._caught_up(declared)
        newest = self._running.line[-1].checkpoint_id
        is_there = report.checkpoint_id is not None  # false where the state never had a key
        check("mirrored checkpoint", report.checkpoint_id, newest if is_there else None)
        self._compare(declared)
        if is_last and is_there:
            self._slip(declared)

    def of_sink(self) -> list[sb.Mirror]:
        """What the sink mirrors by itself, if it does."""
        if not self._step.in_sink:
            return []
        declared = next((each for each in self._running.job.states if each.name == self._state), None)
        if declared is None:
            return []
        return [self._mirror(declared, self._folder, every_s=0.01 if self._step.lag == 1 else SELDOM_S)]

    def _close_sink(self, declared: Declared) -> None:
        """A sink that closes has its mirrors carry over what was committed. It has begun them with its first batch."""
        sink = self._running.sink
        if any(one._given[1].name == self._name for _, one in sink._mirrors._running):  # and not of an earlier step
            with mock.patch.object(mirrors_beside, "CLOSE_S", PATIENCE_S):
                sink.close()
            self._compare(declared)

    @property
    def _folder(self) -> Path:
        """Of each job its own: a clone cannot go on with the table of another job."""
        return self._running.home / "mirrors" / self._running.name / self._name

    @property
    def _name(self) -> str:
        return f"{self._state}-as-json" if self._step.as_json else self._state

    def _mirror(self, declared: Declared, to: Any, **options: Any) -> sb.Mirror:
        migrate = TYPES[declared.type].upcasts
        as_json = self._step.as_json
        return sb.Mirror(declared.name, to=to, name=self._name, key_as_json=as_json, migrate=migrate, **options)

    def _caught_up(self, declared: Declared) -> Any:
        step, fate = self._step, self._step.fate + self._looks
        sky = Sky(WEATHERS.get(step.weather), seed=fate, ends_before=fate % 2 == 1)
        if step.weather == "killed at a request":
            sky.last = LAST[fate % len(LAST)]
        try:
            return attend(self._once(declared, sky))
        except Exception as error:
            if not step.weather or not is_of_weather(error):
                raise
        return attend(self._once(declared, Sky()))

    async def _once(self, declared: Declared, sky: Sky) -> Any:
        folder, root = self._folder, self._running.home / "primary"
        target = sb.mirrors.ParquetTarget(folder, store=PrimaryInWeather(folder, sky=sky))
        store = PrimaryInWeather(root, sky=sky)
        anew = self._step.anew and self._looks % 3 == 0
        return await sb.mirror_once(self._running.settings, self._mirror(declared, target), store=store, anew=anew)

    def _compare(self, declared: Declared) -> None:
        """The newest rows are the state. Of one from which values expire they have what is stored, and what lives."""
        running = self._running
        held, folder = running.held, Folder(self._folder)
        rows = self._with_keys(declared, folder.newest())
        found, expected = rows_in(declared, rows, held.groups), expected_rows(held, declared)
        self._check_erased(folder, found)
        what = f"{declared.name} as mirrored"
        if declared.ttl_s is None:
            check(what, found, expected)
            return
        migrate = TYPES[declared.type].upcasts
        stored = sb.read_state(running.settings, declared.name, migrate=migrate).read_all().to_pylist()
        check(f"{what} with what has expired", found, rows_in(declared, stored, held.groups))
        check(f"{what} lacks", sorted(expected.keys() - found.keys()), [])
        if declared.kind in SINGLE:
            check(what, {key: found[key] for key in expected}, expected)

    def _with_keys(self, declared: Declared, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows with their keys as they are, if they are told as JSON; those of columns never are."""
        if not self._step.as_json or declared.kind == "columns":
            return list(rows)
        keys = {key_in_json(key): key_read(key) for key in KEYS[self._running.program.keys]}
        return [row | {"key": keys[row["key"]]} for row in rows]

    def _check_erased(self, folder: Folder, found: Mapping[str, str]) -> None:
        """A key is in no row that was written after its erasure, unless the stream has brought it back."""
        erased = self._running.erased
        if erased is None or self._state not in erased.states or self._step.as_json:
            return
        if self._running.line[-1].checkpoint_id > erased.checkpoint_id:
            self._running.erased = None
            return
        written = {text_of(row["key"]) for row in folder.rows()}
        check("erased keys in a mirror", sorted((erased.keys & written) - found.keys()), [])

    def _slip(self, declared: Declared) -> None:
        """Its name is given to another table, and its table to another name."""
        settings = self._running.settings
        elsewhere = self._mirror(declared, self._folder.parent / "elsewhere")
        with refused(WrongMirrorError):
            attend(sb.mirror_once(settings, elsewhere))
        migrate = TYPES[declared.type].upcasts
        second = sb.Mirror(declared.name, to=self._folder, name="second", migrate=migrate)
        with refused(WrongMirrorError):
            attend(sb.mirror_once(settings, second))


def mirror(running: "Running", step: Mirror) -> None:
    """Begin to mirror a state, in place of what was mirrored before; beside the sink, if the step says so."""
    readers = running.readers()
    if not (states := readers.known(running.held, readers.keyed)):
        return
    running.mirror = Beside(running, step, states[step.state % len(states)].name)
    if step.in_sink:
        running.next_run()
