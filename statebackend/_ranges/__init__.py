"""Owners of ranges of key groups, in processes that come and go.

Begin with `owners`: it opens what a process needs, and its attempts. `attempt` is one attempt at a range,
`contribution` what it sends to the process that commits. Between two attempts the state of a range is
`cached_in_process` or `cached_on_host`.
"""
