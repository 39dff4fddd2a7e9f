"""Processors: what users write to process the rows of a batch, and what runs it on a backend. Without Spark.

`processor.py` is the class that they write, `runner.py` calls it, `grouping.py` sorts rows by key for it. The calls of
an asynchronous `process` are run by `concurrently.py`; `calls.py` and `own_state.py` give each of them its own state,
`generators.py` notices what they leave half way.
"""
