"""The life of a process that keeps committing batches until somebody kills it, possibly it itself."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import statebackend as sb
from statebackend.objectstore import LocalStore
from statebackend.testing import Fault, FaultyStore
from tests.mortals import Report

Changes = list[tuple[int, int | None]]

WAYS: Final[dict[str, dict[str, Any]]] = {
    "inline": {},
    "segments": {"inline_bytes_max": 0},
    "both": {"preemptive_persist_threshold_bytes": 2_000},
    "bases": {"materialize_handles_max": 1, "materialize_retry_delay_s": 0.0},  # and nothing else lies in segments
    "merged": {"materialize_handles_max": 0, "materialize_fan_in": 2},
    "short": {"materialize_handles_max": 2, "materialize_retry_delay_s": 0.0},
    "columns": {"materialize_handles_max": 1, "materialize_retry_delay_s": 0.0},  # the same for a columnar state
    "native": {
        "materialize_handles_max": 1,
        "materialize_retry_delay_s": 0.0,
        "table": "rocksdb",
        "table_memory_bytes": 4 << 20,
    },
}
"""How changes travel to the primary, and the settings that make them."""


def settings_in(directory: Path, way: str) -> sb.Settings:
    return sb.Settings(
        job="killed",
        primary=f"file://{directory}/primary",
        local=(f"{directory}/local0", f"{directory}/local1"),
        persist_delay_s=0.001,
        secondary_grace_s=60.0,  # a slow machine must not cost the local copy that the test counts on
        **WAYS[way],
    )


def batch_changes(batch: int) -> Changes:
    """What batch number `batch` does to the state: the same in every process."""
    chance = random.Random(batch)
    changes = [(chance.randrange(300), chance.randrange(10**9)) for _ in range(chance.randrange(120))]
    return [(key, value if chance.random() < 0.8 else None) for key, value in changes]


def apply(state: Any, changes: Changes) -> None:
    """Apply one batch to a mapping."""
    for key, value in changes:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value + state.get(key, 0)  # not idempotent: a batch applied twice shows


class InColumns(MutableMapping[sb.Key, int]):
    """The numbers of a columnar state of one column, as a mapping that `apply` can write to."""

    def __init__(self, backend: sb.StateBackend) -> None:
        self._rows = backend.columnar_state("columns", pa.schema({"n": pa.int64()}), key=pa.int64())

    def __getitem__(self, key: sb.Key) -> int:
        return int(self._rows[key]["n"])

    def __setitem__(self, key: sb.Key, value: int) -> None:
        self._rows[key] = {"n": value}

    def __delitem__(self, key: sb.Key) -> None:
        del self._rows[key]

    def __iter__(self) -> Iterator[sb.Key]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def state_of(backend: sb.StateBackend, way: str) -> MutableMapping[sb.Key, int]:
    """The state that the batches are applied to."""
    return InColumns(backend) if way == "columns" else backend.value_state("n", int)


@dataclass(kw_only=True, eq=False)
class Suicide(Fault):
    """SIGKILL for this process."""

    async def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def live(report: Report, directory: Path, way: str, **death: Any) -> None:
    """Report the number of each batch once its checkpoint was acknowledged. `way` says how changes travel.

    With `nth` it sends itself SIGKILL at the nth request to the primary, those of opening among them, before or after
    the request took effect, which is the `moment`; with `key` only those count whose key matches it.
    """
    asyncio.run(_commit(report, directory, way, Suicide(**death) if death else None))


async def _commit(report: Report, directory: Path, way: str, fault: Suicide | None) -> None:
    store = FaultyStore(LocalStore(directory / "primary"), [fault] if fault is not None else [])
    async with sb.open_backend(settings_in(directory, way), store=store) as backend:
        state = state_of(backend, way)
        newest = backend.newest.source if backend.newest is not None else None
        batch = 0 if newest is None else newest.batch_id + 1
        while True:
            apply(state, batch_changes(batch))
            await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("q", batch))
            report(batch)
            batch += 1
