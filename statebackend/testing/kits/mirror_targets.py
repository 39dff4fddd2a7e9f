"""Proves that a table keeps the contract of `MirrorTarget`.

    class TestMyTarget(MirrorTargetConformance):
        form = "log"

        @pytest.fixture(autouse=True)
        def _table(self, tmp_path: Path) -> None:
            self.folder = tmp_path / "table"

        def make_target(self) -> MirrorTarget:
            return MyTarget(self.folder)

        def read(self) -> list[dict[str, Any]]:
            return my_reader(self.folder)

It uses nothing but the contract, and reads the table only by `read`.
"""

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final, Literal

import pytest

from statebackend._columns.arrow import RecordBatch, Schema, pa
from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable, MirrorTarget, partition_of
from statebackend.settings import Settings

SETTINGS: Final = Settings(job="mirrored", primary="memory://mirrored")
GROUPS: Final = 8
_IDS: Final = [("checkpoint_id", pa.int64()), ("batch_id", pa.int64()), ("committed_at", pa.timestamp("us", "UTC"))]
_OWN: Final = [("key_group", pa.int32()), ("key", pa.string()), ("value", pa.int64())]
_LOG: Final = pa.schema([("generation", pa.int64()), ("op", pa.string()), *_IDS, *_OWN])
_TABLE: Final = pa.schema([("op", pa.string()), *_OWN, *_IDS])
_AT: Final = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)


@pytest.mark.asyncio
class MirrorTargetConformance(ABC):
    """Each test begins with no table, and checks one promise."""

    form: ClassVar[Literal["log", "table"]] = "log"

    @abstractmethod
    def make_target(self) -> MirrorTarget:
        """Make a target, always of the same table within a test: none is there at its beginning."""

    @abstractmethod
    def read(self) -> Sequence[dict[str, Any]]:
        """Read all rows, with at least `key`, `value` and `checkpoint_id`; of a `log` also `op` and `generation`."""

    async def test_a_table_that_is_not_there_is_empty(self) -> None:
        """It knows no mirror, and says that it has no rows."""
        target = self.make_target()
        async with target.opened(SETTINGS):
            assert await target.find() == MirrorMark(is_empty=True)

    async def test_rows_and_number_are_there_together(self) -> None:
        """Another process finds the number, and the rows are as they were given."""
        await self._write(1, {"a": 1, "b": None}, is_whole=True)
        assert await self._find() == MirrorMark("mine", 1)
        await self._write(2, {"b": 2}, gone=("a",))
        assert await self._find() == MirrorMark("mine", 2)
        assert self._values() == {"b": 2}
        if self.form == "log":
            assert [row["op"] for row in sorted(self.read(), key=lambda row: (row["checkpoint_id"], row["op"]))] == [
                *("begin", "snapshot", "snapshot"),
                *("delete", "update"),
            ]

    async def test_a_step_that_comes_again_changes_nothing(self) -> None:
        """Nor does an older one: a late process writes what others have gone beyond."""
        await self._write(1, {"a": 1}, is_whole=True)
        await self._write(2, {"a": 2, "b": 2})
        await self._write(3, {"a": 3})
        before = sorted(map(repr, self.read()))
        for number, rows in ((3, {"a": 3}), (2, {"a": 2, "b": 2})):
            await self._write(number, rows)
        await self._write(1, {"a": 1}, is_whole=True)
        assert sorted(map(repr, self.read())) == before
        assert await self._find() == MirrorMark("mine", 3)

    async def test_a_whole_step_takes_the_place_of_all_rows(self) -> None:
        """In a log, of those of the former generation: they stay, and do not count."""
        await self._write(1, {"a": 1, "b": 1}, is_whole=True)
        await self._write(5, {"b": 5, "c": 5}, is_whole=True)  # there may be numbers that no table has
        assert self._values() == {"b": 5, "c": 5}
        await self._write(6, {}, gone=("b",))
        assert self._values() == {"c": 5}

    async def test_many_rows_and_odd_text(self) -> None:
        """Several batches of rows, and text that has to be quoted somewhere."""
        rows: dict[str, int | None] = {f"N{number}": number for number in range(5000)}
        rows |= dict.fromkeys(["", "a,b", 'a"b', "a'b", "a\nb", "a\\b", "é€😀", "NULL", "\\N"], 1)
        await self._write(1, rows, is_whole=True)
        assert self._values() == rows

    # ------------------------------------------------------------------------------------------------- what it is given

    async def _write(
        self, number: int, rows: Mapping[str, int | None], *, gone: Sequence[str] = (), is_whole: bool = False
    ) -> None:
        target, schema = self.make_target(), _LOG if self.form == "log" else _TABLE
        given: dict[str, int | None] = {} if is_whole else getattr(self, "_given", {})
        self._given = {key: value for key, value in {**given, **rows}.items() if key not in gone}
        ops = dict.fromkeys(rows, "snapshot" if is_whole else "update") | dict.fromkeys(gone, "delete")
        partitions = target.partitions if self.form == "table" else None
        if partitions is not None:  # it gets all rows of the partitions that it is given
            ops = dict.fromkeys(self._given, "update")
        found = [self._row(number, key, self._given.get(key), op, is_whole=is_whole) for key, op in ops.items()]
        if self.form == "log" and is_whole:
            found.append({"generation": number, "op": "begin", "checkpoint_id": number, "committed_at": _AT})
        self._generation: int = number if is_whole else getattr(self, "_generation", 1)
        batches = _batches(found, schema)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(target.opened(SETTINGS))
            await target.find()
            await target.fit(MirrorTable("mirrored", "n", self.form, schema, GROUPS, is_whole))
            await target.write(
                MirrorRows(
                    mirror_id="mine",
                    number=number,
                    generation=self._generation,
                    checkpoint_id=number,
                    is_whole=is_whole,
                    count=len(found),
                    schema=schema,
                    batches=lambda: iter(batches),
                    partitions=None
                    if partitions is None or is_whole
                    else sorted({partition_of(g, partitions) for g in range(GROUPS)}),
                )
            )

    def _row(self, number: int, key: str, value: int | None, op: str, *, is_whole: bool) -> dict[str, Any]:
        return {
            "generation": number if is_whole else getattr(self, "_generation", 1),
            "op": op,
            "checkpoint_id": number,
            "batch_id": number,
            "committed_at": _AT,
            "key_group": len(key) % GROUPS,
            "key": key,
            "value": value,
        }

    async def _find(self) -> MirrorMark:
        target = self.make_target()
        async with target.opened(SETTINGS):
            return await target.find()

    def _values(self) -> dict[str, int | None]:
        rows = self.read()
        if self.form == "table":
            assert len({row["key"] for row in rows}) == len(rows)
            return {row["key"]: row["value"] for row in rows}
        newest = max(row["generation"] for row in rows if row["op"] == "begin")
        found: dict[str, Any] = {}
        for row in sorted(rows, key=lambda row: int(row["checkpoint_id"])):
            if row["generation"] == newest and row["op"] != "begin":
                found[row["key"]] = row
        return {key: row["value"] for key, row in found.items() if row["op"] != "delete"}


def _batches(rows: Sequence[dict[str, Any]], schema: Schema) -> list[RecordBatch]:
    some = [rows[at : at + 1000] for at in range(0, len(rows), 1000)]
    return [
        pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names} for row in each], schema=schema)
        for each in some
    ]
