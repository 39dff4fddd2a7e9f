"""The kinds of state that user code reads and writes.

`kinds` has a module for each, `columnar` the one in columns; `declared` holds the declared states of one backend and
exchanges changes with the changelog. Where the entries lie is decided in `_tables/`.
"""
