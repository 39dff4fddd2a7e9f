"""A folder of Parquet is the log of a state: every change once, and a view that equals the state."""

import operator
import os
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebackend as sb
from statebackend._following.log_steps import LOOK_WELL_S
from statebackend._mirroring.keeping_up import open_mirroring
from statebackend._mirroring.mirrors import Mirror
from statebackend._mirroring.targets import parquet
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend.errors import InputError, KeyTypeError, StoreAccessError, StoreUnavailableError, WrongMirrorError
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from statebackend.testing import Fail, FaultyStore
from tests.log.swept import HOUR_S
from tests.mirroring.mirrored import EWR, JFK, LGA, Job, Leg, copied, laid_out, ops, shown
from tests.small_bounds import small_bounds

DAY_S = 25 * HOUR_S


async def test_the_view_of_the_log_is_the_state(tmp_path: Path) -> None:
    """And the rows say of each change what it was, in which commit."""
    job = Job()
    await job.commit({"a": EWR, "b": JFK})
    report = await job.mirror(tmp_path)
    assert report.anew == ("it is new",)
    await job.commit({"a": LGA, "c": EWR})
    await job.commit({"b": None})
    report = await job.mirror(tmp_path)
    assert (report.steps, report.commits, report.rows, report.anew) == (1, 2, 3, ())
    assert shown(tmp_path) == await job.state()
    assert ops(tmp_path) == [
        ("begin", 1, None),
        ("snapshot", 1, "a"),
        ("snapshot", 1, "b"),
        ("update", 2, "a"),
        ("update", 2, "c"),
        ("delete", 3, "b"),
    ]
    assert (await job.mirror(tmp_path)).steps == 0


def _columns(backend: sb.StateBackend) -> Any:
    schema = pa.schema([("op", pa.string()), ("miles", pa.int64())])
    return backend.columnar_state("legs", schema, key=pa.string())


