"""Kills a process at each step of a merge of runs: `python -m tests.crash.merges`, or `nox -s merges`.

The job lies in files, a primary that is a directory and a local root. It commits what makes a merge due, merges behind
the checkpoint, and commits once more, which lists what was merged. At one of its file operations that change anything
the process gets SIGKILL: before it, or within it, which leaves half of what it would have written. Whoever comes next
has what a dictionary says, goes on, merges, and leaves nothing that no commit needs.
"""

import argparse
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import statebackend as sb
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.backend.conftest import tree_of
from tests.backend.reachable import assert_copies_are_of_use, reachable_keys
from tests.faults.file_calls import Call, watched
from tests.mortals import Report, last_word
from tests.proof.record import record_of, write_record
from tests.runs.test_jobs_over_runs import Job, Model, settings_of
from tests.runs.test_layers import LayeredJob, commits_of
from tests.runs.test_memory_limit import LimitedJob
from tests.runs.test_no_room import AT_ONCE, MERGES, runs_in

Moment = Literal["before", "within"]
MOMENTS: Final[Sequence[Moment]] = get_args(Moment)
MOVE: Final = "a base of all that outgrew its memory"


@dataclass(frozen=True)
class Merge:
    """What is merged: by a job of this kind, which was prepared so, once so many keys of it have changed."""

    job: Callable[..., Job]
    prepare: Callable[[Any], Awaitable[None]]
    keys: int
    changes: Mapping[str, Any]
    """Settings with which it is due."""

    def open_job(self, directory: Path) -> Job:
        return self.job(directory, **AT_ONCE)


async def _with_a_layer(job: LayeredJob) -> None:
    await job.with_layers(1, 300)


async def _with_columns(job: LimitedJob) -> None:
    async with job.open(materialize_handles_max=1) as backend:
        await job.grow(backend, 0, 100)
        await job.commit(backend)


ALL: Final[Mapping[str, Merge]] = {
    **{name: Merge(LayeredJob, _with_a_layer, *each) for name, each in MERGES.items()},
    MOVE: Merge(LimitedJob, _with_columns, 600, {}),
}


@dataclass(frozen=True)
class Prepared:
    """The job before its merge, in a directory to be copied. `models`: by each checkpoint that there may be."""

    name: str
    directory: Path
    checkpoint_id: int
    models: Mapping[int, Model]

    @property
    def merge(self) -> Merge:
        return ALL[self.name]

    def changes(self) -> Iterator[tuple[list[str], list[str]]]:
        """The keys that get a row, and those that are dropped, of each batch."""
        yield [f"k{number}" for number in range(1, self.merge.keys)], ["k0", "k99"]
        yield ["k1", "new"], ["k2"]


def prepared(name: str, directory: Path) -> Prepared:
    """Make the job."""
    merge = ALL[name]
    job = merge.open_job(directory)
    run_virtual(merge.prepare)(job)
    found = Prepared(name, directory, job.checkpoint_id, {})
    models = {job.checkpoint_id: dict(job.model)}
    for number, (keys, dropped) in enumerate(found.changes(), job.checkpoint_id + 1):
        before = models[number - 1]
        model = before | {key: (before.get(key, (0, ""))[0] + 1, f"{number - 1} {key}") for key in keys}
        models[number] = {key: row for key, row in model.items() if key not in dropped}
    return Prepared(name, directory, job.checkpoint_id, models)


