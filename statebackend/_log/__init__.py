"""The log of a job in its primary: its commits and claims, and everything that lives and dies by them.

`names` makes and reads the names of objects, `commits` is the log itself, `coordinator` appends the next commit to it.
`savepoints` keep a commit, the `outbox` is the output that a commit names. `inventory` looks at all of a job,
`retention` decides what of that is needed, `sweep` and `local_sweep` delete the rest.
"""
