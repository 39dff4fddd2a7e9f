"""The first state of a job, from rows that lie elsewhere: larger than memory, and in one commit.

rows -> encoded, in the order of their key groups, in runs -> bases, group by group, from all runs -> one commit
"""
