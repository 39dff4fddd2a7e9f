"""What user code touches: the kinds of state, and what they stand on.

`value_state` is a kind of state, `keyed` holds the declared states of one backend and speaks to the changelog in
changes. Where their entries lie is the matter of `_tables/`.
"""
