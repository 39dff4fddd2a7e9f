"""The local copy on this host: whose its directories are, where a segment's copy lies, how many bytes that may be, and
which checkpoint it belongs to.

Everything here may be lost at any moment: the primary is complete without it.
"""
