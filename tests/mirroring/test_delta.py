"""A table in Delta: a commit rewrites the partitions that it changed, and no other."""

import json
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from statebackend._log.mirror_steps import Form
from statebackend._mirroring.mirrors import target_at
from statebackend._mirroring.targets.delta import DeltaTarget
from statebackend.errors import MirrorSchemaError, StoreUnavailableError, WrongMirrorError
from tests.mirroring.mirrored import EWR, JFK, LGA, Job, Leg
from tests.mirroring.places import PLACES, KilledError, delta_table


def commits(table: Path) -> list[list[dict[str, Any]]]:
    """The actions of each commit, as they lie in the log."""
    return [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted((table / "_delta_log").glob("*.json"))
    ]


async def test_one_changed_key_rewrites_one_partition(tmp_path: Path) -> None:
    """And of that no more than what the state has there: rows of the others stay in the files in which they are."""
    job = Job(max_parallelism=128)
    place = delta_table("", tmp_path)
    await job.commit({f"N{number}": Leg("EWR", number) for number in range(400)})
    await job.mirror(place.target())
    await job.commit({"N7": None})
    await job.commit({"N8": LGA})
    await job.mirror(place.target())
    assert place.rows() == await job.state()
    adds = [action["add"] for action in commits(tmp_path / "delta")[-1] if "add" in action]
    removes = [action["remove"] for action in commits(tmp_path / "delta")[-1] if "remove" in action]
    assert 1 <= len(adds) == len(removes) <= 2
    rows = [json.loads(each["stats"])["numRecords"] for each in adds]
    assert sum(rows) < 400 * 2 / 4 + 60
    found = duckdb.sql(f"SELECT DISTINCT key_group % 4 AS p FROM '{tmp_path}/delta/{adds[0]['path']}'").fetchall()
    assert found == [(int(adds[0]["partitionValues"]["partition"]),)]


async def test_types_that_delta_has_not(tmp_path: Path) -> None:
    """Unsigned numbers are held by a wider type; what has none is named before anything is written."""
    job = Job()
    schema = pa.schema([("at", pa.time64("us")), ("miles", pa.uint64())])
    await job.work(
        lambda backend: backend.columnar_state("legs", schema, key=pa.string()).update(
            {"a": {"at": None, "miles": 2**64 - 1}}
        )
    )
    with pytest.raises(MirrorSchemaError) as raised:
        await job.mirror(delta_table("", tmp_path).target())
    assert raised.value.facts["column"] == "at"
    assert not list((tmp_path / "delta").rglob("*"))  # deltalake 1.2 makes the folder when it looks for a table
    narrow = pa.schema([("miles", pa.uint64()), ("seats", pa.uint8())])
    await job.work(
        lambda backend: backend.columnar_state("fine", narrow, key=pa.string()).update(
            {"a": {"miles": 2**64 - 1, "seats": 255}}
        )
    )
    await job.mirror(delta_table("", tmp_path).target(), state="fine")
    assert delta_table("", tmp_path).rows() == {"a": {"miles": 2**64 - 1, "seats": 255}}


async def test_whoever_changes_rows_has_the_table_written_anew(tmp_path: Path) -> None:
    """A table that was restored, or in which somebody deletes; not one that is only optimized."""
    job, place = Job(), delta_table("", tmp_path)
    await job.commit({"a": EWR, "b": JFK})
    await job.mirror(place.target())
    await job.commit({"a": LGA})
    await job.mirror(place.target())
    DeltaTable(tmp_path / "delta").optimize.compact()
    await job.commit({"c": LGA})
    assert (await job.mirror(place.target())).anew == ()
    for spoil in (lambda table: table.restore(1), lambda table: table.delete("key = 'b'")):
        spoil(DeltaTable(tmp_path / "delta"))
        await job.commit({"d": EWR})
        report = await job.mirror(place.target())
        assert report.anew == ("the table was emptied, or put back to an older state",)
        assert place.rows() == await job.state()


async def test_a_table_without_rows_is_still_the_mirrors(tmp_path: Path) -> None:
    """As that of a state whose last key was deleted: another mirror took it, and the first one was refused then."""
    job, place = Job(), delta_table("", tmp_path)
    await job.commit({"a": EWR})
    await job.mirror(place.target())
    await job.commit({"a": None})
    await job.mirror(place.target())
    with pytest.raises(WrongMirrorError, match="drop that one"):
        await job.mirror(place.target(), name="second")
    await job.commit({"b": LGA})
    await job.mirror(place.target())
    assert place.rows() == await job.state()


