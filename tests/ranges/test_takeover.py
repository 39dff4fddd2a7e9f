"""The state of a range in RocksDB stays on its host: whichever process comes next takes it over, if it is of use."""

import itertools
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._local import range_directories
from statebackend._ranges.range_owners import Contribution, open_range_owners
from statebackend._state.time.ttl import SWEEP_KEYS
from statebackend._tables.key_groups import key_group
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.ranges.parts import Model, Run, open_run

pytest.importorskip("rocksdict")


def batch(number: int, keys: Sequence[int] = range(20)) -> list[tuple[sb.Key, int]]:
    return [(key, number) for key in keys]


@pytest.fixture
def settings(tmp_path: Path) -> sb.Settings:
    """No local copies: what is found on the host, the tables have kept."""
    return sb.Settings(
        job="fleet",
        primary="memory://unused",
        max_parallelism=12,
        table="rocksdb",
        table_dir=str(tmp_path / "tables"),
        table_memory_bytes=4 << 20,
    )


async def in_a_process(run: Run, store: sb.ObjectStore, changes: Sequence[tuple[sb.Key, int]]) -> list[Contribution]:
    """One batch, by a process that has just begun and ends behind it."""
    async with open_range_owners(store=store) as owners:
        return list(await run.batch(owners, changes))


async def test_process_after_process_takes_over(settings: sb.Settings, tmp_path: Path) -> None:
    """It reads nothing. One on another host reads all, and when it is back here, what is missing."""
    store, model = MemoryStore(), Model()
    here = settings
    there = msgspec.structs.replace(settings, table_dir=str(tmp_path / "other"))
    seen: list[tuple[str, int | None]] = []
    async with open_run(settings, 1, store) as run:
        for number, host in enumerate((here, here, there, there, here, here)):
            run.settings = host
            (contribution,) = await in_a_process(run, store, batch(number))
            model.apply(batch(number))
            seen.append((contribution.found, None if contribution.report is None else contribution.report.changes))
        await model.check(settings, store)
    assert seen == [("new", None), ("host", None), ("primary", 80), ("host", None), ("host", 80), ("host", None)]


async def test_files_are_closed_although_expired_entries_are_still_searched_for(settings: sb.Settings) -> None:
    """The search goes through a table bit by bit, over batches. One process makes them all here."""
    store, ttl, states, found = MemoryStore(), sb.TimeToLive(1e6, now=lambda: 0.0), list[object](), list[str]()
    keys = range(2 * SWEEP_KEYS)

    def touch_all(backend: sb.StateBackend) -> None:
        values, lists = backend.value_state("v", int, ttl=ttl), backend.list_state("l", int, ttl=ttl)
        maps = backend.map_state("m", int, int, ttl=ttl)
        values.put_many(keys, keys)
        for key in (1, 2):
            lists[key].append(key)
            maps[key][key] = key
        states.extend([values, lists, maps])

    async with open_run(settings, 1, store) as run, open_range_owners(store=store) as owners:
        for _ in range(3):
            contribution = await owners.contribute(run.tasks()[0], touch_all)
            await run.commit([contribution])
            found.append(contribution.found)
    assert found == ["new", "host", "host"]


