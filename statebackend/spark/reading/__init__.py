"""Data sources for Spark: the state of a job, its change feed, and its commits, beside the running job.

`registration.py` makes them known to a session. `read_options.py` checks what a query asks for, `spark_columns.py` has
the columns that Spark's own state reader gives, `data_source.py` has the two sources, `state_reader.py` and
`feed_readers.py` what they read with, and `positions.py` finds the commits.
"""
