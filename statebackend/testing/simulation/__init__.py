"""The whole backend, simulated: lives of one job on a virtual clock, over stores in bad weather, judged at every step.

    simulate(1234)                                               one seed; raises `BrokenError` where anything is wrong
    python -m statebackend.testing.simulation --seeds 10000      many
    STATEBACKEND_SEED=1234 nox -s simulation                     one again, with its trace

A seed decides a run: the settings, the weather, what each life writes, when it is cancelled, by a scope or by
`task.cancel()`, when it crashes, which lives go on as zombies while the next ones work. Half of the seeds have
savepoints as well, sweeps beside the lives, and nights after which a sweep finds everything old.

The model is a dictionary for each attempt at a checkpoint; the truth is what lies in the primary. The invariants are
checked at every write that arrives there, at every answer that a life gets, and at the end, when the weather clears up
and one more life has to open, commit and leave.

anyio cancels tasks in the order of a set, by address. Nothing is drawn in an order that depends on it: what befalls a
request is drawn from its name. Only the lines of a trace that belong to one instant may change places from run to run;
sorted, the trace of a seed is always the same.
"""

from statebackend.testing.simulation.life import Sabotage
from statebackend.testing.simulation.world import BrokenError, Run, simulate

__all__ = ["BrokenError", "Run", "Sabotage", "simulate"]
