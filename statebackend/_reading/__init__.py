"""Reads the state of a job from outside, as columns: beside a running stream, without its classes, in bounded memory.

Nothing is written and nobody is fenced. Arrow is imported only where rows are read: it is an extra.
"""
