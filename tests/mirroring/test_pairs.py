"""A mirror, and whatever else is done to its job: the table comes to equal the state, of every kind."""

from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._log.mirror_steps import Form
from statebackend.errors import WrongMirrorError
from statebackend.objectstore import MemoryStore
from tests.erase.persons import ADA, BOB, BOTH, ERASED, writes
from tests.log.swept import HandClock
from tests.mirroring.listed import Listed, value_of
from tests.rewrite.jobs import KINDS, SAMPLE, States, newest_commit, opened, settings_of, work

MIRRORED: Final = KINDS[:-1]
TRANSFORMED: Final = "a state was transformed"
REWRITTEN: Final = "the job has another number of key groups"


@pytest.fixture(params=["table", "log"])
def job(request: pytest.FixtureRequest) -> "Job":
    return Job(request.param)


class Job:
    """A job with every kind of state, and a table of each."""

    def __init__(self, form: Form, **settings: Any) -> None:
        self.form: Form = form
        self.clock = HandClock()
        self.store = MemoryStore(clock=self.clock)
        self.settings = settings_of(16, **{**BOTH, **settings})
        self.tables = {kind: Listed() for kind in MIRRORED}

    async def mirror(self) -> dict[str, tuple[str, ...]]:
        """Mirror all states, and check their tables; return why any of them began anew."""
        reasons: dict[str, tuple[str, ...]] = {}
        for kind, table in self.tables.items():
            mirror = sb.Mirror(kind, to=table, form=self.form, key_as_json=True)
            report = await sb.mirror_once(self.settings, mirror, store=self.store, clock=self.clock)
            reasons |= {kind: report.anew} if report.anew else {}
            assert table.rows == await self.state(kind), kind
        return reasons

    async def state(self, kind: str) -> dict[str, Any]:
        """The state, as any reader has it."""
        as_json = {} if kind == "columns" else {"key_as_json": True}
        async with sb.read_batches(self.settings, kind, store=self.store, **as_json) as batches:
            return {row["key"]: value_of(row) async for batch in batches for row in batch.to_pylist()}

    async def work(self, number: int, *persons: str) -> None:
        await work(self.settings, self.store, writes(number, *persons))

    def named(self, name: str) -> "Job":
        """Another job in the same store, with tables of its own."""
        found = Job(self.form)
        found.store, found.clock = self.store, self.clock
        found.settings = msgspec.structs.replace(self.settings, job=name)
        return found


async def test_every_kind_and_every_type_of_key(job: Job) -> None:
    """Before and behind a commit, all of whose changes are carried over."""
    await work(job.settings, job.store, SAMPLE)
    assert set((await job.mirror()).values()) == {("it is new",)}
    await work(job.settings, job.store, SAMPLE[::2], [("dropped", key, 0) for key in ("a", 7, ("d", 1))])
    assert await job.mirror() == {}


async def test_a_clone_has_mirrors_of_its_own(job: Job) -> None:
    """It begins without any; the tables of its source are refused; and those go on as if nothing had happened."""
    await job.work(1, ADA, BOB)
    await job.mirror()
    copy = job.named("copy")
    await sb.clone(copy.settings, from_=job.settings, store=job.store, from_store=job.store)
    assert set((await copy.mirror()).values()) == {("it is new",)}
    for each, number in ((copy, 2), (job, 3), (copy, 4)):
        await each.work(number, ADA)
        assert await each.mirror() == {}
    thief = job.named("copy-2")
    await sb.clone(thief.settings, from_=copy.settings, store=job.store, from_store=job.store)
    thief.tables = copy.tables
    with pytest.raises(WrongMirrorError):
        await thief.mirror()


async def test_an_erased_key_stays_away_behind_a_savepoint(job: Job) -> None:
    """Also where the job starts from a savepoint that was made after the erasure."""
    await job.work(1, ADA, BOB)
    await sb.savepoint(job.settings, "before", store=job.store)
    await job.mirror()
    await sb.erase(job.settings, ERASED, savepoints="drop", store=job.store, clock=job.clock)
    await sb.savepoint(job.settings, "behind", store=job.store)
    await job.work(2, BOB)
    assert set(await job.mirror()) == set(MIRRORED)
    await job.work(3, BOB)
    async with opened(job.settings, job.store, savepoint="behind") as (backend, states):
        states.write(writes(4, BOB))
        await backend.checkpoint(backend.next_checkpoint_id)
    await job.mirror()
    assert not any(ADA in key for table in job.tables.values() for key in table.rows)


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_transformation_reaches_the_table(job: Job, *, is_behind: bool) -> None:
    """With the keys that it made; the tables of other states are as they were."""
    await job.work(1, ADA, BOB)
    await job.mirror()
    for kind in ("value", "columns"):
        await sb.transform(job.settings, kind, lambda key, value: [(f"{key} II", value)], store=job.store)
    if is_behind:
        await job.work(2, BOB)
    others = {kind: dict(table.rows) for kind, table in job.tables.items() if kind not in ("value", "columns")}
    reasons = await job.mirror()
    assert {"value", "columns"} <= set(reasons)
    assert is_behind or {kind: job.tables[kind].rows for kind in others} == others


