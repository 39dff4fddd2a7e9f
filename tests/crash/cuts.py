"""A job on a disk whose power is cut: at each step of what it does to its files, with every disk that may be left.

Both copies lie on it: a primary that is a directory, and two local roots. A life of the job is recorded once; then each
cut of it is judged by opening the job on what is left, and the next life begins on one of these.
"""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import statebackend as sb
from statebackend._ranges.range_owners import open_range_owners
from statebackend.objectstore import LocalStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle
from tests.crash.disk import Forgets, Mark, Outcome, Recorder, Synced, lay_down, never, outcomes
from tests.faults.file_calls import watched
from tests.faults.job import IMPATIENT, SIZE, Job, batch_of
from tests.faults.scenarios import BASES
from tests.knobs import replaced
from tests.ranges.parts import open_run
from tests.runs.ranges import always_by_ranges

TABLES: Final = ("heap", "rocksdb", "runs")
OLD_S: Final = 7200.0
"""A sweep leaves entries of the log alone that are younger than an hour."""


@dataclass(frozen=True)
class Said:
    """What a process had said by the time of the cut."""

    acknowledged: int = 0
    begun: int = 0
    kept: tuple[tuple[str, int], ...] = ()
    named: frozenset[str] = frozenset()
    received: tuple[int, ...] = ()
    silent: frozenset[int] = frozenset()
    sizes: tuple[int, ...] = (SIZE,)


@dataclass(frozen=True)
class Cut:
    """After which event of a life, and what was left."""

    step: int
    said: Said
    left: Outcome


def job_in(directory: Path, table: str, said: Said = Said()) -> Job:
    job = Job(directory, table=table, copies=True, **IMPATIENT, **BASES)
    job.well = LocalStore(directory / "primary")
    job.expects_output = True
    job.acknowledged, job.begun = said.acknowledged, said.begun
    job.kept, job.named = dict(said.kept), set(said.named)
    job.received = {batch: [job.rows(batch)] for batch in said.received}
    job.silent, job.sizes = set(said.silent), said.sizes
    job.settings = replaced(job.settings, max_parallelism=said.sizes[0])
    return job


def said_by(job: Job) -> Said:
    kept = tuple(sorted(job.kept.items()))
    received, silent = tuple(sorted(job.received)), frozenset(job.silent)
    return Said(job.acknowledged, job.begun, kept, frozenset(job.named), received, silent, job.sizes)


@run_virtual
async def live(directory: Path, table: str, said: Said, say: Callable[[Said], None], chance: Random) -> None:
    """A run of the job: by its driver; then perhaps by executors, and perhaps a rewrite of it."""
    job = job_in(directory, table, said)
    await job.look()
    await _drive(job, say, chance)
    if chance.random() < 0.5:
        await _contribute(job, say, chance.randrange(1, 3))
    if chance.random() < 0.4:
        job.sizes = (job.settings.max_parallelism, 3 * SIZE - job.settings.max_parallelism)
        say(said_by(job))
        await job.rewrite(job.sizes[-1], job.well)
        say(said_by(job))


async def _drive(job: Job, say: Callable[[Said], None], chance: Random) -> None:
    """Batches with output, savepoints that are made and dropped, a sweep beside it."""
    async with job.open(store=job.well) as backend:
        for _ in range(chance.randrange(1, 5)):
            batch = batch_of(backend) + 1
            if is_swept := chance.random() < 0.4:  # a sweep takes the newest object's time for the store's
                make_old(job.directory / "primary")
            job.begun = max(job.begun, batch)
            job.silent.discard(batch)
            say(said_by(job))
            await job.commit(backend, output=sb.Output(b"s", 1, (job.rows(batch),)))
            say(said_by(job))
            await settle()
            if chance.random() < 0.7:
                await job.publish(backend)
                say(said_by(job))
            if chance.random() < 0.3:
                await _name(job, say, f"name {job.begun}".replace(" ", "-"))
            if job.named and chance.random() < 0.3:
                await _drop(job, say, min(job.named))
            if is_swept:
                await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=job.well)


async def _contribute(job: Job, say: Callable[[Said], None], batches: int) -> None:
    """Batches in two ranges, whose changes become one commit each."""
    async with open_run(job.settings, 2, job.well) as run, open_range_owners(store=job.well) as owners:
        for _ in range(batches):
            base = run.coordinator.base
            assert base is not None
            assert base.source is not None
            batch = base.source.batch_id + 1
            job.begun = max(job.begun, batch)
            job.silent.add(batch)
            say(said_by(job))
            await job.commit_parts(run, owners, batch)
            say(said_by(job))


