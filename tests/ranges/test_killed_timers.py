"""Processes are killed while timers are due in ranges that have no rows: each timer fires once, in its own commit.

STATEBACKEND_RANGE_BATCHES makes it longer.
"""

import random
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._ranges.equal_ranges import ranges_with_due_timers
from statebackend.ids import ClockMark
from tests.ranges.parts import TIMERS_S, Changes, Model, open_run
from tests.ranges.test_killed import BATCHES, contributed, workers_of


class Timers:
    """Every timer that is set, and those that fired, by key and in order. A batch takes a second of the clock."""

    def __init__(self) -> None:
        self.waiting: dict[sb.Key, set[float]] = {}
        self.fired: dict[sb.Key, list[float]] = {}

    def apply(self, changes: Changes, now_s: float) -> None:
        for key, number in changes:
            self.waiting.setdefault(key, set()).add(now_s + number % TIMERS_S)
        for key, times in self.waiting.items():
            self.fired.setdefault(key, []).extend(sorted(at for at in times if at <= now_s))
            times.difference_update(self.fired[key])

    async def check(self, settings: sb.Settings, now_s: float) -> None:
        """A backend of the whole job has just these, and its clock stands at the newest batch."""
        async with sb.open_backend(settings, read_only=True) as backend:
            assert backend.clock_s == now_s
            idle, fired = backend.timers("idle", "processing"), backend.list_state("fired", float)
            assert {key: set(idle.registered(key)) for key in idle} == {
                key: at for key, at in self.waiting.items() if at
            }
            assert {key: list(fired[key]) for key in fired} == {key: at for key, at in self.fired.items() if at}
            assert not backend.has_due_timers


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
async def test_timers_of_idle_ranges_fire_once_whoever_is_killed(tmp_path: Path, table: Any) -> None:
    """Most batches have rows for none of the ranges or for one; the others are woken by what the commit says."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    chance, model, timers = random.Random(f"timers {table} {BATCHES}"), Model(), Timers()
    settings = sb.Settings(
        job="fleet",
        primary=f"file://{tmp_path}/primary",
        max_parallelism=12,
        table=table,
        table_memory_bytes=4 << 20,
        materialize_handles_max=5,
        materialize_interval_s=0.0,
    )
    number, woken = 0, 0
    with workers_of(tmp_path) as workers:
        for parts in (3, 4, 2):
            async with open_run(settings, parts) as run:
                for _ in range(BATCHES // 3):
                    changes = [
                        (chance.randrange(50), chance.randrange(100)) for _ in range(chance.choice([0, 0, 1, 3]))
                    ]
                    clock = ClockMark(float(number), "processing")
                    due = ranges_with_due_timers(run.coordinator.base, run.owners, clock)
                    idle = [task for task in run.tasks(clock) if not run.changes_of(task, changes)]
                    tasks = [task for task in run.tasks(clock) if task not in idle or task.key_groups in due]
                    woken += sum(task in idle for task in tasks)
                    await run.commit(
                        [await contributed(run, workers, task, changes, chance) for task in tasks], clock=clock
                    )
                    model.apply(changes)
                    timers.apply(changes, float(number))
                    number += 1
            await model.check(settings)
            await timers.check(settings, float(number - 1))
    assert woken
    assert any(timers.fired.values())
