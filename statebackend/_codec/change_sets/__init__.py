"""Changes of one state in columns, and sets of them.

`changes` says what they all have, `keyed_changes` and `column_changes` are the two kinds, `parts` has the bytes of
both, `records` changes one by one.
"""
