"""Makes checkpoints of states, and states of checkpoints.

`backend` is what users hold, `snapshots` makes one owner's contribution to a checkpoint, `materialization` writes bases
in the background, `restore` brings state back from a commit, local copy first.
"""