async def test_files_are_not_believed_without_a_whole_mark(
    settings: sb.Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that is gone, cut off, changed in any byte, or of an earlier start of the machine."""
    store, model = MemoryStore(), Model()
    (tmp_path / "boot").write_text("another\n")
    async with open_run(settings, 1, store) as run:
        await in_a_process(run, store, batch(0))
        model.apply(batch(0))
        mark = tmp_path / "tables/job_fleet/kg_0_11/mark"
        whole = mark.read_bytes()
        place = random.Random(1).randrange(len(whole))
        spoils = [None, b"", whole[:3], whole[:-1], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]]
        for number, spoilt in enumerate(spoils, start=1):
            mark.unlink() if spoilt is None else mark.write_bytes(spoilt)
            (contribution,) = await in_a_process(run, store, batch(number))
            model.apply(batch(number))
            assert contribution.found == "primary"
        with monkeypatch.context() as patched:
            patched.setattr(range_directories, "BOOT_ID", tmp_path / "boot")
            async with open_range_owners(store=store) as owners, owners.attempt(run.tasks()[0]) as attempt:
                assert attempt.found == "primary"
        await model.check(settings, store)


async def test_while_somebody_works_there_is_no_mark(settings: sb.Settings, tmp_path: Path) -> None:
    """So it makes no difference when he is killed; and who comes meanwhile works in a place of his own."""
    store, model = MemoryStore(), Model()
    async with open_run(settings, 1, store) as run:
        await in_a_process(run, store, batch(0))
        mark = tmp_path / "tables/job_fleet/kg_0_11/mark"
        assert mark.exists()
        (task,) = run.tasks()
        async with (
            open_range_owners(store=store) as one,
            open_range_owners(store=store) as other,
            one.attempt(task) as first,
        ):
            assert first.found == "host"
            assert not mark.exists()
            first.backend.value_state("sum", int)[1] = 7
            won = await run.contribute(other, task, batch(1))
            assert won.found == "primary"
        assert not mark.exists()  # the first one came to nothing, the second had another place
        await run.commit([won])
        assert (await in_a_process(run, store, batch(2)))[0].found == "primary"
        for number in range(3):
            model.apply(batch(number))
        await model.check(settings, store)


async def test_what_a_lost_attempt_left_is_made_anew(settings: sb.Settings) -> None:
    store, model = MemoryStore(), Model()
    async with open_run(settings, 1, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, batch(0))
        await run.contribute(owners, run.tasks()[0], batch(99))
        (contribution,) = await run.batch(owners, batch(1))
        assert contribution.found == "primary"
        (contribution,) = await run.batch(owners, batch(2))
        assert contribution.found == "host"
    for number in range(3):
        model.apply(batch(number))
    await model.check(settings, store)


async def test_files_that_do_not_open_are_made_anew(settings: sb.Settings, tmp_path: Path) -> None:
    """With a mark that says that they are of use."""
    store, model = MemoryStore(), Model()
    async with open_run(settings, 1, store) as run:
        await in_a_process(run, store, batch(0))
        (tmp_path / "tables/job_fleet/kg_0_11/files/CURRENT").write_bytes(b"nonsense")
        (contribution,) = await in_a_process(run, store, batch(1))
        assert contribution.found == "primary"
        (contribution,) = await in_a_process(run, store, batch(2))
        assert contribution.found == "host"
    for number in range(3):
        model.apply(batch(number))
    await model.check(settings, store)


async def test_the_files_of_ranges_that_there_are_no_more_go(settings: sb.Settings, tmp_path: Path) -> None:
    """When the job is cut otherwise; those of a later epoch stay, whoever comes along."""
    store, model = MemoryStore(), Model()
    directory = tmp_path / "tables/job_fleet"

    def kept() -> list[str]:
        return sorted(path.parent.name for path in directory.glob("*/files"))

    async with open_run(settings, 3, store) as older:
        await in_a_process(older, store, batch(0))
        assert kept() == ["kg_0_3", "kg_4_7", "kg_8_11"]
        tasks = older.tasks()
    async with open_run(settings, 2, store) as newer:
        await in_a_process(newer, store, batch(1))
        assert kept() == ["kg_0_5", "kg_6_11"]
        async with open_range_owners(store=store) as owners:
            await older.contribute(owners, tasks[0], batch(9))
        assert kept() == ["kg_0_3", "kg_0_5", "kg_6_11"]
        assert {each.found for each in await in_a_process(newer, store, batch(2))} == {"host"}
        assert kept() == ["kg_0_5", "kg_6_11"]
    for number in range(3):
        model.apply(batch(number))
    await model.check(settings, store)


async def test_a_scratch_directory_that_is_made_beside_them_removes_none(settings: sb.Settings) -> None:
    """Of a backend of the whole job, with its tables in the same place."""
    store = MemoryStore()
    async with open_run(settings, 1, store) as run:
        await in_a_process(run, store, batch(0))
        async with sb.open_backend(settings, store=store, read_only=True) as backend:
            assert len(backend.value_state("sum", int)) == 20
        (contribution,) = await in_a_process(run, store, batch(1))
        assert contribution.found == "host"


async def test_whoever_takes_over_knows_what_has_no_base_yet(settings: sb.Settings) -> None:
    """Only the groups that were changed are written anew, whichever processes have changed them."""
    settings = msgspec.structs.replace(
        settings, rocksdb_bases=False, materialize_handles_max=4, materialize_interval_s=0.0
    )
    store, model = MemoryStore(), Model()
    async with open_run(settings, 1, store) as run:
        for number in range(9):
            changes = batch(number, [1] if number >= 4 else range(40))
            await in_a_process(run, store, changes)
            model.apply(changes)
        assert run.coordinator.base is not None
        assert [base.live for base in run.coordinator.base.ranges[0].bases] == [11, 1]
    await model.check(settings, store)


@pytest.mark.parametrize("moves", [False, True])
async def test_rocksdb_bases_share_files_across_processes(settings: sb.Settings, tmp_path: Path, moves: bool) -> None:
    """What one process has uploaded the next one points to: also one that has moved in here, with files and all.

    The batches have nothing in common, so that RocksDB has no reason to write anything anew.
    """
    settings = msgspec.structs.replace(settings, materialize_handles_max=1, materialize_interval_s=0.0)
    store, expected = MemoryStore(), dict[sb.Key, int]()
    bases: list[set[str]] = []
    found: list[str] = []
    async with open_run(settings, 1, store) as run:
        for group in range(6):
            if moves and group == 3:
                run.settings = msgspec.structs.replace(settings, table_dir=str(tmp_path / "other"))
            numbers: dict[sb.Key, int] = {key: group for key in range(2000) if key_group(key, 12) == group}
            async with open_range_owners(store=store) as owners, owners.attempt(run.tasks()[0]) as attempt:
                attempt.backend.value_state("n", int).update(numbers)
                contribution = await attempt.contribute()
            await run.commit([contribution])
            expected.update(numbers)
            found.append(contribution.found)
            bases.append({file.handle.key for base in contribution.snapshot.state.rocksdb for file in base.files})
    assert found == ["new", "host", "host", "primary" if moves else "host", "host", "host"]
    assert [bool(one & other) for one, other in itertools.pairwise(bases)] == [False, True, True, True, True]
    async with sb.open_backend(settings, store=store, read_only=True) as backend:
        assert dict(backend.value_state("n", int)) == expected


@run_virtual
async def test_an_interval_counts_from_rocksdb_bases_too(settings: sb.Settings) -> None:
    """Once in each interval all files are looked at, and not at each batch from the first interval on."""
    settings = msgspec.structs.replace(settings, materialize_handles_max=0, materialize_interval_s=100.0)
    store, clock, written = MemoryStore(), VirtualClock(), set[sb.ids.CheckpointId]()
    async with open_run(settings, 1, store) as run, open_range_owners(store=store, clock=clock) as owners:
        for number in range(30):
            await run.batch(owners, batch(number, [number]))
            assert run.coordinator.base is not None
            written |= {base.checkpoint_id for base in run.coordinator.base.ranges[0].rocksdb}
            await anyio.sleep(10)
    assert 2 <= len(written) <= 4


async def add_in_a_process(
    run: Run, store: sb.ObjectStore, number: int, *, values: bool = True, columns: bool = True
) -> Contribution:
    """Forty values under new keys, and a row of columns counted up, by a process of its own, which commits nothing.

    Without the values, forty rows of columns.
    """
    async with open_range_owners(store=store) as owners, owners.attempt(run.tasks()[0]) as attempt:
        if values:
            attempt.backend.value_state("n", int).update({f"{number} {key}": number for key in range(40)})
        if columns:
            pa = pytest.importorskip("pyarrow")
            fleet = attempt.backend.columnar_state("fleet", pa.schema({"n": pa.int64()}), key=pa.string())
            keys = ["a"] if values else [f"{number} {key}" for key in range(40)]
            fleet.merge(pa.table({"k": keys}), on="k", how={"n": "count"})
        return await attempt.contribute()


async def test_columns_are_not_left_on_the_host(settings: sb.Settings) -> None:
    """Files without the columns are not the whole state: the next process reads all of it again, and has lost nothing.

    Nor does it believe what an earlier process left before there were columns.
    """
    store, seen = MemoryStore(), list[str]()
    async with open_run(settings, 1, store) as run:
        for number in range(5):
            contribution = await add_in_a_process(run, store, number, columns=number >= 2)
            await run.commit([contribution])
            seen.append(contribution.found)
    assert seen == ["new", "host", "host", "primary", "primary"]
    async with sb.open_backend(settings, store=store, read_only=True) as backend:
        pa = pytest.importorskip("pyarrow")
        assert dict(backend.columnar_state("fleet", pa.schema({"n": pa.int64()}), key=pa.string())) == {"a": {"n": 3}}
        expected = {f"{number} {key}": number for number in range(5) for key in range(40)}
        assert dict(backend.value_state("n", int)) == expected


@pytest.mark.parametrize(
    ("values", "columns", "written"),
    [
        (False, True, [False] * 3 + [True]),
        (True, True, [False] * 2 + [True] * 2),
        (True, False, [False] * 2 + [True] * 2),
    ],
)
async def test_a_range_of_columns_alone_has_no_bases_by_half_the_changes(
    settings: sb.Settings, values: bool, columns: bool, written: list[bool]
) -> None:
    """Those of RocksDB are due sooner, as only new files are written; of columns alone a base has all entries."""
    settings = msgspec.structs.replace(
        settings, materialize_changelog_changes_min=100, materialize_interval_s=0.0, materialize_handles_max=0
    )
    store, seen = MemoryStore(), list[bool]()
    async with open_run(settings, 1, store) as run:
        for number in range(4):
            await run.commit([await add_in_a_process(run, store, number, values=values, columns=columns)])
            assert run.coordinator.base is not None
            (part,) = run.coordinator.base.ranges
            seen.append(bool(part.rocksdb if values else part.bases))
    assert seen == written


async def test_tables_may_lie_elsewhere_in_each_process(settings: sb.Settings, tmp_path: Path) -> None:
    """On the heap, in RocksDB, in RocksDB whose directory was lost."""
    store, model, number = MemoryStore(), Model(), 0
    heap = msgspec.structs.replace(settings, table="heap")
    async with open_run(settings, 2, store) as run:
        for _ in range(3):
            for run.settings in (settings, heap, settings):
                await in_a_process(run, store, batch(number))
                model.apply(batch(number))
                number += 1
            shutil.rmtree(tmp_path / "tables")
    await model.check(settings, store)
