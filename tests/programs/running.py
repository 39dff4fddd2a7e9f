"""Runs a program: drives the real sink on frames of `frames.py`, and the dictionaries beside it, and compares both.

    Running     the job, its home on the disk, the query that delivers batches, and what is committed

A batch that failed is delivered again in a new run, as Spark does. A kill is a copy of the home as it was at that
moment: what the process did afterwards is forgotten with its directory.
"""

import datetime as dt
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

import statebackend as sb
from statebackend._tables.key_groups import key_group
from statebackend.errors import StateBackendError
from statebackend.settings import UploadSettings
from tests.programs import beside, cloning, erasing, following, mirroring, mishaps, moves, seeding, slips
from tests.programs.dictionaries import Dictionaries
from tests.programs.frames import Session, without_jvm
from tests.programs.looking import WrongError, check
from tests.programs.processors import fail, work_of
from tests.programs.program import (
    Adopt,
    Batch,
    Clone,
    Edit,
    Erase,
    Follow,
    FromSavepoint,
    Heir,
    Item,
    Job,
    Look,
    Mirror,
    Program,
    PutBack,
    Rewind,
    Rewrite,
    Savepoint,
    Seed,
    SeedAnew,
    Slip,
    Start,
    Step,
    Transform,
    Upkeep,
)
from tests.programs.readers import MoreReaders
from tests.programs.surroundings import BatchTime, Told, attend, close_workers, copy_tree, zone_of
from tests.programs.values import KEY_COLUMNS, KEYS, text_of
from tests.programs.weather import SKY, under_the_sky
from tests.runs.ranges import always_by_ranges
from tests.small_bounds import small_bounds

QUIET: dict[str, Any] = {
    "persist_delay_s": 0.0,
    "sweep_interval_s": 0.0,
    "materialize_interval_s": 0.0,
    "upload": UploadSettings(retry_delay_s=0.0, primary_outage_s=0.0),
}
RAISING = {"raises first": 0, "raises in the middle": 1, "raises in the end": -1, "killed before the commit": -1}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


LATER: Mapping[type, Callable[["Running", Any], None]] = {
    Edit: beside.edit,
    Savepoint: beside.savepoint,
    Upkeep: beside.upkeep,
    Look: beside.look,
    Rewind: moves.rewind,
    Rewrite: moves.rewrite,
    Transform: moves.transform,
    Adopt: moves.adopt,
    FromSavepoint: moves.from_savepoint,
    Follow: following.follow,
    Mirror: mirroring.mirror,
    Heir: following.heir,
    Erase: erasing.erase,
    Clone: cloning.clone,
    SeedAnew: seeding.seed_anew,
    PutBack: moves.put_back,
}
"""The steps for which there must be a commit."""


class Committed(NamedTuple):
    """A commit of the line that the job is on. `newest_batch`: the newest of the query that its state has.

    `query_id`: of the query whose batch is the newest in its state, `None` if none is.
    """

    checkpoint_id: int
    newest_batch: int | None
    is_edit: bool
    query_id: str | None