async def _name(job: Job, say: Callable[[Said], None], name: str) -> None:
    if name not in job.kept:
        job.kept[name] = job.acknowledged
        say(said_by(job))
        await sb.savepoint(job.settings, name, store=job.well)
        job.named.add(name)
        say(said_by(job))


async def _drop(job: Job, say: Callable[[Said], None], name: str) -> None:
    job.named.discard(name)
    say(said_by(job))
    await sb.drop_savepoint(job.settings, name, store=job.well)


def make_old(directory: Path) -> None:
    """Let a sweep take it for written hours ago."""
    for path in directory.rglob("*"):
        if path.is_file():
            status = path.stat()
            os.utime(path, (status.st_atime, status.st_mtime - OLD_S))


@run_virtual
async def judge(directory: Path, table: str, said: Said) -> None:
    await job_in(directory, table, said).recover()


@dataclass
class Count:
    """What was looked at. `disks`: those that were different, on each of which the job was opened and judged."""

    lives: int = 0
    operations: int = 0
    syncs: int = 0
    cuts: int = 0
    disks: int = 0

    def as_row(self) -> Mapping[str, int]:
        """By the heads of a table."""
        return {
            "lives": self.lives,
            "file operations": self.operations,
            "of them syncs": self.syncs,
            "cuts": self.cuts,
            "disks opened and judged": self.disks,
        }


class CutPower:
    """One job, from life to life. In each of them so many `steps`, drawn, are followed by a cut.

    Of what a cut may leave all is judged where that is at most `most`, or else so many, drawn.
    """

    def __init__(self, seed: int, table: str, *, steps: int = 20, most: int = 2) -> None:
        self.count = Count()
        self._seed = seed
        self._chance = Random(seed)
        self._table = table
        self._steps = steps
        self._most = most

    def run(self, lives: int, forgets: Forgets = never) -> Count:
        """Live, cut and judge so many times. Raises what is wrong, with the way to see it again."""
        cut = Cut(0, Said(), {})
        for life in range(lives):
            cuts = self._live(cut, forgets)
            self.count.lives += 1
            for each in cuts:
                self.count.disks += 1
                try:
                    self._judge(each)
                except BaseException as error:
                    error.add_note(f"seed {self._seed}, {self._table}, life {life}, cut after event {each.step}")
                    error.add_note(f"{each.said}; left: {sorted(each.left)}")
                    raise
            cut = self._chance.choice(cuts)
            if self._table == "runs" and self._chance.random() < 0.5:  # the next life is on another host
                left = {path: content for path, content in cut.left.items() if not path.startswith("local")}
                cut = dataclasses.replace(cut, left=left)
        return self.count

    def _live(self, cut: Cut, forgets: Forgets) -> list[Cut]:
        with tempfile.TemporaryDirectory(prefix="cuts-") as place:
            root = Path(place)
            lay_down(cut.left, root, age_s=OLD_S)
            recorder = Recorder(root, forgets)
            recorder.mark(cut.said)
            with watched(root, recorder), always_by_ranges():
                live(root, self._table, cut.said, recorder.mark, self._chance)
        return list(self._cuts(recorder))

    def _cuts(self, recorder: Recorder) -> Iterator[Cut]:
        said, seen = Said(), set[Any]()
        every = range(len(recorder.events))
        steps = frozenset(self._chance.sample(every, min(self._steps, len(every))))
        for step, event in enumerate(recorder.replay()):
            self.count.operations += not isinstance(event, Mark)
            self.count.syncs += isinstance(event, Synced)
            if isinstance(event, Mark):
                said = event.said
            for left in outcomes(recorder.tree, chance=self._chance, most=self._most) if step in steps else ():
                self.count.cuts += 1
                if (key := (said, frozenset(left.items()))) not in seen:  # several cuts may leave the same
                    seen.add(key)
                    yield Cut(step, said, left)

    def _judge(self, cut: Cut) -> None:
        with tempfile.TemporaryDirectory(prefix="cuts-") as place:
            lay_down(cut.left, Path(place), age_s=OLD_S)
            with always_by_ranges():
                judge(Path(place), self._table, cut.said)
