"""Whole jobs with columnar states over runs: lives, damage, other tables, and everybody who reads a base."""

import gc
import random
import shutil
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._codec.change_sets.paged_changes import is_paged
from statebackend._codec.segment import decode_segment
from statebackend._runs.run_file import OpenRun
from statebackend._runs.run_table import RunTable
from statebackend.errors import CorruptSegmentError
from statebackend.objectstore import LocalStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.knobs import settings_with
from tests.runs.invariants import assert_rows_are_the_model

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
HOW = {"n": ("sum", "x"), "name": ("last", "y")}
HALVES = (sb.owners.KeyGroupRange(0, 4), sb.owners.KeyGroupRange(5, 11))
Model = dict[str, tuple[int, str]]


class Job:
    """A job in a directory, and what it should hold."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.directory = directory
        self.model: Model = {}
        self.checkpoint_id = self.seen = 0
        self.settings = settings_with(
            job="job",
            **{
                "primary": f"file://{directory}/primary",
                "local": (f"{directory}/local",),
                "max_parallelism": 12,
                "table": "runs",
                "table_dir": f"{directory}/tables",
                "materialize_handles_max": 1,
                "materialize_interval_s": 0,
                "inline_bytes_max": 0,
                **changes,
            },
        )

    @asynccontextmanager
    async def open(self, **changes: Any) -> AsyncGenerator[sb.StateBackend]:
        """The backend; its state is checked first."""
        async with sb.open_backend(settings_of(self.settings, **changes), clock=VirtualClock()) as backend:
            self.check(backend)
            yield backend

    def check(self, backend: sb.StateBackend) -> None:
        """The state is as it should be, and so is another one beside it."""
        state = columns(backend)
        assert_rows_are_the_model(rows_of(state.to_arrow()), len(state), self.model)
        assert dict(backend.value_state("seen", int)) == ({"checkpoint": self.seen} if self.seen else {})

    def write(self, backend: sb.StateBackend, keys: list[str], dropped: list[str] = []) -> None:  # noqa: B006
        """Merge a row of each key, and drop some."""
        state = columns(backend)
        rows = pa.table({"k": keys, "x": [1] * len(keys), "y": [f"{self.checkpoint_id} {key}" for key in keys]})
        if keys:
            state.merge(rows, on="k", how=HOW)
        for key in keys:
            self.model[key] = self.model.get(key, (0, ""))[0] + 1, f"{self.checkpoint_id} {key}"
        state.rows(pa.array(dropped, pa.string())).drop()
        for key in dropped:
            self.model.pop(key, None)

    async def commit(self, backend: sb.StateBackend) -> None:
        """With the bases that are begun behind it; the next commit has them."""
        self.checkpoint_id += 1
        self.seen = self.checkpoint_id
        backend.value_state("seen", int)["checkpoint"] = self.seen
        await backend.checkpoint(self.checkpoint_id)
        await backend._base_writer.settled()

    async def with_a_base(self, keys: int = 500) -> None:
        """Two commits: the second has bases of the first."""
        async with self.open() as backend:
            self.write(backend, [f"k{number}" for number in range(keys)])
            await self.commit(backend)
            await self.commit(backend)

    async def rewritten(self, **changes: Any) -> None:
        """With other settings for good, and goes on."""
        self.settings = settings_of(self.settings, **changes)
        await sb.rewrite(self.settings)
        self.checkpoint_id += 1
        async with self.open() as backend:
            self.write(backend, ["k1"], ["k2"])
            await self.commit(backend)
            await self.commit(backend)

    def segments(self, root: str) -> list[Path]:
        """Files with pages, in the primary or the local root."""
        found = sorted(path for path in (self.directory / root).rglob("segments/*") if path.is_file())
        return [path for path in found if has_pages(path)]


def settings_of(settings: sb.Settings, **changes: Any) -> sb.Settings:
    """The same settings but for some."""
    return msgspec.structs.replace(settings, **changes)


def columns(backend: Any) -> sb.ColumnarState:
    return backend.columnar_state("rows", SCHEMA, key=pa.string())


def rows_of(table: pa.Table) -> Model:
    """Rows by key; each key is there once."""
    keys = table["key"].to_pylist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, zip(table["n"].to_pylist(), table["name"].to_pylist(), strict=True), strict=True))


def has_pages(path: Path) -> bool:
    return any(is_paged(each) for _, changes in decode_segment(path.read_bytes(), path.name) for each in changes)


def table_of(backend: Any) -> RunTable:
    found = columns(backend)._rows.table
    assert isinstance(found, RunTable)
    return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@run_virtual
async def test_lives_of_a_job(tmp_path: Path) -> None:
    """Any writes and drops, bases behind any commit, rows that leave the memory, restarts, other tables in between."""
    rng = random.Random(7)
    job = Job(tmp_path, materialize_handles_max=3)
    for life in range(6):
        async with job.open(table="heap" if life == 3 else "runs") as backend:
            if life == 5:
                table_of(backend).memory.bytes_max = 1
            for _ in range(rng.randrange(1, 8)):
                keys = [f"k{rng.randrange(900)}" for _ in range(rng.randrange(200))]
                job.write(backend, keys, list({f"k{rng.randrange(900)}" for _ in range(rng.randrange(60))}))
                if rng.random() < 0.8:
                    await job.commit(backend)
            await job.commit(backend)
            job.check(backend)
        if life == 2:
            shutil.rmtree(tmp_path / "local")


@run_virtual
async def test_a_restart_opens_what_is_on_this_host_and_applies_the_tail(job: Job) -> None:
    """Nothing of the base is in memory; without local copies it comes from the primary."""
    await job.with_a_base()
    async with job.open() as backend:
        job.write(backend, ["k1", "new"], ["k2"])
        await job.commit(backend)
    for primary_only in (False, True):
        if primary_only:
            shutil.rmtree(job.directory / "local")
        async with sb.open_backend(job.settings, read_only=True) as backend:
            assert backend.restored is not None
            assert (backend.restored.files_primary > 0) == primary_only
            table = table_of(backend)
            assert len(table._rows) < 20
            assert len(table._runs) == 500
            job.check(backend)
        assert list((job.directory / "tables").glob("*")) in ([], [job.directory / "tables" / "lock"])


@run_virtual
async def test_rows_leave_the_memory_once_a_base_has_them(tmp_path: Path) -> None:
    """The least recently used ones, at a drain."""
    job = Job(tmp_path)
    async with job.open() as backend:
        table = table_of(backend)
        table.memory.bytes_max = 10_000
        job.write(backend, [f"k{number}" for number in range(1000)])
        await job.commit(backend)
        assert len(table._rows) == 1000
        await job.commit(backend)
        job.write(backend, ["k7"])
        await job.commit(backend)
        assert len(table._rows) < 200
        assert table._rows.find_one is not None
        job.check(backend)


@run_virtual
async def test_a_base_is_wanted_when_changes_fill_the_memory(tmp_path: Path) -> None:
    """However few the triggers ask for."""
    job = Job(tmp_path, materialize_handles_max=0)
    async with job.open() as backend:
        table_of(backend).memory.bytes_max = 10_000
        job.write(backend, [f"k{number}" for number in range(1000)])
        await job.commit(backend)
        await job.commit(backend)
        assert len(table_of(backend)._runs) == 1000


async def test_a_damaged_page_is_passed_by_in_the_middle_of_a_batch(job: Job) -> None:
    """The primary's copy takes its place, with the next page that is read. The local copy is gone, and comes back."""
    run = run_virtual(job.with_a_base)
    await anyio.to_thread.run_sync(run)
    (segment,) = job.segments("local")
    data = bytearray(segment.read_bytes())
    data[3 * 4096] ^= 1
    segment.write_bytes(data)
    async with sb.open_backend(job.settings) as backend:
        assert backend.restored is not None
        assert backend.restored.fallbacks == ()
        job.check(backend)
        assert not segment.exists()
        job.write(backend, ["k1", "k499"])
        job.check(backend)
    async with sb.open_backend(job.settings) as backend:
        assert [each.repaired for each in backend.restored.fallbacks] == [True]  # type: ignore[union-attr]


