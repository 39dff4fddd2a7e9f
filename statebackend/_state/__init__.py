"""The kinds of state that user code reads and writes.

One module per kind, such as `value_state`; `declared` holds the declared states of one backend and exchanges changes
with the changelog. Where the entries lie is decided in `_tables/`.
"""
