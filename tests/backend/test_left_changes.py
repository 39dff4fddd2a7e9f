"""A backend that is left with changes and without a checkpoint says so: nothing else would show that they are gone."""

import operator
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import BackendClosedError
from statebackend.settings import TableKind
from tests.aggregates import Mean

pytest.importorskip("rocksdict", reason="the extra rocksdb")

COLUMNS = pa.schema([("n", pa.int64())])
CHANGES: dict[str, Callable[[sb.StateBackend], Any]] = {
    "value": lambda backend: backend.value_state("s", int).update(a=1),
    "value removed": lambda backend: backend.value_state("kept", int).pop("a"),
    "list": lambda backend: backend.list_state("s", int)["a"].append(1),
    "map": lambda backend: backend.map_state("s", str, int)["a"].update(x=1),
    "reducing": lambda backend: backend.reducing_state("s", int, operator.add).add("a", 1),
    "aggregating": lambda backend: backend.aggregating_state("s", Mean()).add("a", 1),
    "timers": lambda backend: backend.timers("s").register("a", 1.0),
    "columnar": lambda backend: backend.columnar_state("s", COLUMNS, key=pa.string()).update(a={"n": 1}),
    "columnar removed": lambda backend: backend.columnar_state("kept columns", COLUMNS, key=pa.string()).pop("a"),
    "operator": lambda backend: backend.operator_state("s", int).append(1),
    "operator replaced": lambda backend: backend.operator_state("kept elements", int).clear(),
}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "no checkpoint has" in record.getMessage()]


async def fill(settings: sb.Settings) -> None:
    """A first checkpoint with what some of the changes remove."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("kept", int)["a"] = 1
        backend.columnar_state("kept columns", COLUMNS, key=pa.string())["a"] = {"n": 1}
        backend.operator_state("kept elements", int).append(1)
        await backend.checkpoint(0)


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
@pytest.mark.parametrize("change", CHANGES)
async def test_changes_that_are_left_are_told_by_state(
    settings: sb.Settings, caplog: pytest.LogCaptureFixture, change: str, table: TableKind
) -> None:
    """Of every kind; once, and only of those behind the last checkpoint."""
    settings = msgspec.structs.replace(settings, table=table, table_memory_bytes=4 << 20)
    await fill(settings)
    async with sb.open_backend(settings) as backend:
        CHANGES[change](backend)
        await backend.checkpoint(1)
    async with sb.open_backend(settings) as backend:
        for name in ("s", "kept", "kept columns", "kept elements"):
            assert name not in backend.uncommitted
    assert told(caplog) == []
    await fill(again := msgspec.structs.replace(settings, job="again"))
    async with sb.open_backend(again) as backend:
        await backend.checkpoint(1)
        CHANGES[change](backend)
        (name,) = backend.uncommitted
    (warning,) = told(caplog)
    assert warning.endswith(f"(states: {name})")
    assert "job again" in warning


async def test_nothing_is_told_of_changes_that_nobody_expects_to_be_kept(
    settings: sb.Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that leaves the context says it all; who only reads was told; and whoever abandons them says so."""
    await fill(settings)

    async def fail() -> None:
        async with sb.open_backend(settings) as backend:
            CHANGES["value"](backend)
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    async with sb.open_backend(settings, read_only=True) as backend:
        CHANGES["value"](backend)
    async with sb.open_backend(settings) as backend:
        CHANGES["value"](backend)
        backend.abandon()
    async with sb.open_backend(settings, key_groups=sb.owners.KeyGroupRange(0, 127)) as owner:
        CHANGES["list"](owner)  # its coordinator may commit it
    with pytest.raises(BackendClosedError):
        owner.value_state("kept", int)
    assert owner.uncommitted == []
    assert told(caplog) == []
