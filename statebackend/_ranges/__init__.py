"""Owners of ranges of key groups, in processes that come and go.

`owners` is where to begin: it opens what a process needs, and its attempts. `attempt` is one of them, `contribution`
what it sends to the process that commits. State is cached between two attempts `in_memory` or `on_disk`.
"""
