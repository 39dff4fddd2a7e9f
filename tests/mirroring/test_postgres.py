"""A table in Postgres has one row per key: the state, whatever happens on the way."""

import datetime as dt
import json
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import psycopg
import pyarrow as pa
import pytest

from statebackend._mirroring.mirrors import target_at
from statebackend._mirroring.targets.postgres import PostgresTarget
from statebackend.errors import (
    InputError,
    KeyTypeError,
    MirrorSchemaError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    WrongMirrorError,
)
from tests.mirroring.mirrored import EWR, JFK, LGA, Job, Leg
from tests.mirroring.servers import postgres

__all__ = ["postgres"]


def rows_of(postgres: str, table: str = "legs") -> dict[str, Any]:
    """The rows, by key: those of the state."""
    with psycopg.connect(postgres) as connection:
        found = connection.execute(f"SELECT key, origin, miles FROM {table}").fetchall()
    return {str(key): {"origin": origin, "miles": miles} for key, origin, miles in found}


@pytest.fixture
def place(postgres: str) -> str:
    """An empty database's URL, as a mirror takes it."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
            connection.execute(f'DROP TABLE "{name}"')
    return postgres


async def test_the_table_is_the_state(place: str) -> None:
    job = Job()
    target = lambda: PostgresTarget(place, "legs")  # noqa: E731
    await job.commit({"a": EWR, "b": JFK})
    assert (await job.mirror(target())).anew == ("it is new",)
    assert rows_of(place) == await job.state()
    await job.commit({"a": LGA, "c": EWR})
    await job.commit({"b": None, "a": JFK})
    report = await job.mirror(target())
    assert (report.steps, report.commits, report.anew) == (1, 2, ())
    assert rows_of(place) == await job.state()
    with psycopg.connect(place) as connection:
        found = connection.execute("SELECT key, checkpoint_id, batch_id FROM legs ORDER BY key").fetchall()
    assert found == [("a", 3, 3), ("c", 2, 2)]


def execute(place: str, *statements: str) -> list[Any]:
    with psycopg.connect(place, autocommit=True) as connection:
        found = [connection.execute(each) for each in statements][-1]
        return found.fetchall() if found.description else []


async def test_keys_of_several_parts_and_nested_values(place: str) -> None:
    """Each part of a key is a column; what is nested is JSON; null, empty and odd text are told apart."""
    job = Job()
    rows: dict[Any, Any] = {
        ("a", 1): {"x": [1, None], "t": []},
        ("", 2): {},
        ('q"uo,te\n\\N', 3): None,
    }
    await job.commit(rows, type_=dict[str, list[int | None]] | None)
    del rows[('q"uo,te\n\\N', 3)]  # which is dropped by `None`
    await job.mirror(PostgresTarget(place, "legs"))
    found = execute(place, "SELECT key_1, key_2, value FROM legs")
    assert {(one, two): json.loads(value) if isinstance(value, str) else value for one, two, value in found} == rows


@pytest.mark.parametrize(
    ("type_", "value", "seen"),
    [
        (bytes, b"\x00\xff", b"\x00\xff"),
        (float, float("inf"), float("inf")),
        (bool, True, True),
        (
            dt.datetime,
            dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC),
            dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC),
        ),
        (dt.date, dt.date(1, 2, 3), dt.date(1, 2, 3)),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=1), dt.timedelta(days=-1, microseconds=1)),
        (str, "", ""),
        (int, -(2**63), -(2**63)),
        (Annotated[int, msgspec.Meta(ge=0)], 2**64 - 1, Decimal(2**64 - 1)),
    ],
    ids=["bytes", "float", "bool", "datetime", "date", "timedelta", "str", "int", "uint"],
)
async def test_values_of_every_type(place: str, type_: Any, value: Any, seen: Any) -> None:
    job = Job()
    await job.commit({"a": value, "b": value}, type_=type_)
    await job.mirror(PostgresTarget(place, "legs"))
    assert execute(place, "SELECT value FROM legs") == [(seen,), (seen,)]


# ------------------------------------------------------------------------------------------------------------ bad input


async def test_a_table_of_another_shape_is_refused_and_not_touched(place: str) -> None:
    """Each column that does not fit is named; with what is missing added, the mirror goes on."""
    job = Job()
    await job.commit({"a": EWR})
    columns = "key_group integer, key text PRIMARY KEY, origin text, checkpoint_id bigint, batch_id bigint"
    execute(place, f"CREATE TABLE legs ({columns}, miles text, committed_at timestamptz)")
    target = lambda: PostgresTarget(place, "legs")  # noqa: E731
    with pytest.raises(MirrorSchemaError, match="another type") as raised:
        await job.mirror(target())
    assert raised.value.facts["column"] == "miles"
    execute(place, "ALTER TABLE legs DROP miles", "ALTER TABLE legs ADD miles bigint", "ALTER TABLE legs ADD mine int")
    with pytest.raises(MirrorSchemaError, match="column that the state has not"):
        await job.mirror(target())
    execute(place, "ALTER TABLE legs DROP mine", "ALTER TABLE legs DROP CONSTRAINT legs_pkey")
    with pytest.raises(MirrorSchemaError, match="primary key"):
        await job.mirror(target())
    execute(place, "ALTER TABLE legs ADD PRIMARY KEY (key)")
    await job.mirror(target())
    execute(place, "ALTER TABLE legs DROP miles")
    await job.commit({"b": LGA})
    with pytest.raises(MirrorSchemaError, match="lacks a column"):
        await job.mirror(target())
    await job.mirror(target(), anew=True)
    assert rows_of(place) == await job.state()


async def test_types_and_texts_that_sql_has_no_place_for(place: str) -> None:
    """A column is named before anything is written; a text undoes its step as a whole."""
    job = Job()
    schema = pa.schema([("at", pa.timestamp("ns")), ("miles", pa.int64())])
    await job.work(
        lambda backend: backend.columnar_state("fine", schema, key=pa.string()).update({"a": {"at": None, "miles": 1}})
    )
    with pytest.raises(MirrorSchemaError) as raised:
        await job.mirror(PostgresTarget(place, "legs"), state="fine")
    assert raised.value.facts["column"] == "at"
    assert execute(place, "SELECT to_regclass('legs')") == [(None,)]
    await job.commit({"a": EWR})
    await job.mirror(PostgresTarget(place, "legs"))
    await job.commit({"b": LGA, "nul\x00": EWR})
    with pytest.raises(KeyTypeError, match="NUL"):
        await job.mirror(PostgresTarget(place, "legs"))
    with pytest.raises(KeyTypeError, match="NUL"):  # it was written down: the step is the same
        await job.mirror(PostgresTarget(place, "legs"))
    await job.commit({"nul\x00": None, "a": Leg("\x00", 1)})
    with pytest.raises(InputError, match="NUL"):  # another step, from the whole state
        await job.mirror(PostgresTarget(place, "legs"))
    await job.commit({"a": JFK})
    report = await job.mirror(PostgresTarget(place, "legs"))
    assert report.anew == ("the table has refused a value",)
    assert rows_of(place) == await job.state()


async def test_a_table_without_rights_locked_full_or_gone(place: str) -> None:
    """Each has an error of its own, and the next call goes on."""
    job = Job()
    await job.commit({"a": EWR})
    target = lambda **options: PostgresTarget(place, "legs", **options)  # noqa: E731
    await job.mirror(target())
    await job.commit({"a": LGA})
    execute(
        place,
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "GRANT SELECT ON legs, statebackend_mirrors TO reader",
    )
    with pytest.raises(StoreAccessError):
        await job.mirror(PostgresTarget(place.replace("user=bench", "user=reader"), "legs"), anew=True)
    execute(place, "REVOKE ALL ON legs, statebackend_mirrors FROM reader", "DROP ROLE reader")
    with psycopg.connect(place) as other:
        other.execute("LOCK TABLE legs IN EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            await job.mirror(target(lock_timeout_s=0.05))
    execute(
        place,
        "CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full'; END $$",
        "CREATE TRIGGER no_space BEFORE INSERT ON legs EXECUTE FUNCTION no_space()",
    )
    with pytest.raises(StoreFullError):
        await job.mirror(target())
    execute(place, "DROP FUNCTION no_space CASCADE")
    await job.mirror(target())
    assert rows_of(place) == await job.state()
    execute(place, "DROP TABLE legs")
    await job.commit({"b": LGA})
    report = await job.mirror(target())
    assert report.anew == ("the table was emptied, or put back to an older state",)
    assert rows_of(place) == await job.state()
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        await job.mirror(PostgresTarget("host=/nowhere", "legs"))


async def test_a_url_names_the_table_and_a_place_shows_no_password(place: str) -> None:
    target = target_at("postgresql://me:secret@db:5433/air?sslmode=require&table=flights.legs")
    assert target.place == "postgresql://db:5433/air?table=flights.legs"
    with pytest.raises(InputError, match="table"):
        target_at("postgresql://db/air")
    execute(place, "DROP SCHEMA IF EXISTS flights CASCADE", "CREATE SCHEMA flights")
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(PostgresTarget(place, "flights.legs"))
    assert rows_of(place, "flights.legs") == await job.state()


async def test_a_table_without_rows_is_still_the_mirrors(place: str) -> None:
    """As that of a state whose last key was deleted: another mirror took it, and the first one was refused then."""
    job = Job()
    await job.commit({"a": EWR})
    await job.mirror(PostgresTarget(place, "legs"))
    await job.commit({"a": None})
    await job.mirror(PostgresTarget(place, "legs"))
    with pytest.raises(WrongMirrorError, match="drop that one"):
        await job.mirror(PostgresTarget(place, "legs"), name="second")
    await job.commit({"b": LGA})
    await job.mirror(PostgresTarget(place, "legs"))
    assert rows_of(place) == await job.state()