async def test_pages_that_both_copies_have_damaged_are_an_error(job: Job) -> None:
    """Of ours, each time."""
    await anyio.to_thread.run_sync(run_virtual(job.with_a_base))
    for root in ("local", "primary"):
        (segment,) = job.segments(root)
        data = bytearray(segment.read_bytes())
        data[3 * 4096] ^= 1
        segment.write_bytes(data)
    async with sb.open_backend(job.settings) as backend:
        for _ in range(2):
            with pytest.raises(CorruptSegmentError):
                columns(backend).to_arrow()


@run_virtual
async def test_a_damaged_page_is_refused_and_the_next_opening_heals_it(job: Job) -> None:
    """Where the store is given, and nobody else can be asked for the primary's copy while a batch waits."""
    await job.with_a_base()
    (segment,) = job.segments("local")
    data = bytearray(segment.read_bytes())
    data[3 * 4096] ^= 1
    segment.write_bytes(data)
    given = ScopedStore(LocalStore(job.directory / "primary"), "")  # which cannot be opened apart
    async with sb.open_backend(job.settings, clock=VirtualClock(), store=given) as backend:
        with pytest.raises(CorruptSegmentError):
            columns(backend).to_arrow()
    assert not segment.exists()
    async with job.open() as backend:
        assert backend.restored is not None
        (fallback,) = backend.restored.fallbacks
        assert fallback.repaired
    assert segment.read_bytes() != bytes(data)


