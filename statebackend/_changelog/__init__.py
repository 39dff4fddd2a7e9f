"""Makes durable handles of changes in memory, and changes of handles.

`ledger` and `ownership` decide (pure), `writer` and `scheduler` carry out, `limiter` holds back callers while too much
is in flight, `reader` turns handles into changes again.
"""
