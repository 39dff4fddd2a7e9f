"""From a change in memory to a durable handle, and back.

`ledger` and `ownership` decide (pure), `writer` and `scheduler` carry out, `limiter` holds back callers while too much
is in flight, `reader` turns handles into changes again.
"""
