"""Rows of a state: what is newest of each key, and how it is laid out in columns."""
