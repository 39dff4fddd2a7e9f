"""Every target, each with what its table shows to somebody who did not write it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable, MirrorTarget
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend._mirroring.targets.postgres import PostgresTarget
from statebackend.settings import Settings
from tests.mirroring.mirrored import shown


class Place(NamedTuple):
    """A table: what opens it as a target, and what reads its rows by key."""

    target: Callable[[], MirrorTarget]
    rows: Callable[[], dict[str, Any]]


def folder(where: str, root: Path) -> Place:
    return Place(lambda: ParquetTarget(root / "legs"), lambda: shown(root / "legs"))


def postgres_table(where: str, root: Path) -> Place:
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS legs")
        connection.execute("DROP TABLE IF EXISTS statebackend_mirrors")

    def rows() -> dict[str, Any]:
        with psycopg.connect(where) as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            found = cursor.execute("SELECT * FROM legs").fetchall()
        ours = ("key", "key_group", "checkpoint_id", "batch_id", "committed_at")
        return {str(row["key"]): {name: row[name] for name in row if name not in ours} for row in found}

    return Place(lambda: PostgresTarget(where, "legs"), rows)


PLACES: Final[dict[str, Callable[[str, Path], Place]]] = {
    "folder": folder,
    "postgres": postgres_table,
}


class Killed(MirrorTarget):
    """A target that does nothing any more from its `nth` call on, before or after that has had its effect."""

    def __init__(self, target: MirrorTarget, nth: int, *, after: bool) -> None:
        self._target = target
        self._left = nth
        self._after = after
        self.forms, self.partitions = target.forms, target.partitions

    @property
    def place(self) -> str:
        return self._target.place

    def opened(self, settings: Settings) -> AbstractAsyncContextManager[None]:
        return self._target.opened(settings)

    async def find(self) -> MirrorMark:
        self._strike(after=False)
        found = await self._target.find()
        self._strike(after=True)
        return found

    async def fit(self, table: MirrorTable) -> None:
        self._strike(after=False)
        await self._target.fit(table)
        self._strike(after=True)

    async def write(self, rows: MirrorRows) -> None:
        self._strike(after=False)
        await self._target.write(rows)
        self._strike(after=True)

    def _strike(self, *, after: bool) -> None:
        if not after:
            self._left -= 1
        if self._left < 0 or (self._left == 0 and after == self._after):
            raise KilledError


class KilledError(Exception):
    """The process is no more."""
