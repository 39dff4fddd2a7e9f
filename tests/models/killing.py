"""Starts `killed_child` again and again, kills it, damages what it left on the local disks, and judges what it says."""

import multiprocessing
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import statebackend as sb
from tests.models import killed_child
from tests.models.crew import MAX_PARALLELISM, Plan
from tests.models.invariants import assert_every_byte_is_there, assert_survives_kills
from tests.models.killed_child import Death, Said, settings_in
from tests.models.places import HOSTS, Damage, OnDisk
from tests.runs.heavy_rows import NEARLY, OUTGROWN

Moment = Literal["before", "after"]

PATIENCE_S = 120.0
"""A process that says nothing for so long hangs."""

PRELOADED = "tests.models.killed_child"


@dataclass(frozen=True)
class Life:
    """How it is opened, what has happened to the local copies before, and how it ends."""

    plan: Plan
    damage: Damage | Literal["lose all"] | None
    death: Death
    words: int
    """Where it does not die by itself, it is killed when it has said so many things."""


def draw_life(chance: Random, tables: Sequence[str]) -> Life:
    """In half of the lives the local copies are damaged or gone."""
    owners = chance.choice((1, 1, 2, 3, 5))
    settings = {
        "table": chance.choice(tables),
        "table_memory_bytes": 4 << 20,
        "compression": chance.choice(("none", "lz4", "snappy", "zstd")),
        "inline_bytes_max": chance.choice((0, 64 << 10)),
        "preemptive_persist_threshold_bytes": chance.choice((400, 5 << 20)),
        "materialize_handles_max": chance.choice((0, 2)),
        "materialize_fan_in": chance.choice((0, 2)),
    }
    settings["materialize_changelog_ratio"] = 100.0 if settings["table"] == "runs" else 1.0  # layers, not bases
    settings["state_memory_bytes"] = chance.choice((0, OUTGROWN, NEARLY)) if settings["table"] == "heap" else 0
    plan = Plan(
        cuts=frozenset(chance.sample(range(1, MAX_PARALLELISM), owners - 1)),
        coordinated=chance.choice((False, True)),
        first_host=chance.choice((0, 0, 0, 1, None)),
        settings=tuple(settings.items()),
    )
    damage = chance.choice((None, None, None, None, "lose all", "lose", "cut", "flip"))
    return Life(plan, damage, draw_death(chance), chance.randint(1, 12))


def draw_death(chance: Random) -> Death:
    """From outside; or at a request: any, of which most are a restore's, or one that writes."""
    moment: Moment = chance.choice(("before", "after"))
    return chance.choice(
        (
            Death(None),
            Death(chance.randint(1, 40), None, moment),
            Death(chance.randint(1, 12), "put", moment),
            Death(chance.randint(1, 8), "put_if_absent", moment),
        )
    )


class Killing:
    """One job in `directory`, killed again and again. `seed` decides all that is not left to the scheduler."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        tables: Sequence[str] = ("heap", "heap", "rocksdb", "runs"),
        *,
        preload: Sequence[str] = (),
    ) -> None:
        """`preload`: modules that the processes import before anything else."""
        self.counted = Counter[str]()
        """What it came to."""
        self._directory = directory
        self._places = OnDisk(root=directory)
        self._chance = Random(seed)
        self._tables = tables
        self._acknowledged = -1
        self._begun = -1
        self._processes = multiprocessing.get_context("forkserver")  # so that each start costs no imports
        self._processes.set_forkserver_preload([*preload, PRELOADED])

    def run(self, lives: int) -> None:
        """So many lives. Raises `AssertionError` where one finds what should not be."""
        drawn = [draw_life(self._chance, self._tables) for _ in range(lives)]  # first: what there is to damage varies
        for life in drawn:
            self._damage(life.damage)
            self._live(life)

    async def check_whole(self) -> None:
        """When nobody works on it, and all of it is old: swept, every byte that is needed is there."""
        settings = settings_in(self._directory)
        await self._places.pass_night()
        report = await sb.sweep(settings, dry_run=False, min_age_s=0.0)
        assert_every_byte_is_there((await sb.verify(settings)).damages, report.failures, report.stopped)

    def _live(self, life: Life) -> None:
        mine, its = self._processes.Pipe(duplex=False)
        process = self._processes.Process(target=killed_child.main, args=(self._directory, life.plan, life.death, its))
        process.start()
        its.close()
        words = 0
        with suppress(EOFError):
            while True:
                assert mine.poll(PATIENCE_S), f"it hangs: {life}"
                said: Said = mine.recv()
                words += 1
                self._judge(said, life)
                if life.death.nth is None and words == life.words:
                    process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"it ended by itself: {life}"
        self.counted["kills"] += 1
        self.counted["before it was open"] += words == 0

    def _judge(self, said: Said, life: Life) -> None:
        if said.what in ("opened", "wrong"):
            assert_survives_kills(
                said.batch, acknowledged=self._acknowledged, begun=self._begun, is_equal=said.what == "opened"
            )
            self.counted["in doubt, and committed"] += said.batch > self._acknowledged
            self.counted.update(said.details)
            self._acknowledged = said.batch
            self.counted[f"opened with {dict(life.plan.settings)['table']}"] += 1
            self.counted["opened by several"] += len(life.plan.ranges) > 1
            self.counted["opened after damage"] += life.damage is not None
        elif said.what == "begun":
            self._begun = said.batch
        else:
            self._acknowledged = said.batch
            self.counted["acknowledged"] += 1

    def _damage(self, damage: Damage | Literal["lose all"] | None) -> None:
        """Of all of them, or of some."""
        for host in range(HOSTS) if damage is not None else ():
            for name in self._places.objects(host):
                if damage == "lose all":
                    self._places.write(host, name, None)
                elif damage is not None and self._chance.random() < 0.3:
                    self._places.damage(host, name, damage, self._chance.randrange(2**16))
