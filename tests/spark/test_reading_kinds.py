"""Spark's reader reads what may be written: each kind of state, with odd keys and values, of several owners.

They call the data source as Spark's Python processes do, without a JVM. `test_reading.py` has the same on a session.
"""

import json
from typing import Any

import pyarrow as pa
import pytest

from statebackend._reading.changed import CHANGE_TYPE, CHECKPOINT_ID, OLD_VALUE
from statebackend.spark.reading.data_source import StateSource
from tests.reading.odd_job import Job, written_job
from tests.reading.odd_states import KINDS, OPERATOR, text_of
from tests.reading.test_every_reader import apply

CASES = [("heap", 3, "some"), ("rocksdb", 3, "some"), ("rocksdb", 3, "all")]


@pytest.fixture(scope="module", params=CASES, ids=["-".join(map(str, each)) for each in CASES])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job, written once."""
    if request.param[0] == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    return written_job(tmp_path_factory.mktemp("fleet"), *request.param)


def rows_of(job: Job, name: str, **options: Any) -> list[dict[str, Any]]:
    """The rows that Spark would get, in two tasks: one reads parts of two owners."""
    given = {"stateVarName": name, "job": "fleet", "primary": job.settings.primary, **options}
    source = StateSource({each: str(value) for each, value in given.items()})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]


def bare(value: Any) -> Any:
    """A value, which is in a struct with the one field `value` where it is no struct itself; that at each level."""
    if isinstance(value, dict):
        return bare(value["value"]) if value.keys() == {"value"} else {name: bare(own) for name, own in value.items()}
    if isinstance(value, list):
        return [bare(each) for each in value]
    return tuple(map(bare, value)) if isinstance(value, tuple) else value


def key_in(name: str, row: dict[str, Any]) -> str:
    """The key of a row in one form."""
    key = bare(row["key"])
    return text_of(json.loads(key) if KINDS[name].is_mixed else key)


def test_a_row_for_each_key(job: Job) -> None:
    """With its whole list or map."""
    for name, kind in KINDS.items():
        options = {"keysAsJson": kind.is_mixed, "flattenCollectionTypes": False, "partitions": 2}
        found: dict[str, Any] = {}
        for row in rows_of(job, name, **options):
            key = key_in(name, row)
            value = next(bare(row[column]) for column in row if column not in ("key", "partition_id"))
            if name == "timers":
                value = sorted([*found.get(key, ()), value / 1000])
            else:
                assert key not in found, "a key came twice"
            found[key] = kind.form(value)
        assert found == job.written.values(job.newest, name)
    for mode in OPERATOR:
        assert [row["value"]["value"] for row in rows_of(job, mode)] == job.operator(mode)


def test_a_row_for_each_element_and_entry(job: Job) -> None:
    """None is a key like any other within a map."""
    for name in ("list", *(name for name, kind in KINDS.items() if kind.is_map)):
        found: dict[str, list[Any]] = {}
        for row in rows_of(job, name):
            value = (row["user_map_key"], row["user_map_value"]) if "user_map_key" in row else row["list_element"]
            found.setdefault(key_in(name, row), []).append(bare(value))
        form = KINDS[name].form
        assert {key: form(value) for key, value in found.items()} == job.written.values(job.newest, name)


def test_a_feed_of_changes(job: Job) -> None:
    """Applied checkpoint by checkpoint it is the state. A null in place of an entry's key means the whole map."""
    for name, kind in KINDS.items():
        if name == "timers":  # their times have a row each, also where they take the place of others
            continue
        options = {"keysAsJson": True} if kind.is_mixed else {"oldValues": True}
        options |= {"readChangeFeed": True, "flattenCollectionTypes": kind.is_map}
        rows = rows_of(job, name, changeStartCheckpointId=1, **options)
        values: dict[str, Any] = {}
        for checkpoint_id in job.written.at:
            for row in (each for each in rows if each[CHECKPOINT_ID] == checkpoint_id):
                row.pop(OLD_VALUE, None)
                apply(name, values, key_in(name, row), {CHANGE_TYPE: row[CHANGE_TYPE], "value": value_in(row)})
            expected = job.written.values(checkpoint_id, name)
            assert {key: kind.form(value) for key, value in values.items()} == expected


def value_in(row: dict[str, Any]) -> Any:
    """The value of a row of the feed, as the library's own feed has it."""
    if "user_map_key" in row:
        return None if row["user_map_key"] is None else [(bare(row["user_map_key"]), bare(row["user_map_value"]))]
    return bare(row["list_value" if "list_value" in row else "value"])