async def test_an_emptied_state_that_is_transformed_begins_its_table_anew(job: Job) -> None:
    """It has no bases by which it could be told from one that had nothing added."""
    await job.work(1, ADA)
    for _ in range(2):
        await job.mirror()
        for kind in MIRRORED:
            await sb.transform(job.settings, kind, lambda _key, _value: None, store=job.store)
    assert await job.mirror() == dict.fromkeys(MIRRORED, (TRANSFORMED,))
    await job.work(2, BOB)
    assert not await job.mirror()


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_rewrite_moves_every_key(job: Job, *, is_behind: bool) -> None:
    """All tables begin anew, once, and go on."""
    await job.work(1, ADA, BOB)
    await job.mirror()
    job.settings = settings_of(32, **BOTH)
    await sb.rewrite(job.settings, store=job.store)
    if is_behind:
        await job.work(2, BOB)
    assert await job.mirror() == dict.fromkeys(MIRRORED, (REWRITTEN,))
    await job.work(3, ADA)
    assert await job.mirror() == {}


async def test_a_seed_is_the_first_step(job: Job) -> None:
    """And what the stream changes behind it are the next ones."""

    def rows() -> Any:
        return pa.table({"key": [ADA, BOB], "value": [1, 2]})

    job.tables = {"value": Listed()}
    await sb.seed(job.settings, States, {"value": rows()}, store=job.store)
    assert await job.mirror() == {"value": ("it is new",)}
    await job.work(3, ADA)
    await work(job.settings, job.store, [("dropped", BOB, 0)])
    assert await job.mirror() == {}
    assert list(job.tables["value"].rows) == [f'"{ADA}"']


async def test_values_that_expire_go_when_the_job_drops_them(job: Job) -> None:
    """Until then they are in the table, as for any reader that is not told when they expire."""
    job.tables = {"recent": Listed()}
    await work(job.settings, job.store, [("recent", ADA, -1), ("recent", BOB, 2)])
    await job.mirror()
    assert len(job.tables["recent"].rows) == 2
    async with opened(job.settings, job.store) as (backend, states):
        assert ADA not in states.recent
        states.recent.pop(ADA, None)
        states.recent[BOB] = 3
        await backend.checkpoint(backend.next_checkpoint_id)
    assert await job.mirror() == {}
    await sb.rewrite(settings_of(32, **BOTH), store=job.store)
    job.settings = settings_of(32, **BOTH)
    await job.mirror()


@pytest.mark.parametrize("form", ["table", "log"])
async def test_columns_over_runs(form: Form, tmp_path: Path) -> None:
    """Whose bases are not read: step by step, and by a mirror that begins when there are some."""
    job = Job(form, table="runs", table_dir=f"{tmp_path}", materialize_handles_max=1, materialize_interval_s=0.0)
    job.tables = {"columns": Listed()}
    async with sb.open_backend(job.settings, store=job.store) as backend:
        columns = backend.columnar_state("columns", pa.schema({"sum": pa.int64()}), key=pa.string())
        for number in range(6):
            rows = pa.table({"k": [f"{key}" for key in range(number, 50)], "n": [number] * (50 - number)})
            columns.merge(rows, on="k", how={"sum": ("sum", "n")})
            columns.rows([str(number)]).drop()
            await backend.checkpoint(backend.next_checkpoint_id)
            assert await job.mirror() == ({} if number else {"columns": ("it is new",)})
    assert (await newest_commit(job.store)).ranges[0].bases
    job.tables = {"columns": Listed()}
    late = sb.Mirror("columns", to=job.tables["columns"], name="late", form=form)
    await sb.mirror_once(job.settings, late, store=job.store)
    assert job.tables["columns"].rows == await job.state("columns")