async def test_tables_that_are_not_the_mirrors(tmp_path: Path) -> None:
    job = Job()
    await job.commit({"a": EWR})
    write_deltalake(tmp_path / "delta", pa.table({"key": ["x"]}))
    with pytest.raises(WrongMirrorError, match="no mirror has written"):
        await job.mirror(DeltaTarget(str(tmp_path / "delta")))
    await job.mirror(target_at(f"delta:{tmp_path}/own"))
    with pytest.raises(WrongMirrorError, match="another table"):
        await job.mirror(DeltaTarget(str(tmp_path / "own"), partitions=8))
    await job.mirror(DeltaTarget(str(tmp_path / "own"), partitions=8), anew=True)
    await job.commit({"a": LGA})

    class Beside(DeltaTarget):
        """Somebody else's commit comes between the look and ours."""

        looks = 0

        def _mark(self, table: Any) -> Any:
            found = super()._mark(table)
            self.looks += 1
            if self.looks == 2:
                DeltaTable(tmp_path / "own").delete()
            return found

    target = Beside(str(tmp_path / "own"), partitions=8)
    with pytest.raises(StoreUnavailableError, match="another writer"):
        await job.mirror(target)
    report = await job.mirror(DeltaTarget(str(tmp_path / "own"), partitions=8))
    assert report.anew == ("the table was emptied, or put back to an older state",)


@pytest.mark.parametrize("form", ["table", "log"])
async def test_another_makes_the_table_first(form: Form, tmp_path: Path) -> None:
    """Between the look, which finds none, and our commit: rows of both would be in it, each key twice."""
    job, where = Job(), str(tmp_path / "delta")
    await job.commit({"a": EWR, "b": LGA})
    others: list[DeltaTarget] = []

    class Beside(DeltaTarget):
        rows: Any = None

        def _write(self, rows: Any) -> None:
            self.rows = rows
            super()._write(rows)

        def _mark(self, table: Any) -> Any:
            found = super()._mark(table)
            if self.rows is not None and not others:
                others.append(DeltaTarget(where))
                assert self._table is not None
                others[0]._fit(self._table)
                others[0]._write(self.rows)
            return found

    await job.mirror(Beside(where), form=form)
    assert len(others) == 1
    place = PLACES["delta" if form == "table" else "delta-log"]("", tmp_path)
    assert place.rows() == await job.state()
    steps = [each for each in commits(tmp_path / "delta") if any("add" in action for action in each)]
    assert len(steps) == 1, "whoever was the quicker"


async def test_killed_between_a_new_table_and_its_first_rows(tmp_path: Path) -> None:
    """The next call finds a table without rows, and begins in it."""
    job, place = Job(), delta_table("", tmp_path)
    await job.commit({"a": EWR})

    class Killed(DeltaTarget):
        def _batches(self, rows: Any) -> Any:
            raise KilledError

    with pytest.raises(KilledError):
        await job.mirror(Killed(str(tmp_path / "delta"), partitions=4))
    assert len(commits(tmp_path / "delta")) == 1
    assert place.rows() == {}
    await job.mirror(place.target())
    assert place.rows() == await job.state() != {}


async def test_a_step_of_ours_that_comes_late_is_no_error(tmp_path: Path) -> None:
    """A mirror was cancelled and is still writing, when it is called again and has another step to take."""
    job, where = Job(), str(tmp_path / "delta")
    await job.commit({"a": EWR})
    await job.mirror(DeltaTarget(where))
    await job.commit({"a": LGA})
    late: list[Any] = []

    class Slow(DeltaTarget):
        def _write(self, rows: Any) -> None:
            late.append((self, rows, [*rows.batches()]))
            raise KilledError

    with pytest.raises(KilledError):
        await job.mirror(Slow(where))

    class Again(DeltaTarget):
        looks = 0

        def _mark(self, table: Any) -> Any:
            found = super()._mark(table)
            self.looks += 1
            if self.looks == 2:
                target, rows, batches = late.pop()
                DeltaTarget._write(target, msgspec.structs.replace(rows, batches=lambda: iter(batches)))
            return found

    report = await job.mirror(Again(where), anew=True)
    assert not late
    assert set(report.anew) == {"it was asked to start over"}
    assert delta_table("", tmp_path).rows() == await job.state()


async def test_a_new_field_is_a_new_column(tmp_path: Path) -> None:
    class Seat(msgspec.Struct):
        origin: str
        miles: int
        seats: int = 7

    for form in ("table", "log"):
        job, where = Job(), tmp_path / form
        await job.commit({"a": EWR, "b": JFK})
        await job.mirror(DeltaTarget(str(where)), form=form)
        await job.commit({"a": Seat("LGA", 3, 1)}, type_=Seat)
        report = await job.mirror(DeltaTarget(str(where)), form=form)
        assert report.anew == ("the state has evolved",)
        schema = next(action["metaData"] for action in commits(where)[-1] if "metaData" in action)
        assert "seats" in schema["schemaString"]
