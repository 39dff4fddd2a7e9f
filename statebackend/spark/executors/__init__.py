"""`execution="executors"`: a batch is one Spark job, with one task for each range of key groups that has rows.

`batch_job.py` runs that job in the driver, `claimed_job.py` commits what its tasks contribute. `placement.py` says
which rows go to which task. `worker.py` is the task, in a Python process of an executor. `pickling.py` turns what is
sent there into bytes, `task_errors.py` brings back why a task failed.
"""
