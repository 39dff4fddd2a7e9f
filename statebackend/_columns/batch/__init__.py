"""A batch of Arrow columns on its way into columnar state.

`user_keys` checks its keys and `grouping` numbers them. `merging` plans and runs a merge; `aggregates` and `sketches`
calculate, on the numbers of `vectors`.
"""
