"""A process that keeps committing batches until somebody kills it, possibly it itself.

    python -m tests.backend.killed_child DIRECTORY [NTH MOMENT]

Prints the number of each batch once its checkpoint was acknowledged. With NTH it sends itself SIGKILL at the NTH
request to the primary, those of opening among them, before or after the request took effect.
"""

import asyncio
import os
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import statebackend as sb
from statebackend.objectstore import LocalStore
from statebackend.testing import Fault, FaultyStore

Changes = list[tuple[int, int | None]]


def settings_in(directory: Path) -> sb.Settings:
    return sb.Settings(
        job="killed",
        primary=f"file://{directory}/primary",
        local=(f"{directory}/local0", f"{directory}/local1"),
        persist_delay_s=0.001,
        preemptive_persist_threshold_bytes=2_000,
        secondary_grace_s=60.0,  # a slow machine must not cost the local copy that the test counts on
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


@dataclass(kw_only=True, eq=False)
class Suicide(Fault):
    """SIGKILL for this process."""

    async def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


async def run(directory: Path, fault: Suicide | None) -> None:
    store = FaultyStore(LocalStore(directory / "primary"), [fault] if fault is not None else [])
    async with sb.open_backend(settings_in(directory), store=store) as backend:
        state = backend.value_state("n", int)
        newest = backend.newest.source if backend.newest is not None else None
        batch = 0 if newest is None else newest.batch_id + 1
        while True:
            apply(state, batch_changes(batch))
            await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("q", batch))
            print(batch, flush=True)
            batch += 1


if __name__ == "__main__":
    nth_and_moment: Any = sys.argv[2:]
    asyncio.run(
        run(
            Path(sys.argv[1]),
            Suicide(nth=int(nth_and_moment[0]), moment=nth_and_moment[1]) if nth_and_moment else None,
        )
    )
