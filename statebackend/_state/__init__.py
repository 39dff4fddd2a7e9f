"""What user code touches: the kinds of state, and what they stand on.

`key_groups` places keys, `heap` holds one state's entries, `value_state` is a kind of state, `keyed` holds the
declared states of one backend and speaks to the changelog in changes.
"""
