"""A job whose primary fails on command, and the judgement of what is left of it.

Its batches are numbered from 1. Each adds to sums and appends to lists, so a batch that is lost or applied twice shows.
A batch is *acknowledged* when its checkpoint has returned, and *begun* before.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

import statebackend as sb
from statebackend.errors import SettingsError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fault, FaultyStore
from statebackend.testing.virtual_time import VirtualClock
from tests.knobs import replaced, settings_with
from tests.ranges.parts import Changes, Model, Run, add
from tests.tidy.test_words import ROOT

JOB = "faulty"
SIZE = 4
"""Key groups, before a rewrite."""
HOUR_S = 3700.0
"""A sweep leaves entries of the log alone that are younger."""
KNOWN_ERRORS = frozenset(re.findall(r"`(\w+Error)`", (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")))
IMPATIENT: dict[str, Any] = {"upload__attempts_max": 1, "upload__retry_delay_s": 0.0, "upload__primary_outage_s": 0.0}
"""Every fault is seen: nothing is tried twice."""


def changes_of(batch: int) -> Changes:
    """What a batch adds: always to "all", and to one of three other keys."""
    return [("all", batch), (f"key {batch % 3}", batch)]


class Job:
    """The job, its stores, and what is true of it. `store` is the primary that fails, `well` the same one that does
    not.
    """

    def __init__(self, directory: Path, *, table: str = "heap", copies: bool = False, **changes: Any) -> None:
        self.clock = VirtualClock()
        self.well: sb.ObjectStore = MemoryStore(clock=self.clock)
        self.store = FaultyStore(self.well)
        self.directory = directory
        self.settings = settings_with(
            job=JOB,
            primary="memory://unused",
            local=tuple(f"{directory}/local{root}" for root in range(2)) if copies else (),
            table=table,
            table_dir=f"{directory}/tables",
            max_parallelism=SIZE,
            checkpoints_retained=2,
            **{"persist_delay_s": 0.0, "inline_bytes_max": 0, "materialize_retry_delay_s": 0.0, **changes},
        )
        self.sizes: tuple[int, ...] = (SIZE,)
        """The numbers of key groups that it may have."""
        self.acknowledged = 0
        self.begun = 0
        self.received: dict[int, list[bytes]] = {}
        self.expects_output = False
        self.silent: set[int] = set()
        """Batches without output, where output is expected."""
        self.kept: dict[str, int] = {}
        """The batch that each savepoint keeps, if it was made."""
        self.named: set[str] = set()
        """The savepoints whose making has returned, and which nobody has begun to drop."""

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncGenerator[sb.StateBackend]:
        """The job on the primary that fails, unless `store` says otherwise."""
        async with sb.open_backend(self.settings, **({"store": self.store, "clock": self.clock} | options)) as backend:
            yield backend

    async def commit(self, backend: sb.StateBackend, **options: Any) -> None:
        """Commit the batch after that which the state has."""
        batch = batch_of(backend) + 1
        self.begun = max(self.begun, batch)
        self.silent.discard(batch)
        self._apply(backend, changes_of(batch))
        await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("q", batch), **options)
        self.acknowledged = max(self.acknowledged, batch)

    async def commit_parts(self, run: Run, owners: Any, batch: int) -> None:
        """As `commit`, with the parts of executors, and without output."""
        self.begun = max(self.begun, batch)
        self.silent.add(batch)
        found = [await run.contribute(owners, task, changes_of(batch), apply=self._apply) for task in run.tasks()]
        await run.commit(found, source=sb.SourceMark("q", batch))
        self.acknowledged = max(self.acknowledged, batch)

    def _apply(self, backend: sb.StateBackend, changes: Changes) -> None:
        """Over runs a columnar state has them, too: of each key the sum, and the batches that it is of."""
        add(backend, changes)
        if self.settings.table == "runs":
            columns = columns_of(backend)
            for key, number in changes:
                row = {"n": number, "batches": str(number)}
                if (old := columns.get(key)) is not None:
                    row = {"n": number + old["n"], "batches": f"{old['batches']} {number}"}
                columns[key] = row

    async def publish(self, backend: sb.StateBackend) -> None:
        """Hand out the rows; the receiver drops what it has a batch of."""
        while (taken := await backend.take_output()) is not None:
            output, streams = taken
            rows = [bytes(stream) for stream in streams]
            assert self.received.setdefault(output.source.batch_id, rows) == rows, "other rows under the same batch"
            backend.published(output)

    def strike(self, *faults: Fault) -> None:
        self.store.plan[:] = faults

    def aged(self) -> Any:
        """Let everything grow old enough to be swept."""
        return anyio.sleep(HOUR_S)

    def rows(self, batch: int) -> bytes:
        return b"rows of %d" % batch

    async def recover(self) -> int:
        """Judge the job on a well store, go on with it, and judge again. Return the batch that was found."""
        self.strike()
        await self.look()
        async with self.open(store=self.well) as backend:
            found = batch_of(backend)
            assert self.acknowledged <= found <= self.begun, "an acknowledged batch is lost, or one is from nowhere"
            self.check(backend, found)
            for _ in range(2):
                await self.publish(backend)
                batch = found + 1
                await self.commit(backend, **({"output": _output(self.rows(batch))} if self.expects_output else {}))
                found = batch
            await self.publish(backend)
        if self.expects_output:
            loud = set(range(1, found + 1)) - self.silent
            assert self.received == {batch: [self.rows(batch)] for batch in loud}
        await self.aged()
        await self.judge_rest(found)
        return found

    async def judge_rest(self, newest: int) -> None:
        """Nothing that is retained is damaged, every savepoint holds what it kept, and a sweep leaves it so."""
        await sb.sweep(self.settings, dry_run=False, min_age_s=0.0, store=self.well, clock=self.clock)
        report = await sb.verify(self.settings, store=self.well)
        assert not report.damages, report.damages
        async with self.open(store=self.well, read_only=True) as backend:
            self.check(backend, newest)
        names = {each.name for each in await sb.savepoints(self.settings, store=self.well)}
        assert self.named <= names, "a savepoint is lost"
        for name in sorted(names):
            settings = await self._settings_for(savepoint=name)
            async with sb.open_backend(settings, store=self.well, read_only=True, savepoint=name) as backend:
                self.check(backend, self.kept[name])

    def check(self, backend: sb.StateBackend, batch: int) -> None:
        """The state is that of so many batches; over runs, so is a columnar one."""
        assert contents(backend) == expected(batch), f"the state is not that of batch {batch}"
        if self.settings.table == "runs":
            columns = {key: (row["n"], row["batches"]) for key, row in columns_of(backend).items()}
            rows = {key: (sum(numbers), " ".join(map(str, numbers))) for key, numbers in expected(batch)[1].items()}
            assert columns == rows, f"the columns are not those of batch {batch}"

    async def rewrite(self, max_parallelism: int, store: sb.ObjectStore) -> None:
        """Give it another number of key groups. If that fails, `look` says whether it has happened."""
        self.sizes = (self.settings.max_parallelism, max_parallelism)
        self.settings = replaced(self.settings, max_parallelism=max_parallelism)
        await sb.rewrite(self.settings, store=store)
        self.sizes = (max_parallelism,)

    async def look(self) -> None:
        """After a rewrite of unknown outcome: take the settings that fit."""
        if len(self.sizes) > 1:
            self.settings = await self._settings_for()
            self.sizes = (self.settings.max_parallelism,)

    async def _settings_for(self, **options: Any) -> sb.Settings:
        """With the number of key groups that the newest checkpoint has, or a savepoint: those are left as they are."""
        sizes = self.sizes if not options else (SIZE, 2 * SIZE)
        for size in sizes[:-1]:
            settings = replaced(self.settings, max_parallelism=size)
            with suppress(SettingsError):
                async with sb.open_backend(settings, store=self.well, read_only=True, **options):
                    return settings
        return replaced(self.settings, max_parallelism=sizes[-1])


def _output(rows: bytes) -> sb.Output:
    return sb.Output(b"s", 1, (rows,))


def batch_of(backend: sb.StateBackend) -> int:
    """The batch that the state stands on."""
    newest = backend.newest
    return 0 if newest is None or newest.source is None else newest.source.batch_id


def contents(backend: sb.StateBackend) -> tuple[dict[sb.Key, int], dict[sb.Key, list[int]]]:
    sums, rows = backend.value_state("sum", int, default=0), backend.list_state("rows", int)
    return dict(sums), {key: list(rows[key]) for key in rows}


def columns_of(backend: sb.StateBackend) -> sb.ColumnarState:
    """For each key the sum, and the batches that it is of."""
    return backend.columnar_state("columns", pa.schema([("n", pa.int64()), ("batches", pa.string())]), key=pa.string())


def expected(batch: int) -> tuple[dict[sb.Key, int], dict[sb.Key, list[int]]]:
    """The contents after so many batches, each once."""
    model = Model()
    for each in range(1, batch + 1):
        model.apply(changes_of(each))
    return {key: sum(numbers) for key, numbers in model.rows.items()}, model.rows


def check_known(error: StateBackendError) -> None:
    """The page of errors says what to do about it."""
    assert type(error).__name__ in KNOWN_ERRORS, f"{type(error).__name__} is not on the page of errors"
