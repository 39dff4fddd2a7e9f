"""Keyed state in columns: numpy arrays, and a hash index from keys to rows. Arrow goes in and comes out.

`table` is the whole. `key_rows` gives each key its row: `index` finds it, `keys` holds the keys; `growable` holds the
columns. `schema` says what columns there may be, `arrow` is the way from Arrow arrays to numpy's and back. `batch` is
what a batch of rows does to them.
"""
