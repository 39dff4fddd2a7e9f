"""The command line: look at a job, read, verify, sweep and rewrite it, without opening it. Each command is a function.

    statebackend inspect        sb.inspect          the log, its branches and savepoints, the states, what lies where
    statebackend report         sb.report           one page: the newest checkpoint, garbage, what a month of PUTs costs
    statebackend dump           sb.read_rows        a checkpoint's state in plain values, a line of JSON for each key
    statebackend get STATE KEY  sb.read_rows        the value of one key
    statebackend scan STATE     sb.read_batches     the keys of a state, by prefix, with their values or without
    statebackend export STATE   sb.export           a state as Parquet, CSV or lines of JSON
    statebackend diff A B       sb.diff             keys that were added, changed and removed between two checkpoints
    statebackend log STATE KEY  sb.history_of       each kept commit that changed a key, newest first
    statebackend watch          sb.watch            a line for each checkpoint as it is made
    statebackend mirror STATE TARGET    sb.mirror_once, sb.keep_mirrored    keep a table elsewhere at the newest commit
    statebackend verify         sb.verify           read every byte that a retained checkpoint needs, in both copies
    statebackend repair         sb.repair           put what is damaged in the primary back from local copies
    statebackend sweep          sb.sweep            find what the job no longer needs; delete it with --delete
    statebackend rewrite        sb.rewrite          commit the state again with another max_parallelism; fences writers
    statebackend seed           sb.seed             make the job's first state of files of Parquet
    statebackend import-spark   sb.spark.import_checkpoint      make it of the state in a checkpoint of Spark's
    statebackend clone          sb.clone            make a new job of another job's checkpoint, here or in another cloud
    statebackend transform STATE MODULE:FUNCTION   sb.transform     change a state key by key; fences writers
    statebackend erase KEY...   sb.erase            delete keys for good; --verify proves it (sb.verify_erased)
    statebackend savepoint NAME sb.savepoint        keep a checkpoint under a name
    statebackend savepoints     sb.savepoints       list the savepoints
    statebackend drop NAME      sb.drop_savepoint   drop one

`restore` is the old name of `dump`.

Exit status: 0 success; 1 get found no value, verify found damage, erase --verify found a key, sweep could not delete
something or stopped, a dry run of transform found equal keys, or rewrite, seed, clone, transform or erase was fenced or
does not know its outcome; 2 the call is wrong, or there is no such job; 3 the store does not answer or refuses; 4 what
is stored cannot be understood; 130 interrupted.
"""

from statebackend.cli.commands import DAMAGE, INTERRUPTED, NO_STORE, NOT_UNDERSTOOD, OK, WRONG_CALL, main

__all__ = ["DAMAGE", "INTERRUPTED", "NOT_UNDERSTOOD", "NO_STORE", "OK", "WRONG_CALL", "main"]
