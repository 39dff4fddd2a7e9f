"""Columnar state that outgrows memory: sorted runs in files, looked up where they lie, and an overlay in memory.

A run is a base's segment whose rows lie in pages (`_codec/change_sets/paged_changes.py`).
"""
