"""The command line: look at a job, verify it, sweep it, without opening it; and give it other key groups.

    statebackend inspect    the log, its branches and savepoints, the states, and how much lies where
    statebackend report     one page: the newest checkpoint, its bytes by kind and range, garbage, what a month costs
    statebackend restore    a checkpoint's state in plain values, a line of JSON for each key
    statebackend verify     reads every byte that a retained checkpoint needs, in both copies
    statebackend sweep      what nobody needs any more, and why; with --delete it goes
    statebackend rewrite    commits the state anew with another max_parallelism; whoever has the job open is fenced
    statebackend savepoints, statebackend drop NAME

Exit status: 0 all is well; 1 verify has found damage, sweep could not delete something, or a rewrite was fenced or does
not know whether it has committed; 2 the call is wrong, or there is no such job; 3 the store does not answer or
refuses; 4 what is stored cannot be understood; 130 interrupted.
"""

from statebackend.cli.commands import DAMAGE, INTERRUPTED, NO_STORE, NOT_UNDERSTOOD, OK, WRONG_CALL, main

__all__ = ["DAMAGE", "INTERRUPTED", "NOT_UNDERSTOOD", "NO_STORE", "OK", "WRONG_CALL", "main"]
