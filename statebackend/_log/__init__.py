"""The log of a job in its primary: its commits and claims, and everything that lives and dies by them.

`names` makes and parses the names of objects; `fresh_names` draws their random part. `reader` reads the log, `writer`
appends to it, `coordinator` builds the next commit. `savepoints` keeps a commit under a name, `outbox` holds the output
that a commit names. `sweeping` takes stock of a job, decides what of it is needed, and deletes the rest.
"""