@run_virtual
async def test_a_damaged_head_is_found_at_the_opening(job: Job) -> None:
    """As is a copy that is cut short: then the primary's is taken."""
    await job.with_a_base()
    (segment,) = job.segments("local")
    whole = segment.read_bytes()
    for damaged in (whole[:60] + b"\xff" + whole[61:], whole[:-100], b""):
        segment.write_bytes(damaged)
        async with job.open() as backend:
            assert backend.restored is not None
            assert [each.repaired for each in backend.restored.fallbacks] == [True]
        assert segment.read_bytes() == whole


@run_virtual
async def test_local_copies_may_vanish_while_they_are_open(job: Job) -> None:
    """As by a sweep of another process."""
    await job.with_a_base()
    async with job.open() as backend:
        shutil.rmtree(job.directory / "local")
        job.check(backend)


def test_everybody_reads_a_base_with_pages(job: Job) -> None:
    """From outside: the state, some keys of it, what changed, what verifies."""

    async def write() -> None:
        await job.with_a_base()
        async with job.open() as backend:
            job.write(backend, ["k1", "new"], ["k2"])
            await job.commit(backend)
            await job.commit(backend)
            job.write(backend, ["k3"])
            await job.commit(backend)

    async def compare() -> None:
        assert (await sb.verify(job.settings)).damages == ()
        found = sb.diff(job.settings, 2, job.checkpoint_id)
        assert {each.key async for each in found if each.state == "rows"} == {"k1", "k2", "k3", "new"}

    run_virtual(write)()
    assert job.segments("primary")
    assert _read(job.settings) == job.model
    assert _read(job.settings, keys=["k1", "k2", "k7"]) == {key: job.model[key] for key in ("k1", "k7")}
    assert _read(job.settings, key_groups=(3, 3)).items() < job.model.items()
    run_virtual(compare)()


def _read(settings: sb.Settings, **some: Any) -> Model:
    return rows_of(sb.read_state(settings, "rows", **some).read_all())


@run_virtual
async def test_halves_of_a_job_take_their_part_of_a_base(job: Job) -> None:
    """Of a base whose pages have rows of both; each counts exactly its own."""
    await job.with_a_base()
    found: Model = {}
    for half in HALVES:
        async with sb.open_backend(job.settings, key_groups=half, clock=VirtualClock()) as owner:
            state = columns(owner)
            rows = rows_of(state.to_arrow())
            assert len(state) == len(rows)
            assert not found.keys() & rows.keys()
            assert set(state) == rows.keys()
            found |= rows
    assert found == job.model


@run_virtual
async def test_a_rewrite_to_other_key_groups_and_back_to_the_heap(job: Job) -> None:
    """The rows of a page are spread over all key groups."""
    await job.with_a_base()
    await job.rewritten(max_parallelism=40)
    async with job.open(table="heap"):
        pass


@run_virtual
async def test_keys_are_erased_from_pages(job: Job) -> None:
    """And proved to be in no object."""
    await job.with_a_base()
    await sb.erase(job.settings, ["k5"])
    del job.model["k5"]
    job.checkpoint_id += 1
    async with job.open() as backend:
        await job.commit(backend)
    async with job.open() as backend:
        assert "k5" not in columns(backend)


@run_virtual
async def test_changes_beside_pages_are_not_kept_in_memory(job: Job) -> None:
    """Neither of a base that was restored nor of one that was written: the states have them."""
    gc.collect()  # those of the tests before
    await job.with_a_base()
    gc.collect()  # what other tests have left
    async with job.open() as backend:
        found = [each for each in gc.get_objects() if isinstance(each, OpenRun)]
        assert found == []
        job.write(backend, ["k1"])
        await job.commit(backend)
        opened = [each for each in gc.get_objects() if isinstance(each, OpenRun)]
        assert opened
        assert not any(each._others for each in opened)


@run_virtual
async def test_keys_erased_from_pages_are_proved_to_be_gone(job: Job) -> None:
    """Once nothing older is left."""
    await job.with_a_base()
    await sb.erase(job.settings, ["k5"])
    shutil.rmtree(job.directory / "local")
    proof = await sb.verify_erased(job.settings, ["k5"])
    assert not proof.is_proved
    for holder in proof.holders:  # as a sweep does once they are old enough
        (job.directory / "primary" / "job" / holder.key).unlink()
    assert (await sb.verify_erased(job.settings, ["k5"])).is_proved
    del job.model["k5"]
    async with job.open() as backend:
        assert "k5" not in columns(backend)


