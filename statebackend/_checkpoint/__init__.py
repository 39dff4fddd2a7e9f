"""What makes a set of handles a checkpoint, and a checkpoint a backend again.

`commits` is the log of commit objects in the primary, `coordinator` builds the next one, `restore` brings state back
from a commit, local copy first.
"""