class Running:
    """A program that runs in `home`, a directory of its own."""

    def __init__(self, program: Program, home: Path) -> None:
        self.program = program
        self.name = "program"
        self._settings: tuple[tuple[Job, str, int], sb.Settings] | None = None
        self.home = home / "home"
        self.copied = home / "copied"
        self.job = Job()
        self.held = Dictionaries()
        self.held.groups = program.groups
        self.kept: dict[int, Dictionaries] = {}
        self.line: list[Committed] = []
        self.savepoints: dict[str, Committed] = {}
        self.told = Told()
        self.clock = BatchTime()
        self.session: Any = None
        self.frame_of_batch: Any = None
        self.sink: Any = None
        self.left: list[Any] = []
        self.runs = 0
        self.batch_id = 0
        self.query_id = moves.FIRST_QUERY
        self.returned_with = 0  # the first batch of a query that came back after others
        self.adopts: str | bool = False
        self.starts_from: Any = None
        self.put_out: list[tuple[int, list[str]]] = []
        self.failing_output = 0
        self.moments: dict[int, float] = {}
        self.transformed: dict[int, str] = {}
        self.floor = 0
        self.originals: list[cloning.Original] = []
        self.follower: following.Beside | None = None
        self.mirror: mirroring.Beside | None = None
        self.erased: erasing.Erased | None = None
        self.is_copied = self.is_swept = self.is_rewritten = False

    def run(self) -> None:
        """All steps, each followed by a look. Raises `WrongError`, or what the library raises."""
        self.home.mkdir(parents=True)
        is_even = len(self.program.steps) % 2 == 0
        with under_the_sky(), always_by_ranges(copies_come_in=is_even), small_bounds(self.program.bounds):
            self.run_steps()

    def run_steps(self) -> None:
        try:
            for number, step in enumerate(self.program.steps):
                try:
                    self.step(step)
                    if self.kept:
                        is_last = number == len(self.program.steps) - 1
                        attend(self.readers().look_whole(self.held, None if is_last else number))
                        if self.follower is not None:
                            self.follower.look()
                        if self.mirror is not None:
                            self.mirror.look(is_last=is_last)
                        for original in self.originals if is_last else ():
                            attend(original.look())
                except Exception as error:
                    error.add_note(f"in step {number}: {step!r}")
                    raise
        finally:
            self.follow(None)
            for sink in [self.sink, *self.left]:
                with suppress(StateBackendError):
                    if sink is not None:
                        sink.close()
            close_workers()

    def step(self, step: Step) -> None:
        match step:
            case Start():
                self.start(step)
            case Batch():
                self.batch(step)
            case Slip():
                slips.slip(self, step)
            case Edit(first=True) if self.job.clock == "none":
                beside.edit(self, step)
            case Seed() if not self.kept:
                seeding.seed(self, step)
            case _ if self.kept and type(step) in LATER:
                LATER[type(step)](self, step)

    def follow(self, follower: "following.Beside | None") -> None:
        """Have this follower, in place of another one."""
        if self.follower is not None:
            self.follower.close()
        self.follower = follower

    def become(self, name: str, kept: Committed) -> None:
        """Go on as another job, which has this commit and no other."""
        self.name = name
        if self.follower is not None:
            self.follower.close()
        self.held = self.kept[kept.checkpoint_id].copy()
        self.held.declare(self.job)
        self.kept, self.line = {kept.checkpoint_id: self.held.copy()}, [kept]
        self.moments[kept.checkpoint_id] = time.time()
        self.savepoints, self.is_rewritten = {}, True
        self.batch_id = 0 if kept.newest_batch is None else kept.newest_batch + 1
        self.next_run()

    # --------------------------------------------------------------------------------------------------------- the job

    @property
    def settings(self) -> sb.Settings:
        if self._settings is None or self._settings[0] != (self.job, self.name, self.held.groups):
            self._settings = (self.job, self.name, self.held.groups), self._made_settings()
        return self._settings[1]

    def _made_settings(self) -> sb.Settings:
        given = dict(self.job.settings)
        local = (str(self.home / "local"),) if given.pop("has_local", False) else ()
        places = {"primary": f"file://{self.home}/primary", "local": local, "table_dir": str(self.home / "tables")}
        return sb.Settings(job=self.name, max_parallelism=self.held.groups, **(QUIET | places | given))

    def readers(self) -> MoreReaders:
        return MoreReaders(self.settings, self.job)

    def start(self, step: Start) -> None:
        """End the run before as the step says, and make the sink of the next one."""
        if self.sink is not None:
            self.end(step.after)
        self.job = step.job
        self.held.declare(self.job)
        self.session = self.new_session(self.job.zone)
        self.begin_run()
        if step.after == "taken over" and not self.job.parallelism and self.kept:
            self.sink = self.make_sink(standby=True)
            self.told.wait_for_follower()
        else:
            self.sink = self.make_sink()

    def end(self, how: str) -> None:
        if how == "closed":
            self.sink.close()
        elif how in ("left open", "taken over"):
            self.left.append(self.sink)
        else:
            self.copy_home()
            if self.is_copied:
                self.go_back()

    def close_left(self) -> None:
        """End the drivers that were left open."""
        while self.left:
            with suppress(StateBackendError):
                self.left.pop().close()

    def new_session(self, zone: str) -> Any:
        """The session of Spark in which the query runs."""
        return Session(zone, self.query_id)

    def begin_run(self) -> None:
        self.runs += 1
        self.session.begin_run(self.runs, self.query_id)

    def next_run(self, **options: Any) -> None:
        """Another run of the same program, with a sink of its own; `options` of that differ."""
        with suppress(StateBackendError):
            self.sink.close()
        SKY.is_dead = False
        self.begin_run()
        self.sink = self.make_sink(**options)

    def make_sink(self, job: Job | None = None, **other: Any) -> Any:
        job = job or self.job
        options: dict[str, Any] = {"on_rewind": job.on_rewind, "observer": self.told, "adopt": self.adopts}
        options["starts_from"] = self.starts_from
        if job.parallelism:
            options |= {"execution": "executors", "parallelism": job.parallelism}
        if "function" not in job.work:
            options |= {"key": tuple(KEY_COLUMNS[self.program.keys]), "order_by": "seq"}
        if job.zone_told:
            options["time_zone"] = job.zone
        if self.mirror is not None:
            options["mirrors"] = self.mirror.of_sink()
        if job.concurrency is not None:
            options["concurrency"] = job.concurrency
        if job.output != "none":
            options["output"] = self.output_of(job)
        if job.clock == "event":
            options |= {"event_time": "at", "lateness_s": job.lateness_s, "late": job.late}
        elif job.clock == "batch":
            options["clock"] = "batch"
        sink = sb.spark.StatefulSink(work_of(job, self.program.keys), self.settings, **(options | other))
        if job.clock == "batch":
            vars(sink._execution)["_clock"]._clock = self.clock
        return sink

    def output_of(self, job: Job) -> Any:
        def take(batch_id: int, table: pa.Table) -> None:
            rows = sorted(text_of(row) for row in table.to_pylist())
            self.put_out.append((batch_id, rows))
            if self.failing_output:
                self.failing_output -= 1
                fail()

        def publish(publication: Any) -> None:
            if publication.query_id == self.query_id:  # else what a query has left whose state was adopted
                take(publication.batch_id, publication.table)

        async def publish_awaited(publication: Any) -> None:
            publish(publication)

        match job.output:
            case "outbox":
                return sb.spark.Outbox(publish)
            case "async outbox":
                return sb.spark.Outbox(publish_awaited)
        return lambda df, batch_id: take(batch_id, df.toArrow())

    # -------------------------------------------------------------------------------------------------------- a batch

    def batch(self, step: Batch) -> None:
        """Deliver the next batch, with its mishap, and then again until the state has it; and compare."""
        batch_id, self.batch_id = self.batch_id, self.batch_id + 1
        self.clock.now_s += 7.5
        held, expected, late = self.applied(step, batch_id)
        self.told.late = 0
        self.put_out.clear()
        if step.mishap:
            mishaps.deliver(self, step, batch_id)
            self.begin_run()
        self.sink(self.frame(step, batch_id), batch_id)
        if step.mishap == "" and self.told.late != late:
            check("late rows", self.told.late, late)
        self.committed(self.newest_id(batch_id), held, batch_id)
        self.check_output(batch_id, expected)

    def committed(
        self, checkpoint_id: int, held: Dictionaries, batch_id: int | None, *, at_s: float | None = None
    ) -> None:
        """The job has a new commit; `batch_id`: `None` for one by hand. `at_s`: a time at which it was the newest."""
        self.held = held
        self.kept[checkpoint_id] = held.copy()
        self.moments[checkpoint_id] = time.time() if at_s is None else at_s
        if batch_id is not None:
            self.line.append(Committed(checkpoint_id, batch_id, is_edit=False, query_id=self.query_id))
            return
        before = self.line[-1] if self.line else Committed(0, None, is_edit=True, query_id=None)
        self.line.append(before._replace(checkpoint_id=checkpoint_id, is_edit=True))

    def newest_id(self, batch_id: int) -> int:
        """The checkpoint that the batch made. Raises `WrongError` if it made none, or several."""
        opened = self.sink._job.result()
        found = int(getattr(opened, "coordinator", opened).next_checkpoint_id) - 1
        if found <= max(self.kept, default=-1):
            raise WrongError(f"batch {batch_id} was not committed")
        return found

    def copy_home(self) -> None:
        """Remember the files as they are: those of a process that dies now."""
        shutil.rmtree(self.copied, ignore_errors=True)
        self.copied.mkdir()
        copy_tree(self.home, self.copied)
        self.is_copied = True

    def go_back(self) -> None:
        """Go back to the files that were remembered; what wrote others is gone."""
        with suppress(StateBackendError):
            self.sink.close()
        self.close_left()
        if self.follower is not None:  # no primary goes back by a kill: it would see what was never there
            self.follower.close()
        close_workers()
        shutil.rmtree(self.home)
        self.copied.rename(self.home)
        self.is_copied = SKY.is_dead = False

    def frame(self, step: Batch, batch_id: int, *, raises: bool = False) -> Any:
        self.frame_of_batch = self.session.frame(
            self.table(step, raises=raises), pieces=step.pieces, plan=(batch_id, self.runs)
        )
        return self.frame_of_batch

    def table(self, step: Batch, *, raises: bool) -> pa.Table:
        """The rows as Spark has them: instants in the session's zone."""
        keys = KEYS[self.program.keys]
        time = pa.timestamp("us", self.job.zone if self.job.times == "instant" else None)
        where = RAISING.get(step.mishap, 0) if raises else None
        items = list(step.items)
        fails = [False] * len(items)
        if where is not None and items and step.mishap != "delivered again":
            fails[len(items) // 2 if where == 1 else where] = step.mishap in RAISING or step.mishap == "stopped"
        parts = [keys[item.key % len(keys)] for item in items]
        columns: dict[str, Any] = {
            name: pa.array([part[place] if isinstance(part, tuple) else part for part in parts], type_)
            for place, (name, type_) in enumerate(KEY_COLUMNS[self.program.keys].items())
        }
        columns["at"] = pa.array([in_us(item) for item in items], pa.int64()).cast(time)
        columns["seq"] = pa.array(range(len(items)), pa.int64())
        columns["does"] = pa.array([msgspec.json.encode(item.does).decode() for item in items], pa.string())
        columns["raises"] = pa.array(["now" if each else None for each in fails], pa.string())
        return pa.table(columns)

    def applied(self, step: Batch, batch_id: int) -> tuple[Dictionaries, list[str], int]:
        """The dictionaries with the batch, the rows that it puts out, and how many are late."""
        job, held = self.job, self.held.copy()
        times = [in_us(item) / 1e6 for item in step.items]
        if job.clock == "batch":
            held.move(self.clock.now_s)
        else:
            held.move(max(times) - job.lateness_s if job.clock == "event" and times else None)
        late = [job.clock == "event" and in_us(item) < held.before * 1e6 for item in step.items]
        keys = KEYS[self.program.keys]
        rows: dict[str, tuple[Any, list[Item]]] = {}
        late_rows: dict[str, tuple[Any, int]] = {}
        for item, is_late in zip(step.items, late, strict=True):
            key = keys[item.key % len(keys)]
            if is_late and job.late != "keep":
                late_rows[text_of(key)] = key, late_rows.get(text_of(key), (key, 0))[1] + 1
                continue
            rows.setdefault(text_of(key), (key, []))[1].append(item)
        declared = {each.name: each for each in job.states}
        output: list[tuple[Any, str, str]] = []
        touched = {self.slot(keys[item.key % len(keys)]) for item in step.items}
        for key, items in rows.values():
            for item in items:
                for do in item.does:
                    held.act(declared[do.state], key, do)
            output.append((key, held.seen(job, key), ", ".join(self.when(item) for item in items)))
        if job.late == "output":
            output += [(key, f"late {count}", "") for key, count in late_rows.values()]
        if job.clock != "none":
            touched |= {self.slot(key) for _, key, _ in held.due(job)}
            output += [(key, seen, "") for key, seen in held.fire(job)]
        is_function = "function" in job.work
        if not job.parallelism or touched:
            held.commit(job.states)
        held.end(job, batch_id, int(bool(rows)) if is_function else len(touched))
        return held, sorted(self.put(*each) for each in output), sum(late)

    def slot(self, key: Any) -> int:
        parts = self.job.parallelism
        groups = self.settings.max_parallelism
        return 0 if not parts else key_group(key, groups) * parts // groups

    def put(self, key: Any, seen: str, whens: str) -> str:
        parts = key if isinstance(key, tuple) else (key,)
        names = KEY_COLUMNS[self.program.keys]
        return text_of({**dict(zip(names, parts, strict=True)), "seen": seen, "whens": whens})

    def when(self, item: Item) -> str:
        """The time of a row in the session's zone, as a user prints it; a function gets what `toArrow` gives: UTC."""
        zone = zone_of("UTC" if "function" in self.job.work else self.job.zone)
        at = EPOCH + dt.timedelta(microseconds=in_us(item))
        return str(at.replace(tzinfo=None) if self.job.times == "naive" else at.astimezone(zone))

    def check_output(self, batch_id: int, expected: Sequence[str]) -> None:
        if self.job.output == "none":
            return
        found = [rows for number, rows in self.put_out if number == batch_id]
        if not found:
            raise WrongError(f"nothing was put out for batch {batch_id}")
        for rows in found:
            check(f"output of batch {batch_id}", rows, list(expected))


def run(program: Program) -> None:
    """Run a program in a directory of its own. Raises what it finds."""
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as home, without_jvm():
        Running(program, Path(home)).run()


def in_us(item: Item) -> int:
    return round(item.at_s * 1e6)
