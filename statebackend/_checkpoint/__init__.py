"""What makes a set of handles a checkpoint, and a checkpoint a backend again.

`backend` is what users hold, `snapshots` is what one owner contributes to a checkpoint, `restore` brings state back
from a commit, local copy first.
"""
