"""The local copies on this host: who may write to a directory, where a copy lies, how many bytes there may be, and
which checkpoint a copy belongs to.

All of it may be lost at any moment: the primary is complete without it. `registry.py` says which copies are stale.
"""
