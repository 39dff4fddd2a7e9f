"""Follows a job: holds its newest committed state in memory, answers reads from it, and can take the job over.

    log -> the entries behind the one that was read last -> the change sets that they add -> applied piece by piece

A follower writes nothing and fences nobody, until it is promoted: then it is a backend.
"""
