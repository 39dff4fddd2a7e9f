"""The record of what happened, batch by batch and recovery by recovery, and of what went wrong."""

from dataclasses import dataclass, field

import statebackend as sb
from benchmarks.demo.acts import Act, Damage
from benchmarks.demo.events import Begun, Committed, Event, Ready, Restored
from benchmarks.demo.places import Places


class DemoError(Exception):
    """The demo cannot continue."""


@dataclass
class Recovery:
    """The recovery of the process after one act. Seconds count from its start."""

    act: Act
    killed_at: int
    damage: Damage
    spark_had_committed: bool
    spark_seconds: float = 0.0
    report: sb.RestoreReport | None = None
    first_batch: int | None = None


@dataclass
class Story:
    """All batches and recoveries so far. `failures` are sentences; without any, the demo has succeeded."""

    days: int
    batches: dict[int, Committed] = field(default_factory=dict[int, Committed])
    recoveries: list[Recovery] = field(default_factory=list[Recovery])
    failures: list[str] = field(default_factory=list[str])

    def note(self, event: Event) -> None:
        """Record what the process reports, and check that no batch is applied twice."""
        recovery = self.recoveries[-1] if self.recoveries else None
        # On executors no process reports that a batch has begun.
        if recovery and recovery.first_batch is None and isinstance(event, (Begun, Committed)):
            recovery.first_batch = event.batch
        match event:
            case Begun(batch=batch):
                if batch in self.batches:
                    self.failures.append(f"batch {batch} was given to the user's function after its commit")
            case Committed(batch=batch):
                if batch in self.batches:
                    self.failures.append(f"batch {batch} was committed twice")
                self.batches[batch] = event
            case Ready(seconds=seconds):
                if recovery:
                    recovery.spark_seconds = seconds
            case Restored(report=report):
                if recovery:
                    recovery.report = report
            case _:
                pass

    def judge_recovery(self, places: Places) -> None:
        """Check the newest recovery against what its act expects."""
        if not self.recoveries:
            return
        recovery = self.recoveries[-1]
        if recovery.report is None:
            unmet = ["no restore was reported"]
        else:
            unmet = recovery.act.expect(recovery.report, recovery.damage, places)
        self.failures.extend(f"{recovery.act.title}: {sentence}" for sentence in unmet)