class Killer:
    """A watcher of file calls: the `nth` that changes anything is the last; with 0, none is."""

    def __init__(self, nth: int, moment: Moment) -> None:
        self.count = 0
        self._nth, self._moment = nth, moment
        self._turn = threading.Lock()

    def __call__(self, call: Call, really: Callable[[], Any]) -> Any:
        if not call.changes:
            return really()
        with self._turn:
            self.count += 1
            if self.count == self._nth:
                if self._moment == "within":
                    with suppress(OSError):
                        really()
                    if call.name in ("write", "writev") and call.descriptor is not None:
                        os.ftruncate(call.descriptor, os.fstat(call.descriptor).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return really()


def live(report: Report, directory: Path, of: Prepared, **death: Any) -> None:
    """Report each checkpoint that is acknowledged; who gets to the end, how many operations there were, below zero."""
    logging.disable(logging.CRITICAL)
    killer = Killer(**death)
    run_virtual(threads=False)(_merge)(report, directory, of, killer)
    report(-killer.count)
    os.kill(os.getpid(), signal.SIGKILL)


async def _merge(report: Report, directory: Path, of: Prepared, killer: Killer) -> None:
    job = of.merge.open_job(directory)
    job.checkpoint_id = of.checkpoint_id
    settings = settings_of(job.settings, **of.merge.changes)
    async with sb.open_backend(settings, clock=VirtualClock()) as backend:
        with watched(directory, killer):
            for keys, dropped in of.changes():
                job.write(backend, keys, dropped)
                job.checkpoint_id += 1
                backend.value_state("seen", int)["checkpoint"] = job.checkpoint_id
                await backend.checkpoint(job.checkpoint_id)
                report(job.checkpoint_id)
                await backend._base_writer.settled()


@run_virtual
async def check(directory: Path, of: Prepared, acknowledged: int) -> bool:
    """Open the job, compare it, and go on until it has merged. True if what was merged had been committed before."""
    job = of.merge.open_job(directory)
    settings = settings_of(job.settings, **of.merge.changes)
    before = await _runs_of(of.merge.open_job(of.directory))
    async with sb.open_backend(settings, clock=VirtualClock()) as backend:
        assert backend.newest is not None
        job.checkpoint_id = job.seen = backend.newest.checkpoint_id
        assert job.checkpoint_id >= acknowledged
        job.model = dict(of.models[job.checkpoint_id])
        job.check(backend)
        was_merged = await _runs_of(job) != before
        for number in range(3):
            job.write(backend, [f"k{key}" for key in range(of.merge.keys)], [f"k{number + 50}"])
            await job.commit(backend)
        job.check(backend)
    assert await _runs_of(job) != before
    assert (await sb.verify(job.settings)).damages == ()
    async with sb.open_backend(job.settings, clock=VirtualClock()) as backend:
        job.check(backend)
    await _check_swept(directory, job.settings)
    return was_merged


async def _runs_of(job: Job) -> set[str]:
    return runs_in((await commits_of(job.settings))[-1].ranges[0])


async def _check_swept(directory: Path, settings: sb.Settings) -> None:
    """When all of it is old, a sweep leaves what commits need; and of local copies there are no others."""
    for _ in range(2):  # the mark of how far the sweep before went is garbage only for the next one
        for name in tree_of(directory):
            os.utime(directory / name, (1.0, 1.0))
        report = await sb.sweep(settings, dry_run=False, min_age_s=0.0)
        assert (report.failures, report.stopped) == ((), None)
    primary = tree_of(directory / "primary" / settings.job)
    assert primary.keys() == reachable_keys(primary, settings.job, retained=settings.checkpoints_retained)
    copies = tree_of(directory / "local" / f"job_{settings.job}" / "taskowned")
    assert_copies_are_of_use(copies, primary, settings.job)


def kill_and_check(of: Prepared, nth: int, moment: Moment) -> tuple[int, bool]:
    """Of a copy of the job. What was its last word, and whether the merge was committed by then."""
    with tempfile.TemporaryDirectory(prefix="merges-") as place:
        directory = Path(place, "job")
        shutil.copytree(of.directory, directory)
        said = last_word(live, directory, of, nth=nth, moment=moment)
        try:
            return said, check(directory, of, max(said, of.checkpoint_id))
        except BaseException as error:
            error.add_note(f"{of.name}: killed {moment} operation {nth}")
            raise


def operations_of(of: Prepared) -> int:
    """How many operations there are to be killed at."""
    said, was_merged = kill_and_check(of, 0, "before")
    assert was_merged
    return -said


def _run(of: Prepared, nth: int, moment: Moment) -> tuple[Mapping[str, int], str]:
    try:
        said, was_merged = kill_and_check(of, nth, moment)
    except BaseException as error:  # noqa: BLE001  # told by the parent
        return {}, "".join(traceback.format_exception(error))
    acknowledged = max(said, of.checkpoint_id) - of.checkpoint_id
    return {"kills": 1, "what was merged was committed": was_merged, "acknowledged checkpoints": acknowledged}, ""


def main() -> None:
    """Exit status 1 if anything is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.merges", description=__doc__)
    parser.add_argument("--step", type=int, default=1, help="each so manieth operation")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what came of it there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    begun, broken, table = time.monotonic(), 0, list[tuple[Any, ...]]()
    heads = ("kills", "what was merged was committed", "acknowledged checkpoints")
    with (
        tempfile.TemporaryDirectory(prefix="merges-") as place,
        ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        for number, name in enumerate(ALL):
            of = prepared(name, Path(place, f"{number}"))
            count, found = operations_of(of), Counter(dict.fromkeys(heads, 0))
            steps = [(nth, moment) for nth in range(1, count + 1, arguments.step) for moment in MOMENTS]
            for (nth, moment), (counted, wrong) in zip(
                steps, pool.map(_run, *zip(*((of, *step) for step in steps), strict=True)), strict=True
            ):
                found.update(counted)
                broken += bool(wrong)
                if wrong:
                    print(f"{name}, {moment} operation {nth}", wrong, sep="\n", flush=True)
            table.append((name, count, *(found[head] for head in heads)))
            print(*table[-1], sep=" | ", flush=True)
    record = record_of(
        f"nox -s merges -- --step {arguments.step}",
        seconds=time.monotonic() - begun,
        broken=broken,
        head=("merge", "file operations", *heads),
        table=table,
    )
    print(*record.lines(), sep="\n")
    if arguments.record is not None:
        write_record(arguments.record, record)
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
