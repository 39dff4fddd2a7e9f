"""What may be written can be read: each kind of state, in each table, by any number of owners, by every reader.

`odd_states.py` draws what is written and says what has to be read, `odd_job.py` where it lies. The readers are
`read_batches`, the change feed, `diff`, `export` and the commands `scan` and `dump`; Spark's is in
`tests/spark/test_reading_kinds.py`.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pyarrow.parquet as pq
import pytest

import statebackend as sb
from statebackend._reading import opened_state
from statebackend._reading.changed import BATCH_ID, CHANGE_TYPE, CHECKPOINT_ID, OLD_VALUE
from tests.reading.odd_job import Job, written_job
from tests.reading.odd_states import KINDS, OPERATOR, Kind, plain, text_of
from tests.reading.states import table_of
from tests.reading.test_feed import between, feed_of

CASES = [
    ("heap", 1, "none"),
    ("heap", 3, "some"),
    ("heap", 3, "all"),
    ("rocksdb", 1, "all"),
    ("rocksdb", 3, "none"),
    ("rocksdb", 3, "some"),
]
"""The table, how many owners there are, and how much of the state lies in bases."""


@pytest.fixture(scope="module", params=CASES, ids=["-".join(map(str, each)) for each in CASES])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job, written once for all readers."""
    if request.param[0] == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    return written_job(tmp_path_factory.mktemp("fleet"), *request.param)


def values_in(kind: Kind, rows: Sequence[dict[str, Any]], *, key_as_json: bool) -> dict[str, Any]:
    """The values of rows in the form of their kind, by the texts of their keys. No key may be there twice."""
    found: dict[str, Any] = {}
    for each in rows:
        key = text_of(json.loads(each["key"]) if key_as_json else each["key"])
        assert key not in found, "a key came twice"
        found[key] = kind.form(value_of(each))
    return found


def value_of(row: Mapping[str, Any]) -> Any:
    """The value of a row; of a columnar state, its columns."""
    own = {name: each for name, each in row.items() if name not in ("key", "key_group", "state", "kind")}
    return own["value"] if own.keys() == {"value"} else own


