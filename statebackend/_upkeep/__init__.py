"""What is done to a job from outside, without opening it: look, read, verify, sweep, rewrite, mind its savepoints.

`jobs` has a function for each. Like `_backend/` it puts the rooms together; unlike there, nothing lives on afterwards.
"""