@run_virtual
async def test_columns_evolve_over_runs(job: Job) -> None:
    """A column that was added has its default in rows of old pages, and a wider one their values."""
    await job.with_a_base(50)
    wider = pa.schema([("name", pa.large_string()), ("n", pa.int64()), ("more", pa.int32())])
    async with sb.open_backend(job.settings, clock=VirtualClock()) as backend:
        state = backend.columnar_state("rows", wider, key=pa.string(), defaults={"more": 7})
        assert state["k3"] == {"name": job.model["k3"][1], "n": 1, "more": 7}
        state["k4"] = {"name": "x", "n": 2, "more": 1}
        backend.value_state("seen", int)
        await backend.checkpoint(10)
        await backend._base_writer.settled()
        await backend.checkpoint(11)
        assert len(state) == 50
    async with sb.open_backend(job.settings, clock=VirtualClock()) as backend:
        state = backend.columnar_state("rows", wider, key=pa.string(), defaults={"more": 7})
        assert state["k3"]["more"] == 7
        assert state["k4"] == {"name": "x", "n": 2, "more": 1}


@run_virtual
async def test_expired_rows_leave_the_runs(job: Job) -> None:
    """Nobody sees them, and a window over all rows drops them in the end."""
    now = 0.0
    ttl = sb.TimeToLive(10.0, now=lambda: now)

    def state_in(backend: Any) -> sb.ColumnarState:
        return backend.columnar_state("rows", SCHEMA, key=pa.string(), ttl=ttl)

    async with sb.open_backend(job.settings, clock=VirtualClock()) as backend:
        state = state_in(backend)
        batch = pa.table({"k": [f"k{number}" for number in range(300)], "x": [1] * 300, "y": ["a"] * 300})
        state.merge(batch, on="k", how=HOW)
        for checkpoint_id in (1, 2):
            await backend.checkpoint(checkpoint_id)
            await backend._base_writer.settled()
    async with sb.open_backend(job.settings, clock=VirtualClock()) as backend:
        state = state_in(backend)
        assert len(state) == 300
        now = 5.0
        state["k1"] = {"n": 5, "name": "b"}
        now = 12.0
        assert list(state) == ["k1"]
        assert len(state) == 1
        assert "k2" not in state
        for checkpoint_id in range(3, 9):
            await backend.checkpoint(checkpoint_id)
            await backend._base_writer.settled()
        assert state._rows.table.num_rows == 1
        state.clear()
        assert len(state) == 0
        await backend.checkpoint(9)
    async with sb.open_backend(job.settings, clock=VirtualClock()) as backend:
        assert state_in(backend)._rows.table.num_rows == 0


@run_virtual
async def test_iterations_over_runs(job: Job) -> None:
    """One by one, nested, beside look-ups, with drops refused in the middle; `popitem` and `clear`."""
    await job.with_a_base()
    async with job.open() as backend:
        state = columns(backend)
        state["fresh"] = {"n": 1, "name": "f"}
        seen = {}
        for key in state:
            seen[key] = state[key]
            if len(seen) % 100 == 0:
                assert len(list(state)) == 501
                assert state["k3"]["n"] == 1
        assert {key: (row["n"], row["name"]) for key, row in seen.items()} == {**job.model, "fresh": (1, "f")}
        assert dict(state.items()).keys() == seen.keys()
        pairs = zip(state.scan(), state.scan(), strict=True)
        assert sum(one.num_rows for one, two in pairs if one.equals(two)) == 501
        key, row = state.popitem()
        assert (row, len(state)) == (seen[key], 500)
        state.clear()
        assert (len(state), list(state)) == (0, [])
        await backend.checkpoint(99)
    async with sb.open_backend(job.settings, clock=VirtualClock()) as backend:
        assert len(columns(backend)) == 0


class Failures(sb.Observer):
    """Keeps why bases could not be written."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        self.errors.append(error)


class OfOneThread(dict[int, Any]):
    """Tables that only the thread which made this asks for: another one could meet a declaration."""

    def __init__(self, tables: Mapping[int, Any]) -> None:
        super().__init__(tables)
        self._home = threading.get_ident()

    def items(self) -> Any:
        assert threading.get_ident() == self._home, "asked by another thread, while a state may be declared"
        return super().items()


async def test_a_thread_that_writes_bases_does_not_ask_which_states_there_are(tmp_path: Path) -> None:
    """States are declared meanwhile: to go over a dictionary that grows is an error."""
    job, failures = Job(tmp_path), Failures()
    async with sb.open_backend(job.settings, observer=failures) as backend:
        job.write(backend, ["a", "b"])
        await job.commit(backend)
        runs = backend._states.runs
        runs._tables = OfOneThread(runs._tables)
        for key in ("c", "d", "e"):
            job.write(backend, [key])
            await job.commit(backend)
        assert not failures.errors
