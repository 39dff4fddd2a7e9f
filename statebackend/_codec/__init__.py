"""Every byte that reaches storage is encoded and decoded here. Pure: no I/O, no clock, no event loop.

`change_sets` has changes in columns and sets of them. `frame` is a change set as it is stored, `segment` a file of
frames, `commit` the entries of the log, `local_snapshot` a host's record of a checkpoint, `staged` output rows.
`serializers` has values, `cells` a value with its version and time, `schema` the types of values, `compression` the
codecs. `columns` has what numpy arrays of strings need, `xxh64` their hashes.
"""
