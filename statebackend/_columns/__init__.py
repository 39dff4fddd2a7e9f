"""Keyed state in columns: numpy arrays, and a hash index from keys to rows. Arrow goes in and comes out.

`table` is the whole. `xxh64` hashes keys, `index` finds their rows, `keys` and `growable` hold what the rows have,
`schema` says what columns there may be, `arrow` is the way from Arrow arrays to numpy's and back.
"""
