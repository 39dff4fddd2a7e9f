"""A simulation of the whole backend: processes work on one job on a virtual clock, over unreliable stores.

    simulate(1234)                                               one seed; raises `BrokenError` if an invariant breaks
    python -m statebackend.testing.simulation --seeds 10000      many seeds
    STATEBACKEND_SEED=1234 nox -s simulation                     one seed again, with its trace

A process that works on the job is called a life. The seed decides a run: the settings, how the stores behave (the
weather), what each life writes, when it is cancelled, by a scope or by `task.cancel()`, when it crashes, and which
lives continue as zombies while the next ones work. Half of the seeds also have savepoints, sweeps beside the lives, and
nights after which a sweep finds everything old; savepoints are made of the next commit, of the newest behind it, and of
older ones from outside, and lives start from them. In one of eight the job is opened again for each batch; in one of
three its newest commit may be damaged or lost between two lives, while a host's disk has a good copy. In half of the
seeds the job is read beside all that, by readers quick and slow; in one of three its change feed is followed.

Two thirds of the jobs have a clock, by the times of their rows or by that of their batches, with late rows, timers and
values that expire. Some lives work in ranges, as Spark's executors do, and are woken by the timers of idle ranges.

The model is a dictionary for each attempt at a checkpoint; the truth is what the primary holds. The invariants are
checked at every write that reaches the primary, at every answer that a life gets, and at the end, when the weather
clears up and one more life has to open, commit and leave.

anyio cancels tasks in the order of a set, that is by address. So nothing is drawn in an order that depends on it: the
fate of a request is drawn from its name. Only the lines of a trace at the same instant may change places from run to
run; sorted, the trace of a seed is always the same.
"""

from statebackend.testing.simulation.judged import Sabotage
from statebackend.testing.simulation.world import BrokenError, Run, simulate

__all__ = ["BrokenError", "Run", "Sabotage", "simulate"]
