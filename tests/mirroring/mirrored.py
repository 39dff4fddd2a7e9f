"""A job to mirror, and what its table shows: read by DuckDB, and never by what wrote it."""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import msgspec

import statebackend as sb
from statebackend._mirroring.keeping_up import mirror_once
from statebackend._mirroring.mirror_report import MirrorReport
from statebackend._mirroring.mirrors import Mirror
from statebackend._mirroring.target import newest_view
from statebackend.objectstore import MemoryStore
from tests.knobs import replaced, settings_with
from tests.log.swept import HandClock
from tests.mirroring.listed import MIRRORED, value_of

SETTINGS = settings_with(job="fleet", primary="memory://unused", max_parallelism=8, checkpoints_retained=3)


class Leg(msgspec.Struct):
    origin: str
    miles: int


EWR, JFK, LGA = Leg("EWR", 1), Leg("JFK", 2), Leg("LGA", 3)


class Job:
    """A job in a store of its own, which commits what it is told to."""

    def __init__(self, store: sb.ObjectStore | None = None, **settings: Any) -> None:
        self.clock = HandClock()
        self.store = store or MemoryStore(clock=self.clock)
        self.settings = replaced(SETTINGS, **settings)
        self.next_id = 1

    async def commit(self, legs: Mapping[Any, Any], *, state: str = "legs", type_: Any = Leg, **opening: Any) -> None:
        """One commit, in an opening of its own, of values that are put, or dropped where they are `None`."""

        def write(backend: sb.StateBackend) -> None:
            found = backend.value_state(state, type_)
            for key, leg in legs.items():
                if leg is None:
                    found.pop(key, None)
                else:
                    found[key] = leg

        await self.work(write, **opening)

    async def work(self, *writes: Callable[[sb.StateBackend], object], **opening: Any) -> None:
        """A commit for each function, all in one opening."""
        async with sb.open_backend(self.settings, store=self.store, clock=self.clock, **opening) as backend:
            for write in writes:
                write(backend)
                self.clock.now_s += 1.0
                await backend.checkpoint(self.next_id, source=sb.SourceMark("query", self.next_id))
                self.next_id += 1

    async def mirror(self, target: Any, *, state: str = "legs", **options: Any) -> MirrorReport:
        """Bring a table to the newest commit."""
        given = {name: options.pop(name) for name in ("anew", "observer", "store") if name in options}
        return await mirror_once(
            self.settings,
            Mirror(state, to=target, **options),
            store=given.pop("store", self.store),
            clock=self.clock,
            **given,
        )

    async def state(self, state: str = "legs", **options: Any) -> dict[str, Any]:
        """The state, as any reader has it."""
        async with sb.read_batches(self.settings, state, store=self.store, **options) as batches:
            return {_key(row): value_of(row) async for batch in batches for row in batch.to_pylist()}


def shown(folder: Path, *, unique: bool = True) -> dict[str, Any]:
    """What the view of a log in that folder shows. `unique`: no row of the log may be there twice."""
    files = f"read_parquet('{folder}/*.parquet', union_by_name=true)"
    columns = [each[0] for each in duckdb.sql(f"DESCRIBE SELECT * FROM {files}").fetchall()]
    found = shown_rows(duckdb.sql(newest_view(columns, files)))
    if unique:
        all_rows = duckdb.sql(f"SELECT generation, op, checkpoint_id, key::VARCHAR FROM {files}").fetchall()
        assert max(Counter(all_rows).values()) == 1, "the log has a row twice"
    return found


def shown_rows(relation: Any) -> dict[str, Any]:
    """The rows, by their keys, without the columns of the mirror."""
    rows = relation.to_arrow_table().to_pylist()
    found = {_key(row): value_of(row, MIRRORED) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def ops(folder: Path) -> list[tuple[Any, ...]]:
    """All rows of the log: op, checkpoint and key."""
    query = (
        f"SELECT op, checkpoint_id, key::VARCHAR FROM read_parquet('{folder}/*.parquet', union_by_name=true)"
        " ORDER BY generation, checkpoint_id, op, key"
    )
    return duckdb.sql(query).fetchall()


async def laid_out(store: sb.ObjectStore) -> Path:
    """The objects of a store, as files."""
    folder = Path(tempfile.mkdtemp())
    async for info in store.list(""):
        (folder / info.key).write_bytes(await store.get(info.key))
    return folder


async def copied(store: sb.ObjectStore) -> MemoryStore:
    """Another store with the same objects."""
    found = MemoryStore()
    for key in [info.key async for info in store.list("")]:
        await found.put(key, [await store.get(key)])
    return found


def _key(row: Mapping[str, Any]) -> str:
    return str(row["key"])