def test_as_columns_whole_and_in_parts(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoint, and an older one range by range in steps of one key group; some keys by themselves."""

    async def read(name: str, **options: Any) -> dict[str, Any]:
        kind = KINDS[name]
        table = await table_of(job.settings, name, key_as_json=kind.is_mixed, **options)
        return values_in(kind, table.to_pylist(), key_as_json=kind.is_mixed)

    async def check() -> None:
        for name, kind in KINDS.items():
            newest, older = (job.written.values(checkpoint_id, name) for checkpoint_id in (job.newest, 2))
            assert await read(name) == newest
            keys = [key for key in kind.keys if type(key) is type(kind.keys[0])][:2]
            some = {text: newest[text] for text in map(text_of, keys) if text in newest}
            assert await read(name, keys=keys) == some
            with monkeypatch.context() as patch:
                patch.setattr(opened_state, "KEYS_BYTES_MAX", 1)
                parts = [await read(name, checkpoint_id=2, key_groups=part) for part in ((0, 2), (3, 5))]
            assert parts[0] | parts[1] == older
            assert sum(map(len, parts)) == len(older)

    anyio.run(check)


def test_operator_state_as_one_owner_of_everything_has_it(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """What each owner has a part of in a row, and once what each has a copy of."""

    async def check() -> None:
        async with sb.open_backend(job.settings, read_only=True) as backend:
            for mode in OPERATOR:
                assert list(backend.operator_state(mode, int, mode=mode)) == job.operator(mode)
                assert (await table_of(job.settings, mode))["value"].to_pylist() == job.operator(mode)

    anyio.run(check)
    dumped = [each for each in job.run(capsys, "dump") if each["state"] in OPERATOR]
    assert {each["state"]: each["value"] for each in dumped} == {mode: job.operator(mode) for mode in OPERATOR}
    assert len(dumped) == len(OPERATOR)


def test_in_plain_values_by_the_commands(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """`dump` and `scan` print every key with its value."""
    dumped = job.run(capsys, "dump")
    for name, kind in KINDS.items():
        expected = job.written.values(job.newest, name)
        own = [each for each in dumped if each["state"] == name]
        assert values_in(kind, own, key_as_json=False) == expected
        assert values_in(kind, job.run(capsys, "scan", name), key_as_json=False) == expected


def test_in_files(job: Job) -> None:
    """Of each format. What CSV has no place for, is JSON there."""

    async def check() -> None:
        for name, kind in KINDS.items():
            expected = job.written.values(job.newest, name)
            for form in ("parquet", "jsonl", "csv"):
                out = job.directory / f"{name}.{form}"
                await sb.export(job.settings, name, out, format=form, key_as_json=kind.is_mixed)
                if form == "parquet":
                    rows = pq.read_table(out).to_pylist()
                elif form == "jsonl":
                    rows = list(map(json.loads, out.read_text().splitlines()))
                elif name in ("list", "none", "legs", "floats", "timers"):
                    with out.open(newline="") as file:
                        rows = [row | {"value": json.loads(row["value"])} for row in csv.DictReader(file)]
                    for row in rows if not isinstance(kind.keys[0], str) and not kind.is_mixed else ():
                        row["key"] = json.loads(row["key"])
                else:
                    continue
                assert values_in(kind, rows, key_as_json=kind.is_mixed) == expected

    anyio.run(check)


def test_as_differences(job: Job) -> None:
    """Between the first checkpoint and the newest, each key that changed, with its values."""

    async def found() -> Sequence[sb.reports.Difference]:
        return [each async for each in sb.diff(job.settings, 1, job.newest)]

    by_state: dict[str, dict[str, Any]] = {name: {} for name in KINDS}
    for each in anyio.run(found):
        form = KINDS[each.state].form
        was, now = (None if value is None else form(value) for value in (each.before, each.after))
        by_state[each.state][text_of(each.key)] = (each.change, was, now)
    for name, shown in by_state.items():
        before, after = job.written.values(1, name), job.written.values(job.newest, name)
        changed = {key: (before[key], after[key]) for key in before.keys() & after.keys()}
        assert shown == {
            **{key: ("removed", before[key], None) for key in before.keys() - after.keys()},
            **{key: ("added", None, after[key]) for key in after.keys() - before.keys()},
            **{key: ("changed", *both) for key, both in changed.items() if unsigned(both[0]) != unsigned(both[1])},
        }


def unsigned(form: Any) -> str:
    """For `diff` -0.0 is 0.0."""
    return json.dumps(form).replace('"-0.0"', '"0.0"')


def test_as_a_feed_of_changes(job: Job) -> None:
    """Whoever applies it, checkpoint by checkpoint, has the state; and each row has the value of before on request."""

    async def check() -> None:
        found = await between(job.settings, None, 0)
        for name, kind in KINDS.items():
            asked = {"key_as_json": True} if kind.is_mixed else {"old_values": True}
            rows = (await feed_of(job.settings, None, name, found, **asked)).to_pylist()
            values: dict[str, Any] = {}
            for checkpoint_id in job.written.at:
                before = job.written.values(checkpoint_id - 1, name) if checkpoint_id > 1 else {}
                for row in (each for each in rows if each["checkpoint_id"] == checkpoint_id):
                    key = text_of(json.loads(row["key"]) if kind.is_mixed else row["key"])
                    if not kind.is_mixed:
                        old = row.pop(OLD_VALUE)
                        assert (None if old is None else kind.form(old)) == before.get(key)
                    apply(name, values, key, row)
                applied = {key: kind.form(value) for key, value in values.items()}
                assert applied == job.written.values(checkpoint_id, name)

    anyio.run(check)


def apply(name: str, values: dict[str, Any], key: str, row: dict[str, Any]) -> None:
    """One change, as a reader of the feed applies it. A map is pairs."""
    change, is_map = row["change_type"], KINDS[name].is_map
    value = value_of({name: each for name, each in row.items() if name not in (CHECKPOINT_ID, BATCH_ID, CHANGE_TYPE)})
    if change == "append":
        values[key] = [*values.get(key, ()), *value]
    elif change == "delete" and (not is_map or value is None):
        values.pop(key, None)  # it may have come and gone within the commit
    elif is_map:
        entries = {repr(plain(own)): (own, each) for own, each in values.pop(key, ())}
        for each in value:
            own, number = each.values() if isinstance(each, dict) else each
            entries.pop(repr(plain(own)), None)
            if change == "update":
                entries[repr(plain(own))] = own, number
        if entries:
            values[key] = list(entries.values())
    else:
        values[key] = value