KINDS: dict[str, list[Callable[[sb.StateBackend], object]]] = {
    "value": [
        lambda backend: backend.value_state("legs", dict[str, int]).update({"a": {"x": 1}, "b": {}}),
        lambda backend: backend.value_state("legs", dict[str, int]).update({"b": {"y": 2}}),
        lambda backend: backend.value_state("legs", dict[str, int]).pop("a"),
    ],
    "list": [
        lambda backend: backend.list_state("legs", str)["a"].extend(["x", "y"]),
        lambda backend: [backend.list_state("legs", str)[key].append("z") for key in ("a", "b")],
        lambda backend: backend.list_state("legs", str)["a"].clear(),
    ],
    "map": [
        lambda backend: backend.map_state("legs", str, int)["a"].update({"x": 1, "y": 2}),
        lambda backend: [
            backend.map_state("legs", str, int)["a"].pop("x"),
            backend.map_state("legs", str, int)["b"].update(z=3),
        ],
        lambda backend: backend.map_state("legs", str, int)["a"].clear(),
    ],
    "reducing": [
        lambda backend: backend.reducing_state("legs", int, operator.add).add("a", 1),
        lambda backend: backend.reducing_state("legs", int, operator.add).add("a", 2),
        lambda backend: backend.reducing_state("legs", int, operator.add).add("b", 2),
    ],
    "columns": [
        lambda backend: _columns(backend).update({"a": {"op": "x", "miles": 1}, "b": {"op": "y", "miles": 2}}),
        lambda backend: _columns(backend).update({"b": {"op": "z", "miles": 3}, "c": {"op": None, "miles": 4}}),
        lambda backend: _columns(backend).pop("a"),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_state(kind: str, tmp_path: Path) -> None:
    """With whole values, also where a commit says only what was added to one; step by step, and all at once."""
    job = Job()
    for place, write in enumerate(KINDS[kind]):
        await job.work(write)
        await job.mirror(tmp_path / "each")
        if place == 0:
            await job.mirror(tmp_path / "once", name="once")
        assert shown(tmp_path / "each") == await job.state()
    await job.mirror(tmp_path / "once", name="once")
    assert shown(tmp_path / "once") == await job.state()


async def test_columns_may_have_the_words_of_sql_as_names(tmp_path: Path) -> None:
    """And names of the view's own: alone, `order` is a syntax error, and `null` is null in each row."""
    names = ["order", "at", "null", "true", "user", "newest", "newest_first", "newest_first_", 'a"b', "a b"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    row = {name: number for number, name in enumerate(names)}
    folder = tmp_path / "it's here"
    job = Job()
    await job.work(lambda backend: backend.columnar_state("legs", schema, key=pa.string()).update(a=row))
    report = await job.mirror(folder)
    assert duckdb.sql(f"SELECT * FROM ({report.view})").to_arrow_table().select(names).to_pylist() == [row]


@pytest.mark.parametrize("rows_max", [10**6, 4000])
async def test_a_large_step_is_encoded_while_it_is_read(
    rows_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into row groups of one file; or into several files, if there turn out to be too many rows for one."""
    monkeypatch.setattr(parquet, "GROUP_BYTES_MIN", 1)
    monkeypatch.setattr(parquet, "FILE_ROWS_MAX", rows_max)
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(tmp_path)
    for number in range(3):
        await job.commit({f"{number} {key}": Leg("EWR", key) for key in range(1500)})
    report = await job.mirror(tmp_path)
    assert (report.steps, report.rows) == (1, 4500)
    assert shown(tmp_path) == await job.state()
    assert row_groups(tmp_path, step=2) == ([3] if rows_max > 4500 else [1, 1])


def row_groups(folder: Path, *, step: int) -> list[int]:
    """How many there are in each file of a step."""
    return [pq.ParquetFile(file).num_row_groups for file in sorted(folder.glob(f"{step:012}*.parquet"))]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_the_step_is_written_down_before_any_of_its_rows(moment: Any, tmp_path: Path) -> None:
    """Though it is written down while others are read: if that fails, the folder has nothing of it."""
    job = Job()
    await job.commit({"a": EWR})
    async with open_mirroring(
        job.settings, Mirror("legs", to=tmp_path), store=(store := FaultyStore(job.store)), clock=job.clock
    ) as mirroring:
        await mirroring.catch_up()
        await job.commit({"b": JFK})
        store.plan = [Fail(key="fleet/mirrors/legs/000000000002", moment=moment)]
        with pytest.raises(StoreUnavailableError):
            await mirroring.catch_up()
        assert (row_groups(tmp_path, step=1), row_groups(tmp_path, step=2)) == ([1], [])
        store.plan = []
        await mirroring.catch_up()
    assert shown(tmp_path) == await job.state()


@pytest.mark.parametrize("has_many_files", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_at_every_request(moment: Any, has_many_files: bool) -> None:
    """From any request on, nothing is done any more: the next run ends with the state, and has no row twice."""
    with small_bounds(0 if has_many_files else None, share=1.0):
        await _killed_at_every_request(moment, has_many_files=has_many_files)


async def _killed_at_every_request(moment: Any, *, has_many_files: bool) -> None:
    job = Job()
    await job.commit({"a": EWR, "b": JFK} | dict.fromkeys("defgh" * has_many_files, EWR))
    folder = MemoryStore()
    await job.mirror(ParquetTarget("memory://folder", store=folder))
    await job.commit({"a": LGA})
    await job.commit({"b": None, "c": EWR})
    for first in (True, False):
        for nth in count(1):
            primary, table = await copied(job.store), MemoryStore() if first else await copied(folder)
            if first:
                async for info in primary.list("fleet/mirrors/"):
                    await primary.delete(info.key)
            death = Fail(nth=nth, onwards=True, moment=moment)
            failing = ParquetTarget("memory://folder", store=FaultyStore(table, [death]))
            is_dead = True
            try:
                await job.mirror(failing, store=FaultyStore(primary, [death]))
                is_dead = False
            except sb.StateBackendError:
                pass
            await job.mirror(ParquetTarget("memory://folder", store=table), store=primary)
            files = await laid_out(table)
            assert shown(files) == await job.state(), nth
            assert any("-" in path.name for path in files.iterdir()) == has_many_files
            if not is_dead:
                break
        assert nth > 8


async def test_what_a_killed_attempt_left_goes_though_the_next_one_is_killed_too() -> None:
    """The first one after a file of its own, the second with the file that ends the step."""
    job, table = Job(), MemoryStore()
    await job.commit(dict.fromkeys("abcdefgh", EWR))
    deaths = [
        [Fail(operation="put", moment="after")],
        [Fail(operation="put_if_absent", moment="after"), Fail(operation="get")],
    ]
    with small_bounds(0, share=1.0):
        for death in deaths:
            with pytest.raises(StoreUnavailableError):
                await job.mirror(ParquetTarget("memory://folder", store=FaultyStore(table, death)))
        await job.mirror(ParquetTarget("memory://folder", store=table))
    assert shown(await laid_out(table)) == await job.state()


async def test_two_at_once_and_a_late_one() -> None:
    """A mirror that sleeps while another goes on writes nothing twice, and nothing old."""
    job, folder = Job(), MemoryStore()
    await job.commit({"a": EWR})
    await job.mirror(ParquetTarget("memory://folder", store=folder))
    await job.commit({"a": LGA, "b": EWR})

    class Late(FaultyStore):
        """In its first put, another mirror carries over all that it would, and more."""

        is_first = True

        async def put_if_absent(self, key: str, body: Any) -> None:
            if self.is_first:
                self.is_first = False
                await job.mirror(ParquetTarget("memory://folder", store=folder))
                await job.commit({"a": None})
                await job.mirror(ParquetTarget("memory://folder", store=folder))
            await super().put_if_absent(key, body)

    await job.mirror(ParquetTarget("memory://folder", store=Late(folder)))
    assert shown(await laid_out(folder)) == await job.state() == {"b": {"origin": "EWR", "miles": 1}}
    await job.commit({"c": LGA})
    await job.mirror(ParquetTarget("memory://folder", store=folder), store=Late(job.store))
    assert shown(await laid_out(folder)) == await job.state()


@pytest.mark.parametrize("steps", range(1, 6))
async def test_one_that_slept_while_another_took_steps_sees_that(steps: int, tmp_path: Path) -> None:
    """The log of the mirror has forgotten the step after its own: its number is free once more."""
    job = Job()
    await job.commit({"a": EWR})
    async with open_mirroring(job.settings, Mirror("legs", to=tmp_path), store=job.store, clock=job.clock) as asleep:
        await asleep.catch_up()
        for number in range(steps):
            await job.commit({f"{number}": EWR})
            await job.mirror(tmp_path)
        await job.commit({"a": LGA})
        await asleep.catch_up()
    assert shown(tmp_path) == await job.state()
    await job.commit({"b": JFK})
    await job.mirror(tmp_path)
    assert shown(tmp_path) == await job.state()


async def test_a_look_that_finds_nothing_is_one_request(tmp_path: Path) -> None:
    """From time to time it is one in full, which sees a log that was put back."""
    job = Job()
    await job.commit({"a": EWR})
    before = await copied(job.store)
    await job.commit({"a": LGA})
    store = CountingStore(job.store)
    async with open_mirroring(job.settings, Mirror("legs", to=tmp_path), store=store, clock=job.clock) as mirroring:
        await mirroring.catch_up()

        async def requests_of_a_look() -> Counter[str]:
            asked = store.requests
            await mirroring.catch_up()
            return store.requests - asked

        assert await requests_of_a_look() == {"head": 1}
        for key in [info.key async for info in job.store.list("fleet/commits/")]:
            await job.store.delete(key)
        for key in [info.key async for info in before.list("")]:
            await job.store.put(key, [await before.get(key)])
        job.clock.now_s += LOOK_WELL_S / 2
        assert await requests_of_a_look() == {"head": 1}
        job.clock.now_s += LOOK_WELL_S / 2
        with pytest.raises(WrongMirrorError, match="put back"):
            await mirroring.catch_up()


async def test_a_job_that_goes_back_gets_compensating_rows(tmp_path: Path) -> None:
    """What was abandoned stays in the log; rows behind it take it back."""
    job = Job()
    await job.commit({"a": EWR, "b": EWR, "d": EWR})
    await job.commit({"a": LGA, "c": LGA, "b": None})
    await job.mirror(tmp_path)
    await job.commit({"a": JFK, "d": None, "e": JFK})
    await job.mirror(tmp_path)
    await job.commit({"e": EWR}, checkpoint_id=1)
    await job.commit({"d": JFK})
    report = await job.mirror(tmp_path)
    assert report.anew == ()
    assert shown(tmp_path) == await job.state()
    assert [row for row in ops(tmp_path) if row[1] >= 4] == [
        ("undo_delete", 4, "c"),
        ("undo_update", 4, "a"),
        ("undo_update", 4, "b"),
        ("undo_update", 4, "d"),
        ("update", 4, "e"),
        ("update", 5, "d"),
    ]


async def test_a_new_writers_bases_do_not_make_it_begin_anew(tmp_path: Path) -> None:
    """A job that runs for one batch at a time brings bases at its openings; what comes with them is told as changes.

    An erasure, a start at an older checkpoint and a transformation in between are not taken for such a batch.
    """
    job = Job(materialize_handles_max=1)
    for number in range(6):
        await job.commit({"a": Leg("EWR", number), f"n{number}": EWR, f"n{number - 2}": None})
        report = await job.mirror(tmp_path)
        assert report.anew == (() if number else ("it is new",))
        assert shown(tmp_path) == await job.state()
    await job.commit({}), await job.mirror(tmp_path)  # now all lies in bases alone
    await sb.erase(job.settings, ["n4"], store=job.store, clock=job.clock)
    job.next_id += 1
    assert (await job.mirror(tmp_path)).anew == ("the state was rewritten",)
    assert shown(tmp_path) == await job.state()
    await job.commit({"b": LGA}), await job.mirror(tmp_path)
    await job.commit({"b": JFK}), await job.mirror(tmp_path)
    await job.commit({"c": JFK}, checkpoint_id=job.next_id - 2)
    assert (await job.mirror(tmp_path)).anew == ()
    assert [row[::2] for row in ops(tmp_path) if row[1] == job.next_id - 1] == [
        ("undo_update", "b"),
        ("update", "c"),
    ]
    assert shown(tmp_path) == await job.state()
    await job.commit({}), await job.mirror(tmp_path)
    await sb.transform(
        job.settings,
        "legs",
        lambda key, leg: [(key, msgspec.structs.replace(leg, miles=0))],
        type=Leg,
        store=job.store,
        clock=job.clock,
    )
    job.next_id += 1
    assert (await job.mirror(tmp_path)).anew == ("a state was transformed",)
    assert shown(tmp_path) == await job.state()


async def test_a_start_from_a_savepoint(tmp_path: Path) -> None:
    """As a job that goes back; where what it abandoned was swept, the mirror starts anew."""
    job = Job(checkpoints_retained=1)
    await job.commit({"a": EWR})
    await sb.savepoint(job.settings, "kept", store=job.store)
    for leg in (LGA, JFK, EWR):
        await job.commit({"a": leg, "b": leg})
    await job.mirror(tmp_path)
    job.clock.now_s += DAY_S
    await job.commit({"c": JFK})
    await sb.sweep(job.settings, dry_run=False, store=job.store, clock=job.clock)
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock, checkpoint_id=1) as backend:
        backend.value_state("legs", Leg)["d"] = JFK
        await backend.checkpoint(100)
    report = await job.mirror(tmp_path)
    assert report.anew == ("the job was taken back, and what was undone is not kept",)
    assert shown(tmp_path) == await job.state()
    assert set(await job.state()) == {"a", "d"}


async def test_a_mirror_behind_what_is_kept_starts_anew(tmp_path: Path) -> None:
    """And says so. Keys that went in between are not in the view."""
    job = Job(checkpoints_retained=1)
    await job.commit({"a": EWR, "b": EWR})
    await job.mirror(tmp_path)
    await job.commit({"a": None})
    await job.commit({"c": EWR})
    job.clock.now_s += DAY_S
    await job.commit({"c": JFK})
    await sb.sweep(job.settings, dry_run=False, store=job.store, clock=job.clock)
    report = await job.mirror(tmp_path)
    assert report.anew == ("it fell behind what is kept",)
    assert shown(tmp_path) == await job.state()


@pytest.mark.parametrize("behind", [0, 1, 2])
async def test_erased_keys_are_not_written_once_more(behind: int, tmp_path: Path) -> None:
    """However far behind the erasure the mirror is: what the person had before it is not read."""
    job = Job()
    await job.commit({"ada": EWR, "bob": EWR})
    if behind == 2:
        await job.mirror(tmp_path)
    await job.commit({"ada": LGA})
    if behind == 1:
        await job.mirror(tmp_path)
    await job.commit({"ada": JFK, "eve": EWR})
    if behind == 0:
        await job.mirror(tmp_path)
    before = [row for row in (ops(tmp_path)) if row[2] == "ada"]
    await sb.erase(job.settings, ["ada"], store=job.store, clock=job.clock)
    job.next_id += 1
    report = await job.mirror(tmp_path)
    assert len(report.anew) == 1
    assert shown(tmp_path) == await job.state()
    assert [row for row in ops(tmp_path) if row[2] == "ada"] == before
    await job.commit({"bob": LGA})
    assert (await job.mirror(tmp_path)).anew == ()
    assert shown(tmp_path) == await job.state()


async def test_a_new_default_and_an_upcast_reach_old_rows(tmp_path: Path) -> None:
    """They change values that nobody writes, so the mirror starts anew."""

    class Longer(msgspec.Struct):
        origin: str
        miles: int
        seats: int = 7

    job = Job()
    await job.commit({"a": EWR, "b": EWR})
    await job.mirror(tmp_path)
    await job.commit({"a": Longer("LGA", 2)}, type_=Longer)
    report = await job.mirror(tmp_path)
    assert report.anew == ("the state has evolved",)
    assert shown(tmp_path) == await job.state()
    assert "seats" in (await job.state())["b"]

    class Feet(msgspec.Struct):
        feet: int

    def upcast(stored: Any) -> Any:
        return {"feet": stored["miles"] * 5280}

    await job.work(lambda backend: backend.value_state("legs", Feet, migrate=upcast).update({"a": Feet(1)}))
    report = await job.mirror(tmp_path, migrate=upcast)
    assert report.anew == ("the state has evolved",)
    assert (await job.state(migrate=upcast))["b"] == {"feet": 5280}
    assert {key: value["feet"] for key, value in shown(tmp_path).items()} == {"a": 1, "b": 5280}


async def test_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    """Or one key would be there in two forms; as JSON from the beginning they are all taken."""
    job = Job()
    await job.commit({1: EWR})
    await job.mirror(tmp_path / "typed")
    await job.mirror(tmp_path / "json", name="json", key_as_json=True)
    await job.commit({1: None})
    await job.commit({"1": LGA})
    with pytest.raises(KeyTypeError, match="key_as_json"):
        await job.mirror(tmp_path / "typed")
    await job.mirror(tmp_path / "json", name="json", key_as_json=True)
    assert shown(tmp_path / "json") == await job.state(key_as_json=True)
    await job.commit({(1, "x"): LGA, b"x": JFK, "1": None})
    await job.mirror(tmp_path / "json", name="json", key_as_json=True)
    assert shown(tmp_path / "json") == await job.state(key_as_json=True)
    with pytest.raises(WrongMirrorError, match="key_as_json"):
        await job.mirror(tmp_path / "json", name="json")


async def test_tuples_and_json_in_lists_and_undone(tmp_path: Path) -> None:
    """Keys that are looked up come out as those that a feed tells."""
    job = Job()

    def write(*keys: Any) -> Callable[[sb.StateBackend], object]:
        return lambda backend: [backend.list_state("legs", int)[key].append(1) for key in keys]

    for options, name, keys in (
        ({}, "tuples", [("a", 1), ("b", 2)]),
        ({"key_as_json": True}, "json", ["7", ("b", 2), 7]),
    ):
        job = Job()
        await job.work(write(*keys))
        await job.mirror(tmp_path / name, **options)
        await job.work(write(*keys[1:]), lambda backend, keys=keys: backend.list_state("legs", int)[keys[0]].clear())
        await job.mirror(tmp_path / name, **options)
        assert shown(tmp_path / name) == await job.state(**options)
        await job.work(write(keys[-1]), checkpoint_id=1)
        assert (await job.mirror(tmp_path / name, **options)).anew == ()
        assert shown(tmp_path / name) == await job.state(**options)


async def test_a_state_that_empties_and_fills_again(tmp_path: Path) -> None:
    """Also anew, where no row tells the type of the keys."""
    job = Job()
    await job.commit({"x": 1}, state="other", type_=int)
    with pytest.raises(InputError):
        await job.mirror(tmp_path)
    await job.commit({})
    assert (await job.mirror(tmp_path)).steps == 0
    await job.commit({7: EWR})
    await job.mirror(tmp_path)
    await job.commit({7: None})
    await job.mirror(tmp_path, anew=True)
    assert shown(tmp_path) == {}
    await job.commit({8: EWR})
    await job.mirror(tmp_path)
    assert shown(tmp_path) == await job.state()


async def test_commits_of_other_states_move_the_mirror_without_rows(tmp_path: Path) -> None:
    """Its log says that the table has them, and a sweep may take them."""
    job = Job(checkpoints_retained=1)
    await job.commit({"a": EWR})
    await job.mirror(tmp_path)
    for number in range(3):
        await job.commit({"x": number}, state="other", type_=int)
    report = await job.mirror(tmp_path)
    assert (report.steps, report.rows, report.checkpoint_id) == (1, 0, 4)
    job.clock.now_s += DAY_S
    await sb.sweep(job.settings, dry_run=False, store=job.store, clock=job.clock)
    await job.commit({"a": LGA})
    assert (await job.mirror(tmp_path)).anew == ()
    assert shown(tmp_path) == await job.state()


# ------------------------------------------------------------------------------------------------------------ bad input


async def test_two_mirrors_of_one_name_and_one_table_for_two(tmp_path: Path) -> None:
    job = Job()
    await job.commit({"a": EWR})
    await job.commit({"x": 1}, state="other", type_=int)
    await job.mirror(tmp_path / "one")
    with pytest.raises(WrongMirrorError, match="another table"):
        await job.mirror(tmp_path / "two")
    with pytest.raises(WrongMirrorError, match="of that name"):
        await job.mirror(tmp_path / "two", state="other", name="legs")
    with pytest.raises(WrongMirrorError, match="another mirror writes"):
        await job.mirror(tmp_path / "one", name="second")
    report = await job.mirror(tmp_path / "two", anew=True)  # it moves
    assert report.anew == ("it was asked to start over",)
    assert shown(tmp_path / "two") == await job.state()


async def test_a_name_is_taken_by_the_first_step_that_is_done(tmp_path: Path) -> None:
    """Not by a slip that has failed: a wrong target, or two of them, and then the right one."""
    job = Job()
    await job.commit({"a": EWR})
    await job.commit({"x": 1}, state="other", type_=int)
    denied = Fail(error=StoreAccessError("no rights"), operation="put_if_absent")
    for wrong in ("memory://one", "memory://two"):
        with pytest.raises(StoreAccessError):
            await job.mirror(ParquetTarget(wrong, store=FaultyStore(MemoryStore(), [denied])))
    with pytest.raises(StoreAccessError):
        await job.mirror(
            ParquetTarget("memory://one", store=FaultyStore(MemoryStore(), [denied])), state="other", name="legs"
        )
    report = await job.mirror(tmp_path / "right")
    assert report.anew == ("it is new",)
    assert shown(tmp_path / "right") == await job.state()
    with pytest.raises(WrongMirrorError, match="another table"):
        await job.mirror(tmp_path / "wrong")
    await job.commit({"a": LGA})
    assert (await job.mirror(tmp_path / "right")).anew == ()
    assert shown(tmp_path / "right") == await job.state()


@pytest.mark.parametrize("to", ["", "gs://bucket/legs", "iceberg:air.legs", "s3://", "delta:", "postgresql://host/db"])
def test_a_target_that_there_is_not_is_refused_where_it_is_named(to: str) -> None:
    """By a word for what was given: a mirror's user knows of no primary there."""
    with pytest.raises(InputError) as raised:
        Mirror("legs", to=to)
    assert "the primary" not in str(raised.value)


async def test_a_job_that_is_deleted_and_made_anew(tmp_path: Path) -> None:
    """Its checkpoints begin at 1 again: the old table is not touched."""
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(tmp_path)
    again = Job()
    await again.commit({"a": LGA})
    before = ops(tmp_path)
    for anew in (False, True):
        with pytest.raises(WrongMirrorError, match="deleted and made anew"):
            await again.mirror(tmp_path, anew=anew)
    assert ops(tmp_path) == before


async def test_a_log_that_was_put_back(tmp_path: Path) -> None:
    """The primary of yesterday, with the mirror's own log of today, or of yesterday."""
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(tmp_path)
    old = await copied(job.store)
    await job.commit({"a": LGA})
    await job.commit({"b": LGA})
    await job.mirror(tmp_path)
    other = Job(old)
    other.next_id = 2
    report = await other.mirror(tmp_path)  # the table is ahead of the mirror's log
    assert report.anew == ("the table was emptied, or put back to an older state",)
    assert shown(tmp_path) == await other.state()

    await job.mirror(tmp_path / "today", name="today")
    beside = Job(await copied(job.store))  # today's mirror, beside the commits of yesterday
    for sequence in range(2, 6):
        await beside.store.delete(f"fleet/commits/{sequence:012}")
    await beside.store.delete("fleet/newest")  # the hint
    with pytest.raises(WrongMirrorError, match="put back"):
        await beside.mirror(tmp_path / "today", name="today")


async def test_a_table_that_was_emptied_or_restored(tmp_path: Path) -> None:
    job, folder = Job(), MemoryStore()
    target = lambda: ParquetTarget("memory://folder", store=folder)  # noqa: E731
    await job.commit({"a": EWR})
    await job.mirror(target())
    backup = await copied(folder)
    await job.commit({"a": LGA, "b": LGA})
    await job.mirror(target())
    for info in [info async for info in folder.list("")]:
        await folder.delete(info.key)
    await job.commit({"b": None})
    report = await job.mirror(target())
    assert report.anew == ("the table was emptied, or put back to an older state",)
    assert shown(await laid_out(folder)) == await job.state()
    folder = backup
    await job.commit({"c": LGA})
    report = await job.mirror(target())
    assert report.anew == ("the table was emptied, or put back to an older state",)
    assert shown(await laid_out(folder)) == await job.state()


async def test_what_is_no_mirror_is_refused(tmp_path: Path) -> None:
    job = Job()
    await job.commit({"a": EWR})
    async with sb.open_backend(job.settings, store=job.store, clock=job.clock) as backend:
        backend.operator_state("offsets", int).append(1)
        await backend.checkpoint(2)
    with pytest.raises(InputError, match="did you mean 'legs'"):
        await job.mirror(tmp_path, state="leg")
    with pytest.raises(InputError, match="operator state"):
        await job.mirror(tmp_path, state="offsets")
    with pytest.raises(InputError, match="no such form"):
        await job.mirror(tmp_path, form="table")
    with pytest.raises(InputError, match="name"):
        await job.mirror(tmp_path, name="a/b")
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.raises(WrongMirrorError, match="no mirror has written"):
        await job.mirror(tmp_path)
    assert os.listdir(tmp_path) == ["mine.parquet"]  # noqa: PTH208  # the other way blocks, too
